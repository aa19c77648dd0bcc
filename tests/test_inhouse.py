"""The worked example of docs/adapter-guide.md, as its owner would use it: a repository with an adapter and a line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvfence.reports.records import read

EXAMPLE = Path(__file__).parent / "inhouse"
CARELESS = ("--kvfence-engine-arg", "careless=yes")
KEYS = "(prefix.one-token-apart or prefix.same-block-elsewhere)"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inhouse")
    for file in EXAMPLE.glob("*.py"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def run(repository):
    def run(*command: str, code: int) -> str:
        environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def broken(run, repository):
    """The report folder of a run on the careless engine."""
    out = run("pytest", *options("broken"), *CARELESS, "-k", KEYS, code=1)
    assert "2 failed" in out
    return repository / "broken"


def options(report: str) -> list[str]:
    return ["-p", "no:cacheprovider", "--kvfence-engine", "adapter:open_engine", "--kvfence-report", report,
            "--kvfence-profile", "scenarios"]  # fmt: skip


def kvfence(*words: str) -> tuple[str, ...]:
    return ("kvfence.conformance", *words)


def engine(*more: str) -> tuple[str, ...]:
    return ("--engine", "adapter:open_engine", *more)


def test_an_adapter_is_under_40_lines_and_a_test_file_is_one():
    assert len((EXAMPLE / "adapter.py").read_text().splitlines()) < 40
    assert len((EXAMPLE / "test_isolation.py").read_text().splitlines()) == 1


def test_a_right_engine_passes_and_what_it_cannot_do_is_skipped(run):
    out = run("pytest", *options("right"), "-k", f"{KEYS} or fork", "-rs", code=0)
    assert "not-applicable: the engine has no fork" in out
    assert "2 passed" in out


def test_tests_are_chosen_by_requirement_and_by_what_they_require(run):
    out = run("pytest", *options("none"), "--co", "-q", "-k", "key.salt and not adapters", code=0)
    chosen = [line for line in out.splitlines() if "[" in line]
    assert chosen
    assert all("[key." in line for line in chosen)
    forks = run("pytest", *options("none"), "--co", "-q", "-k", "fork.private-tail", code=0)
    assert "test_scenario[fork.in-a-block-float32]" in forks


def test_a_broken_one_goes_from_the_failure_to_its_repair(run, broken):
    case, _ = read(broken).cases
    assert (case["outcome"], case["requirement"]) == ("violates", "prefix.same-tokens")
    assert "report.html" in run(*kvfence("report", "broken"), code=0)
    file = f"broken/schedules/{case['case']}.json"
    careless = engine("--engine-arg", "careless=yes")
    out = run(*kvfence("replay", file, *careless, "--report", "again"), code=1)
    assert out.splitlines()[-1] == "STILL FAILS"
    assert run(*kvfence("replay", file, *engine(), "--report", "again"), code=0).splitlines()[-1] == "FIXED"


def test_what_is_known_is_expected_until_it_is_mended(run, broken):
    run(*kvfence("baseline", "update", "known.toml", "broken"), code=0)
    known = ("--kvfence-baseline", "known.toml")
    out = run("pytest", *options("known"), *CARELESS, *known, "-k", KEYS, code=0)
    assert "2 xfailed" in out
