"""Beam search: the likeliest continuations of a prompt, each beam a fork of the one that it goes on from.

Beams share the blocks of what they have in common and copy one on the first write to it. None knows of the others: a
beam pauses after each token, wherever it is, until all have one more.
"""

from collections import abc
from dataclasses import dataclass

from kvfence.reference_impl.engine import EngineError, ReferenceEngine
from kvfence.reference_impl.sequence import Sequence, Status


@dataclass(frozen=True)
class Beam:
    """A continuation of a prompt."""

    tokens: tuple[int, ...]
    logprob: float  # nats, the sum over its tokens


def beam_search(
    engine: ReferenceEngine, prompt: abc.Sequence[int], width: int, n: int, stop: int | None = None
) -> list[Beam]:
    """The `width` best continuations of `prompt` by up to `n` tokens that a search of that width finds, best first.

    Of all beams' continuations by one token the 2 × width best are looked at: as at most `width` of these are by
    `stop`, which ends a beam, `width` can go on. Other requests of the engine go on meanwhile.
    Raises EngineError if the engine tells fewer logprobs than that or fails, and for what `submit` raises it.
    """
    if engine.settings.logprobs < 2 * width:
        raise EngineError(f"beams of width {width} need the logprobs of {2 * width} tokens at each position")
    ended: list[Beam] = []
    live = {Beam((), 0.0): engine.submit("beam", prompt, n)}
    try:
        for length in range(1, n + 1):
            _advance(engine, list(live.values()), length)
            best = _best(live, 2 * width)
            ended += [beam for beam in best if beam.tokens[-1] == stop]
            alive = [beam for beam in best if beam.tokens[-1] != stop][:width]
            if length < n:
                live = _forked(engine, live, alive)
        return sorted([*ended, *alive], key=lambda beam: -beam.logprob)[:width]
    finally:
        _withdraw(engine, live)


def _advance(engine: ReferenceEngine, sequences: list[Sequence], length: int) -> None:
    """Step until each sequence has so many tokens of output."""
    for sequence in sequences:
        sequence.pause = length
    while any(len(sequence.output) < length for sequence in sequences):
        engine.step()
        for sequence in sequences:
            if sequence.status is Status.FINISHED and len(sequence.output) < length:
                raise EngineError(f"beam {sequence.id} ended early: {sequence.error or sequence.finish}")


def _best(live: dict[Beam, Sequence], n: int) -> list[Beam]:
    """The `n` best continuations by one token, best first."""
    candidates = [
        Beam((*beam.tokens, token), beam.logprob + logprob)
        for beam, sequence in live.items()
        for token, logprob in sequence.top_logprobs[len(beam.tokens)]
    ]
    return sorted(candidates, key=lambda beam: -beam.logprob)[:n]


def _forked(engine: ReferenceEngine, live: dict[Beam, Sequence], alive: list[Beam]) -> dict[Beam, Sequence]:
    """The sequences of beams that go on, forks of those they continue; these are withdrawn."""
    children: dict[Beam, Sequence] = {}
    for beam, parent in live.items():
        going = [child for child in alive if child.tokens[:-1] == beam.tokens]
        forks = engine.fork(parent.id, [child.tokens[-1] for child in going])
        children |= zip(going, forks, strict=True)
    _withdraw(engine, live)
    return children


def _withdraw(engine: ReferenceEngine, live: dict[Beam, Sequence]) -> None:
    for sequence in live.values():
        if sequence.status is not Status.FINISHED:
            engine.cancel(sequence.id)
