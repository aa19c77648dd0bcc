"""Frames: flat tables with a row for every case, position and request."""

from collections.abc import Callable
from dataclasses import replace

import pandas
import pytest
import samples

from kvfence.reports import frame
from kvfence.reports.records import Record, Run

RUN = samples.as_run(samples.violating())


def flat(table: pandas.DataFrame) -> bool:
    return not table.map(lambda value: isinstance(value, list | tuple | dict)).to_numpy().any()


def test_cases() -> None:
    table = frame.cases(RUN)
    assert flat(table)
    assert len(table) == len(RUN.cases)
    assert dict(table["outcome"].value_counts()) == {"conforms": 21, "violates": 2, "inconclusive": 1}
    assert table["findings"].sum() == 3
    assert table["requests"].max() == 3
    assert set(table["engine"]) == {"vllm"}
    assert set(table["seed"]) == {7}


def test_cached_tokens_that_were_not_told_are_missing() -> None:
    table = frame.cases(samples.as_run([samples.header(), samples.case(cached_tokens=None), samples.case("serial")]))
    assert table.set_index("mode")["cached_tokens"].isna().to_dict() == {"shared": True, "serial": False}
    assert str(table["cached_tokens"].dtype) == "Int64"


def test_positions() -> None:
    table = frame.positions(RUN)
    assert flat(table)
    assert len(table) == 3 * samples.STEPS
    stolen = table[table["owner"].notna()]
    assert len(stolen) == 9
    assert stolen["changed"].all()
    assert set(stolen["owner"]) == {"B0"}
    first = table[(table["victim"] == "A0") & table["changed"]].iloc[0]
    assert first["step"] == 6
    assert first["margin"] == 19.4
    assert first["margin"] > first["epsilon"]
    assert first["logprob_difference"] == pytest.approx(abs(first["logprob"] - first["golden_logprob"]))


def test_positions_of_an_engine_without_logprobs() -> None:
    case = samples.case()
    finding = samples.finding("A0", "B0", 2, 3, case=case.case)
    silent = replace(finding, trace=replace(finding.trace, logprobs=(), owners=(), margins=()))
    table = frame.positions(samples.as_run([samples.header(), replace(case, findings=(silent,))]))
    assert len(table) == samples.STEPS
    assert table[["logprob", "logprob_difference", "margin", "owner"]].isna().all(axis=None)
    assert table["golden_logprob"].notna().all()


def test_requests() -> None:
    table = frame.requests(RUN)
    assert flat(table)
    assert len(table) == sum(len(case["requests"]) for case in RUN.cases)
    row, told = table.iloc[0], RUN.cases[0]["requests"][0]
    assert [int(token) for token in row["output"].split()] == told["output"]
    assert row["output_tokens"] == len(told["output"])
    assert row["secret"] == told["secret"]


def test_requests_tell_how_far_they_are_from_the_baseline() -> None:
    names = ["edit_distance", "first_changed", "largest_margin", "attention_step", "attention_shift"]
    hit = samples.observed(samples.case()).requests[0]
    blind = replace(
        hit, request="A1", edit_distance=None, first_changed=None, attention_step=None, attention_shift=None
    )
    case = samples.case(requests=(hit, blind))
    table = frame.requests(samples.as_run([samples.header(), case])).set_index("request")[names]
    assert table.loc["A0"].to_dict() == dict(zip(names, (5, 6, 19.4, 4, 0.66), strict=True))
    assert table.loc["A1"].isna().to_dict() == dict(zip(names, (True, True, False, True, True), strict=True))
    assert list(map(str, table.dtypes)) == ["Int64", "Int64", "float64", "Int64", "float64"]


@pytest.mark.parametrize("bounded", [True, False])
def test_only_attention_that_was_judged_can_stand_still(bounded: bool) -> None:
    still, blind = samples.request("A0", "x-float32"), replace(samples.request("A1", "x"), attention_shift=None)
    noise = replace(samples.noise(), attention_judged=bounded)
    table = frame.requests(samples.as_run([samples.header(), noise, samples.case(requests=(still, blind))]))
    assert table["attention_step"].isna().all()
    assert table["attention_judged"].tolist() == [bounded, False]
    assert str(table["attention_judged"].dtype) == "bool"


@pytest.mark.parametrize("table", [frame.cases, frame.positions, frame.requests])
def test_a_run_without_cases_gives_the_same_columns(table: Callable[[Run], pandas.DataFrame]) -> None:
    bare: list[Record] = [samples.header()]
    empty = table(samples.as_run(bare))
    assert len(empty) == 0
    assert list(empty.columns) == list(table(RUN).columns)


def test_lone_surrogates_can_be_stored() -> None:
    run: Run = samples.as_run([samples.header(), samples.case(reason="a\ud800b")])
    assert "a\\ud800b" in frame.cases(run).to_csv()
