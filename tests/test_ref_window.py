"""Sliding windows on the reference engine: outputs are golden's, and blocks behind the window are let go of."""

import pytest
from roads import assert_empty, finish, step_until
from seams import BLOCK, NOISE, engine_on, margin, prompts, tokens
from tiny_models import WINDOW, tiny

from kvfence.reference_impl.golden import Golden
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.scheduler import Preemption

MIXED = ("gemma2", "gemma3")  # a layer with a window, a layer without
EDGES = (1, BLOCK, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + BLOCK, 3 * WINDOW)
LENGTH = WINDOW + BLOCK + 2  # of outputs: the window leaves all of the shorter prompts


@pytest.fixture(scope="module")
def model():
    return tiny("mistral", 2)


@pytest.fixture(scope="module")
def golden():
    return Golden(tiny("mistral", 2))


def held(sequence):
    return sum(block != SCRATCH for block in sequence.table.blocks)


def needed(sequence):
    """Blocks of a table that hold a position which its next query will see, or which are behind that."""
    return len(sequence.table.blocks) - max(0, sequence.written - WINDOW + 1) // BLOCK


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("budget", [10, 512])
@pytest.mark.parametrize("family", ["mistral", *MIXED])
def test_outputs_are_golden_at_every_edge(family, budget, depth):
    engine = engine_on(tiny(family, 2), token_budget=budget, depth=depth)
    for n in EDGES:
        engine.submit(str(n), tokens(n, seed=n), LENGTH)
    done = finish(engine)
    assert margin(Golden(tiny(family, 2)), done.values()) <= NOISE
    assert_empty(engine)


def test_these_outputs_depend_on_the_window(model, golden):
    """The positive control: with a window one token wider or narrower they would not be golden's."""
    for wrong in (WINDOW - 1, WINDOW + 1):
        engine = engine_on(tiny("mistral", 2, sliding_window=wrong))
        for n in EDGES:
            engine.submit(str(n), tokens(n, seed=n), LENGTH)
        done = finish(engine)
        worst = {n: margin(golden, [done[str(n)]]) for n in EDGES}
        assert all(worst[n] > 100 * NOISE for n in EDGES if n >= WINDOW - 1), worst


@pytest.mark.parametrize("sharing", [False, True])
def test_blocks_behind_the_window_are_let_go_of(model, sharing):
    engine = engine_on(model, sharing=sharing, token_budget=2 * BLOCK)
    for n in EDGES:
        engine.submit(str(n), tokens(n, seed=n), LENGTH)
    left = 0
    while engine.sequences:
        engine.step()
        running = [sequence for sequence in engine.sequences.values() if sequence.written]
        assert [held(sequence) for sequence in running] == [needed(sequence) for sequence in running]
        # Without others in their blocks: each sequence sees WINDOW - 1 tokens behind those of its row.
        most = (WINDOW - 1 + BLOCK - 1) // BLOCK + 1
        decoding = [sequence for sequence in running if sequence.emitted > 1]
        assert all(held(sequence) <= most for sequence in decoding)
        assert engine.pool.used == sum(map(held, running))
        left = max(left, sum(len(s.table.blocks) - held(s) for s in running))
    assert left > 20
    assert_empty(engine)


@pytest.mark.parametrize("family", MIXED)
def test_a_layer_without_a_window_keeps_every_block(family):
    engine = engine_on(tiny(family, 2))
    sequence = engine.submit("r", tokens(3 * WINDOW), LENGTH)
    step_until(engine, lambda: sequence.emitted > 20)
    assert engine.runner.window is None
    assert SCRATCH not in sequence.table.blocks


def test_a_prefix_that_the_window_has_left_is_shared(model, golden):
    engine = engine_on(model, token_budget=2 * BLOCK)
    first, second = prompts(2, prefix=3 * WINDOW)
    leader = engine.submit("leader", first, 2 * LENGTH)
    step_until(engine, lambda: leader.emitted > 3)
    assert SCRATCH in leader.table.blocks
    engine.submit("beside it", second, LENGTH)
    done = finish(engine)
    engine.submit("behind it", second, LENGTH)
    done |= finish(engine)
    assert done["beside it"].cached == 3 * WINDOW
    assert done["behind it"].cached == len(second) - 1
    assert margin(golden, done.values()) <= NOISE
    assert_empty(engine)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("how", Preemption)
def test_preempted_with_holes_whose_blocks_were_evicted(model, golden, how, depth):
    """What was let go of and taken by others is neither read again nor published again as the prefix it was."""
    engine = engine_on(model, blocks=14, token_budget=2 * BLOCK, depth=depth)
    prompt = tokens(WINDOW + BLOCK)
    sequence = engine.submit("r", prompt, LENGTH)
    step_until(engine, lambda: sequence.emitted > 2 * BLOCK)
    leading = engine.cache.tree.match(sequence.namespace, prompt)[1]
    assert leading >= WINDOW
    assert sequence.table.blocks[:2] == [SCRATCH, SCRATCH]
    other = engine.submit("other", tokens(8 * BLOCK, seed=9), 2)
    step_until(engine, lambda: other.emitted)
    assert engine.cache.tree.match(sequence.namespace, prompt)[1] == 0
    if sequence.preemptions == 0:
        engine.preempt("r", how)
    done = finish(engine)
    again = engine.submit("again", [*prompt[:-1], 3], LENGTH)
    assert sequence.preemptions
    done |= finish(engine)
    assert margin(golden, done.values()) <= NOISE
    # Recomputing writes the whole prefix anew; a swap brings back only what is in the window.
    assert (again.cached >= WINDOW) is (how is Preemption.RECOMPUTE)
    assert_empty(engine)


@pytest.mark.parametrize("depth", [0, 1])
def test_forks_with_holes(model, golden, depth):
    engine = engine_on(model, depth=depth)
    parent = engine.submit("parent", tokens(2 * WINDOW), LENGTH)
    step_until(engine, lambda: parent.emitted > BLOCK + 2)
    engine.settle()
    place = len(parent.output)
    children = engine.fork("parent", [5, 6])
    assert all(child.table.blocks[0] == SCRATCH for child in children)
    done = finish(engine)
    assert margin(golden, [done["parent"]]) <= NOISE
    for child, forced in zip(children, (5, 6), strict=True):
        prompt = [*child.tokens[: child.prompt + place - 1], forced]
        assert max(golden.verify(prompt, child.output[place:]).margins) <= NOISE
    assert_empty(engine)


@pytest.mark.parametrize("sharing", [False, True])
def test_a_turn_goes_on_from_kv_with_holes(model, golden, sharing):
    engine = engine_on(model, sharing=sharing)
    for turn in range(3):
        sequence = engine.submit(str(turn), tokens(WINDOW, seed=turn), LENGTH, conversation="c")
        cached = sequence.cached
        assert margin(golden, finish(engine).values()) <= NOISE
    assert cached == 2 * (WINDOW + LENGTH) - 1
    assert_empty(engine)


def test_rejected_guesses_at_the_edge_of_the_window():
    few = {"vocab_size": 8}  # so that the last two tokens often stood somewhere before
    engine = engine_on(tiny("mistral", 2, **few), draft=3)
    for n in range(WINDOW - 4, WINDOW + 4):
        engine.submit(str(n), [token % 8 for token in tokens(n, seed=n)], LENGTH)
    done = finish(engine)
    assert margin(Golden(tiny("mistral", 2, **few)), done.values()) <= NOISE
    assert engine.metrics.accepted > 10
    assert engine.metrics.rejected > 100
    assert_empty(engine)
