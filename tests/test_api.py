from dataclasses import replace

import numpy as np
import pytest

from kvfence.adapters.api import Completion, EngineFaultError, Request
from kvfence.adapters.check import check_completions, check_observed
from kvfence.adapters.observation import Attention, Observed

REQUESTS = [Request("a", (1, 2), 2), Request("b", (1,), 1)]
GOOD = [Completion("b", (7,), (-0.1,)), Completion("a", (5, 6), (-0.1, -0.2), (((5, -0.1),), ((6, -0.2),)))]


def test_completions_come_back_in_the_order_of_the_requests():
    assert [c.id for c in check_completions(REQUESTS, GOOD, 10)] == ["a", "b"]


@pytest.mark.parametrize(
    ("completions", "message"),
    [
        (None, "must return a sequence of Completion, not NoneType"),
        ([("a", (1,))], "must return Completions, not tuple"),
        (GOOD[:1], "2 requests got 1 completions"),
        ([GOOD[0], GOOD[0]], "2 requests got 2 completions"),
        ([GOOD[0], Completion("c", (5, 6))], "2 requests got 2 completions"),
        ([GOOD[0], Completion("a", (5,))], "request a got 1 tokens instead of 2"),
        ([GOOD[0], Completion("a", (5, 6, 7))], "request a got 3 tokens instead of 2"),
        ([GOOD[0], Completion("a", (5, 10))], "request a got token 10 outside the vocabulary of 10"),
        ([GOOD[0], Completion("a", (5, -1))], "request a got token -1 outside the vocabulary"),
        ([GOOD[0], Completion("a", (5, "x"))], "request a got token 'x' of type str, not int"),
        ([GOOD[0], Completion("a", (5, 6), (-0.1,))], "request a got 1 logprobs for 2 tokens"),
        ([GOOD[0], Completion("a", (5, 6), None, ())], "request a got 0 top_logprobs for 2 tokens"),
        ([GOOD[0], Completion("a", None)], "request a got tokens of type NoneType, not a tuple"),
        ([GOOD[0], Completion("a", (5, np.int64(6)))], "request a got token np.int64(6) of type int64, not int"),
        ([GOOD[0], Completion("a", (5, 6), (None, -0.1))], "request a got logprobs with None, which is no number"),
        (
            [GOOD[0], Completion("a", (5, 6), None, ((5,), (6,)))],
            "got top_logprobs that are not (token, nats)",
        ),
        ([GOOD[0], Completion("a", (5, 6), cached_tokens=-1)], "request a got -1 cached tokens of a prompt of 2"),
        ([GOOD[0], Completion("a", (5, 6), cached_tokens=3)], "request a got 3 cached tokens of a prompt of 2"),
        ([GOOD[0], Completion("a", (5, 6), cached_tokens="2")], "request a got '2' cached tokens, not an int"),
    ],
)
def test_what_is_no_answer_is_named(completions, message):
    with pytest.raises(EngineFaultError) as error:
        check_completions(REQUESTS, completions, 10)
    assert message in str(error.value)


def attention(n=2, layers=3, heads=4, top=3):
    shape = (n, layers, heads)
    return Attention(*(np.zeros((*shape, *more), np.float32) for more in ((7,), (), (), (top,))))


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        (None, "observe() must return an Observed, got NoneType"),
        (Observed({"a": None}), "observe() must show each Attention as such, got NoneType"),
        (Observed(events=("write",)), "observe() must show each CacheEvent as such, got str"),
        (Observed({"a": attention(n=3)}), "request a got 2 tokens but attention of 3 steps"),
        (Observed({"a": attention(top=2)}), "attention of request a is not of [steps, layers, heads] throughout"),
        (
            Observed({"a": replace(attention(), entropy=attention(heads=5).entropy)}),
            "attention of request a is not of [steps, layers, heads] throughout",
        ),
    ],
)
def test_what_is_no_observation_is_named(observed, message):
    with pytest.raises(EngineFaultError) as error:
        check_observed(REQUESTS, observed)
    assert message in str(error.value)


def test_what_was_seen_of_other_requests_is_left_alone():
    observed = Observed({"a": attention(), "earlier": attention(n=9)})
    assert check_observed(REQUESTS, observed) is observed
