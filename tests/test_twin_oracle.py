"""Oracle twin: the bijection, and what repeats of two arms show."""

import random
from dataclasses import replace

import pytest

from kvfence.adapters.api import Completion
from kvfence.conformance.oracles.twin import Verdict, bijection, examine, first_difference, mapped

ANSWER = Completion("r", (5, 6, 7), (-0.1, -0.2, -0.3), (((5, -0.1),), ((6, -0.2),), ((7, -0.3),)), 16)


def test_a_bijection_moves_the_private_and_leaves_the_fixed():
    fixed, private = {1, 2, 3}, {3, 10, 11, 12}
    exchange = bijection(private, fixed, range(40), random.Random(0))
    every = mapped(range(40), exchange)
    assert sorted(every) == list(range(40))  # one to one
    assert all(every[token] == token for token in fixed)
    assert all(every[token] != token for token in private - fixed)


def test_where_few_are_free_the_private_change_places_with_each_other():
    exchange = bijection({4, 5, 6, 7}, {0, 1, 2, 3}, range(9), random.Random(0))
    assert sorted(exchange) == sorted(exchange.values()) == [4, 5, 6, 7, 8]
    assert all(token != other for token, other in exchange.items())
    with pytest.raises(ValueError, match="token 4 is to be exchanged and no other is free"):
        bijection({4}, {0, 1, 2, 3}, range(5), random.Random(0))


def test_lengths_and_common_prefixes_stay():
    a, b = (1, 2, 9, 8, 7), (1, 2, 9, 4, 7)
    exchange = bijection({9, 8, 4}, {1, 2}, range(100), random.Random(1))
    x, y = mapped(a, exchange), mapped(b, exchange)
    assert x[:3] == y[:3]
    assert x[3] != y[3]
    assert x[:2] == a[:2]


def test_answers_are_compared_bit_for_bit():
    assert first_difference(ANSWER, replace(ANSWER, id="other")) is None
    assert first_difference(ANSWER, replace(ANSWER, tokens=(5, 9, 7))) == (1, "token")
    assert first_difference(ANSWER, replace(ANSWER, logprobs=(-0.1, -0.2, -0.30000000000000004))) == (2, "logprob")
    other = replace(ANSWER, top_logprobs=(((5, -0.10000000000000002),), *ANSWER.top_logprobs[1:]))
    assert first_difference(ANSWER, other) == (0, "logprob")


MOVED = replace(ANSWER, logprobs=(-0.1, -0.25, -0.3))


@pytest.mark.parametrize(
    ("controls", "swaps", "verdict", "step"),
    [
        ([ANSWER] * 3, [ANSWER] * 3, Verdict.EQUAL, None),
        ([ANSWER] * 3, [MOVED] * 3, Verdict.DEPENDS, 1),
        ([ANSWER, MOVED], [MOVED] * 2, Verdict.UNSTABLE, None),
        ([ANSWER] * 2, [MOVED, ANSWER], Verdict.UNSTABLE, None),
        ([ANSWER], [replace(MOVED, cached_tokens=0)], Verdict.UNLIKE, None),
        ([ANSWER], [], Verdict.UNLIKE, None),
    ],
)
def test_only_arms_that_agree_with_themselves_can_differ(controls, swaps, verdict, step):
    found = examine(controls, swaps)
    assert (found.verdict, found.step) == (verdict, step)
