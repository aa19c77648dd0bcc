"""The auditor on the state of an engine: each rule's breach is named where it is broken, and nothing else is."""

import pytest
from roads import asked, audited, finish, step_until, words

from kvfence.reference_impl.auditor import AuditError, Breach, Rule
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.engine import EngineError
from kvfence.reference_impl.holding import Draining
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.scheduler import Preemption

SIZE = 4
PREFIX = words(12)


@pytest.fixture
def engine():
    """`done` has left published blocks; `a` and `b` run on some of them; the audit is on request."""
    engine = audited("random", audit=False, blocks=40)
    engine.submit("done", asked(14, 0, PREFIX), 3)
    finish(engine)
    for i, id in enumerate("ab"):
        engine.submit(id, asked(14, i + 1, PREFIX), 12)
    for _ in range(3):
        engine.step()
    assert engine.audit() == []
    return engine


def shared(engine):
    """A published block that both running requests name."""
    block = engine.sequences["a"].table.blocks[1]
    assert engine.pool.references[block] == 2
    return block


def private(engine, id="a"):
    """The block that a request writes to."""
    sequence = engine.sequences[id]
    block = sequence.table.blocks[(sequence.written - 1) // SIZE]
    assert engine.pool.writable(block)
    return block


def idle(engine):
    """A published block that nobody names and that nothing continues."""
    block = engine.pool.idle[0]
    assert not engine.cache.tree._nodes[block].children
    return block


def put(engine, block, namespace, tokens):
    """Have the index name a block for the last ones of `tokens`."""
    blocks = [*engine.cache.tree.match(namespace, tokens)[0][: (len(tokens) - 1) // SIZE], block]
    assert engine.cache.tree.insert(namespace, tokens, blocks) == [block]
    engine.pool.publish(block)


# Each breaks something and says what must be found: rule, block, and a part of what is told.


def a_free_block_is_lost(engine):
    return [(Rule.STATE, engine.pool.free.pop(), "in no state")]


def a_used_block_is_free(engine):
    block = private(engine)
    engine.pool.free.append(block)
    return [(Rule.STATE, block, "free and used")]


def a_block_is_free_twice(engine):
    engine.pool.free.append(block := engine.pool.free[0])
    return [(Rule.STATE, block, "free and free")]


def an_idle_block_is_free(engine):
    engine.pool.free.append(block := idle(engine))
    return [(Rule.STATE, block, "free and idle"), (Rule.STATE, block, "is free and can be found")]


def the_scratch_block_is_free(engine):
    engine.pool.free.append(SCRATCH)
    return [(Rule.STATE, SCRATCH, "reserved and free")]


def a_free_block_can_be_found(engine):
    engine.pool.withdraw(block := idle(engine))
    return [(Rule.FLAG, block, "in the index"), (Rule.STATE, block, "is free and can be found")]


def an_idle_block_cannot_be_found(engine):
    engine.cache.tree.remove(block := idle(engine))
    engine.pool.published[block] = 0
    return [(Rule.STATE, block, "is idle and cannot be found")]


def a_block_is_reserved_for_ever(engine):
    block = engine.pool.allocate()
    engine.cache.draining.append(Draining("gone", [block], []))
    return [(Rule.STATE, block, "no work in flight")]


def a_reference_is_not_counted(engine):
    engine.pool.references[block := shared(engine)] -= 1
    return [(Rule.COUNT, block, "counts 1 references and is held by a, b")]


def a_reference_is_counted_twice(engine):
    engine.pool.references[block := private(engine)] += 1
    return [(Rule.COUNT, block, "counts 2 references and is held by a")]


def a_table_forgets_a_block(engine):
    block = engine.sequences["a"].table.blocks.pop()
    return [
        (Rule.STATE, block, "in no state"),
        (Rule.COUNT, block, "counts 1 references and is held by nobody"),
        (Rule.HELD, SCRATCH, "holds nobody's K/V"),
    ]


def a_private_block_is_marked_as_published(engine):
    engine.pool.published[block := private(engine)] = 1
    return [(Rule.FLAG, block, "is not in the index and marked otherwise")]


def a_published_block_is_not_marked(engine):
    engine.pool.published[block := shared(engine)] = 0
    return [(Rule.FLAG, block, "is in the index and marked otherwise")]


def other_tokens_are_indexed(engine):
    put(engine, block := private(engine), Namespace(), [7, 8, 9, 10])
    return [(Rule.ENTRY, block, "is in the index for position 0 and holds token")]


def another_tenant_can_find_a_block(engine):
    tokens = engine.sequences["a"].tokens
    put(engine, block := private(engine), Namespace("other"), tokens[:SIZE])
    return [(Rule.ENTRY, block, "of a")]


def a_block_is_published_before_it_is_written(engine):
    engine.cache.reserve(sequence := engine.sequences["a"], sequence.written + 2 * SIZE)
    put(engine, block := sequence.table.blocks[-1], Namespace(), [7, 8])
    return [(Rule.ENTRY, block, "holds nobody's K/V")]


def two_entries_name_a_block(engine):
    block = shared(engine)
    held = next(tokens for _, tokens, held in engine.cache.tree.entries() if held == block)
    put(engine, block, Namespace("other"), held[:SIZE])
    return [(Rule.ENTRY, block, "has 2 entries"), (Rule.ENTRY, block, "and holds token")]


def a_table_names_a_block_twice(engine):
    engine.cache.reserve(sequence := engine.sequences["a"], sequence.written + 2 * SIZE)
    engine.pool.share(block := sequence.table.blocks[-1])
    sequence.table.blocks.append(block)
    return [(Rule.TABLE, block, "stands 2 times in the table of a")]


def two_tables_exchange_blocks(engine):
    a, b = (engine.sequences[id].table.blocks for id in "ab")
    (last_a, last_b), i = (private(engine, "a"), private(engine, "b")), len(a) - 1
    assert (a[i], b[i]) == (last_a, last_b)
    a[i], b[i] = last_b, last_a
    return [(Rule.HELD, last_b, "the table of a"), (Rule.HELD, last_a, "the table of b")]


def a_block_is_overwritten(engine):
    engine.storage.copy(private(engine, "b"), block := private(engine, "a"))
    return [(Rule.HELD, block, "of b")]


def a_block_that_is_read_is_let_go_of(engine):
    engine.cache.leave_window(engine.sequences["a"], SIZE)
    return [(Rule.HELD, SCRATCH, "stands in the table of a for position 0 and holds nobody's K/V")]


def more_is_counted_than_was_written(engine):
    sequence = engine.sequences["a"]
    sequence.tokens.append(7)
    sequence.written += 1
    return [(Rule.HELD, private(engine), f"for position {sequence.written - 1}")]


BREAKS = [
    a_free_block_is_lost,
    a_used_block_is_free,
    a_block_is_free_twice,
    an_idle_block_is_free,
    the_scratch_block_is_free,
    a_free_block_can_be_found,
    an_idle_block_cannot_be_found,
    a_block_is_reserved_for_ever,
    a_reference_is_not_counted,
    a_reference_is_counted_twice,
    a_table_forgets_a_block,
    a_private_block_is_marked_as_published,
    a_published_block_is_not_marked,
    other_tokens_are_indexed,
    another_tenant_can_find_a_block,
    a_block_is_published_before_it_is_written,
    two_entries_name_a_block,
    a_table_names_a_block_twice,
    two_tables_exchange_blocks,
    a_block_is_overwritten,
    a_block_that_is_read_is_let_go_of,
    more_is_counted_than_was_written,
]


@pytest.mark.parametrize("break_", BREAKS, ids=lambda function: function.__name__)
def test_what_is_broken_is_named_and_nothing_else(engine, break_):
    expected, found = break_(engine), engine.audit()
    assert len(found) == len(expected), found
    for rule, block, told in expected:
        assert any((one.rule, one.block) == (rule, block) and told in one.told for one in found), found


@pytest.mark.parametrize(("salt", "breaches"), [(None, 0), ("other", 1)])
def test_an_entry_is_for_the_tenant_whose_kv_it_names(salt, breaches):
    engine = audited("random", audit=False, sharing=False)
    sequence = engine.submit("a", asked(14), 12)
    engine.step()
    put(engine, block := sequence.table.blocks[0], Namespace(salt), sequence.tokens[:SIZE])
    assert [(one.rule, one.block, one.requests) for one in engine.audit()] == [(Rule.ENTRY, block, ("a",))] * breaches


def test_a_breach_says_who_holds_the_block(engine):
    engine.pool.references[block := shared(engine)] += 1
    assert engine.audit() == [
        Breach(Rule.COUNT, block, ("a", "b"), "counts 3 references and is held by a, b"),
    ]
    assert str(engine.audit()[0]) == f"count: block {block} counts 3 references and is held by a, b"


def test_a_breach_says_whose_kv_a_block_holds(engine):
    two_tables_exchange_blocks(engine)
    assert [breach.requests for breach in engine.audit()] == [("a", "b"), ("b", "a")]


def test_what_is_told_of_a_copy_in_flight_waits_until_it_has_landed():
    engine = audited("random", audit=False, blocks=40, depth=1, preemption=Preemption.SWAP)
    engine.submit("a", asked(14), 12)
    step_until(engine, lambda: engine.sequences["a"].output)
    engine.preempt("a")
    engine.submit("b", asked(14, 1), 12)
    step_until(engine, lambda: engine.sequences["a"].table.blocks)
    copy = engine.clock.in_flight(Stream.COPIES)[-1]
    assert engine.audit() == []
    engine.storage.restore = lambda blocks, pages: None
    engine.clock.wait(copy)
    assert {breach.rule for breach in engine.audit()} >= {Rule.HELD}


def test_a_step_raises_where_audits_are_on(engine):
    engine = audited("random")
    engine.submit("a", asked(14), 12)
    engine.step()
    lost, other = engine.pool.free.pop(), engine.pool.free.pop()
    with pytest.raises(AuditError) as caught:
        engine.step()
    assert str(caught.value).splitlines() == [f"state: block {block} is in no state" for block in sorted((lost, other))]
    assert [breach.block for breach in caught.value.breaches] == sorted((lost, other))


@pytest.mark.parametrize("switch", ["audit", "attention"])
def test_what_needs_tags_says_so(switch):
    with pytest.raises(EngineError, match="need owner tags"):
        audited("random", tags=False, **{"audit": False, switch: True})


def test_an_engine_without_tags_cannot_be_audited():
    with pytest.raises(EngineError, match="needs owner tags"):
        audited("random", tags=False, audit=False).audit()
