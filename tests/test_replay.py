"""`kvfence replay`: a violation leaves a schedule, which tells a repaired engine from one that still fails."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvfence.conformance.cli import main
from kvfence.reports.records import read

FAULTY = "kvfence.conformance.faults:open_faulty"
FINDINGS = Path(__file__).parents[1] / "docs" / "findings"


@pytest.fixture(scope="module")
def violation(tmp_path_factory):
    """The report folder of a run that found a fork writing to what it shares with its parent."""
    folder = tmp_path_factory.mktemp("run")
    arguments = ["--engine", FAULTY, "--engine-arg", "defect=cow.fork", "--profile", "scenarios", "--in-process"]
    found = CliRunner().invoke(main, ["run", *arguments, "--case", "fork.in-a-block*", "--report", str(folder)])
    assert found.exit_code == 1, found.output
    return folder


def replay(file, tmp_path, *arguments):
    options = ["--report", str(tmp_path / "replay"), "--in-process"]
    return CliRunner().invoke(main, ["replay", str(file), *arguments, *options])


def test_a_violation_leaves_its_schedule(violation):
    file = violation / "schedules" / "fork.in-a-block-float32.json"
    [case] = read(violation).cases
    assert case["schedule"][1].startswith("submit A: ")
    assert "fork A into 2 when A has emitted 3" in case["schedule"]
    assert case["replay"] == (f"kvfence replay {file} --engine {FAULTY} --model canary --engine-arg defect=cow.fork")
    page = (violation / "report.html").read_text()
    assert "fork A into 2 when A has emitted 3" in page
    assert f"kvfence replay {file}" in page


@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        (("--engine", FAULTY, "--engine-arg", "defect=cow.fork"), "STILL FAILS", 1),
        (("--engine", "reference"), "FIXED", 0),
        (("--engine", "hf"), "ERROR", 3),
    ],
    ids=["same", "repaired", "no-sessions"],
)
def test_it_is_replayed_on_any_engine(violation, tmp_path, arguments, told, code):
    file = violation / "schedules" / "fork.in-a-block-float32.json"
    found = replay(file, tmp_path, *arguments)
    assert (found.output.splitlines()[-1], found.exit_code) == (told, code), found.output
    [case] = read(tmp_path / "replay").cases
    assert case["reproduce"].startswith(f"kvfence replay {file} --engine {arguments[1]}")
    assert (tmp_path / "replay" / "report.html").exists()
    if told == "ERROR":
        assert "the engine has no fork" in found.output


@pytest.mark.parametrize("file", sorted(FINDINGS.glob("*.json")), ids=lambda file: file.stem)
def test_what_was_found_in_other_engines_holds_here(tmp_path, file):
    found = replay(file, tmp_path, "--engine", "reference")
    assert (found.output.splitlines()[-1], found.exit_code) == ("FIXED", 0), found.output


def altered(violation, tmp_path, change):
    data = json.loads((violation / "schedules" / "fork.in-a-block-float32.json").read_text())
    change(data)
    file = tmp_path / "altered.json"
    file.write_text(json.dumps(data))
    return file


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d["operations"][0]["prompt"].append(9_999), "holds token 9999; canary has 3904 of them"),
        (lambda d: d.update(layout="zh"), "is written in zh words, and canary has others"),
        (lambda d: d.pop("operations"), "is no schedule: operations is missing"),
    ],
)
def test_what_cannot_be_replayed_is_a_line(violation, tmp_path, change, told):
    found = replay(altered(violation, tmp_path, change), tmp_path)
    assert (found.exit_code, found.output.count("\n")) == (2, 1)
    assert told in found.output


def test_a_file_that_is_not_there_is_a_line(tmp_path):
    found = replay(tmp_path / "none.json", tmp_path)
    assert (found.exit_code, found.output) == (
        2,
        f"kvfence: cannot read schedule {tmp_path / 'none.json'}: No such file or directory\n",
    )
