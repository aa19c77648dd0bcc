"""Records: what a run writes is what a report reads, also after a kill."""

import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import samples

import kvfence.reports.records as records
from kvfence.adapters.observation import Action
from kvfence.reports.log import KINDS as RULES
from kvfence.reports.outcome import Outcome, exit_code
from kvfence.reports.records import EndRecord, Record, RecordError, Writer

SCHEMA = json.loads(Path(records.__file__).with_name("schema.json").read_text())
RUN = samples.header().run


def written(folder: Path, lines: list[Record], run: str = RUN, worker: str = "main") -> Path:
    writer = Writer(folder, run, worker)
    for each in lines:
        writer.write(each)
    writer.close()
    return folder / "records" / f"{run}.{worker}.ndjson"


def test_round_trip(tmp_path: Path) -> None:
    lines = samples.violating()
    written(tmp_path, lines)
    assert records.read(tmp_path) == samples.as_run(lines)


def test_every_line_is_on_disk_at_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path, RUN)
    writer.write(samples.header())
    assert records.read(tmp_path).header["run"] == RUN
    writer.close()


def test_workers_are_merged(tmp_path: Path) -> None:
    first, second, third = samples.grid()[:3]
    written(tmp_path, [samples.header(), first, EndRecord(9.0, 0)])
    written(tmp_path, [samples.engine(), samples.noise(), third, second], worker="gw1")
    run = records.read(tmp_path)
    assert [case["case"] for case in run.cases] == sorted(each.case for each in (first, second, third))
    assert (len(run.engines), len(run.noise)) == (1, 1)
    assert run.end is not None
    assert run.end["seconds"] == 9.0


def test_a_case_run_again_counts_once_with_its_last_verdict(tmp_path: Path) -> None:
    case = samples.case()
    written(tmp_path, [samples.header(), case, replace(case, outcome=Outcome.VIOLATES)])
    assert records.read(tmp_path).outcomes == [Outcome.VIOLATES]


def test_killed_run_keeps_what_it_had(tmp_path: Path) -> None:
    file = written(tmp_path, [samples.header(), *samples.grid()[:3]])
    file.write_bytes(file.read_bytes()[:-40])
    run = records.read(tmp_path)
    assert (len(run.cases), run.torn_lines, run.end) == (2, 1, None)


def test_cut_inside_a_character(tmp_path: Path) -> None:
    file = written(tmp_path, [samples.header(), samples.case(reason="系统提示")])
    text = file.read_bytes()
    file.write_bytes(text[: text.index("提示".encode()) + 1])
    assert records.read(tmp_path).torn_lines == 1


def test_a_line_that_lacks_what_a_case_has_is_no_case(tmp_path: Path) -> None:
    file = written(tmp_path, [samples.header(), samples.case()])
    with file.open("a", encoding="utf-8") as more:
        more.write('{"schema": 2, "kind": "case", "case": "x"}\n')
    run = records.read(tmp_path)
    assert ([case["case"] for case in run.cases], run.torn_lines) == ([samples.case().case], 1)


def test_newest_run_is_chosen_and_another_can_be_named(tmp_path: Path) -> None:
    for run in ("20261129T031204-7f3a", "20261128T110000-0001"):
        written(tmp_path, [samples.header(run=run)], run)
    assert records.runs(tmp_path) == ["20261128T110000-0001", "20261129T031204-7f3a"]
    assert records.read(tmp_path).header["run"] == "20261129T031204-7f3a"
    assert records.read(tmp_path, "20261128T110000-0001").header["run"] == "20261128T110000-0001"
    with pytest.raises(RecordError, match="no run 2025"):
        records.read(tmp_path, "2025")


def test_nothing_to_report_on(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="nothing to report on"):
        records.read(tmp_path)
    written(tmp_path, [])
    with pytest.raises(RecordError, match="nothing to report on"):
        records.read(tmp_path)


def test_no_header(tmp_path: Path) -> None:
    written(tmp_path, [samples.engine()])
    with pytest.raises(RecordError, match="no header"):
        records.read(tmp_path)


@pytest.mark.parametrize(("change", "told"), [({"schema": 1}, "another schema"), ({"kind": "weather"}, "no record")])
def test_another_schema(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    file = written(tmp_path, [samples.header()])
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(RecordError, match=told):
        records.read(tmp_path)


@pytest.mark.parametrize("line", ['{"garbage": 1}', "not json", "[]", '{"kind": "case", "schema": 2}'])
def test_a_line_that_is_no_record_is_counted_and_the_rest_is_read(tmp_path: Path, line: str) -> None:
    file = written(tmp_path, samples.violating())
    whole = records.read(tmp_path)
    with file.open("a") as to:
        to.write(line + "\n")
    read = records.read(tmp_path)
    assert (read.torn_lines, read.cases) == (whole.torn_lines + 1, whole.cases)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    written(tmp_path, [samples.header()]).write_bytes(bytes(range(256)) * 9)
    with pytest.raises(RecordError, match="holds no record"):
        records.read(tmp_path)


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    with pytest.raises(RecordError, match=r"taken.*--report"):
        Writer(taken, RUN)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RecordError, match="Permission denied"):
        Writer(tmp_path, RUN)


def test_lone_surrogates_survive(tmp_path: Path) -> None:
    file = written(tmp_path, [samples.header(), samples.case(reason="a\ud800b\udfff 中")])
    assert records.read(tmp_path).cases[0]["reason"] == "a\ud800b\udfff 中"
    assert "中" in file.read_bytes().decode("utf-8", "strict")


def test_line_breaks_in_text_stay_in_one_line(tmp_path: Path) -> None:
    text = "a\nb\r\nc\u2028d\x85e"
    file = written(tmp_path, [samples.header(), samples.case(reason=text)])
    assert file.read_bytes().count(b"\n") == 2
    assert records.read(tmp_path).cases[0]["reason"] == text


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == f"urn:kvfence:record:{records.SCHEMA}"


def test_the_schema_knows_every_use_of_a_slot_and_every_rule() -> None:
    known = SCHEMA["$defs"]
    assert set(known["log_line"]["properties"]["action"]["enum"]) == set(Action)
    assert set(known["telltale"]["properties"]["kind"]["enum"]) == set(RULES)


KINDS = {each.kind: samples.line(each) for each in samples.violating()}
KINDS["case"] = next(samples.line(each) for each in samples.violating() if getattr(each, "telltales", ()))


@pytest.mark.parametrize(
    "line", [samples.line(each) for each in samples.violating()], ids=lambda line: str(line["kind"])
)
def test_records_fit_the_schema(line: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(line)


def test_optional_values_fit_the_schema() -> None:
    bare = replace(samples.case(), cached_tokens=None, shareable_tokens=None, requests=(), findings=())
    unknown = replace(samples.request("A0", "x"), cached_tokens=None, edit_distance=None, attention_shift=None)
    told = replace(unknown, edit_distance=1, first_changed=2, attention_step=3, attention_shift=0.5)
    for each in (bare, replace(bare, requests=(unknown, told)), replace(samples.engine(), block_size=None)):
        jsonschema.Draft202012Validator(SCHEMA).validate(samples.line(each))


# Records of this schema were written before there were these.
LATER = {("noise", "attention_reason"), ("noise", "solo_fault")}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, line in KINDS.items() for name in line], ids=str)
def test_a_record_that_lacks_a_field_does_not_fit(kind: str, name: str) -> None:
    assert fits(kind, lambda line: line.pop(name)) == ((kind, name) in LATER)


@pytest.mark.parametrize(
    ("kind", "mutate"),
    [
        *((kind, lambda line: line.update(extra=1)) for kind in KINDS),
        *((kind, lambda line: line.update(schema=1)) for kind in KINDS),
        ("case", lambda line: line.update(outcome="passed")),
        ("case", lambda line: line.update(mode="parallel")),
        ("case", lambda line: line.update(concurrency=0)),
        ("case", lambda line: line["findings"][0].update(extra=1)),
        ("case", lambda line: line["findings"][0]["trace"].update(owners=[1])),
        ("case", lambda line: line["findings"][0]["spellings"].append("B0")),
        ("case", lambda line: line["requests"][0].update(secret=None)),
        ("case", lambda line: line["requests"][0].update(edit_distance=-1)),
        ("case", lambda line: line["requests"][0].update(first_changed=0.5)),
        ("case", lambda line: line["requests"][0].update(largest_margin=None)),
        ("case", lambda line: line["requests"][0].pop("attention_shift")),
        ("case", lambda line: line["findings"][0].pop("attention")),
        ("case", lambda line: line["findings"][0].update(attention={})),
        ("case", lambda line: line["findings"][0]["attention"].update(extra=1)),
        ("case", lambda line: line["findings"][0]["attention"].update(map=[0.5])),
        ("case", lambda line: line["findings"][0]["attention"]["engine_top"][0].update(text=None)),
        ("case", lambda line: line["findings"][0]["attention"]["golden_top"][0].update(probability="0.5")),
        ("case", lambda line: line["log"][0].update(action="steal")),
        ("case", lambda line: line["log"][0].pop("slot")),
        ("case", lambda line: line["findings"][0]["kv"].pop("rows")),
        ("case", lambda line: line["findings"][0]["kv"]["rows"][0].update(stretches=[[1]])),
        ("case", lambda line: line["telltales"][0].update(step=-1)),
        ("case", lambda line: line["telltales"][0].update(kind="smell")),
        ("case", lambda line: line["telltales"][0].update(extra=1)),
        ("noise", lambda line: line.update(attention_positions=-1)),
        ("noise", lambda line: line.update(attention_reason=None)),
        ("noise", lambda line: line.update(solo_fault=1)),
        ("engine", lambda line: line["capabilities"]["token_prompts"].update(state="maybe")),
        ("run", lambda line: line.update(seed="7")),
        ("noise", lambda line: line.update(epsilon=-1.0)),
        ("end", lambda line: line.update(exit_code=None)),
    ],
)
def test_a_mutated_record_does_not_fit(kind: str, mutate: Callable[[dict[str, Any]], Any]) -> None:
    assert not fits(kind, mutate)


def fits(kind: str, mutate: Callable[[dict[str, Any]], Any]) -> bool:
    line = copy.deepcopy(KINDS[kind])
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(line)
    mutate(line)
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(line))


@pytest.mark.parametrize("flags", list(product((False, True), repeat=len(Outcome))))
def test_exit_code_truth_table(flags: tuple[bool, ...]) -> None:
    seen = [outcome for outcome, there in zip(Outcome, flags, strict=True) if there]
    if "violates" in seen:
        expected = 1
    elif "conforms" not in seen or "inconclusive" in seen or "suite-error" in seen:
        expected = 3
    else:
        expected = 0
    assert exit_code(seen) == exit_code(reversed(seen * 2)) == expected
