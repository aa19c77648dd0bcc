"""Probes: which of a few scenarios a fault shows in."""

import pytest

from kvfence.adapters.api import Completion
from kvfence.adapters.observation import Action, CacheEvent
from kvfence.conformance.driven import Answer, Driven
from kvfence.conformance.judge import Ruling
from kvfence.conformance.oracles.slots import Breach
from kvfence.conformance.plan import Plan
from kvfence.conformance.probes import LOGGED, PROBES, probe
from kvfence.conformance.scenarios import REPERTOIRE
from kvfence.conformance.settings import Settings
from kvfence.conformance.trial import Judged
from kvfence.prompts.prompt import Prompt
from kvfence.reports.outcome import Outcome

EVENT = CacheEvent(0, "x", Action.FREE, 1, 0, 0)


@pytest.fixture(scope="module")
def cases():
    return {case.name: case for case in Plan(Settings("reference", "canary", "scenarios")).cases}


def judged(case, outcome, answers=(), events=()):
    return Judged(Driven(case, answers=answers, events=events), Ruling(outcome, ""))


def tried(cases, first, failing, events=()):
    asked = []

    def judge(case):
        asked.append(case.name)
        return judged(case, failing.get(case.name, Outcome.CONFORMS))

    facts = probe(cases.values(), judged(cases[first], Outcome.VIOLATES, events=events), judge)
    return facts, asked


def test_probes_are_scenarios_that_every_run_has():
    assert set(PROBES) | set(LOGGED) <= set(REPERTOIRE.matching(("*",)))


def test_each_probe_fails_or_holds_and_the_first_case_is_not_asked_again(cases):
    facts, asked = tried(cases, "key.salts", {"evict.reset": Outcome.VIOLATES, "slot.recycled": Outcome.SUITE_ERROR})
    assert sorted(asked) == sorted(set(PROBES) - {"key.salts"})
    assert {fact for fact in facts if not fact.startswith("holds:")} == {"fails:key.salts", "fails:evict.reset"}
    assert {f"holds:{name}" for name in PROBES} - facts == {
        f"holds:{name}" for name in ("key.salts", "evict.reset", "slot.recycled")
    }


def test_one_requirement_alone_is_told(cases):
    facts, _ = tried(cases, "key.salts-evicted", {"key.salts": Outcome.VIOLATES})
    assert {fact for fact in facts if fact.startswith("only:")} == {"only:key.salt"}


def test_where_there_is_a_log_few_are_asked_and_what_breaks_for_anybody_is_told(cases):
    breach = Breach("owner", "x/B", "x/A", EVENT, "")
    first = judged(cases["key.salts"], Outcome.VIOLATES, events=(EVENT,))
    answer = Answer(Prompt("B", "", (1,), 0, (), ()), Completion("x/B", (2,)), breaches=(breach,))
    facts = probe(cases.values(), first, lambda case: judged(case, Outcome.VIOLATES, (answer,)))
    assert {fact for fact in facts if fact.startswith("fails:")} == {f"fails:{n}" for n in (*LOGGED, "key.salts")}
    assert "case:owner" in facts
