"""The yardstick of a run: golden in the dtype at hand, and the noise its margins are judged by."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from kvfence.adapters.wire import EngineInfo
from kvfence.conformance import noise
from kvfence.conformance.oracles.attention import Thresholds
from kvfence.conformance.oracles.golden import Tolerance
from kvfence.conformance.oracles.kv import KVTolerance
from kvfence.conformance.plan import NOISE_SEED, Plan
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.settings import Settings, UsageError
from kvfence.conformance.subject import Subject
from kvfence.reference_impl.attention import watchable
from kvfence.reference_impl.golden import Golden, GoldenError
from kvfence.reports.records import NoiseRecord

SOLO_TOKENS = 32  # of one solo run
SHORT = 12  # tokens of a short prompt
UNSHOWN = "its noise was measured where it was not shown"


@dataclass(frozen=True)
class Calibration:
    """What a prepared case is judged by. Reasons are one line, and empty where there is nothing to say."""

    tolerance: Tolerance
    thresholds: Thresholds | None  # None = attention is not judged
    comparable: bool  # whether golden can show attention beside an engine's
    doubt: str  # why golden's and attention's findings cannot be relied on
    fault: str  # what the solo runs show to be wrong with the engine, so that silence cannot be relied on
    unjudged: str  # why attention is not judged, where the engine shows it
    coarse: str = ""  # why an exact model's words can be judged, and nothing that rounding moves
    kv: KVTolerance | None = None  # None = K/V are not judged
    solo_left: bool = False  # whether the engine's runs of one request at a time left golden as well

    def widened(self, factor: float) -> "Calibration":
        """For where so many times as much is rounded."""
        return replace(
            self,
            tolerance=replace(self.tolerance, epsilon=factor * self.tolerance.epsilon),
            thresholds=self.thresholds and Thresholds(self.thresholds.values * np.float32(factor)),
            kv=self.kv and KVTolerance(self.kv.values * np.float32(factor)),
        )


class Yardstick:
    """Golden, one dtype at a time, and calibrations, each made when first needed."""

    def __init__(self, settings: Settings, plan: Plan, note: Callable[[NoiseRecord], None]) -> None:
        self._settings, self._plan, self._note = settings, plan, note
        self._exact = plan.model.kind == "canary"
        self._calibrated: dict[tuple[str, int], NoiseRecord] = {}
        self._thresholds: dict[tuple[str, int], Thresholds] = {}
        self._kv: dict[tuple[str, int], KVTolerance | None] = {}
        # What golden shows in equal shapes has nothing to do with the engine.
        self._equal: dict[tuple[str, int, bool], noise.Equal] = {}
        self._comparable: dict[tuple[str, int], bool] = {}
        self._loader = ThreadPoolExecutor(1)
        # Begun at once: the engine's process is starting meanwhile, and both take their time to import.
        self._dtype = plan.cases[0].dtype
        self._golden: Future[Golden] = self._load()

    def golden(self, dtype: str) -> Golden:
        """Golden of the run's model in a dtype. Raises UsageError if the model cannot be loaded."""
        if dtype != self._dtype:
            self._dtype, self._golden = dtype, self._load(dtype)
        try:
            return self._golden.result()
        except GoldenError as error:
            raise UsageError(str(error)) from error

    def forget(self) -> None:
        """Measure anew: another engine is judged."""
        for measured in (self._calibrated, self._thresholds, self._kv, self._comparable):
            measured.clear()

    def close(self) -> None:
        """Wait for a golden that is still being loaded: nothing may go on behind a run that has ended."""
        self._loader.shutdown(cancel_futures=True)

    def ready(self, case: Subject) -> bool:
        """Whether a case needs neither another golden nor a measurement of noise."""
        return case.dtype == self._dtype and self._key(case) in self._calibrated

    def prepare(self, case: Subject, info: EngineInfo, solo: noise.Solo) -> bool:
        """Measure, on an opened engine, the noise that a case is judged by, unless that is done; says whether it was.

        Raises EngineFaultError if the engine shows attention of another shape than the model has.
        """
        if self._key(case) in self._calibrated:
            return False
        record = self._calibrate(case, info, solo)
        self._calibrated[self._key(case)] = record
        self._note(record)
        return True

    def calibration(self, case: Subject) -> Calibration:
        """What a prepared case is judged by."""
        key = self._key(case)
        record = self._calibrated[key]
        other = noise.other_model(record) or ""
        judged = record.attention_judged and not other
        return Calibration(
            # An exact model is judged without epsilon.
            tolerance=Tolerance(record.epsilon, self._exact),
            thresholds=self._thresholds[key] if judged else None,
            comparable=self._comparable[key],
            doubt="" if self._exact else noise.complaint(record) or "",
            fault=record.solo_fault,
            kv=self._kv[key],
            solo_left=noise.solo_left(record),
            unjudged="" if judged else other or record.attention_reason or UNSHOWN,
            coarse=other if self._exact else "",
        )

    def _load(self, dtype: str | None = None) -> Future[Golden]:
        golden = self._loader.submit(Golden.load, self._plan.model.path, dtype or self._dtype, self._settings.device)
        if self._settings.in_process:
            # transformers cannot load two models at a time in a process, and the engine's is next.
            wait([golden])
        return golden

    def _key(self, case: Subject) -> tuple[str, int]:
        return case.dtype, noise.bucket_of(self._plan.length(case))

    def _calibrate(self, case: Subject, info: EngineInfo, solo: noise.Solo) -> NoiseRecord:
        golden = self.golden(case.dtype)
        dtype, bucket = key = self._key(case)
        alike = [case, *(other for other in self._plan.cases if self._key(other) == key)]
        longest = max(SHORT, *map(self._plan.length, alike))
        shorter = max((b for b in noise.BUCKETS if b < bucket), default=0)
        asked = "attention" in self._settings.observe and info.can("attention")
        blind = watchable(golden.model) if asked else None
        watch = asked and not blind
        equal = self._equal.setdefault((*key, watch), noise.Equal([]))
        clean = noise.Clean(watch=watch, shapes=equal.shifts)
        self._comparable[key] = watch
        played = any(isinstance(other, Scenario) for other in alike)
        # Golden is asked what the engine is: where nobody could go on, one position in a hundred rounds much more.
        # Of every two one is held out, and may not be of another kind.
        astray = (longest, True), (min(longest, SHORT + SOLO_TOKENS), True)
        whole = (longest, False), *(astray if played else ())
        shapes = equal.errors(
            lambda: noise.equal_shapes(golden, self._samples(*whole), min(shorter, longest // 2), clean)
        )
        room = min(longest, case.setup.pool or longest) if isinstance(case, Scenario) else longest
        prompt = max(SHORT, room - SOLO_TOKENS)
        # Scenarios have short prompts too, whose attention is another, and histories that nobody could go on from.
        # Of every two runs one is held out, and there may be no more than four.
        other = (prompt, True), (SHORT, True), (max(SHORT, prompt // 3), False), (SHORT, False)
        samples = self._samples((prompt, False), *(other if played else ()))
        runs = noise.solo_runs(golden, solo, samples, SOLO_TOKENS, clean)
        positions = self._settings.plan.solo_positions
        record = noise.calibrate(
            shapes,
            runs if info.can("top_logprobs") else None,
            (noise.EXACT_POSITIONS if self._exact else noise.POSITIONS, positions),
            golden.resolution(next(self._samples(*whole))),
            dtype,
            bucket,
        )
        if clean.watch:
            # Margins may have needed fewer of either.
            noise.watch_on(clean, shapes, runs, positions // SOLO_TOKENS)
            step = golden.attention_rounding(next(self._samples(*whole)))
            self._thresholds[key], figures = noise.attention_noise(clean, step)
            record = replace(record, **figures)
        # What a window has left behind is not kept, so that there is nothing to compare.
        self._kv[key] = None if self._plan.model.window else noise.kv_tolerance(clean, golden.rounding)
        reason = f"golden cannot show it: {blind}" if blind else record.attention_reason
        return replace(record, attention_reason=reason, solo_fault=noise.solo_fault(clean))

    def _samples(self, *kinds: tuple[int, bool]) -> Iterator[tuple[int, ...]]:
        """Sequences of these lengths in turn, and whether they are astray."""
        written = self._plan.write_layouts(self._settings.seed + NOISE_SEED).values()
        for (length, astray), layout in zip(cycle(kinds), cycle(written), strict=True):
            yield layout.stray(length) if astray else layout.sample(length)
