"""Asynchronous scheduling: a step is launched before the one before it has landed, and nobody can tell."""

import pytest
from roads import MODELS, asked, assert_empty, assert_golden, audited, finish, step_until, words

from kvfence.prompts import alphabet
from kvfence.reference_impl.clock import Clock, Stream
from kvfence.reference_impl.scheduler import Preemption, Scheduler
from kvfence.reference_impl.sequence import Finish, Status
from kvfence.reference_impl.settings import Parts

SHARING = pytest.mark.parametrize("sharing", [True, False])


def steps(engine):
    return engine.clock.in_flight(Stream.STEPS)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_depth_0_one_step_later(name):
    given = {}
    for depth in (0, 1):
        engine = audited(name, depth=depth, token_budget=16)
        sequences = [engine.submit(str(i), asked(9 + 3 * i, i), 20) for i in range(4)]
        given[depth] = []
        while engine.sequences:
            given[depth].append(engine.step())
            assert len(steps(engine)) <= depth
        assert_golden(name, sequences)
        assert_empty(engine)
    assert given[1] == [{}, *given[0]]


def test_a_token_is_chosen_while_the_next_is_on_its_way():
    engine = audited(depth=1)
    sequence = engine.submit("r", asked(9), 5)
    seen = []
    while engine.sequences:
        engine.step()
        seen.append((sequence.computed, sequence.written, sequence.pending, sequence.emitted))
    assert seen == [(12, 0, 1, 0), (13, 12, 1, 1), (14, 13, 1, 2), (15, 14, 1, 3), (16, 15, 1, 4), (0, 0, 0, 5)]


@SHARING
def test_blocks_that_a_launched_step_writes_are_reserved_until_it_has_landed(sharing):
    engine = audited(depth=1, sharing=sharing)
    sequence = engine.submit("gone", asked(10), 20)
    step_until(engine, lambda: sequence.emitted >= 2)
    held = list(sequence.table.blocks)
    [launched] = steps(engine)
    engine.cancel("gone")
    assert (sequence.table.blocks, launched.landed) == ([], False)
    [draining] = engine.cache.draining
    assert (draining.request, draining.blocks, draining.operations) == ("gone", held, [launched])
    other = engine.submit("other", asked(30, 2), 20)
    engine.step()
    assert launched.landed
    assert not set(held) & set(other.table.blocks)
    assert draining not in engine.cache.draining
    engine.settle()
    # What was read only is idle now, what was written to is free; nobody had it meanwhile.
    assert {*engine.pool.free, *engine.pool.idle} >= set(held)
    assert engine.pool.published[held[-1]] == 0
    finish(engine)
    assert_golden("canary", [other])
    assert_empty(engine)


@SHARING
@pytest.mark.parametrize("n", range(3, 8))
def test_after_a_stop_token_the_step_in_flight_gives_nothing(n, sharing):
    prompt = asked(9)
    answer = alphabet.answer(prompt, n)
    engine = audited(depth=1, sharing=sharing)
    sequence = engine.submit("r", prompt, 20, stop=[answer[-1]])
    given = []
    while engine.sequences:
        given += engine.step().get("r", ())
    # A row of it is still in flight, to a block that is nobody's else.
    [launched] = steps(engine)
    last = (len(prompt) + n - 1) // 4
    assert any(launched in let_go.operations for let_go in engine.cache.draining)
    blocks = engine.cache.draining[0].blocks
    assert not engine.pool.published[blocks[last]]
    other = engine.submit("other", prompt, 20)
    finish(engine)
    assert (sequence.finish, tuple(given), tuple(sequence.output)) == (Finish.STOP, answer, answer)
    assert len(sequence.tokens) == len(prompt) + n + 1
    assert other.cached == (len(prompt) - 1 if sharing else 0)
    assert_golden("canary", [other])
    assert_empty(engine)


@SHARING
@pytest.mark.parametrize("n", range(3, 7))
def test_the_next_turn_begins_while_a_row_of_the_last_is_in_flight(n, sharing):
    prompt = asked(9)
    engine = audited(depth=1, sharing=sharing)
    engine.submit("turn 1", prompt, 20, stop=[alphabet.answer(prompt, n)[-1]], conversation="talk")
    step_until(engine, lambda: not engine.sequences)
    assert len(steps(engine)) == 1
    # Goes on from the first word of that output, the next time one alphabet further.
    turn = engine.submit("turn 2", [2 * alphabet.WORDS + prompt[2]], 12, conversation="talk")
    assert turn.cached == len(prompt) + n - 1
    finish(engine)
    assert_golden("canary", [turn])
    assert_empty(engine)


def test_what_is_withdrawn_with_a_token_on_its_way_does_not_get_it():
    engine = audited(depth=1)
    sequence = engine.submit("r", asked(9), 20)
    step_until(engine, lambda: sequence.emitted >= 3)
    engine.cancel("r")
    engine.settle()
    assert engine.step() == {}
    assert tuple(sequence.output) == alphabet.answer(asked(9), 3)


class Watchful(Clock):
    """Notes which steps land while one is planned."""

    planning = False

    def __init__(self):
        super().__init__()
        self.caught = []

    def launch(self, stream, run, delay=0, after=()):
        def watched():
            if stream is Stream.STEPS and self.planning:
                self.caught.append(self.now)
            run()

        return super().launch(stream, watched, delay, after)


class Planning(Scheduler):
    """Tells the clock when it plans."""

    def plan(self):
        clock = self.cache.clock
        was, clock.planning = clock.planning, True
        try:
            return super().plan()
        finally:
            clock.planning = was


@SHARING
@pytest.mark.parametrize("how", Preemption)
@pytest.mark.parametrize("blocks", [16, 20])
def test_no_step_lands_while_the_next_is_planned(blocks, how, sharing):
    """Else a row could be planned for a sequence whose blocks the landed step has just let go of."""
    engine = audited(
        parts=Parts(clock=Watchful, scheduler=Planning),
        depth=1,
        blocks=blocks,
        preemption=how,
        sharing=sharing,
        token_budget=20,
        remote=40,
    )
    prefix, overlapped, sequences = words(6), 0, []
    for i in range(8):
        prompt = asked(9 + i, i, prefix)
        stop = [alphabet.answer(prompt, 8 + i)[-1]]
        sequences.append(engine.submit(str(i), prompt, 24, stop=stop, conversation=str(i % 3) if i > 4 else None))
        for _ in range(3):
            engine.step()
            overlapped += bool(steps(engine))
    finish(engine)
    assert engine.clock.caught == []
    assert engine.scheduler.preempted
    assert overlapped > 15
    assert {sequence.finish for sequence in sequences} == {Finish.STOP}
    assert_golden("canary", sequences)
    assert_empty(engine)


def test_guesses_are_not_made_ahead_of_what_is_not_known():
    from kvfence.reference_impl.engine import EngineError

    with pytest.raises(EngineError, match="guessing ahead needs depth 0"):
        audited(depth=1, draft=2)


@pytest.mark.parametrize("how", Preemption)
def test_preempted_with_a_token_on_its_way(how):
    engine = audited(depth=1)
    sequence = engine.submit("r", asked(9), 20)
    step_until(engine, lambda: sequence.emitted >= 3)
    assert sequence.pending == 1
    engine.preempt("r", how)
    assert (sequence.pending, sequence.emitted) == (0, 4)
    assert sequence.status is not Status.RUNNING
    assert engine.step() == {"r": (sequence.output[3],)}
    finish(engine)
    assert_golden("canary", [sequence])
