"""The ladder: each rung asks for something simpler, and says what came of it."""

import itertools
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kvfence.adapters.observation import Action, CacheEvent
from kvfence.adapters.schedule import Moment, Verb
from kvfence.conformance import schedule_file
from kvfence.conformance.cli import main
from kvfence.conformance.driven import Driven
from kvfence.conformance.judge import Ruling
from kvfence.conformance.ladder import climb
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.trial import Judged
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import read

RUNGS = [
    "as it is", "prompts equal", "sharing off", "concurrency 1", "steps serialised", "block log", "key log",
    "smallest schedule",
]  # fmt: skip


@pytest.fixture(scope="module")
def cases():
    return {case.name: case for case in Plan(Settings("reference", "canary", "scenarios")).cases}


def judging(rule):
    def judge(scenario):
        outcome = rule(scenario)
        return Judged(Driven(scenario), Ruling(outcome, "as the rule says"))

    return judge


def fails_if(rule):
    return judging(lambda scenario: Outcome.VIOLATES if rule(scenario) else Outcome.CONFORMS)


def states(scenario, judge, first=None):
    climbed = climb(scenario, first or judge(scenario), judge)
    assert [rung.name for rung in climbed.rungs] == RUNGS
    return {rung.name: rung.state for rung in climbed.rungs}, climbed


def test_where_the_fault_stops_is_seen(cases):
    scenario = cases["cancel.decoding"]
    found, climbed = states(scenario, fails_if(lambda s: s.setup.sharing and s.setup.concurrency > 1))
    assert found == {
        "as it is": "fails",
        "prompts equal": "fails",
        "sharing off": "holds",
        "concurrency 1": "holds",
        "steps serialised": "fails",
        "block log": "unknown",
        "key log": "unknown",
        "smallest schedule": "fails",
    }
    assert len(climbed.smallest.schedule) == 1


def test_each_rung_changes_one_thing(cases):
    seen = {}
    scenario = cases["cancel.decoding"]

    def judge(s):
        seen.setdefault(len(seen), s)
        return Judged(Driven(s), Ruling(Outcome.CONFORMS, ""))

    states(scenario, judge, Judged(Driven(scenario), Ruling(Outcome.VIOLATES, "")))
    as_is, equal, private, one, serial = (seen[i] for i in range(5))
    assert as_is == replace(scenario, hits=())
    prompts = {op.request.prompt for op in equal.schedule if op.request}
    assert len(prompts) == 1
    assert [op.verb for op in equal.schedule] == [op.verb for op in scenario.schedule]
    assert (private.setup, one.setup) == (
        replace(scenario.setup, sharing=False),
        replace(scenario.setup, concurrency=1),
    )
    submitted = [op for op in serial.schedule if op.request]
    withdrawn = {op.target for op in scenario.schedule if op.verb is Verb.CANCEL}
    assert submitted[0].when is None
    for before, op in itertools.pairwise(submitted):
        if before.target not in withdrawn:
            assert op.when == Moment(before.target)
    places = {op.target: i for i, op in enumerate(serial.schedule) if op.request}
    assert all(serial.schedule[places[name] + 1].verb is Verb.CANCEL for name in withdrawn)


def test_what_does_not_violate_by_itself_is_not_made_smaller(cases):
    scenario = cases["key.salts"]
    first = Judged(Driven(scenario), Ruling(Outcome.VIOLATES, ""))
    found, climbed = states(scenario, fails_if(lambda s: False), first)
    assert (found["as it is"], found["smallest schedule"]) == ("holds", "unknown")
    assert climbed.smallest is scenario


def test_what_comes_to_no_verdict_is_unknown(cases):
    scenario = cases["key.salts"]
    judge = judging(lambda s: Outcome.VIOLATES if s.setup.sharing else Outcome.NOT_APPLICABLE)
    found, climbed = states(scenario, judge)
    assert found["sharing off"] == "unknown"
    assert "as the rule says" in next(r.told for r in climbed.rungs if r.name == "sharing off")


def test_a_log_in_which_no_rule_broke_holds(cases):
    scenario = cases["key.salts"]
    events = (CacheEvent(0, "x", Action.WRITE, 1, 0, 1),)
    first = Judged(Driven(scenario, events=events), Ruling(Outcome.VIOLATES, ""))
    found, _ = states(scenario, fails_if(lambda s: True), first)
    assert (found["block log"], found["key log"]) == ("holds", "holds")


def test_a_diagnosis_of_a_real_fault(cases, tmp_path):
    file = tmp_path / "s.json"
    file.write_text(schedule_file.dumps(cases["fork.in-a-block"]))
    engine = ["--engine", "kvfence.conformance.faults:open_faulty", "--in-process", "--report", str(tmp_path / "r")]
    done = CliRunner().invoke(main, ["diagnose", str(file), *engine, "--engine-arg", "defect=cow.fork"])
    assert done.exit_code == 1, done.output
    assert "looks like COW" in done.output
    [case] = read(tmp_path / "r").cases
    assert [rung["name"] for rung in case["ladder"]] == RUNGS
    assert case["ladder"][0]["state"] == "fails"
    assert "Ladder" in (tmp_path / "r" / "report.html").read_text()
    smallest = tmp_path / "r" / "schedules" / "smallest.json"
    assert len(smallest.read_text()) < len(file.read_text())
    right = CliRunner().invoke(main, ["diagnose", str(file), *engine])
    assert (right.exit_code, right.output.splitlines()[0].partition(":")[0]) == (0, "conforms"), right.output
