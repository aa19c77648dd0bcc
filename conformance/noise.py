"""Noise: how much rounding alone moves margins and attention, measured for one engine, dtype and length bucket.

Epsilon is `FACTOR` times the largest margin error over at least `POSITIONS` positions, and is then held against others
that were not used to find it. Errors are measured between golden and golden in mathematically equal shapes,
and between golden and the engine's own runs of one request at a time. Both tell how far attention is apart too: half of
what they show makes the thresholds, the other half is held against these.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvfence.adapters.observation import KV
from kvfence.conformance.driven import Answer
from kvfence.conformance.oracles import kv
from kvfence.conformance.oracles.attention import Comparison, Thresholds
from kvfence.conformance.oracles.kv import KVTolerance
from kvfence.reference_impl.attention import LastQueries, total_variation
from kvfence.reference_impl.golden import Golden
from kvfence.reports.records import NoiseRecord

FACTOR = 4.0
POSITIONS = 10_000
EXACT_POSITIONS = 1_000  # where epsilon judges no tokens, only logprobs: the model is exact
ATTENTION_LIMIT = 0.25  # total variation beyond which runs cannot be clean
ATTENTION_STEPS = 32  # last ones of a sequence whose attention is compared in equal shapes
ATTENTION_RUNS = 16  # sequences in equal shapes that are watched
BUCKETS = (128, 512, 2048, 8192)  # longest position (tokens) of each length bucket
BATCH_TOKENS = 2_048  # of a padded batch; its logits over a large vocabulary must fit in memory
DECODED = 4  # tokens computed one by one, as an engine decodes them
APART = 1000.0  # times the tenth smallest of a hundred errors, or the least of few, beyond which one is of another kind
SOLO_LIMIT = 8.0  # times golden's own noise beyond which an engine's solo runs are not its equal

Errors = Iterator[list[float]]  # margin errors (logits) of consecutive positions, a sequence at a time
Shifts = NDArray[np.float32]  # [n, layers, heads] total variation of attention from golden's
KVErrors = NDArray[np.float32]  # [2, layers, kv_heads]
Solo = Callable[[tuple[int, ...], int], Answer]


@dataclass
class Clean:
    """What clean runs show beside margins: how far attention is apart, and whether they are clean at all."""

    watch: bool  # whether attention is compared
    shapes: list[Shifts] = field(default_factory=list)  # of each sequence in an equal shape
    solo: list[Shifts] = field(default_factory=list)  # of each run of the engine that showed its attention
    kv: list[KVErrors] = field(default_factory=list)  # of each run of the engine that showed its K/V
    kv_scale: KVErrors | None = None  # the largest element there
    kv_apart: int = 0  # runs whose K/V are off as no rounding explains
    runs: int = 0  # of the engine
    breach: str = ""  # the first rule of ownership that one of these broke, and how

    @property
    def watched(self) -> bool:
        """Whether equal shapes need no more watching."""
        return not self.watch or len(self.shapes) >= ATTENTION_RUNS


@dataclass
class Equal:
    """What golden shows in equal shapes, kept to be asked again."""

    shifts: list[Shifts]  # of attention
    _made: Errors | None = None
    _seen: list[list[float]] = field(default_factory=list)

    def errors(self, make: Callable[[], Errors]) -> Errors:
        """The errors from the first on, as many as are asked for; `make` begins to compute them."""
        if self._made is None:
            self._made = make()
        for i in count():
            if i == len(self._seen):
                self._seen.append(next(self._made))
            yield self._seen[i]


def bucket_of(length: int) -> int:
    """The bucket that a sequence of `length` tokens falls in; the last one takes all that is longer."""
    return next((bucket for bucket in BUCKETS if length <= bucket), BUCKETS[-1])


def equal_shapes(golden: Golden, sequences: Iterator[tuple[int, ...]], floor: int, clean: Clean) -> Errors:
    """Errors of golden in mathematically equal shapes against golden alone, at positions from `floor` on.

    Of a sequence shorter than twice that its second half counts. Sequences are laid out as padded batches; every second
    one is also computed on a reused prefix and its last tokens one by one. How far attention of the last
    `ATTENTION_STEPS` is apart is added to `clean`, until that is enough.
    """
    from kvfence.reference_impl import shapes

    first = next(sequences)
    rows = min(8, max(2, BATCH_TOKENS // len(first)))
    sequences = chain([first], sequences)
    while batch := list(islice(sequences, rows)):
        # Unequal lengths, so that rows of the batch really are padded.
        cut = [tokens[: len(tokens) - i] for i, tokens in enumerate(batch)]
        beside = _watch(clean, cut)
        together = shapes.padded(golden.model, cut, visit=beside)
        for i, (tokens, padded) in enumerate(zip(cut, together, strict=True)):
            own, reusing = (_watch(clean, [tokens]) for _ in range(2))
            reference = shapes.alone(golden.model, tokens, own)
            others = [(padded, beside, i)]
            if i % 2:
                reused = shapes.prefix_reused(golden.model, tokens, len(tokens) // 2, DECODED, reusing)
                others.append((reused, reusing, 0))
            for other, seen, row in others:
                if own and seen:
                    clean.shapes.append(total_variation(own.rows(0), seen.rows(row)))
                begin = min(floor, len(tokens) // 2)
                yield shapes.margin_errors(reference[begin:], other[begin:]).tolist()


def solo_runs(golden: Golden, solo: Solo, prompts: Iterator[tuple[int, ...]], n: int, clean: Clean) -> Errors:
    """Errors of the engine's own runs of one request at a time, `n` tokens each, against golden.

    What these runs show beside is added to `clean`. Without logprobs of other tokens than the emitted one, errors are
    zeros.
    """
    for prompt in prompts:
        answer = solo(prompt, n)
        completion = answer.completion
        comparison = Comparison(answer.attention, golden.layers) if clean.watch and answer.attention else None
        logits = golden.logits([*prompt, *completion.tokens[:-1]], keep=n, visit=comparison)
        errors = [0.0] * n
        for step, best in enumerate(completion.top_logprobs or ()):
            token, logprob = best[0]
            here = logits[step]
            moved = [abs((other - logprob) - float(here[t] - here[token])) for t, other in best[1:]]
            errors[step] = _max(moved)
        clean.runs += 1
        clean.breach = clean.breach or next((f"{b.victim} {b.told}" for b in answer.breaches), "")
        if comparison:
            clean.solo.append(comparison.shifts)
        if answer.kv:
            _compare_kv(golden, answer, answer.kv, clean)
        yield errors


def _compare_kv(golden: Golden, answer: Answer, shown: KV, clean: Clean) -> None:
    expected = golden.kv((*answer.prompt.tokens, *answer.completion.tokens))
    clean.kv.append(kv.errors(kv.cells(shown), expected).max(-1))
    scale = np.abs(expected).max((-1, -2))
    clean.kv_scale = scale if clean.kv_scale is None else np.maximum(scale, clean.kv_scale)


def kv_tolerance(clean: Clean, rounding: float) -> KVTolerance | None:
    """How far K/V may be off, from half of the clean runs; None if these show none or the other half exceeds it.

    Runs that stand apart from the best one as rounding never does are counted in `clean`, and are no measure.
    """
    if len(clean.kv) < 2 or clean.kv_scale is None:
        return None
    every = np.stack(clean.kv)
    limit = APART * np.maximum(np.fmin.reduce(every), rounding * clean.kv_scale)
    sound = every[(every <= limit).all((1, 2, 3))]
    clean.kv_apart = len(every) - len(sound)
    if not len(sound):
        return None
    tolerance, held = KVTolerance.of(sound[::2], clean.kv_scale, rounding), sound[1::2]
    return tolerance if (held <= tolerance.values).all() else None


def calibrate(
    shapes: Errors, solo: Errors | None, positions: tuple[int, int], resolution: float, dtype: str, bucket: int
) -> NoiseRecord:
    """Epsilon from so many `positions` of golden's shapes and of solo runs, checked on a tenth as many.

    `resolution` (logits) is the rounding step of a logit: epsilon is never finer. The held-out positions come from
    solo runs where those alone are enough to calibrate, else from shapes.
    """
    golden = _take(shapes, positions[0])
    every = _take(solo, positions[1]) if solo else []
    engine = _noise(every, max([resolution, *golden]))
    held = _take(solo if solo and positions[1] >= positions[0] else shapes, positions[0] // 10)
    return NoiseRecord(
        dtype=dtype,
        bucket=bucket,
        resolution=resolution,
        shapes_positions=len(golden),
        shapes_max=_max(golden),
        solo_positions=len(every),
        solo_max=_max(engine),
        solo_outliers=len(every) - len(engine),
        epsilon=FACTOR * _max([resolution, *golden, *engine]),
        held_out_positions=len(held),
        held_out_max=_max(held),
    )


def watch_on(clean: Clean, shapes: Errors, runs: Errors, n: int) -> None:
    """Go on until so many equal shapes are watched as it takes, and `n` runs of the engine are made."""
    while not clean.watched:
        next(shapes)
    while clean.runs < n:
        next(runs)


def attention_noise(clean: Clean, resolution: float) -> tuple[Thresholds, dict[str, Any]]:
    """Thresholds from one half of what clean runs show, and what a `NoiseRecord` says of it.

    `resolution` is the rounding step of a probability. Every second run, and every second equal shape, is held out.
    """
    kept = np.concatenate([*clean.solo[::2], *clean.shapes[::2]])
    held = np.concatenate([*clean.solo[1::2], *clean.shapes[1::2]])
    thresholds = Thresholds.of(kept, resolution)
    largest, excess = float(kept.max()), float((held / thresholds.values).max())
    reason = "the engine showed it in none of its solo runs" if clean.runs and not clean.solo else ""
    # Written so that NaN, from an overflow, is no bound.
    if not largest <= ATTENTION_LIMIT:
        reason = f"it shifts by {largest:.3g} of total variation in runs that should be clean, above {ATTENTION_LIMIT}"
    elif not excess <= 1:
        reason = f"its noise is not bounded: held-out runs shift it by {excess:.3g} times the thresholds"
    return thresholds, {
        "attention_positions": len(kept),
        "attention_max": largest,
        "attention_held_out": excess,
        "attention_judged": not reason,
        "attention_reason": reason,
    }


def solo_fault(clean: Clean) -> str:
    """What the engine's own runs of one request at a time show to be wrong with it, in one line, or nothing."""
    if clean.breach:
        return f"solo runs broke a rule of ownership: {clean.breach}"
    if clean.watch and len(clean.solo) < clean.runs:
        return f"the engine says it shows attention, and showed it in {len(clean.solo)} of {clean.runs} solo runs"
    if clean.kv_apart:
        return f"K/V of {clean.kv_apart} of {len(clean.kv)} solo runs are off as no rounding explains"
    return ""


def solo_left(noise: NoiseRecord) -> bool:
    """Whether the engine's own runs of one request at a time left golden, in margins or in attention."""
    shifted = max(noise.attention_max / ATTENTION_LIMIT, noise.attention_held_out) > 1
    return bool(noise.solo_outliers) or shifted or not noise.solo_max <= _solo_limit(noise)


def other_model(noise: NoiseRecord) -> str | None:
    """What shows that an engine computes another model than golden, such as one with quantised K/V; or None."""
    if noise.solo_max <= _solo_limit(noise):
        return None
    return (
        f"solo runs of the engine differ from golden by {noise.solo_max:.3g} logits, golden from itself by "
        f"{noise.shapes_max:.3g}: other weights, or solo runs that are not clean"
    )


def complaint(noise: NoiseRecord) -> str | None:
    """Why a calibration cannot be used, in one line, or None.

    An engine whose solo runs are far noisier than golden either computes something else or is itself contaminated,
    and its noise must not become the tolerance.
    """
    if other := other_model(noise):
        return other
    if not noise.held_out_max <= noise.epsilon:
        error = f"held-out error {noise.held_out_max:.3g} above epsilon {noise.epsilon:.3g} logits"
        return f"noise in {noise.dtype} is not bounded: {error}"
    return None


def _solo_limit(noise: NoiseRecord) -> float:
    return SOLO_LIMIT * max(noise.shapes_max, noise.resolution)


def _watch(clean: Clean, sequences: list[tuple[int, ...]]) -> LastQueries | None:
    return None if clean.watched else LastQueries([len(tokens) for tokens in sequences], ATTENTION_STEPS)


def _take(errors: Errors, positions: int) -> list[float]:
    taken: list[float] = []
    while len(taken) < positions:
        taken += next(errors)
    return taken


def _noise(errors: list[float], golden: float) -> list[float]:
    """Errors of solo runs; where some stand apart as rounding never does, without all that are larger than golden's.

    An engine of other weights, or of a coarser dtype, is off everywhere and none of its errors stands apart; nor does
    what is no number where nine of ten are none.
    """
    limit = SOLO_LIMIT * golden
    sizes = [math.inf if math.isnan(error) else error for error in errors]
    if max(sizes, default=0.0) <= max(limit, APART * sorted([0.0, *sizes])[len(sizes) // 10]):
        return errors
    return [error for error, size in zip(errors, sizes, strict=True) if size <= limit]


def _max(errors: list[float]) -> float:
    """The largest error, or NaN if any is: an overflow must not look like silence."""
    return math.nan if any(map(math.isnan, errors)) else max(errors, default=0.0)
