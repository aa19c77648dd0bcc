"""What the canary can answer without doubt: only such schedules are drawn and shrunk."""

from dataclasses import replace

import pytest

from kvfence.adapters.api import Request
from kvfence.adapters.schedule import Moment, Operation, Verb, submit
from kvfence.conformance.answerable import answerable, forkable
from kvfence.conformance.scenarios.cast import Cast
from kvfence.conformance.scenarios.scenario import ROOMY
from kvfence.prompts import alphabet
from kvfence.prompts.word_layout import WordLayout

PROMPT = alphabet.prompt_tokens([20, 21, 22, 23, 24])
ROUND = 6  # tokens of an answer before it begins again: its words but the first, ASK, and the first again


def scenario(tmp_path, *schedule):
    empty = Cast("x", WordLayout(0, 40), tmp_path, lambda part, kind: tmp_path).scenario("x", "x", ROOMY, "float32")
    return replace(empty, schedule=schedule)


@pytest.mark.parametrize("n", [4, 3 * ROUND, 3 * ROUND + 1])
def test_three_rounds_can_be_answered(tmp_path, n):
    assert answerable(scenario(tmp_path, submit(Request("A", PROMPT, n)))) == (n <= 3 * ROUND)


def test_nothing_asked_is_nothing_to_answer(tmp_path):
    assert not answerable(scenario(tmp_path))


@pytest.mark.parametrize(("first", "sure"), [(22, True), (23, True), (90, False)])
def test_a_fork_goes_on_from_its_own_first_token(first, sure):
    # It has said 21 in place of the first; of 90 nothing is known.
    assert forkable(PROMPT, 4, 1, [alphabet.WORDS + first]) == sure


def test_a_fork_may_come_later_than_it_was_asked_for():
    word = alphabet.WORDS + 22
    answer = alphabet.answer(PROMPT, 2 * ROUND)
    # With 22 in place of 24, 22 has been said twice, and the second round comes to it.
    late = alphabet.unambiguous((*PROMPT, *answer[:3], word), 2 * ROUND - 4)
    assert late < 2 * ROUND - 4
    assert not forkable(PROMPT, 2 * ROUND, 2, [word])
    assert forkable(PROMPT, ROUND, 2, [word])


@pytest.mark.parametrize("edited", [PROMPT, (*PROMPT[:2], 90, *PROMPT[3:])])
def test_a_turn_goes_on_from_its_history(tmp_path, edited):
    # The second turn asks from 22 on, which stands in its history alone.
    more = (alphabet.ASK, alphabet.WORDS + 22)
    schedule = (
        submit(Request("A", PROMPT, 2, conversation="a")),
        Operation(Verb.EDIT, "a", Moment("A"), None, edited),
        submit(Request("B", more, 1, conversation="a"), Moment("A")),
    )
    assert answerable(scenario(tmp_path, *schedule)) == (22 in edited)


def test_forks_of_a_schedule_are_looked_at(tmp_path):
    asked = submit(Request("A", PROMPT, 4))
    for first, sure in ((22, True), (90, False)):
        fork = Operation(Verb.FORK, "A", Moment("A", 1), None, (alphabet.WORDS + first,))
        assert answerable(scenario(tmp_path, asked, fork)) == sure
