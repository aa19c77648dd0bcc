"""Schedules, and the player that drives an engine through them."""

import pytest
from continuous import LONG, PROMPTS, N

from kvfence.adapters import hf, reference
from kvfence.adapters.api import EngineConfig, EngineFaultError, Request
from kvfence.adapters.host import ProcessHost
from kvfence.adapters.player import Played, play
from kvfence.adapters.schedule import Moment, Operation, Verb, capabilities, submit, waves
from kvfence.prompts import alphabet

A, B, C = (Request(name, prompt, N) for name, prompt in zip("ABC", PROMPTS, strict=False))


def engine(folder, adapter=reference, **config):
    return adapter.open_engine(str(folder.path), EngineConfig(sharing=True, max_concurrency=4, block_size=8, **config))


def test_batches_are_what_waits_for_nobody():
    assert waves((submit(A), submit(B))) == [[A, B]]
    assert waves((submit(A), submit(B, Moment("A")), submit(C))) == [[A], [B, C]]
    for more in (
        submit(B, Moment("A", 3)),
        Operation(Verb.CANCEL, "A"),
        Operation(Verb.RESET),
        submit(B, Moment("C")),
    ):
        assert waves((submit(A), more)) is None


def test_what_a_schedule_takes():
    assert capabilities((submit(A), submit(B, Moment("A")))) == set()
    assert capabilities((submit(A), Operation(Verb.CANCEL, "A"))) == {"session"}
    forked = (submit(A), Operation(Verb.FORK, "A", Moment("A", 2), tokens=(7,)))
    assert capabilities(forked) == {"session", "fork"}
    assert capabilities((submit(Request("D", (1,), 1, salt="x", conversation="t")),)) == {"salt", "conversations"}


def test_operations_come_at_their_moments(canary_folder):
    """The second request is handed over when the first has emitted 3 tokens; the third is withdrawn after 2."""
    played = play(
        engine(canary_folder),
        (
            submit(A),
            submit(B, Moment("A", 3)),
            submit(C),
            Operation(Verb.CANCEL, "C", Moment("C", 2)),
            submit(Request("D", LONG, 3), Moment("B")),
        ),
    )
    assert played.missed == ""
    assert {c.id: c.tokens for c in played.completions} == {
        "A": alphabet.answer(A.prompt, N),
        "B": alphabet.answer(B.prompt, N),
        "D": alphabet.answer(LONG, 3),
    }
    assert played.emitted["C"] == alphabet.answer(C.prompt, 2)


def test_a_moment_that_never_comes_ends_the_schedule_and_is_told(canary_folder):
    played = play(engine(canary_folder), (submit(A), submit(B, Moment("A", N + 1)), submit(C)))
    assert [c.id for c in played.completions] == ["A"]
    assert played.missed == f"submit B waited until A had emitted {N + 1} tokens, which it never has"


def test_forks_are_known_by_their_parents(canary_folder):
    word = PROMPTS[0][6] + alphabet.WORDS
    played = play(engine(canary_folder), (submit(A), Operation(Verb.FORK, "A", Moment("A", 2), tokens=(word,))))
    ((child, parent),) = played.parents.items()
    completion = next(c for c in played.completions if c.id == child)
    assert (parent, completion.forced, completion.tokens[1]) == ("A", 1, word)
    assert completion.tokens[0] == alphabet.answer(A.prompt, 1)[0]


def test_forks_have_the_same_names_however_often_they_are_played(canary_folder):
    words = tuple(word + alphabet.WORDS for word in PROMPTS[0][6:8])
    again = engine(canary_folder, observe=("events",))
    schedule = (submit(A), Operation(Verb.FORK, "A", Moment("A", 2), tokens=words))
    for _ in range(2):
        played = play(again, schedule)
        assert set(played.parents) == set(played.emitted) - {"A"} == {"A.0", "A.1"}
        assert {c.id for c in played.completions} == {"A", "A.0", "A.1"}
        assert {e.request for e in played.observed.events} - {""} == {"A", "A.0", "A.1"}


def test_an_engine_without_sessions_runs_batches(canary_folder):
    played = play(engine(canary_folder, hf), (submit(A), submit(B, Moment("A"))))
    assert {c.id: c.tokens for c in played.completions} == {
        "A": alphabet.answer(A.prompt, N),
        "B": alphabet.answer(B.prompt, N),
    }
    with pytest.raises(EngineFaultError, match="the engine has no sessions, and this schedule is more than batches"):
        play(engine(canary_folder, hf), (submit(A), Operation(Verb.CANCEL, "A")))


def test_a_schedule_runs_in_the_engines_process(canary_folder):
    host = ProcessHost("kvfence.adapters.reference:open_engine", str(canary_folder.path), deadline=60)
    try:
        host.open(EngineConfig(max_concurrency=2))
        played = host.play((submit(A), submit(B, Moment("A", 1))))
        assert isinstance(played, Played)
        assert sorted(c.id for c in played.completions) == ["A", "B"]
    finally:
        host.close()
