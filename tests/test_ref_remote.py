"""The remote store: prefixes that have left the pool come back from it, whole, late, and to whom they belong."""

import pytest
from roads import MODELS, asked, assert_empty, assert_golden, audited, events, evict_idle, finish, step_until, words

from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.remote import RemoteStore, TransferError
from kvfence.reference_impl.sequence import Finish, Status
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.trace import Kind

PREFIX = words(15)  # with BOS 4 blocks of 4
DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def stored(name="canary", **settings):
    """An engine whose store has the prefix and whose pool has not."""
    engine = audited(name, **{"remote": 64, **settings})
    engine.submit("first", asked(20, 1, PREFIX), 4)
    assert finish(engine)["first"].finish is Finish.LENGTH
    evict_idle(engine)
    engine.trace.take()
    return engine


def second(engine, **arguments):
    return engine.submit("second", asked(19, 2, PREFIX), 30, **arguments)


def fetched(engine):
    return [event.block for event in events(engine, Kind.FETCH)]


@DEPTHS
@pytest.mark.parametrize("ticks", [1, 2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_a_prefix_that_has_left_the_pool_comes_back_so_many_ticks_later(name, ticks, depth):
    engine = stored(name, transfer_steps=ticks, depth=depth)
    sequence = second(engine)
    for _ in range(ticks):
        assert sequence.status is Status.FETCHING
        assert (sequence.written, engine.cache.tree.match(Namespace(), PREFIX)) == (0, ([], 0))
        assert engine.pool.used == 4
        engine.step()
    assert sequence.status is Status.WAITING
    assert (sequence.written, sequence.published) == (16, 16)
    assert fetched(engine) == sequence.table.blocks
    computed = engine.metrics.computed
    finish(engine)
    assert engine.metrics.computed - computed == len(asked(19)) - 16 + 30 - 1
    assert (sequence.cached, engine.metrics.cached_tokens, engine.metrics.hits) == (16, 16, 1)
    assert_golden(name, [sequence])
    assert_empty(engine)


def test_a_transfer_lands_behind_the_steps_that_were_in_flight():
    engine = stored(transfer_steps=9, depth=1)
    other = engine.submit("other", asked(6, 7), 8)
    step_until(engine, lambda: other.emitted)
    second(engine)
    [launched], [transfer] = engine.clock.in_flight(Stream.STEPS), engine.clock.in_flight(Stream.TRANSFERS)
    assert transfer.after == (launched,)
    engine.clock.wait(transfer)
    assert launched.landed
    assert finish(engine).keys() == {"other", "second"}


def test_without_delay_it_is_there_at_once():
    engine = stored(transfer_steps=0)
    sequence = second(engine)
    assert (sequence.status, sequence.written) == (Status.WAITING, 16)
    finish(engine)
    assert_golden("canary", [sequence])
    assert_empty(engine)


@DEPTHS
def test_only_what_the_pool_lacks_is_fetched_and_stands_behind_what_it_has(depth):
    engine = stored(depth=depth)
    # The pool gets two whole blocks of the prefix and one token of the third.
    engine.submit("part", asked(12, 3, PREFIX[:8]), 2)
    step_until(engine, lambda: not engine.sequences)
    engine.settle()
    kept = engine.cache.tree.match(Namespace(), asked(12, 3, PREFIX[:8])[:8])[0]
    evict_idle_but(engine, kept)
    engine.trace.take()
    sequence = second(engine)
    assert (sequence.table.blocks[:2], sequence.written) == (kept, 8)
    step_until(engine, lambda: sequence.status is Status.WAITING)
    assert fetched(engine) == sequence.table.blocks[2:4]
    finish(engine)
    assert sequence.cached == 16
    assert_golden("canary", [sequence])
    assert_empty(engine)


def evict_idle_but(engine, kept):
    for block in engine.pool.idle:
        if block not in kept and block in engine.pool.idle:
            engine.cache.evict(block)


def test_a_gap_in_the_store_ends_what_is_fetched():
    engine = stored()
    del engine.cache.remote._slots[Namespace(), (*asked(20, 1, PREFIX)[:8],)]
    sequence = second(engine)
    assert len(sequence.table.blocks) == 1
    finish(engine)
    assert (sequence.cached, len(fetched(engine))) == (4, 1)
    assert_golden("canary", [sequence])


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [({}, {"salt": "other"}), ({"sharing": False}, {}), ({"remote": 0}, {})],
    ids=["other tenant", "no sharing", "no store"],
)
def test_what_is_not_the_requests_is_not_fetched(settings, arguments):
    engine = stored(**settings)
    sequence = second(engine, **arguments)
    assert (sequence.status, engine.pool.used) == (Status.WAITING, 0)
    finish(engine)
    assert (fetched(engine), sequence.cached) == ([], 0)
    assert_golden("canary", [sequence])
    assert_empty(engine)


def test_nothing_is_fetched_that_the_pool_has():
    engine = audited(remote=64)
    engine.submit("first", asked(20, 1, PREFIX), 4)
    finish(engine)
    sequence = second(engine)
    assert (sequence.status, engine.pool.used) == (Status.WAITING, 0)
    finish(engine)
    assert (fetched(engine), sequence.cached) == ([], 16)


@DEPTHS
def test_nothing_is_fetched_where_there_is_no_room_for_it(depth):
    engine = stored(blocks=17, depth=depth)
    other = engine.submit("other", asked(47, 5), 8)
    step_until(engine, lambda: other.emitted)
    assert engine.pool.available < 4
    sequence = second(engine)
    assert sequence.status is Status.WAITING
    assert sequence.table.blocks == []
    finish(engine)
    assert fetched(engine) == []
    assert_golden("canary", [other, sequence])
    assert_empty(engine)


@DEPTHS
def test_others_go_on_meanwhile(depth):
    engine = stored(transfer_steps=20, depth=depth)
    sequence = second(engine)
    other = engine.submit("other", asked(6, 7), 8)
    step_until(engine, lambda: other.status is Status.FINISHED)
    assert sequence.status is Status.FETCHING
    finish(engine)
    assert len(fetched(engine)) == 4
    assert_golden("canary", [sequence, other])


def test_who_pauses_in_the_batch_need_not_make_room_for_what_is_on_its_way():
    engine = stored(transfer_steps=5)
    pausing = engine.submit("pausing", asked(6, 7), 8)
    pausing.pause = 1
    step_until(engine, lambda: pausing.emitted)
    sequence = second(engine)
    engine.step()
    assert (pausing.status, sequence.status) == (Status.RUNNING, Status.FETCHING)


@DEPTHS
@pytest.mark.parametrize("why", [Finish.CANCELLED, Finish.TIMED_OUT])
def test_where_a_transfer_will_land_nobody_writes_before_it_has(why, depth):
    engine = stored(blocks=20, transfer_steps=9, depth=depth)
    sequence = second(engine, timeout=1)
    coming = list(sequence.table.blocks)
    [transfer] = engine.clock.in_flight(Stream.TRANSFERS)
    engine.step()
    if why is Finish.CANCELLED:
        engine.cancel("second")
    # It needs all blocks but one.
    other = engine.submit("other", asked(47, 5), 20)
    engine.step()
    assert (sequence.finish, sequence.table.blocks) == (why, [])
    assert [let_go.blocks for let_go in engine.cache.draining] == [coming]
    assert not set(coming) & {*engine.pool.free, *engine.pool.idle, *other.table.blocks}
    step_until(engine, lambda: set(coming) & set(other.table.blocks))
    assert (transfer.landed, sequence.status) == (True, Status.FINISHED)
    finish(engine)
    assert engine.cache.tree.match(Namespace(), [1, *PREFIX])[1] < 4
    assert_golden("canary", [other])
    assert_empty(engine)


class Failing(RemoteStore):
    """Fails at the third block it is asked for."""

    asked_for = 0

    def read(self, slot):
        self.asked_for += 1
        if self.asked_for == 3:
            raise TransferError("the store is gone")
        return super().read(slot)


@DEPTHS
@pytest.mark.parametrize("name", MODELS)
def test_after_a_failed_transfer_a_request_computes_and_nobody_finds_what_has_come(name, depth):
    engine = stored(name, parts=Parts(remote=Failing), depth=depth)
    sequence = second(engine)
    step_until(engine, lambda: sequence.status is Status.WAITING)
    assert len(fetched(engine)) == 2
    assert (sequence.table.blocks, sequence.written) == ([], 0)
    assert engine.pool.used == 0
    assert list(engine.cache.tree.entries()) == []
    finish(engine)
    assert sequence.cached == 0
    assert_golden(name, [sequence])
    assert set(engine.cache.remote._pins) == {0}
    # It is tried again for the next one.
    evict_idle(engine)
    third = engine.submit("third", asked(18, 4, PREFIX), 4)
    finish(engine)
    assert third.cached == 16
    assert_golden(name, [third])
    assert_empty(engine)


@DEPTHS
@pytest.mark.parametrize("name", MODELS)
def test_what_a_transfer_will_read_stays_though_the_store_is_full(name, depth):
    engine = stored(name, remote=6, transfer_steps=12, depth=depth)
    sequence = second(engine)
    assert sequence.status is Status.FETCHING
    other = engine.submit("other", asked(40, 5), 2)
    step_until(engine, lambda: other.status is Status.FINISHED)
    assert sequence.status is Status.FETCHING
    store = engine.cache.remote
    # The other has taken what is not pinned.
    assert len(store.match(Namespace(), asked(20, 1, PREFIX), 0, 4)) == 4
    assert len(store) == 6
    finish(engine)
    assert len(fetched(engine)) == 4
    assert_golden(name, [sequence, other])


@DEPTHS
def test_two_fetch_the_same_prefix(depth):
    engine = stored(depth=depth)
    both = [second(engine), engine.submit("third", asked(18, 4, PREFIX), 30)]
    assert [sequence.status for sequence in both] == [Status.FETCHING] * 2
    finish(engine)
    assert len(fetched(engine)) == 8
    assert [sequence.cached for sequence in both] == [16, 16]
    assert_golden("canary", both)
    assert_empty(engine)


@DEPTHS
def test_one_that_waits_with_its_prefix_makes_room_for_those_that_go_on(depth):
    engine = stored(blocks=18, transfer_steps=1, depth=depth, max_concurrency=1)
    other = engine.submit("other", asked(29, 5), 26)
    step_until(engine, lambda: other.emitted)
    sequence = second(engine)
    step_until(engine, lambda: sequence.status is Status.WAITING)
    assert len(sequence.table.blocks) == 4
    step_until(engine, lambda: not sequence.table.blocks)
    assert other.status is Status.RUNNING
    finish(engine)
    assert engine.scheduler.preempted == 0
    assert_golden("canary", [sequence, other])
    assert_empty(engine)


@DEPTHS
def test_a_reset_forgets_the_store_too(depth):
    engine = stored(depth=depth)
    assert len(engine.cache.remote) > 0
    engine.reset_cache()
    assert len(engine.cache.remote) == 0
    sequence = second(engine)
    finish(engine)
    assert (fetched(engine), sequence.cached) == ([], 0)


def test_a_reset_while_fetching_leaves_nothing_to_find():
    engine = stored(transfer_steps=9)
    sequence = second(engine)
    engine.reset_cache()
    assert sequence.status is Status.WAITING
    assert (len(engine.cache.remote), list(engine.cache.tree.entries())) == (0, [])
    finish(engine)
    assert_golden("canary", [sequence])
    assert_empty(engine)
