"""Withdrawn, timed out or failed: wherever a request is, its blocks go one way, and the others do not notice."""

import pytest
from roads import MODELS, asked, assert_empty, assert_golden, audited, evict_idle, finish, step_until, words

from kvfence.prompts import alphabet
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.engine import EngineError
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.runner import Runner
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Finish, Status
from kvfence.reference_impl.settings import Parts

PREFIX = words(15)
PROMPT = asked(27, 2, PREFIX)  # 30 tokens
DEPTHS = pytest.mark.parametrize("depth", [0, 1])
SETTINGS = {"token_budget": 12, "max_concurrency": 2, "remote": 32, "transfer_steps": 8}


def waiting(engine):
    for i in range(2):
        engine.submit(f"before{i}", asked(5, 20 + i), 20)
    sequence = engine.submit("victim", asked(24, 9), 12)
    engine.step()
    assert (sequence.status, sequence.table.blocks) == (Status.WAITING, [])
    return sequence


def in_prefill(engine):
    sequence = engine.submit("victim", PROMPT, 12)
    step_until(engine, lambda: sequence.written)
    assert 0 < sequence.written < sequence.prompt
    return sequence


def decoding(engine):
    sequence = engine.submit("victim", PROMPT, 12)
    step_until(engine, lambda: sequence.emitted >= 2)
    return sequence


def swapped(engine):
    sequence = decoding(engine)
    engine.preempt("victim", Preemption.SWAP)
    assert (sequence.status, sequence.table.blocks) == (Status.SWAPPED, [])
    return sequence


def preempted(engine):
    sequence = decoding(engine)
    engine.preempt("victim", Preemption.RECOMPUTE)
    assert (sequence.status, sequence.table.blocks) == (Status.WAITING, [])
    return sequence


def fetching(engine):
    engine.submit("first", asked(20, 1, PREFIX), 2)
    finish(engine)
    evict_idle(engine)
    sequence = engine.submit("victim", PROMPT, 12)
    assert sequence.status is Status.FETCHING
    return sequence


def forked(engine):
    """A child that waits, on its parent's blocks."""
    decoding(engine)
    [sequence] = engine.fork("victim", [alphabet.WORDS + PROMPT[8]])
    engine.cancel("victim")
    assert sequence.status is Status.WAITING
    assert sequence.table.blocks
    return sequence


ROADS = [waiting, in_prefill, decoding, swapped, preempted, fetching, forked]


@DEPTHS
@pytest.mark.parametrize("road", ROADS)
def test_cancelled_wherever_it_is(road, depth):
    engine = audited(depth=depth, **SETTINGS)
    sequence = road(engine)
    emitted = list(sequence.output)
    engine.cancel(sequence.id)
    assert (sequence.status, sequence.finish) == (Status.FINISHED, Finish.CANCELLED)
    assert (sequence.table.blocks, sequence.swapped) == ([], None)
    engine.settle()
    assert engine.pool.used == sum(len(other.table.blocks) for other in engine.sequences.values())
    others = [engine.submit("prefix", PROMPT, 20), engine.submit("stranger", asked(9, 5), 20)]
    done = finish(engine)
    assert sequence.output == emitted
    assert {one.finish for one in done.values() if one.id not in ("victim", sequence.id)} == {Finish.LENGTH}
    assert_golden("canary", [*others, *(one for one in done.values() if one.id.startswith("before"))])
    assert_empty(engine)


@DEPTHS
@pytest.mark.parametrize("road", ROADS)
def test_timed_out_wherever_it_is(road, depth):
    engine = audited(depth=depth, **SETTINGS)
    sequence = road(engine)
    emitted = list(sequence.output)
    sequence.deadline = engine.clock.now
    other = engine.submit("other", PROMPT, 20)
    engine.step()
    assert (sequence.finish, sequence.table.blocks, sequence.swapped) == (Finish.TIMED_OUT, [], None)
    finish(engine)
    assert sequence.output == emitted
    assert_golden("canary", [other])
    assert_empty(engine)


@DEPTHS
def test_a_request_has_so_many_steps(depth):
    engine = audited(depth=depth)
    engine.submit("before", asked(9, 7), 5)
    engine.step()
    short, long, endless = (engine.submit(str(n), PROMPT, 10, timeout=n) for n in (5, 50, None))
    for _ in range(5):
        assert short.finish is None
        engine.step()
    assert len(short.output) == 5 - depth
    engine.step()
    assert short.finish is Finish.TIMED_OUT
    finish(engine)
    assert (long.finish, endless.finish) == (Finish.LENGTH, Finish.LENGTH)
    assert_golden("canary", [short, long, endless])


@DEPTHS
def test_what_a_cancelled_request_has_written_can_be_found(depth):
    engine = audited(depth=depth, **SETTINGS)
    sequence = in_prefill(engine)
    written = sequence.written
    engine.cancel("victim")
    engine.settle()
    known = engine.cache.tree.match(Namespace(), PROMPT)[1]
    # What a step in flight writes is not told to anybody, nor is a block that it may write to.
    assert known == (written if depth == 0 else written // 4 * 4) > 0
    other = engine.submit("other", PROMPT, 20)
    finish(engine)
    assert other.cached == known
    assert_golden("canary", [other])


def test_what_is_found_of_a_cancelled_request_has_come_back_from_the_host():
    engine = audited(depth=1)
    sequence = decoding(engine)
    engine.preempt("victim", Preemption.SWAP)
    engine.reset_cache()
    engine.step()
    assert sequence.status is Status.RUNNING
    assert engine.clock.in_flight(Stream.COPIES)
    engine.cancel("victim")
    assert engine.cache.tree.match(Namespace(), sequence.tokens)[1] >= 28
    assert engine.audit() == []
    other = engine.submit("other", PROMPT, 20)
    finish(engine)
    assert other.cached >= 28
    assert_golden("canary", [other])


def test_cancelled_twice_or_never_there():
    engine = audited()
    engine.submit("a", PROMPT, 5)
    engine.cancel("a")
    for id in ("a", "b"):
        with pytest.raises(EngineError, match=f"there is no request {id}"):
            engine.cancel(id)


def failing_at(*passes):
    """A runner whose forward passes fail, of those that count from 1, after a layer has written its K/V."""

    class Failing(Runner):
        count = -1  # the first is the probe

        def compute(self, packed):
            self.count += 1
            if self.count in passes:
                write = packed.batch.storage.write

                def fail(layer, *kv):
                    write(layer, *kv)
                    raise RuntimeError("out of memory\nand much more")

                packed.batch.storage.write = fail
                try:
                    return super().compute(packed)
                finally:
                    del packed.batch.storage.write
            return super().compute(packed)

    return Parts(runner=Failing)


@DEPTHS
@pytest.mark.parametrize("name", MODELS)
def test_a_pass_that_fails_ends_those_in_it_and_no_others(name, depth):
    engine = audited(name, failing_at(3), depth=depth, **SETTINGS | {"token_budget": 13})
    in_it = [engine.submit("long", PROMPT, 12), engine.submit("short", asked(4, 3), 20)]
    behind = [engine.submit("prefix", PROMPT, 20), engine.submit("stranger", asked(9, 5), 20)]
    step_until(engine, lambda: in_it[0].finish)
    # 26 tokens have been written, and behind them, in one layer only, what failed: that block is told to nobody.
    assert engine.cache.tree.match(Namespace(), PROMPT)[1] == 24
    finish(engine)
    assert [(one.finish, one.error) for one in in_it] == [(Finish.FAILED, "out of memory")] * 2
    assert [(one.finish, one.error) for one in behind] == [(Finish.LENGTH, "")] * 2
    assert_golden(name, behind)
    assert behind[0].cached > 0
    assert_empty(engine)


@DEPTHS
def test_every_pass_fails(depth):
    engine = audited(parts=failing_at(*range(1, 99)), depth=depth, **SETTINGS)
    for i in range(3):
        engine.submit(str(i), asked(9, i), 5)
    assert {one.finish for one in finish(engine).values()} == {Finish.FAILED}
    assert list(engine.cache.tree.entries()) == []
    assert_empty(engine)


def test_one_that_was_withdrawn_before_its_pass_failed_did_not_fail():
    engine = audited(parts=failing_at(2), depth=1)
    sequence = engine.submit("r", asked(9, 1), 20)
    engine.step()
    engine.step()
    engine.cancel("r")
    engine.step()
    assert engine.runner.count == 2
    assert (sequence.finish, sequence.error) == (Finish.CANCELLED, "")
    assert_empty(engine)


def test_one_that_joined_after_the_pass_that_failed_is_not_drawn_in():
    engine = audited(parts=failing_at(2), depth=1)
    old = engine.submit("old", asked(9, 1), 20)
    engine.step()
    engine.step()
    new = engine.submit("new", asked(9, 2), 20)
    engine.step()
    [launched] = engine.clock.in_flight(Stream.STEPS)
    assert (old.finish, new.finish) == (Finish.FAILED, None)
    assert launched in old.operations
    assert launched in new.operations
    finish(engine)
    assert (old.error, new.error, new.finish) == ("out of memory", "", Finish.LENGTH)
    assert_golden("canary", [new])
    assert_empty(engine)


@DEPTHS
def test_a_failed_turn_leaves_the_conversation_as_it_was(depth):
    engine = audited(parts=failing_at(9), depth=depth)
    engine.submit("one", asked(9, 1), 4, conversation="talk")
    finish(engine)
    history = list(engine.conversations["talk"].history)
    failed = engine.submit("two", asked(9, 2), 8, conversation="talk")
    finish(engine)
    assert failed.finish is Finish.FAILED
    assert engine.conversations["talk"].history == history
    again = engine.submit("three", asked(9, 2), 8, conversation="talk")
    finish(engine)
    assert_golden("canary", [again])
    assert_empty(engine)
