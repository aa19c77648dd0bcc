"""The baseline: what is known does not fail, what does not hold does."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from samples import case

from kvfence.conformance.baseline import HEAD, Baseline, Known
from kvfence.conformance.case import PROFILES
from kvfence.conformance.cli import main
from kvfence.conformance.settings import UsageError
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import Run, read

FAULTY = "kvfence.conformance.faults:open_faulty"
FORK = Known("fork.private-tail", FAULTY, "", "forks write to what they share", "https://example.org/1")


def run_of(*outcomes, requirement="fork.private-tail", version="1.2", chosen=""):
    cases = [asdict(replace(case(), requirement=requirement, outcome=outcome)) for outcome in outcomes]
    header = {"engine": FAULTY, "command": f"kvfence run{chosen}", "cases": len(cases)}
    return Run(header, engines=[{"version": version}], cases=cases)


@pytest.mark.parametrize(
    ("versions", "version", "applies"),
    [
        ("", "anything", True),
        (">=1.0,<2", "1.2", True),
        (">=1.0,<2", "2.0", False),
        (">=1.0", "1.1.dev3", True),
        ("b4521", "b4521", True),
        ("b4521", "b4522", False),
        (">=1.0", "b4521", False),
    ],
)
def test_an_entry_is_about_versions_of_one_engine(versions, version, applies):
    known = replace(FORK, versions=versions)
    assert known.applies(FAULTY, version) is applies
    assert not known.applies("hf", version)


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ((Outcome.VIOLATES,), []),
        ((Outcome.VIOLATES, Outcome.CONFORMS), []),
        ((Outcome.CONFORMS, Outcome.INCONCLUSIVE), ["is kept now"]),
        ((Outcome.INCONCLUSIVE,), []),
        ((), ["was not tested"]),
    ],
)
def test_it_is_strict_about_what_is_kept_and_what_is_not_tested(outcomes, told):
    lines = [f"fork.private-tail of {FAULTY} {why}; take it out of the baseline" for why in told]
    assert Baseline((FORK,)).stale(run_of(*outcomes)) == lines
    assert Baseline((replace(FORK, engine="hf"),)).stale(run_of(*outcomes)) == []
    # The case that violates may be one of those that were left out.
    assert Baseline((FORK,)).stale(run_of(*outcomes, chosen=" --case x")) == []
    cut_short = run_of(*outcomes)
    cut_short.header["cases"] += 1
    assert Baseline((FORK,)).stale(cut_short) == []
    assert set(Baseline((FORK,)).updated(cut_short).known) >= {FORK}


def test_an_update_adds_what_is_violated_and_takes_out_what_is_kept(tmp_path):
    old = Baseline((FORK, replace(FORK, engine="hf"), Known("key.salt", FAULTY, "<2", "old")))
    run = run_of(Outcome.CONFORMS)
    run.cases.extend(run_of(Outcome.VIOLATES, requirement="key.media").cases)
    run.cases.extend(run_of(Outcome.VIOLATES, requirement="key.salt").cases)
    run.header["cases"] = 3
    new = old.updated(run)
    added = Known("key.media", FAULTY, "1.2", "not looked into: every output equals golden")
    assert new.known == (replace(FORK, engine="hf"), old.known[2], added)
    file = tmp_path / "known.toml"
    file.write_text(new.dumps())
    assert file.read_text().startswith(HEAD)
    assert Baseline.load(file) == new


@pytest.mark.parametrize("text", ['"quoted" \\ and\ttabbed', "line\nbreak", "名"])
def test_any_reason_is_written_and_read(tmp_path, text):
    file = tmp_path / "known.toml"
    file.write_text(Baseline((replace(FORK, reason=text),)).dumps(), encoding="utf-8")
    assert Baseline.load(file).known[0].reason == text


ENTRY = '[[known]]\nrequirement = "key.salt"\nengine = "hf"\nversions = ""\nreason = "x"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[known]", "Expected ']]'"),
        ("known = 3", "it holds [[known]] tables and nothing else"),
        ("[other]\nx = 1", "it holds [[known]] tables and nothing else"),
        (ENTRY + "why = 'y'\n", "entry 1 must have requirement, engine, versions, reason; why is none of them"),
        (
            ENTRY.replace('reason = "x"\n', ""),
            "entry 1 must have requirement, engine, versions, reason; reason is missing",
        ),
        (ENTRY + ENTRY.replace('"x"', "3"), "entry 2 must be a table of strings"),
        (ENTRY.replace("key.salt", "key.pepper"), "entry 1 is of key.pepper, which is no requirement"),
    ],
)
def test_what_is_no_baseline_is_a_line(tmp_path, text, told):
    file = tmp_path / "known.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        Baseline.load(file)
    assert told in str(error.value)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def kvfence(tmp_path, *arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture(autouse=True)
def one_scenario(monkeypatch):
    """A profile that is run whole in a second."""
    monkeypatch.setitem(PROFILES, "one", replace(PROFILES["scenarios"], name="one", scenarios=("fork.in-a-block",)))


def run(tmp_path, defect, *options):
    faulty = ["--engine", FAULTY, "--engine-arg", f"defect={defect}"] if defect else ["--engine", FAULTY]
    scenario = ["--profile", "one", "--in-process"]
    return kvfence(tmp_path, "run", *faulty, *scenario, "--report", tmp_path / "report", *options)


def test_from_a_violation_to_a_known_one_to_one_that_is_mended(tmp_path):
    file = tmp_path / "known.toml"
    assert run(tmp_path, "cow.fork").exit_code == 1
    update = kvfence(tmp_path, "baseline", "update", file, tmp_path / "report")
    assert (update.exit_code, update.output) == (0, f"{file}: 1 added, 0 taken out\n")
    [entry] = Baseline.load(file).known
    assert (entry.requirement, entry.engine) == ("fork.private-tail", FAULTY)
    assert entry.reason.startswith("not looked into: request ")

    known = run(tmp_path, "cow.fork", "--baseline", file)
    assert known.exit_code == 0, known.output
    assert "1 violates (1 known)" in known.output
    [recorded] = read(tmp_path / "report").cases
    assert recorded["known"] == entry.reason
    assert f"--baseline {file}" in recorded["reproduce"]
    assert '<skipped message="known: not looked into' in (tmp_path / "report" / "junit.xml").read_text()

    [records] = sorted((tmp_path / "report" / "records").glob("*"))[-1:]
    kept = records.read_bytes()
    records.write_bytes(kept + b'{"kind": "case')
    torn = kvfence(tmp_path, "baseline", "update", file, tmp_path / "report")
    assert (torn.exit_code, torn.output.count("\n")) == (2, 1)
    assert f"{file} is left as it is: 1 record line" in torn.output
    records.write_bytes(kept)

    mended = run(tmp_path, None, "--baseline", file)
    assert mended.exit_code == 1
    assert "baseline: fork.private-tail" in mended.output
    assert "is kept now; take it out of the baseline" in mended.output
    update = kvfence(tmp_path, "baseline", "update", file, tmp_path / "report")
    assert update.output == f"{file}: 0 added, 1 taken out\n"
    assert Baseline.load(file).known == ()


def test_bad_input_is_a_line_before_anything_starts(tmp_path):
    missing = run(tmp_path, None, "--baseline", tmp_path / "none.toml")
    assert (missing.exit_code, missing.output.count("\n")) == (2, 1)
    assert f"cannot read baseline {tmp_path / 'none.toml'}: No such file" in missing.output
    nothing = kvfence(tmp_path, "baseline", "update", tmp_path / "known.toml", tmp_path / "empty")
    assert nothing.exit_code == 2
    assert not Path(tmp_path / "known.toml").exists()
