"""Twins of scenarios: right on a right engine, and what they say of a wrong one."""

import pytest

from kvfence.adapters.api import Request
from kvfence.adapters.schedule import Moment, submit
from kvfence.conformance.faults import Bench
from kvfence.conformance.oracles.side import common
from kvfence.conformance.oracles.twin import TwinEvidence, Verdict
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.twins import swapped, unsettled
from kvfence.prompts import alphabet
from kvfence.reference_impl.defects import DEFECTS

PREFIX = tuple(range(20, 40))
A, B, C = (alphabet.prompt_tokens((*PREFIX, *range(first, first + 9))) for first in (100, 200, 300))
STRANGER = alphabet.prompt_tokens(range(400, 430))


def requests(schedule):
    return {operation.request.id: operation.request.prompt for operation in schedule}


def test_the_request_itself_stays_and_its_neighbours_keep_their_shape():
    victim = Request("b", B, 4)
    schedule = (submit(Request("a", A, 4)), submit(victim, Moment("a")), submit(Request("s", STRANGER, 4)))
    before, after = requests(schedule), requests(swapped(schedule, victim))
    assert after["b"] == B
    for id in ("a", "s"):
        assert len(after[id]) == len(before[id])
        assert common(after[id], B) == common(before[id], B)
        assert after[id][common(before[id], B) :] != before[id][common(before[id], B) :]
    # A neighbour answers with the words that it has now.
    assert alphabet.answer(after["a"], 30)[20:29] != alphabet.answer(before["a"], 30)[20:29]
    assert swapped(schedule, victim)[1].when == Moment("a")


def test_of_one_neighbour_alone_only_its_own_words_move():
    victim = Request("c", C, 4)
    schedule = (submit(Request("a", A, 4)), submit(Request("b", B, 4)), submit(victim))
    after = requests(swapped(schedule, victim, schedule[0].request))
    assert (after["b"], after["c"]) == (B, C)
    assert after["a"] != A


def test_turns_of_its_own_conversation_are_no_neighbours():
    victim = Request("turn2", B, 4, conversation="talk")
    schedule = (submit(Request("turn1", A, 4, conversation="talk")), submit(victim), submit(Request("s", STRANGER, 4)))
    after = requests(swapped(schedule, victim))
    assert (after["turn1"], after["turn2"]) == (A, B)
    assert after["s"] != STRANGER


def score(name, *cases):
    patterns = tuple(f"{case}-*" for case in cases)
    settings = Settings("reference", "canary", "twins", cases=patterns, in_process=True)
    bench = Bench(settings, Plan(settings))
    try:
        return bench.score(DEFECTS[name] if name else None)
    finally:
        bench.close()


@pytest.mark.parametrize(
    "case", ["batch.hits-and-misses", "prefix.many", "fork.in-a-block", "key.adapters", "conversation.turns"]
)
def test_a_right_engine_answers_the_same_to_the_last_bit(case):
    record = score(None, case)
    assert (record.detected, record.failed) == (False, "")


def test_a_leak_moves_the_answer_and_names_whose_secret_it_is():
    record = score("refcount.two-writers", "batch.strangers")
    assert "twin" in record.oracles
    assert record.source_right


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (Verdict.EQUAL, ""),
        (Verdict.DEPENDS, ""),
        (Verdict.UNSTABLE, "twins of b: the answer changes from run to run"),
        (Verdict.UNLIKE, "twins of b: answers or hits came in one arm and not in the other"),
    ],
)
def test_arms_that_cannot_be_compared_leave_a_case_open(verdict, told):
    assert unsettled({"case/a": TwinEvidence(Verdict.EQUAL), "case/b": TwinEvidence(verdict)}) == told
