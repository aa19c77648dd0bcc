"""The plugin as a user meets it: pytest in a process of its own, from a folder that knows nothing of kvfence."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kvfence.reports.records import read

ROGUE = ["--kvfence-engine", "rogue_engine:open_engine", "--kvfence-dtype", "float32"]


@pytest.fixture
def suite(tmp_path):
    def run(*args: str, expect: int) -> str:
        command = [sys.executable, "-m", "pytest", "--pyargs", "kvfence.conformance", "-p", "no:cacheprovider", *args]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def case(mode: str, company: str = "partner") -> list[str]:
    return ["--kvfence-case", f"{mode}-canary-block+1-{company}-c2-float32"]


def test_a_pass_a_skip_and_the_reports(suite, tmp_path):
    out = suite(*ROGUE, *case("independent"), *case("shared"), "-rs", "--junit-xml=j.xml", expect=0)
    assert "1 passed, 1 skipped" in out
    assert "not-observable: the engine does not tell whether its cache was hit" in out
    assert "kvfence: kvfence run --engine rogue_engine:open_engine --model canary --profile quick" in out
    assert (tmp_path / "kvfence-report" / "report.html").is_file()
    tests = ET.parse(tmp_path / "j.xml").iter("testcase")
    properties = [{p.get("name"): p.get("value") for p in test.iter("property")} for test in tests]
    assert [p["kvfence.requirement"] for p in properties] == ["modes.independent", "modes.shared"]
    assert [p["kvfence.outcome"] for p in properties] == ["conforms", "not-observable"]
    assert read(tmp_path / "kvfence-report").end["exit_code"] == 0


def test_an_undecided_case_is_an_error_not_a_failure(suite):
    out = suite(*ROGUE, "--kvfence-engine-arg", "how=raise", *case("independent"), expect=1)
    assert "1 error" in out
    assert "suite-error: engine raised RuntimeError: block table is full" in out


def test_a_violation_fails_and_names_the_source(suite):
    engine = ["--kvfence-engine", "slot_pool:open_engine", "--kvfence-engine-arg", "fault=length"]
    out = suite(*engine, *case("serial"), expect=1)
    assert "1 failed" in out
    assert "request B0 answered " in out
    assert "of request A0" in out
    assert "reproduce: kvfence run --engine slot_pool:open_engine" in out


TINY = """
from dataclasses import replace
from kvfence.conformance.case import PROFILES
PROFILES["tiny"] = replace(PROFILES["controls"], edges=("block+1",), concurrencies=(1,), dtypes=("float32",))
"""


def test_a_known_violation_is_expected_and_one_that_is_mended_fails(suite, tmp_path, monkeypatch):
    engine = ["--kvfence-engine", "slot_pool:open_engine", "--kvfence-baseline", "known.toml"]
    entry = '[[known]]\nrequirement = "modes.{}"\nengine = "slot_pool:open_engine"\nversions = ""\nreason = "slots"\n'
    (tmp_path / "known.toml").write_text(entry.format("serial"))
    out = suite(*engine, "--kvfence-engine-arg", "fault=length", *case("serial"), "-rx", expect=0)
    assert "1 xfailed" in out
    assert "known: slots" in out
    # One case that was chosen says nothing of the others of its requirement.
    assert "1 passed" in suite(*engine, *case("serial"), expect=0)
    (tmp_path / "tiny.py").write_text(TINY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    out = suite("-p", "tiny", *engine, "--kvfence-profile", "tiny", expect=1)
    assert "kvfence: baseline: modes.serial of slot_pool:open_engine is kept now; take it out of the baseline" in out


def test_a_level_that_is_required_and_not_reached_is_an_error(suite):
    out = suite(*ROGUE, "--kvfence-require-level", "kv", *case("independent"), expect=1)
    assert "1 error" in out
    assert "not-observable: level kv is required, and the engine shows no K/V" in out


def test_the_header_tells_what_it_runs_with_and_no_secret(suite, monkeypatch):
    monkeypatch.setenv("KVFENCE_API_KEY", "hush")
    monkeypatch.setenv("KVFENCE_NOTE", "hello")
    out = suite(*ROGUE, *case("independent"), expect=0)
    assert "torch 2." in out
    assert "seed 0, profile quick" in out
    assert "kvfence: KVFENCE_NOTE=hello" in out
    assert "kvfence: KVFENCE_API_KEY=(set)" in out
    assert "hush" not in out


def test_two_workers_come_to_the_same(suite, tmp_path):
    outcomes = {}
    for n in ("0", "2"):
        suite(*ROGUE, "--kvfence-case", "*-canary-block+1-*-float32", "-n", n, "--kvfence-report", n, expect=0)
        outcomes[n] = {case["case"]: case["outcome"] for case in read(tmp_path / n).cases}
    assert outcomes["0"] == outcomes["2"]
    assert len(outcomes["2"]) == 15
    assert len(list((tmp_path / "2" / "records").iterdir())) == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "name the engine to test with --kvfence-engine"),
        (["--kvfence-engine", "vlmm"], "unknown engine 'vlmm'"),
        ([*ROGUE, "--kvfence-model", "none/such"], "no model folder none/such"),
        ([*ROGUE, "--kvfence-profile", "fast"], "no profile 'fast'"),
        ([*ROGUE, "--kvfence-engine-arg", "oops"], "engine argument 'oops' is not key=value"),
        ([*ROGUE, "--kvfence-case", "none"], "no case of profile quick matches"),
    ],
)
def test_bad_usage_is_told_in_a_line(suite, args, message):
    out = suite(*args, expect=4)
    assert message in out
    assert "Traceback" not in out


def test_an_engine_that_does_not_start_ends_the_session(suite):
    out = suite(*ROGUE, "--kvfence-engine-arg", "how=no-start", *case("independent"), expect=2)
    assert "kvfence: the engine did not start: rogue cannot start: no licence" in out


def test_a_pytest_that_has_nothing_to_do_with_kvfence_is_left_alone(tmp_path):
    (tmp_path / "test_x.py").write_text("import sys\ndef test_x(): assert 'torch' not in sys.modules\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout
    assert "kvfence" not in done.stdout
    assert not Path(tmp_path / "kvfence-report").exists()
