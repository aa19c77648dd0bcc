"""Speculative decoding: guesses that are right save steps, those that are wrong leave no trace."""

import pytest
from roads import MODELS, asked, assert_empty, assert_golden, audited, count, events, finish, golden, step_until

from kvfence.prompts import alphabet
from kvfence.reference_impl.draft import NGramDraft
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import BlockTable, Finish, Sequence
from kvfence.reference_impl.trace import Kind

NAMES = pytest.mark.parametrize("name", MODELS)
PROMPT = asked(7)  # 10 tokens
LENGTH = 24


def guessing(engine, answers, right, length=6):
    """Have an engine guess: of each guess the first so many tokens are right."""

    def draft(sequence):
        place = len(sequence.tokens) - sequence.prompt
        guess = list(answers[sequence.id][place : place + length])
        return tuple(token if i < right else (token + 1) % alphabet.VOCAB_SIZE for i, token in enumerate(guess))

    engine.scheduler._draft = draft


@NAMES
@pytest.mark.parametrize("right", range(7))
@pytest.mark.parametrize("sharing", [True, False])
def test_however_much_of_a_guess_is_right_the_output_is_the_same(name, right, sharing):
    prompts = {str(n): asked(n, n) for n in range(6, 10)}  # each reaches a block's border at another place
    answers = {id: golden(name).generate(prompt, LENGTH + 1) for id, prompt in prompts.items()}
    engine = audited(name, sharing=sharing)
    guessing(engine, answers, right)
    for id, prompt in prompts.items():
        engine.submit(id, prompt, LENGTH)
    done = finish(engine)
    assert {id: tuple(sequence.output) for id, sequence in done.items()} == {
        id: answer[:LENGTH] for id, answer in answers.items()
    }
    metrics = engine.metrics
    assert (metrics.accepted > 0, metrics.rejected > 0) == (right > 0, right < 6)
    # One pass of prefill, and of each later one a token that was not guessed.
    assert metrics.emitted == 4 * LENGTH
    passes = -(-(LENGTH - 1) // (right + 1)) + 1
    assert len(metrics.steps) == passes
    assert metrics.computed == sum(map(len, prompts.values())) + metrics.emitted - 4 + metrics.rejected
    assert_empty(engine)


@NAMES
def test_rolling_back_lets_go_of_blocks_behind_the_last_right_token(name):
    engine = audited(name, sharing=False)
    answer = golden(name).generate(PROMPT, LENGTH + 1)
    guessing(engine, {"r": answer}, right=1)
    sequence = engine.submit("r", PROMPT, LENGTH)
    let_go = 0
    while engine.sequences:
        engine.step()
        let_go += len(events(engine, Kind.RELEASE)) if engine.sequences else 0
        if engine.sequences:
            assert len(sequence.table.blocks) == -(-sequence.written // 4)
            assert sequence.written == sequence.computed == len(sequence.tokens) - 1
    # Rows of 7 tokens, of which 2 stay: most reach into the next block or the one after.
    assert let_go >= 10
    assert tuple(sequence.output) == answer[:LENGTH]
    assert_empty(engine)


@NAMES
def test_guesses_by_n_grams_are_right_and_wrong(name):
    prompt = asked(4) if name == "canary" else asked(4) * 4
    plain, guessed = audited(name), audited(name, draft=4)
    sequences = [engine.submit("r", prompt, 48) for engine in (plain, guessed)]
    for engine in (plain, guessed):
        finish(engine)
    assert sequences[0].output == sequences[1].output
    assert_golden(name, sequences[1:])
    assert (plain.metrics.accepted, plain.metrics.rejected) == (0, 0)
    if name == "canary":  # it goes round in its words
        assert guessed.metrics.accepted > 10
        assert len(guessed.metrics.steps) == len(plain.metrics.steps) - guessed.metrics.accepted
    else:
        assert guessed.metrics.rejected > 0
    assert_empty(guessed)


@pytest.mark.parametrize("left", range(1, 9))
def test_no_more_tokens_than_asked_for(left):
    engine = audited()
    answer = alphabet.answer(PROMPT, 20)
    guessing(engine, {"r": answer}, right=6)
    sequence = engine.submit("r", PROMPT, left)
    given = []
    while engine.sequences:
        given += engine.step().get("r", ())
    assert (tuple(given), sequence.finish) == (answer[:left], Finish.LENGTH)
    # A guess that could only be thrown away is not computed.
    assert engine.metrics.computed == len(PROMPT) + left - 1
    assert engine.metrics.rejected == 0


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("sharing", [True, False])
def test_a_stop_token_among_the_guesses_ends_it_there(n, sharing):
    engine = audited(sharing=sharing)
    answer = alphabet.answer(PROMPT, 20)
    guessing(engine, {"r": answer, "next": ()}, right=6)
    sequence = engine.submit("r", PROMPT, 20, stop=[answer[n - 1]], conversation="talk")
    finish(engine)
    assert (sequence.finish, tuple(sequence.output)) == (Finish.STOP, answer[:n])
    talk = engine.conversations["talk"]
    assert talk.history == [*PROMPT, *answer[:n]]
    assert talk.valid.written == len(talk.history) - 1
    # Each pass gives one token that was not guessed, or that ended it.
    assert engine.metrics.accepted == n - len(engine.metrics.steps)
    turn = engine.submit("next", [2 * alphabet.WORDS + PROMPT[2]], 3 + n, conversation="talk")
    finish(engine)
    assert_golden("canary", [turn])
    assert_empty(engine)


@pytest.mark.parametrize("how", Preemption)
def test_nobody_makes_room_for_guesses(how):
    engine = audited(blocks=12, preemption=how, sharing=False)
    answers = {str(i): alphabet.answer(asked(7, i), LENGTH + 1) for i in range(2)}
    guessing(engine, answers, right=2)
    sequences = [engine.submit(id, asked(7, int(id)), n) for id, n in zip(answers, (19, 11), strict=True)]
    finish(engine)
    assert engine.metrics.accepted > 0
    assert engine.metrics.rejected > 0
    assert engine.scheduler.preempted == 0
    assert_golden("canary", sequences)
    assert_empty(engine)


@pytest.mark.parametrize("how", Preemption)
def test_guesses_in_a_pool_too_small(how):
    engine = audited(blocks=16, preemption=how)
    answers = {str(i): alphabet.answer(asked(7, i), 41) for i in range(4)}
    guessing(engine, answers, right=2)
    sequences = [engine.submit(id, asked(7, int(id)), 40) for id in answers]
    finish(engine)
    assert engine.scheduler.preempted > 0
    assert engine.metrics.accepted > 0
    assert engine.metrics.rejected > 0
    assert_golden("canary", sequences)
    assert_empty(engine)


def test_a_fork_in_the_middle_of_guesses():
    engine = audited()
    prompt = asked(12)
    answer = alphabet.answer(prompt, 30)
    wrong = tuple((token + 1) % alphabet.VOCAB_SIZE for token in answer)
    guessing(engine, {"r": answer, "r.0": wrong, "r.1": wrong}, right=3)
    parent = engine.submit("r", prompt, 20)
    step_until(engine, lambda: parent.emitted > 4)
    place = len(parent.output)
    assert parent.written % 4
    # Each leaves out a word more.
    children = engine.fork("r", [alphabet.WORDS + prompt[1 + place + n] for n in (1, 2)])
    finish(engine)
    assert engine.metrics.accepted > 0
    assert engine.metrics.rejected > 0
    assert count(engine)[Kind.COPY] >= 2
    assert_golden("canary", [parent])
    assert_golden("canary", children, forced=place)
    assert_empty(engine)


@pytest.mark.parametrize(
    ("tokens", "guess"),
    [
        ([1, 2, 3, 4, 1, 2], (3, 4, 1)),
        ([1, 2, 3, 1, 2, 4, 1, 2], (4, 1, 2)),  # the last earlier one
        ([5, 5, 5], (5,)),  # no more than there is
        ([1, 2, 3, 4], ()),
        ([1, 2], ()),
        ([1], ()),
    ],
)
def test_n_grams(tokens, guess):
    assert NGramDraft(3)(Sequence("r", tokens, 1, 9, Namespace(), BlockTable(4))) == guess
