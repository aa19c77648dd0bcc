"""Copy-on-write: whoever shares a block that is not full gets a copy of it before it writes there."""

import pytest
from roads import MODELS, asked, assert_empty, assert_golden, audited, count, events, finish, step_until

from kvfence.prompts import alphabet
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Status
from kvfence.reference_impl.trace import Kind

PROMPT = asked(8)  # 11 tokens
LENGTH = 18  # two rounds of the words: the second reads what the first has written


def decoding(engine):
    """A request that has emitted tokens and whose last block is not full."""
    sequence = engine.submit("parent", PROMPT, LENGTH)
    while sequence.emitted < 2 or sequence.written % engine.settings.block_size == 0:
        engine.step()
        engine.settle()
    return sequence


def skipping(sequence, *words):
    """Tokens that leave out so many of the words that come next: whoever goes on from there writes other ones."""
    return [alphabet.WORDS + PROMPT[1 + len(sequence.output) + n] for n in words]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_parent_and_children_write_different_tokens_to_what_was_one_block(name, depth):
    engine = audited(name, depth=depth)
    parent = decoding(engine)
    place, shared = len(parent.output), list(parent.table.blocks)
    children = engine.fork("parent", skipping(parent, 1, 2))
    assert [engine.pool.references[block] for block in shared] == [3] * len(shared)
    step_until(engine, lambda: all(child.status is Status.RUNNING for child in children))
    engine.settle()
    tables = [sequence.table.blocks for sequence in (parent, *children)]
    assert all(table[: len(shared) - 1] == shared[:-1] for table in tables)
    assert len({table[len(shared) - 1] for table in tables}) == 3
    done = finish(engine)
    copies = events(engine, Kind.COPY)
    # One of the three may write to the block itself, if by then the others have their copies.
    assert len(copies) >= 2
    assert {copy.source for copy in copies} == {shared[-1]}
    assert {copy.length for copy in copies} == {(len(PROMPT) + place - 1) % 4}
    assert_golden(name, [done.pop("parent")])
    assert_golden(name, done.values(), forced=place)
    assert len({tuple(sequence.output[place:]) for sequence in (parent, *children)}) == 3
    assert {sequence.emitted for sequence in (parent, *children)} == {LENGTH}
    assert_empty(engine)


@pytest.mark.parametrize("depth", [0, 1])
def test_fork_of_a_fork(depth):
    engine = audited(depth=depth)
    parent = decoding(engine)
    first = len(parent.output)
    [child] = engine.fork("parent", skipping(parent, 1))
    step_until(engine, lambda: child.emitted > first)
    engine.settle()
    second = len(child.output)
    grandchild, sibling = engine.fork(child.id, skipping(child, 2, 3))
    done = finish(engine)
    assert_golden("canary", [done["parent"]])
    assert_golden("canary", [child], forced=first)
    assert_golden("canary", [grandchild, sibling], forced=second)
    assert grandchild.output[: second - 1] == child.output[: second - 1]
    assert count(engine)[Kind.COPY] >= 3
    assert_empty(engine)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("sharing", [True, False])
def test_the_last_one_that_is_left_with_a_block_writes_to_it_unless_it_can_be_found(sharing, depth):
    engine = audited(sharing=sharing, depth=depth)
    parent = decoding(engine)
    place, last = len(parent.output), parent.table.blocks[-1]
    child, gone = engine.fork("parent", skipping(parent, 1, 2))
    engine.cancel("parent")
    engine.cancel(gone.id)
    assert engine.pool.published[last] == sharing
    finish(engine)
    assert count(engine)[Kind.COPY] == sharing
    assert_golden("canary", [child], forced=place)
    assert_empty(engine)


def test_a_fork_of_full_blocks_copies_nothing():
    engine = audited()
    parent = engine.submit("parent", asked(9), LENGTH)  # 12 tokens
    engine.step()
    assert (parent.written, parent.emitted) == (12, 1)
    [child] = engine.fork("parent", skipping(parent, 1))
    finish(engine)
    assert count(engine)[Kind.COPY] == 0
    assert child.table.blocks == []
    assert_golden("canary", [parent])
    assert_golden("canary", [child], forced=1)


@pytest.mark.parametrize("how", Preemption)
@pytest.mark.parametrize("who", ["parent", "child"])
@pytest.mark.parametrize("depth", [0, 1])
def test_one_of_those_that_share_a_block_is_preempted(how, who, depth):
    engine = audited(depth=depth)
    parent = decoding(engine)
    place = len(parent.output)
    child, other = engine.fork("parent", skipping(parent, 1, 2))
    if who == "child":
        step_until(engine, lambda: child.status is Status.RUNNING)
    engine.preempt({"parent": "parent", "child": child.id}[who], how)
    finish(engine)
    seen = count(engine)
    assert engine.scheduler.preempted == 1
    assert bool(seen[Kind.SWAP_IN]) == bool(seen[Kind.SWAP_OUT]) == (how is Preemption.SWAP)
    assert_golden("canary", [parent])
    assert_golden("canary", [child, other], forced=place)
    assert_empty(engine)


@pytest.mark.parametrize("how", Preemption)
def test_fork_of_one_that_was_preempted_and_holds_no_blocks(how):
    engine = audited()
    parent = decoding(engine)
    place = len(parent.output)
    engine.preempt("parent", how)
    children = engine.fork("parent", skipping(parent, 1, 2))
    assert [child.table.blocks for child in children] == [[], []]
    finish(engine)
    assert_golden("canary", [parent])
    assert_golden("canary", children, forced=place)
    assert_empty(engine)


def test_the_source_of_a_copy_is_reserved_until_the_copy_has_landed():
    engine = audited(depth=1, sharing=False)
    parent = decoding(engine)
    last = parent.table.blocks[-1]
    engine.fork("parent", skipping(parent, 1, 2))
    engine.cancel("parent")
    assert engine.pool.references[last] == 2
    engine.step()
    copies = engine.clock.in_flight(Stream.COPIES)
    assert len(copies) == 2
    assert [let_go.blocks for let_go in engine.cache.draining] == [[last]] * 2
    assert last not in engine.pool.free
    engine.settle()
    assert last in engine.pool.free
    finish(engine)
    assert_empty(engine)
