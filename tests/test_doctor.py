"""What the doctor finds: engines that open, and why others do not."""

import json

import pytest
from click.testing import CliRunner

from kvfence.conformance.cli import main


def doctor(*words):
    result = CliRunner().invoke(main, ["doctor", *words])
    return result.exit_code, result.output


@pytest.fixture
def rogue(monkeypatch):
    """The test engines' folder on the path of engine processes."""
    from pathlib import Path

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def test_an_engine_that_opens_is_told_with_what_it_shows(rogue):
    code, out = doctor("rogue_engine:open_engine")
    assert code == 0
    assert "torch " in out
    line = next(line for line in out.splitlines() if line.startswith("rogue_engine"))
    assert "shows tokens" in line


def test_one_that_does_not_is_told_with_the_reason(rogue):
    code, out = doctor("rogue_engine:open_engine", "--engine-arg", "how=no-start")
    assert code == 1
    assert "not opened: rogue cannot start: no licence" in out


def test_an_engine_that_nobody_knows_is_no_traceback():
    code, out = doctor("nothing-like-it")
    assert code == 1
    assert "not opened: unknown engine 'nothing-like-it'" in out
    code, out = doctor("hf", "--engine-arg", "no-value")
    assert code == 2


def test_json_tells_the_same(rogue):
    code, out = doctor("reference", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["machine"].keys() >= {"python", "torch", "memory", "cuda"}
    [engine] = told["engines"]
    assert engine["reason"] == ""
    assert all(engine["capabilities"][name] == "supported" for name in ("logprobs", "events", "kv", "attention"))
