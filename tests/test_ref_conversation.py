"""Conversations: a turn goes on from the K/V of the history, as long as the history is what they were computed from."""

import pytest
import torch
from roads import MODELS, asked, assert_empty, assert_golden, audited, count, finish, step_until

from kvfence.prompts import alphabet
from kvfence.reference_impl.conversation import Conversation
from kvfence.reference_impl.engine import EngineError
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Finish, Status
from kvfence.reference_impl.trace import Kind

FIRST = asked(31)  # 34 tokens
LENGTH = 16
DEPTHS = pytest.mark.parametrize("depth", [0, 1])
SHARING = pytest.mark.parametrize("sharing", [True, False])
NAMES = pytest.mark.parametrize("name", MODELS)


def next_prompt(turn):
    """What is asked in a later turn: a word of the first output or, in even turns, of the first prompt.

    The 7 words that each turn reads are no other's.
    """
    return [alphabet.WORDS * (1 + turn % 2) + FIRST[1 + (1, 17, 8, 24)[turn - 1]]]


def first_turn(engine, **arguments):
    engine.submit("turn 0", FIRST, LENGTH, conversation="talk", **arguments)
    finish(engine)
    return engine.conversations["talk"]


def later_turn(engine, turn, prompt=None):
    return engine.submit(f"turn {turn}", prompt or next_prompt(turn), 6, conversation="talk")


@NAMES
@DEPTHS
@SHARING
def test_turns_go_on_from_the_history(name, depth, sharing):
    engine = audited(name, depth=depth, sharing=sharing)
    talk = first_turn(engine)
    length = len(FIRST) + LENGTH
    for turn in range(1, 5):
        assert len(talk.history) == length
        computed = engine.metrics.computed
        sequence = later_turn(engine, turn)
        # All but the last token of the history has K/V.
        assert (sequence.cached, sequence.written) == (length - 1, length - 1)
        assert sequence.tokens[:length] == talk.history
        assert talk.valid is None
        finish(engine)
        assert engine.metrics.computed - computed == 1 + len(next_prompt(turn)) + 6 - 1
        assert_golden(name, [sequence])
        length += len(next_prompt(turn)) + 6
    assert engine.pool.used == -(-(length - 1) // 4)
    # Without sharing nobody else can see them, and they are gone on from where they lie.
    assert (count(engine)[Kind.COPY] > 0) is sharing
    assert_empty(engine)


EDITS = {
    "truncated": lambda history: history[:11],
    "cut to a block": lambda history: history[:8],
    "inserted": lambda history: [*history[:5], alphabet.WORDS - 1, *history[5:]],
    "appended": lambda history: [*history, FIRST[3]],
    "removed": lambda history: [*history[:5], *history[6:]],
    "reordered": lambda history: [*history[:4], history[5], history[4], *history[6:]],
    "first token": lambda history: [alphabet.ASK, *history[1:]],
    "last token": lambda history: [*history[:-1], FIRST[5]],
    "same length": lambda history: [*history[8:], *history[:8]],
    "nothing": lambda history: list(history),
    "empty": lambda history: [],
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("depth", [0, 1])
@SHARING
def test_after_any_edit_only_what_is_found_by_its_tokens_is_used(edit, sharing, depth):
    engine = audited("random", sharing=sharing, depth=depth)
    talk = first_turn(engine)
    before = list(talk.history)
    history = EDITS[edit](before)
    assert talk.valid is not None
    engine.edit_history("talk", history)
    assert (talk.valid, talk.history, engine.cache.retained) == (None, history, [])
    assert engine.pool.used == 0
    sequence = later_turn(engine, 1)
    finish(engine)
    same = next((i for i, (a, b) in enumerate(zip(before, history, strict=False)) if a != b), len(history))
    assert sequence.cached == (min(same, len(before) - 1) if sharing else 0)
    assert sequence.tokens[: len(history)] == history
    assert_golden("random", [sequence])
    assert_empty(engine)


def test_an_edit_that_did_not_clear_the_mark_would_show(monkeypatch):
    """The positive control of the edits above."""
    monkeypatch.setattr(Conversation, "forget", lambda *_: None)
    for edit in ("inserted", "reordered", "first token", "same length"):
        engine = audited("random", sharing=False, audit=False)
        talk = first_turn(engine)
        engine.edit_history("talk", EDITS[edit](list(talk.history)))
        sequence = later_turn(engine, 1)
        finish(engine)
        assert sequence.cached > 0
        with pytest.raises(AssertionError):
            assert_golden("random", [sequence])


@DEPTHS
@SHARING
def test_retained_k_v_are_dropped_when_others_need_the_room(depth, sharing):
    engine = audited(blocks=18, depth=depth, sharing=sharing)
    talk = first_turn(engine)
    held = engine.pool.used
    assert held == 13
    other = engine.submit("other", asked(35, 1), 20)
    engine.step()
    assert other.status is Status.RUNNING
    step_until(engine, lambda: not engine.cache.retained)
    finish(engine)
    assert engine.scheduler.preempted == 0
    sequence = later_turn(engine, 1)
    finish(engine)
    assert sequence.cached < len(FIRST) + LENGTH - 1
    assert sequence.tokens[: len(FIRST)] == FIRST
    assert_golden("canary", [other, sequence])
    assert talk.valid is not None
    assert_empty(engine)


@DEPTHS
def test_of_many_conversations_the_one_not_used_for_longest_is_dropped(depth):
    engine = audited(blocks=30, depth=depth, sharing=False)
    for i in (0, 1, 2, 0):  # 3 blocks each, then one more for the first
        engine.submit("turn", asked(7, i) if str(i) not in engine.conversations else [9], 3, conversation=str(i))
        finish(engine)
    other = engine.submit("other", asked(62, 5), 20)  # 21 blocks
    finish(engine)
    kept = {id for id, talk in engine.conversations.items() if talk.valid in engine.cache.retained}
    assert kept == {"0", "2"}
    assert_golden("canary", [other])


@pytest.mark.parametrize("how", Preemption)
@DEPTHS
def test_a_turn_is_preempted(how, depth):
    engine = audited(depth=depth)
    first_turn(engine)
    sequence = later_turn(engine, 1)
    step_until(engine, lambda: sequence.emitted > 1)
    engine.preempt("turn 1", how)
    finish(engine)
    assert_golden("canary", [sequence])
    again = later_turn(engine, 2)
    assert again.cached == len(sequence.tokens) - 1
    finish(engine)
    assert_golden("canary", [again])
    assert_empty(engine)


@DEPTHS
def test_a_cancelled_turn_is_not_part_of_the_history(depth):
    engine = audited(depth=depth)
    talk = first_turn(engine)
    history = list(talk.history)
    cancelled = later_turn(engine, 1)
    step_until(engine, lambda: cancelled.emitted > 1)
    engine.cancel("turn 1")
    assert (talk.history, talk.turn, talk.valid) == (history, None, None)
    sequence = later_turn(engine, 2)
    finish(engine)
    assert cancelled.finish is Finish.CANCELLED
    assert sequence.tokens[: len(history)] == history
    assert sequence.cached >= len(history) - 1
    assert_golden("canary", [sequence])
    assert_empty(engine)


@SHARING
def test_a_reset_takes_what_is_retained(sharing):
    engine = audited(sharing=sharing)
    first_turn(engine)
    engine.reset_cache()
    assert len(engine.pool.free) == 64
    sequence = later_turn(engine, 1)
    finish(engine)
    assert sequence.cached == 0
    assert_golden("canary", [sequence])


def test_a_conversation_is_a_tenant_s_and_has_one_turn_at_a_time():
    engine = audited()
    first_turn(engine, salt="a")
    for salt in (None, "b"):
        with pytest.raises(EngineError, match="conversation talk is another tenant's"):
            engine.submit("x", [9], 4, salt=salt, conversation="talk")
    engine.submit("x", [9], 4, salt="a", conversation="talk")
    with pytest.raises(EngineError, match="a turn of conversation talk is running"):
        engine.submit("y", [9], 4, salt="a", conversation="talk")
    with pytest.raises(EngineError, match="a turn of conversation talk is running"):
        engine.edit_history("talk", [])
    with pytest.raises(EngineError, match="there is no conversation chat"):
        engine.edit_history("chat", [])
    assert list(engine.conversations) == ["talk"]
    assert finish(engine)["x"].cached == len(FIRST) + LENGTH - 1


def test_a_turn_that_adds_nothing_computes_the_last_token_only():
    engine = audited("random")
    talk = first_turn(engine)
    computed = engine.metrics.computed
    sequence = engine.submit("again", [], 3, conversation="talk")
    finish(engine)
    assert engine.metrics.computed - computed == 3
    assert len(talk.history) == len(FIRST) + LENGTH + 3
    assert_golden("random", [sequence])


def test_k_v_of_other_weights_are_not_gone_on_from():
    engine = audited()
    first_turn(engine)
    running = later_turn(engine, 1)
    engine.step()
    engine.new_weights()
    assert (running.written, running.table.blocks, engine.pool.used) == (0, [], 0)
    finish(engine)
    after = later_turn(engine, 2)
    assert after.cached == len(running.tokens) - 1
    finish(engine)
    engine.new_weights()
    last = later_turn(engine, 3)
    finish(engine)
    assert last.cached == 0
    assert_golden("canary", [running, after, last])


def test_k_v_of_another_adapter_are_not_gone_on_from():
    engine = audited("random", sharing=False)
    engine.load_adapter("a", {"lm_head.weight": torch.zeros_like(engine.runner.model.lm_head.weight)})
    first_turn(engine)
    turn = engine.submit("turn 1", next_prompt(1), 6, conversation="talk", adapter="a")
    assert (turn.cached, engine.cache.retained, engine.pool.used) == (0, [], 0)
    finish(engine)
    # This adapter changes nothing.
    assert_golden("random", [turn])
    again = engine.submit("turn 2", next_prompt(2), 6, conversation="talk", adapter="a")
    assert again.cached == len(turn.tokens) - 1
    finish(engine)
    assert_empty(engine)
