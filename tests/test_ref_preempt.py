"""Preemption: who makes room for others goes on later as if nothing had been, whether K/V are swapped or recomputed."""

import pytest
from roads import MODELS, asked, assert_empty, assert_golden, audited, count, finish, step_until, words

from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.engine import EngineError
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Status
from kvfence.reference_impl.trace import Kind

DEPTHS = pytest.mark.parametrize("depth", [0, 1])
HOWS = pytest.mark.parametrize("how", Preemption)
NAMES = pytest.mark.parametrize("name", MODELS)
PROMPT = asked(18)  # 21 tokens
LENGTH = 40  # two rounds


@DEPTHS
@HOWS
@NAMES
@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_preempted_in_prefill_and_when_it_decodes(name, how, depth, tokens):
    engine = audited(name, token_budget=8, depth=depth, sharing=False)
    sequence = engine.submit("r", PROMPT, LENGTH)
    step_until(engine, lambda: sequence.written and sequence.emitted >= tokens)
    engine.settle()
    written = sequence.written
    assert (written < 21) is (tokens == 0)
    engine.preempt("r", how)
    assert sequence.status is {"swap": Status.SWAPPED, "recompute": Status.WAITING}[how]
    engine.settle()
    assert engine.pool.used == 0
    finish(engine)
    assert (sequence.preemptions, engine.scheduler.preempted, engine.metrics.preemptions) == (1, 1, 1)
    swaps = -(-written // 4) if how is Preemption.SWAP else 0
    seen = count(engine)
    assert (seen[Kind.SWAP_OUT], seen[Kind.SWAP_IN]) == (swaps, swaps)
    # Swapped K/V are not computed again.
    again = 0 if how is Preemption.SWAP else written
    assert engine.metrics.computed == 21 + LENGTH - 1 + again
    assert_golden(name, [sequence])
    assert_empty(engine)


@DEPTHS
@HOWS
@NAMES
@pytest.mark.parametrize("sharing", [True, False])
def test_a_pool_too_small_for_all(name, how, depth, sharing):
    engine = audited(name, blocks=22, token_budget=24, preemption=how, depth=depth, sharing=sharing)
    prefix = words(6)
    sequences = [engine.submit(str(i), asked(9 + i, i, prefix), 24 + i) for i in range(4)]
    finish(engine)
    assert engine.scheduler.preempted >= 2
    assert sequences[0].preemptions == 0
    seen = count(engine)
    assert (seen[Kind.SWAP_IN] > 0) is (seen[Kind.SWAP_OUT] > 0) is (how is Preemption.SWAP)
    assert (engine.metrics.cached_tokens > 0) is sharing
    assert_golden(name, sequences)
    assert_empty(engine)


@HOWS
def test_who_came_last_makes_room_and_goes_on_before_those_that_came_later(how):
    engine = audited(blocks=18, preemption=how, max_concurrency=2, sharing=False)
    first, second, third = (engine.submit(str(i), asked(17 + i, i), 24) for i in range(3))
    step_until(engine, lambda: second.preemptions)
    assert (first.status, third.admitted) == (Status.RUNNING, None)
    assert list(engine.scheduler.waiting) == [second, third]
    step_until(engine, lambda: third.admitted is not None)
    assert second in engine.scheduler.running or second.finish
    finish(engine)
    assert first.preemptions == 0
    assert_golden("canary", [first, second, third])


@HOWS
@pytest.mark.parametrize(("depth", "draft"), [(0, 0), (1, 0), (0, 3)])
def test_each_needs_all_blocks_but_one(how, depth, draft):
    engine = audited(blocks=14, preemption=how, depth=depth, draft=draft)
    with pytest.raises(EngineError, match="request 9 needs 49 tokens of KV; the pool has 48"):
        engine.submit("9", PROMPT, 29)
    sequences = [engine.submit(str(i), asked(18, i), 28) for i in range(3)]
    finish(engine)
    assert engine.scheduler.preempted
    assert_golden("canary", sequences)
    assert_empty(engine)


@DEPTHS
def test_preempted_again_while_its_kv_are_coming_back(depth):
    engine = audited(depth=depth)
    sequence = engine.submit("r", PROMPT, LENGTH)
    other = engine.submit("other", asked(9, 4), LENGTH)
    step_until(engine, lambda: sequence.emitted > 2)
    for n in range(1, 4):
        engine.preempt("r", Preemption.SWAP)
        engine.step()
        assert sequence.status is Status.RUNNING
        assert bool(engine.clock.in_flight(Stream.COPIES)) is bool(depth)
        assert sequence.preemptions == n
    finish(engine)
    assert_golden("canary", [sequence, other])
    assert_empty(engine)


@DEPTHS
def test_blocks_that_were_reserved_for_a_row_that_does_not_run_are_not_swapped(depth):
    engine = audited(depth=depth)
    sequence = engine.submit("r", PROMPT, LENGTH)
    step_until(engine, lambda: sequence.emitted > 2)
    engine.settle()
    engine.cache.reserve(sequence, sequence.written + 9)
    assert len(sequence.table.blocks) > -(-sequence.written // 4)
    engine.preempt("r", Preemption.SWAP)
    finish(engine)
    assert_golden("canary", [sequence])
    assert_empty(engine)


@DEPTHS
@HOWS
def test_what_was_preempted_can_be_found_and_lost(how, depth):
    engine = audited(depth=depth, max_concurrency=1)
    sequence = engine.submit("r", PROMPT, LENGTH)
    step_until(engine, lambda: sequence.emitted > 5)
    engine.submit("other", PROMPT, 4)
    engine.preempt("r", how)
    # Both hows publish; a swapped one needs nothing of what it has published.
    assert engine.cache.tree.match(sequence.namespace, sequence.tokens)[1] == len(sequence.tokens) - 1
    if how is Preemption.SWAP:
        engine.reset_cache()
    done = finish(engine)
    assert_golden("canary", done.values())
    assert done["other"].cached == 20
    assert_empty(engine)


@DEPTHS
def test_swapped_k_v_outlive_a_reset(depth):
    engine = audited(depth=depth)
    sequence = engine.submit("r", PROMPT, LENGTH)
    step_until(engine, lambda: sequence.emitted > 5)
    engine.preempt("r", Preemption.SWAP)
    engine.reset_cache()
    assert len(engine.pool.free) == 64
    computed = engine.metrics.computed
    left = LENGTH - len(sequence.output)
    finish(engine)
    assert engine.metrics.computed - computed == left
    assert_golden("canary", [sequence])


@DEPTHS
def test_those_that_wait_with_blocks_make_room_before_those_that_run(depth):
    engine = audited(blocks=18, depth=depth, max_concurrency=1, sharing=False)
    engine.submit("turn 1", asked(8), 6, conversation="talk")
    finish(engine)
    running = engine.submit("running", asked(20, 1), 34)
    step_until(engine, lambda: running.emitted)
    waiting = engine.submit("turn 2", asked(8, 2), 6, conversation="talk")
    assert waiting.table.blocks
    step_until(engine, lambda: not waiting.table.blocks)
    assert running.status is Status.RUNNING
    finish(engine)
    assert engine.scheduler.preempted == 0
    assert_golden("canary", [running, waiting])
    assert_empty(engine)


def test_only_one_in_the_batch_can_be_preempted():
    engine = audited(max_concurrency=1)
    engine.submit("a", PROMPT, 4)
    engine.submit("b", PROMPT, 4)
    engine.step()
    with pytest.raises(EngineError, match="request b is waiting, not in the batch"):
        engine.preempt("b")
    engine.preempt("a", Preemption.SWAP)
    with pytest.raises(EngineError, match="request a is swapped, not in the batch"):
        engine.preempt("a")
    with pytest.raises(EngineError, match="there is no request c"):
        engine.preempt("c")
