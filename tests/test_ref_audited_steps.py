"""The auditor on forward passes: each fault is named as it writes or reads, and a busy engine is clean."""

import random

import pytest
from roads import asked, assert_empty, audited, count, finish, step_until, words
from tiny_models import WINDOW, tiny

from kvfence.prompts import alphabet
from kvfence.reference_impl.auditor import Rule
from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.engine import EngineError, ReferenceEngine
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.pool import SCRATCH, BlockPool
from kvfence.reference_impl.radix import PrefixTree
from kvfence.reference_impl.runner import Runner
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Finish
from kvfence.reference_impl.settings import Parts, Settings
from kvfence.reference_impl.trace import Kind

SIZE = 4
PREFIX = words(12)


def broken(**parts_and_settings):
    """An engine with a part exchanged, that is audited on request."""
    parts = {name: value for name, value in parts_and_settings.items() if isinstance(value, type)}
    settings = {name: value for name, value in parts_and_settings.items() if name not in parts}
    return audited("random", Parts(**parts), audit=False, **settings)


def told(engine, *rules):
    """Rule, block and what is told of each breach, of these rules if any."""
    return [(one.rule, one.block, one.told) for one in engine.audit() if not rules or one.rule in rules]


class CopiesNothing(KVCache):
    def _copy_on_write(self, sequence):
        pass


def test_a_write_to_a_block_of_several_is_named():
    engine = broken(cache=CopiesNothing)
    engine.submit("a", asked(14), 12)
    step_until(engine, lambda: len(engine.sequences["a"].output) == 2)
    engine.fork("a", [7, 8])
    assert told(engine) == []
    block = engine.sequences["a"].table.blocks[-1]
    engine.step()
    found = engine.audit()
    writes = [one for one in found if one.rule is Rule.WRITE]
    assert [(one.block, one.requests[0]) for one in writes] == [(block, "a"), (block, "a.0"), (block, "a.1")]
    assert all(sorted(one.requests[1:]) == ["a", "a.0", "a.1"] for one in writes)
    # Of three tokens written to one slot the last is there to be read: by its own request, and by two others.
    assert [one.block for one in found if one.rule is Rule.READ] == [block] * 2


class TakesPublishedForPrivate(BlockPool):
    def writable(self, block):
        return self.references[block] == 1


def test_a_write_to_a_published_block_is_named():
    engine = broken(pool=TakesPublishedForPrivate)
    engine.submit("a", asked(15), 1)
    finish(engine)
    (tail,) = (block for _, tokens, block in engine.cache.tree.entries() if len(tokens) % SIZE)
    engine.submit("b", asked(15), 12)
    engine.step()
    assert (Rule.WRITE, tail, "is written to by b and published") in told(engine)


class FreesAtOnce(KVCache):
    def _let_go(self, request, blocks, operations):
        super()._let_go(request, blocks, ())


def test_a_write_to_a_block_that_was_freed_under_a_step_is_named():
    engine = broken(cache=FreesAtOnce, depth=1)
    engine.submit("a", asked(14), 12)
    step_until(engine, lambda: engine.sequences["a"].output)
    block = engine.sequences["a"].table.blocks[-1]
    engine.cancel("a")
    assert told(engine) == []
    engine.settle()
    assert told(engine) == [(Rule.WRITE, block, "is written to by a and held by nobody")]


class PadsWithTheLastSlot(Runner):
    def pack(self, *arguments):
        packed = super().pack(*arguments)
        packed.batch.slots[packed.batch.slots == SCRATCH] = 65 * SIZE - 1
        return packed


def test_a_write_of_padding_is_named_and_what_it_has_done():
    engine = broken(runner=PadsWithTheLastSlot, buckets=(3,))
    engine.pool.free.sort()  # the last block is had first
    engine.submit("a", asked(14), 12)
    step_until(engine, lambda: engine.sequences["a"].output)
    assert told(engine) == []
    engine.step()
    assert told(engine) == [
        (Rule.WRITE, 64, "is written to by padding and held by a"),
        (Rule.READ, 64, "is read by a for position 3 and holds nobody's K/V"),
        (Rule.HELD, 64, "stands in the table of a for position 3 and holds nobody's K/V"),
        (Rule.ENTRY, 64, "is in the index for position 3 and holds nobody's K/V"),
    ]


class LosesTheLastWrite(Runner):
    def pack(self, *arguments):
        packed = super().pack(*arguments)
        packed.batch.slots[-1] = SCRATCH
        return packed


def test_a_write_elsewhere_is_named_and_the_read_where_it_is_missed():
    engine = broken(runner=LosesTheLastWrite)
    sequence = engine.submit("a", asked(14), 12)
    engine.step()
    block = sequence.table.blocks[-1]
    assert told(engine) == [
        (Rule.WRITE, SCRATCH, "is written to by a and held by nobody"),
        (Rule.READ, block, "is read by a for position 16 and holds nobody's K/V"),
        (Rule.HELD, block, "stands in the table of a for position 16 and holds nobody's K/V"),
    ]


class ExchangesTables(Runner):
    def pack(self, *arguments):
        packed = super().pack(*arguments)
        for group in packed.batch.groups:
            group.blocks = group.blocks.flip(0)
        return packed


def test_a_read_through_anothers_table_is_named():
    engine = broken(runner=ExchangesTables)
    for i, id in enumerate("ab"):
        engine.submit(id, asked(14, i, PREFIX), 12)
    step_until(engine, lambda: "b" in engine.sequences and len(engine.sequences["b"].output) == 1)
    assert told(engine) == []
    engine.step()
    a, b = (engine.sequences[id] for id in "ab")
    i, n = len(PREFIX) // SIZE, len(asked(14)) // SIZE
    # What both have in common is read in common blocks, and no matter through whose table.
    assert a.table.blocks[:i] == b.table.blocks[:i]
    assert {(one.rule, one.block, one.requests) for one in engine.audit()} == {
        (Rule.READ, block, (reader.id, owner.id))
        for reader, owner in ((a, b), (b, a))
        for block in owner.table.blocks[i : n + 1]
    }


class ForgetsTheSalt(PrefixTree):
    def match(self, namespace, tokens):
        return super().match(Namespace(), tokens)


def test_a_read_of_another_tenants_prefix_is_named():
    engine = broken(tree=ForgetsTheSalt)
    engine.submit("a", asked(14, 0, PREFIX), 2)
    finish(engine)
    engine.submit("b", asked(14, 1, PREFIX), 2, salt="tenant")
    engine.step()
    block = engine.sequences["b"].table.blocks[0]
    found = [one for one in engine.audit() if one.block == block and one.rule in (Rule.READ, Rule.HELD)]
    assert [(one.rule, one.requests) for one in found] == [(Rule.READ, ("b", "a")), (Rule.HELD, ("b", "a"))]
    assert found[0].told == f"is read by b for position 0 and holds token {asked(1)[0]} at position 0 of a"


class LeavesEarly(KVCache):
    def leave_window(self, sequence, first):
        super().leave_window(sequence, first + 1)


@pytest.mark.parametrize("cache", [KVCache, LeavesEarly])
def test_a_read_behind_a_hole_is_named(cache):
    sizes = Settings(blocks=65, block_size=SIZE, tags=True)
    engine = ReferenceEngine(tiny("mistral"), sizes, Parts(cache=cache))
    engine.submit("a", range(2, 2 + WINDOW), 8)
    finish(engine)
    reads = [one for one in engine.audit() if one.rule is Rule.READ]
    # Every fourth token the last position of a block is still to be read once.
    early = [(SCRATCH, f"is read by a for position {at} and holds nobody's K/V") for at in (3, 7)]
    assert [(one.block, one.told) for one in reads] == (early if cache is LeavesEarly else [])


class Fails(Runner):
    def compute(self, packed):
        if packed.rows and packed.rows[0].start:
            raise RuntimeError("out of memory")
        return super().compute(packed)


class PublishesWhatFailed(KVCache):
    def release(self, sequence, keep=True):
        sequence.written = sequence.computed
        super().release(sequence)


@pytest.mark.parametrize("cache", [KVCache, PublishesWhatFailed])
def test_what_a_failed_pass_should_have_written_is_nobodys(cache):
    engine = broken(runner=Fails, cache=cache, token_budget=SIZE)
    engine.submit("a", asked(9), 2)
    engine.step()
    second = engine.pool.free[-1]
    engine.step()
    (sequence,) = engine.finished()
    assert (sequence.finish, sequence.error) == (Finish.FAILED, "out of memory")
    found = [(Rule.ENTRY, second, f"is in the index for position {SIZE} and holds nobody's K/V")]
    assert told(engine) == (found if cache is PublishesWhatFailed else [])


def test_a_breach_of_a_pass_is_told_once():
    engine = broken(runner=PadsWithTheLastSlot, buckets=(3,))
    engine.submit("a", asked(14), 12)
    step_until(engine, lambda: len(engine.sequences["a"].output) == 3)
    assert told(engine) == [(Rule.WRITE, 64, "is written to by padding and held by nobody")] * 2
    assert told(engine) == []


def busy(engine, seed, steps=50):
    """Requests that share, of two tenants, with forks, turns, cancels, preemptions, resets and time-outs.

    Returns how many were cancelled with a step in flight that writes to their blocks.
    """
    withdrawn = 0
    rng = random.Random(seed)
    stems = [asked(20, i) for i in range(2)]
    for i in range(steps):
        id = rng.choice(list(engine.sequences) or [""])
        try:
            match rng.randrange(10):
                case 0 | 1 | 2 | 3:
                    prompt = [*rng.choice(stems)[: rng.randrange(20)], *asked(rng.randrange(2, 6), i)]
                    salt, turn = rng.choice((None, None, "x")), rng.choice((None, None, "talk"))
                    timeout = rng.choice((None, None, 9))
                    engine.submit(str(i), prompt, rng.randrange(1, 25), salt=salt, conversation=turn, timeout=timeout)
                case 4:
                    engine.cancel(id)
                    withdrawn += bool(engine.cache.draining)
                case 5 | 6:
                    engine.fork(id, [rng.choice(stems)[1], rng.choice(stems)[2]])
                case 7:
                    engine.preempt(id)
                case 8 if rng.random() < 0.3:
                    engine.reset_cache()
                case 9 if rng.random() < 0.3:
                    engine.edit_history("talk", stems[0])
        except EngineError:
            pass
        engine.step()
    finish(engine)
    return withdrawn


SWAP = {"preemption": Preemption.SWAP, "remote": 32}
SHARED = {Kind.SHARE, Kind.FORK, Kind.COPY, Kind.EVICT}
SWAPPED = {Kind.SWAP_OUT, Kind.SWAP_IN, Kind.FETCH}


@pytest.mark.parametrize(
    ("model", "settings", "kinds"),
    [
        ("random", {}, SHARED),
        ("random", SWAP, SHARED | SWAPPED),
        ("random", {"depth": 1}, SHARED),
        ("random", {"depth": 1, **SWAP}, SHARED | SWAPPED),
        ("canary", {"draft": 3, "buckets": (2, 4)}, SHARED),
        ("mistral", {}, SHARED),
        ("mistral", {"depth": 1, **SWAP}, SHARED | SWAPPED),
    ],
)
def test_a_busy_engine_is_clean_at_every_step(model, settings, kinds):
    sizes = {"blocks": 26, "max_concurrency": 6, "token_budget": 12, **settings}
    if model == "mistral":
        kept = {"block_size": SIZE, "trace": True, "tags": True, "audit": True}
        engine = ReferenceEngine(tiny("mistral", 2, vocab_size=alphabet.VOCAB_SIZE), Settings(**sizes, **kept))
    else:
        engine = audited(model, **sizes)
    withdrawn_in_flight = sum(busy(engine, seed) for seed in range(3))
    assert_empty(engine)
    assert kinds <= count(engine).keys()
    assert engine.metrics.preemptions
    assert bool(withdrawn_in_flight) == bool(engine.settings.depth)
    if engine.settings.draft:
        assert engine.metrics.accepted
        assert engine.metrics.rejected
