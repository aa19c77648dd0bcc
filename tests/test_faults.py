"""The score against planted faults: seen, by whom, from whom, and nothing where there is none."""

import json

import pytest
from click.testing import CliRunner

from kvfence.adapters.api import EngineConfig, EngineStartError
from kvfence.conformance.cli import main
from kvfence.conformance.faults import Bench, against, open_faulty
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.reference_impl.defects import DEFECTS
from kvfence.reports.score import FaultRecord, markdown, summary


def score(name, *cases, watch=("events", "kv")):
    patterns = tuple(f"{case}-float32" for case in cases)
    settings = Settings("reference", "canary", "scenarios", cases=patterns, watch=watch, in_process=True)
    bench = Bench(settings, Plan(settings))
    try:
        return bench.score(DEFECTS[name] if name else None)
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("name", "case", "oracles", "named"),
    [
        ("cow.forgotten", "fork.in-a-block", {"blocks", "kv"}, "COW"),
        ("cow.forgotten", "prefix.two-go-on", {"kv", "golden"}, "COW"),
        ("key-salt.ignored", "key.salts", {"side", "blocks"}, "KEY-SALT"),
        ("key-salt.untagged", "key.adapters", {"golden", "kv", "side"}, "KEY-SALT"),
        ("refcount.two-writers", "batch.strangers", {"golden", "canary", "blocks", "kv"}, "REFCOUNT"),
    ],
)
def test_a_fault_is_seen_and_named_and_nothing_without_it(name, case, oracles, named):
    record = score(name, case)
    assert record.exercised
    assert record.detected
    assert oracles <= set(record.oracles)
    assert record.case == f"{case}-float32"
    assert record.named == named
    clean = score(None, case)
    assert (clean.detected, clean.exercised, clean.failed) == (False, False, "")


def test_answers_alone_show_who_leaked():
    """What a black box shows: tokens, logprobs, hit counts."""
    record = score("refcount.two-writers", "batch.strangers", watch=())
    assert set(record.oracles) == {"golden", "canary"}
    assert record.source_right is True


def test_who_begins_with_the_same_tokens_has_the_same_kv():
    """The prefix that a withdrawn request was waiting for is written over another's: it was computed by a third."""
    assert score("uaf-dst.cancel", "transfer.fetched").source_right is True


def test_owner_tags_tell_whose_keys_were_met():
    record = score("common-pfx.count", "fork.more-than-fit", watch=None)
    assert record.source_right is True
    assert record.source_how.startswith("owner tags: ")


def test_tokens_alone_see_less():
    settings = Settings("reference", "canary", "scenarios", cases=("key.salts-float32",), watch=(), in_process=True)
    bench = Bench(settings, Plan(settings), tokens_only=True)
    record = bench.score(DEFECTS["key-salt.ignored"])
    bench.close()
    assert (record.exercised, record.detected) == (True, False)


QUANTISED = DEFECTS["quant-dep.copy"]


@pytest.mark.parametrize("case", ["key.media", "prefix.two-go-on", "key.adapters-by-turns"])
def test_an_engine_that_rounds_its_kv_is_no_leak(case):
    """Its own words are exact; what rounding moves, attention and answers to pictures, is not held against it."""
    settings = Settings("reference", "canary", "scenarios", cases=(f"{case}-float32",), in_process=True)
    bench = Bench(settings, Plan(settings))
    clean = bench.score(None, QUANTISED)
    bench.close()
    assert (clean.about, clean.detected, clean.failed) == ("storage ScaledStorage", False, "")


def test_what_rounds_kv_by_anothers_scale_is_one():
    record = score("quant-dep.copy", "key.media-evicted", watch=None)
    assert (record.detected, record.exercised, record.named) == (True, True, "QUANT-DEP")


def test_windows_have_a_model_of_their_own():
    settings = Settings("reference", "windowed", "scenarios", cases=("chunk.long*",), watch=(), in_process=True)
    records = {record.fault: record for record in against(settings, ["window.wide", "cow.forgotten"])}
    assert {name: record.detected for name, record in records.items()} == {"": False, "window.wide": True}


def test_a_fault_that_no_case_exercises_is_told_apart_from_one_that_survives():
    record = score("cow.forgotten", "batch.strangers")
    assert (record.exercised, record.detected) == (False, False)


def test_an_unknown_fault_is_none():
    with pytest.raises(EngineStartError, match="there is no planted fault nope; `kvfence faults list` shows them"):
        open_faulty("canary", EngineConfig(engine_args={"defect": "nope"}))


def test_the_list_names_every_fault_and_what_comes_later():
    lines = CliRunner().invoke(main, ["faults", "list"]).output.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("(later)")] == list(DEFECTS)
    assert any(line.startswith("(later)") and "REC-STATE" in line for line in lines)


def test_the_command_line_leaves_a_table_and_lines(tmp_path):
    arguments = ["faults", "run", "key-salt.[is]*", "--case", "key.salts*", "--report", str(tmp_path)]
    arguments += ["--black-box", "--in-process"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    lines = map(json.loads, (tmp_path / "faults.ndjson").read_text(encoding="utf-8").splitlines())
    records = [FaultRecord(**{**line, "oracles": tuple(line["oracles"])}) for line in lines]
    assert [record.fault for record in records] == ["", "", "key-salt.ignored", "key-salt.store"]
    assert [record.about for record in records[:2]] == ["", "remote 64"]
    assert (tmp_path / "faults.md").read_text(encoding="utf-8") == markdown(records)
    assert "2 faults, 2 exercised, 2 detected" in result.output
    assert "without a fault, in 2 setups: 0 false alarms in 6 cases" in result.output


def test_a_run_that_was_cut_short_is_gone_on_with(tmp_path):
    arguments = ["faults", "run", "key-salt.ignored", "--case", "key.salts-float32", "--report", str(tmp_path)]
    arguments += ["--black-box", "--in-process", "--resume"]
    file = tmp_path / "faults.ndjson"
    assert CliRunner().invoke(main, arguments).exit_code == 0
    first = file.read_text(encoding="utf-8")
    clean, fault = first.splitlines()
    file.write_text(f"{clean}\n{fault[:40]}", encoding="utf-8")  # killed while it wrote
    result = CliRunner().invoke(main, arguments)
    assert "no fault" not in result.output
    assert "1 fault, 1 exercised, 1 detected" in result.output
    assert "without a fault, in 1 setup" in result.output
    again = file.read_text(encoding="utf-8").splitlines()
    assert again[0] == clean
    assert json.loads(again[1])["fault"] == "key-salt.ignored"
    whole = CliRunner().invoke(main, arguments)
    assert file.read_text(encoding="utf-8").splitlines() == again
    assert "1 detected" in whole.output
    file.write_text('{"other": 1}\n', encoding="utf-8")
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "cannot be gone on with" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nope"], "kvfence: no planted fault matches nope; `kvfence faults list` shows them"),
        (
            ["--model", "nowhere"],
            "kvfence: no model 'nowhere': give a model folder, or one of canary, random, windowed",
        ),
        (["--profile", "none"], "kvfence: no profile 'none'"),
    ],
)
def test_bad_usage_is_a_line(arguments, told, tmp_path):
    result = CliRunner().invoke(main, ["faults", "run", *arguments, "--report", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(told)


def record(**facts):
    known = {
        "fault": "a.b", "fault_class": "COW", "report": "o/r#1", "about": "does *it*", "subtle": "", "exercised": True,
        "detected": True, "oracles": ("golden",), "case": "c", "requirement": "r", "summary": "s",
        "source_right": True, "twin": True, "family": "lifetime", "named": "COW", "named_family": "lifetime",
        "named_how": "so", "named_kind": "cache",
        "held_out": False, "cases": 3, "tokens": 100, "seconds": 2.0, "failed": "",
    }  # fmt: skip
    return FaultRecord(**{**known, **facts})


def test_the_figures_count_what_there_is():
    missed = record(fault="c.d", detected=False, oracles=(), source_right=None, exercised=False)
    other = record(fault="e", source_right=False, named="REFCOUNT", held_out=True)
    lines = summary([record(fault="", detected=False), record(), other, missed])
    assert lines == [
        "3 faults, 2 exercised, 2 detected",
        "to detection, median: 2.0 s and 100 tokens",
        "source named right: 1 of 2 that have one",
        "of 1 the table was made with: class named right 1, family 1",
        "of 1 held out: class named right 0, family 1",
        "without a fault, in 1 setup: 0 false alarms in 3 cases",
    ]


def test_the_table_names_what_was_missed_as_text():
    seen = markdown([record(named="REFCOUNT", source_right=None)])
    assert "| `a.b` | COW | o/r#1 | yes | c | x |  |  |  |  |  | x | REFCOUNT | - | 100 | 2.0 |" in seen
    table = markdown([record(fault="c.d", detected=False, case="", source_right=None, exercised=False)])
    assert "| `c.d` | COW | o/r#1 | no | not seen | " in table
    assert table.endswith("Not seen:\n\n- `c.d`: does \\*it\\* (never exercised)\n")
