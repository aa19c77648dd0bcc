"""Noise: how much rounding alone moves margins and attention, measured for one engine, dtype and length bucket.

Epsilon is `FACTOR` times the largest margin error over at least `POSITIONS` positions, and is then held against others
that were not used to find it. Errors are measured between golden and golden in mathematically equal shapes,
and between golden and the engine's own runs of one request at a time. The latter tell how far attention is apart too:
half of them make the thresholds, the other half is held against these.
"""

import math
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvfence.adapters.api import Completion
from kvfence.adapters.observation import Attention
from kvfence.conformance.oracles.attention import Comparison, Thresholds
from kvfence.reference_impl.golden import Golden
from kvfence.reports.records import NoiseRecord

FACTOR = 4.0
POSITIONS = 10_000
EXACT_POSITIONS = 1_000  # where epsilon judges no tokens, only logprobs: the model is exact
ATTENTION_LIMIT = 0.25  # total variation beyond which solo runs cannot be clean
BUCKETS = (128, 512, 2048, 8192)  # longest position (tokens) of each length bucket
BATCH_TOKENS = 2_048  # of a padded batch; its logits over a large vocabulary must fit in memory
DECODED = 4  # tokens computed one by one, as an engine decodes them
SOLO_LIMIT = 8.0  # times golden's own noise beyond which an engine's solo runs are not its equal

Errors = Iterator[list[float]]  # margin errors (logits) of consecutive positions, a sequence at a time
Shifts = NDArray[np.float32]  # [n, layers, heads] total variation between an engine's attention and golden's
Solo = Callable[[tuple[int, ...], int], tuple[Completion, Attention | None]]


def bucket_of(length: int) -> int:
    """The bucket that a sequence of `length` tokens falls in; the last one takes all that is longer."""
    return next((bucket for bucket in BUCKETS if length <= bucket), BUCKETS[-1])


def equal_shapes(golden: Golden, sequences: Iterator[tuple[int, ...]], floor: int) -> Errors:
    """Errors of golden in mathematically equal shapes against golden alone, at positions from `floor` on.

    Sequences are laid out as padded batches; every second one is also computed on a reused prefix and its last tokens
    one by one.
    """
    from kvfence.reference_impl import shapes

    first = next(sequences)
    rows = min(8, max(2, BATCH_TOKENS // len(first)))
    sequences = chain([first], sequences)
    while batch := list(islice(sequences, rows)):
        # Unequal lengths, so that rows of the batch really are padded.
        cut = [tokens[: len(tokens) - i] for i, tokens in enumerate(batch)]
        together = shapes.padded(golden.model, cut)
        for i, (tokens, padded) in enumerate(zip(cut, together, strict=True)):
            reference = shapes.alone(golden.model, tokens)
            others = [padded]
            if i % 2:
                others.append(shapes.prefix_reused(golden.model, tokens, len(tokens) // 2, DECODED))
            for other in others:
                yield shapes.margin_errors(reference[floor:], other[floor:]).tolist()


def solo_runs(golden: Golden, solo: Solo, prompts: Iterator[tuple[int, ...]], n: int, shifts: list[Shifts]) -> Errors:
    """Errors of the engine's own runs of one request at a time, `n` tokens each, against golden.

    Where attention is observed, that of each run is compared too and appended to `shifts`. Without logprobs of other
    tokens than the emitted one, errors are zeros.
    """
    for prompt in prompts:
        completion, attention = solo(prompt, n)
        comparison = Comparison(attention) if attention else None
        logits = golden.logits([*prompt, *completion.tokens[:-1]], keep=n, visit=comparison)
        errors = [0.0] * n
        for step, best in enumerate(completion.top_logprobs or ()):
            token, logprob = best[0]
            here = logits[step]
            moved = [abs((other - logprob) - float(here[t] - here[token])) for t, other in best[1:]]
            errors[step] = max(moved, default=0.0)
        if comparison:
            shifts.append(comparison.shifts)
        yield errors


def calibrate(
    shapes: Errors, solo: Errors | None, positions: tuple[int, int], resolution: float, dtype: str, bucket: int
) -> NoiseRecord:
    """Epsilon from so many `positions` of golden's shapes and of solo runs, checked on a tenth as many.

    `resolution` (logits) is the rounding step of a logit: epsilon is never finer. The held-out positions come from
    solo runs where those alone are enough to calibrate, else from shapes.
    """
    golden = _take(shapes, positions[0])
    engine = _take(solo, positions[1]) if solo else []
    held = _take(solo if solo and positions[1] >= positions[0] else shapes, positions[0] // 10)
    return NoiseRecord(
        dtype=dtype,
        bucket=bucket,
        resolution=resolution,
        shapes_positions=len(golden),
        shapes_max=_max(golden),
        solo_positions=len(engine),
        solo_max=_max(engine),
        epsilon=FACTOR * _max([resolution, *golden, *engine]),
        held_out_positions=len(held),
        held_out_max=_max(held),
    )


def attention_noise(shifts: list[Shifts], resolution: float) -> tuple[Thresholds, dict[str, Any]]:
    """Thresholds from one half of clean runs, and what a `NoiseRecord` says of it.

    `resolution` is the rounding step of a probability. Every second run is held out.
    """
    kept, held = np.concatenate(shifts[::2]), np.concatenate(shifts[1::2])
    thresholds = Thresholds.of(kept, resolution)
    excess = float((held / thresholds.values).max())
    return thresholds, {
        "attention_positions": len(kept),
        "attention_max": float(kept.max()),
        "attention_held_out": excess,
        "attention_judged": float(kept.max()) <= ATTENTION_LIMIT and excess <= 1,
    }


def complaint(noise: NoiseRecord) -> str | None:
    """Why a calibration cannot be used, in one line, or None.

    An engine whose solo runs are far noisier than golden either computes something else or is itself contaminated,
    and its noise must not become the tolerance.
    """
    if not noise.solo_max <= SOLO_LIMIT * max(noise.shapes_max, noise.resolution):
        return (
            f"solo runs of the engine differ from golden by {noise.solo_max:.3g} logits, golden from itself by "
            f"{noise.shapes_max:.3g}: other weights, or solo runs that are not clean"
        )
    if not noise.held_out_max <= noise.epsilon:
        error = f"held-out error {noise.held_out_max:.3g} above epsilon {noise.epsilon:.3g} logits"
        return f"noise in {noise.dtype} is not bounded: {error}"
    return None


def _take(errors: Errors, positions: int) -> list[float]:
    taken: list[float] = []
    while len(taken) < positions:
        taken += next(errors)
    return taken


def _max(errors: list[float]) -> float:
    """The largest error, or NaN if any is: an overflow must not look like silence."""
    return math.nan if any(map(math.isnan, errors)) else max(errors, default=0.0)
