"""What a fork is told, called and held to, and what pausing for one means; its blocks are in test_ref_cow.py."""

import math

import pytest
from roads import asked, assert_empty, assert_golden, audited, finish, golden, step_until

from kvfence.reference_impl.engine import EngineError
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Status


def test_logprobs_of_a_child_are_those_of_its_own_output():
    engine = audited("random", logprobs=4)
    parent = engine.submit("r", asked(9), 8)
    step_until(engine, lambda: len(parent.output) == 3)
    place = len(parent.output) - 1
    known = [token for token, _ in parent.top_logprobs[place]][2]
    unknown = next(token for token in range(100) if token not in dict(parent.top_logprobs[place]))
    children = engine.fork("r", [known, unknown])
    finish(engine)
    for child in children:
        expected = golden("random").verify(asked(9), child.output).logprobs
        if child.output[place] == unknown:
            assert math.isnan(child.logprobs[place])
            child.logprobs[place] = expected[place]
        assert child.logprobs == pytest.approx(expected, abs=1e-4)
        assert child.top_logprobs[: place + 1] == parent.top_logprobs[: place + 1]
        assert len(child.top_logprobs) == 8
    assert_golden("random", children, forced=place + 1)


def test_children_are_called_after_the_first_parent_and_like_nobody_else():
    engine = audited()
    engine.submit("r", asked(9), 8)
    taken = engine.submit("r.1", asked(9, seed=1), 8)
    step_until(engine, lambda: engine.sequences["r"].output)
    first, second = engine.fork("r", [1400, 1500])
    assert (first.id, second.id) == ("r.0", "r.2")
    step_until(engine, lambda: first.emitted)
    [third] = engine.fork(first.id, [1600])
    assert (third.id, third.origin) == ("r.3", "r")
    assert engine.sequences["r.1"] is taken


def test_who_has_said_nothing_cannot_be_forked():
    engine = audited(token_budget=4)
    engine.submit("r", asked(9), 8)
    for _ in range(3):  # a prompt of 12 tokens
        with pytest.raises(EngineError, match="request r can be forked once it has emitted a token"):
            engine.fork("r", [1400])
        engine.step()
    assert engine.fork("r", [1400])


@pytest.mark.parametrize("depth", [0, 1])
def test_who_pauses_emits_no_more_and_keeps_its_blocks(depth):
    engine = audited(depth=depth)
    paused, other = engine.submit("paused", asked(9), 20), engine.submit("other", asked(9, seed=1), 30)
    paused.pause = 4
    step_until(engine, lambda: len(other.output) == 20)
    assert len(paused.output) == 4
    assert paused.status is Status.RUNNING
    assert paused.preemptions == 0
    paused.pause = None
    finish(engine)
    assert len(paused.output) == 20
    assert_golden("canary", [paused, other])
    assert_empty(engine)


@pytest.mark.parametrize("how", Preemption)
@pytest.mark.parametrize("settings", [{"max_concurrency": 1}, {"blocks": 8}], ids=["the only place", "the blocks"])
def test_who_pauses_stands_in_nobodys_way(settings, how):
    engine = audited(preemption=how, **settings)
    paused = engine.submit("paused", asked(9), 12)
    paused.pause = 3
    step_until(engine, lambda: len(paused.output) == 3)
    other = engine.submit("other", asked(9, seed=1), 12)
    step_until(engine, lambda: other.finish)
    assert len(paused.output) == 3
    assert paused.preemptions == 1
    paused.pause = None
    finish(engine)
    assert_golden("canary", [paused, other])
    assert_empty(engine)
