"""The README: its commands, run one after another in one folder, each with less to do, do what it says."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import ROOT, commands

from kvfence.conformance import schedule_file
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.prompts import canary
from kvfence.reports.records import read

README = ROOT / "README.md"
ELSEWHERE = {"kvfence demo"}  # test_demo
SMOLLM2 = "smollm2"  # test_smollm2, where its weights are
# What takes minutes is given less to do.
LESS = {
    "run": ("--case", "shared-*-c2-float32", "--case", "serial-*-partner-c8-float32"),
    "search": ("--minutes", "0.1"),
    "faults": ("--case", "fork.more-than-fit-float32"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader is by then: with an adapter and a model of their own, and a schedule that a run has left."""
    (tmp_path / "mypackage").mkdir()
    shutil.copy(ROOT / "tests" / "inhouse" / "adapter.py", tmp_path / "mypackage")
    for file in ((ROOT / "tests" / "inhouse" / "server.py"), ROOT / "docs" / "examples" / "slot_pool.py"):
        shutil.copy(file, tmp_path)
    canary.write(tmp_path / "path" / "to" / "model")
    plan = Plan(Settings("reference", "canary", "scenarios"))
    schedules = tmp_path / "out" / "schedules"
    schedules.mkdir(parents=True)
    (schedules / "cancel.decoding-float32.json").write_text(
        schedule_file.dumps(plan.write_scenario("cancel.decoding", "float32"))
    )
    return tmp_path


def test_every_command_of_the_readme_does_what_it_says(folder: Path) -> None:
    said = {}
    for line in [line for line in commands(README) if line not in ELSEWHERE and SMOLLM2 not in line]:
        _, verb, *words = shlex.split(line.replace(" DIR", " out"))
        more = LESS.get(verb, ()) if "list" not in words else ()
        if verb == "compare" and not (folder / "before").exists():
            shutil.copytree(folder / "out", folder / "before")
        command = [sys.executable, "-m", "kvfence.conformance", verb, *words, *more]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        said[line] = (done.returncode, done.stdout + done.stderr)
    assert len(said) > 12
    leaks = [line for line in said if "fault=" in line]
    assert len(leaks) == 1
    assert {line: code for line, (code, _) in said.items()} == {line: int(line in leaks) for line in said}, said
    (replayed,) = [text for line, (_, text) in said.items() if " replay " in line]
    assert "FIXED" in replayed
    # The last run is that of the engine whose faults can be switched on.
    assert any(case["outcome"] == "violates" for case in read(folder / "out").cases)
