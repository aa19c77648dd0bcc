"""The yardstick of a run: golden in the dtype at hand, and the noise its margins are judged by."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, islice

from kvfence.adapters.api import EngineFaultError
from kvfence.adapters.wire import EngineInfo
from kvfence.conformance import noise
from kvfence.conformance.case import Case
from kvfence.conformance.oracles.attention import Thresholds
from kvfence.conformance.oracles.golden import Tolerance
from kvfence.conformance.plan import NOISE_SEED, Plan
from kvfence.conformance.settings import Settings, UsageError
from kvfence.reference_impl.golden import Golden, GoldenError
from kvfence.reports.records import NoiseRecord, Writer

SOLO_TOKENS = 32  # of one solo run


class Yardstick:
    """Golden, one dtype at a time, and calibrations, each made when first needed."""

    def __init__(self, settings: Settings, plan: Plan, writer: Writer) -> None:
        self._settings, self._plan, self._writer = settings, plan, writer
        self._exact = plan.model.kind == "canary"
        self._calibrated: dict[tuple[str, int], NoiseRecord] = {}
        self._thresholds: dict[tuple[str, int], Thresholds] = {}
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

    def ready(self, case: Case) -> bool:
        """Whether a case needs neither another golden nor a measurement of noise."""
        return case.dtype == self._dtype and self._key(case) in self._calibrated

    def prepare(self, case: Case, info: EngineInfo, solo: noise.Solo) -> bool:
        """Measure, on an opened engine, the noise that a case is judged by, unless that is done; says whether it was.

        Raises EngineFaultError if the engine shows attention of another shape than the model has.
        """
        if self._key(case) in self._calibrated:
            return False
        record = self._calibrate(case, info, solo)
        self._calibrated[self._key(case)] = record
        self._writer.write(record)
        return True

    def tolerance(self, case: Case) -> tuple[Tolerance, str | None]:
        """What rounding may explain in a prepared case, and why that measurement cannot be relied on, if so."""
        record = self._calibrated[self._key(case)]
        return Tolerance(record.epsilon, self._exact), noise.complaint(record)

    def thresholds(self, case: Case) -> Thresholds | None:
        """What noise may do to attention in a prepared case; None where it was not observed, or was not bounded."""
        judged = self._calibrated[self._key(case)].attention_judged
        return self._thresholds[self._key(case)] if judged else None

    def _load(self, dtype: str | None = None) -> Future[Golden]:
        return self._loader.submit(Golden.load, self._plan.model.path, dtype or self._dtype, self._settings.device)

    def _key(self, case: Case) -> tuple[str, int]:
        return case.dtype, noise.bucket_of(self._plan.length(case))

    def _calibrate(self, case: Case, info: EngineInfo, solo: noise.Solo) -> NoiseRecord:
        golden = self.golden(case.dtype)
        dtype, bucket = key = self._key(case)
        longest = max(self._plan.length(other) for other in self._plan.cases if self._key(other) == key)
        shorter = max((b for b in noise.BUCKETS if b < bucket), default=0)
        prompts = self._samples(max(1, longest - SOLO_TOKENS))
        positions = self._settings.plan.solo_positions
        shifts: list[noise.Shifts] = []
        runs = noise.solo_runs(golden, solo, prompts, SOLO_TOKENS, shifts)
        record = noise.calibrate(
            noise.equal_shapes(golden, self._samples(longest), floor=min(shorter, longest // 2)),
            runs if info.can("top_logprobs") else None,
            (noise.EXACT_POSITIONS if self._exact else noise.POSITIONS, positions),
            golden.resolution(next(self._samples(longest))),
            dtype,
            bucket,
        )
        if "attention" not in self._settings.plan.observe or not info.can("attention"):
            return record
        if not info.can("top_logprobs"):
            list(islice(runs, positions // SOLO_TOKENS))
        if len(shifts) < 2:
            raise EngineFaultError("the engine says it shows its attention, and showed none of requests run alone")
        self._thresholds[key], figures = noise.attention_noise(shifts, golden.rounding)
        return replace(record, **figures)

    def _samples(self, length: int) -> Iterator[tuple[int, ...]]:
        for layout in cycle(self._plan.write_layouts(self._settings.seed + NOISE_SEED).values()):
            yield layout.sample(length)
