"""Settings: what the user asked for, checked before anything is started."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from kvfence.adapters import registry
from kvfence.adapters.api import EngineConfig, EngineStartError
from kvfence.conformance.case import DTYPES, PROFILES, Profile
from kvfence.conformance.scenarios.scenario import Scenario, Setup
from kvfence.conformance.subject import Subject

DEADLINE = 300.0  # seconds a call to an engine may take


class UsageError(Exception):
    """Something the user asked for cannot be done; the message is one line."""


WEEK = 604_800  # seconds
KNOWN_DTYPES = (*DTYPES, "float64")  # in which golden can be had
LEVELS = ("tokens", "logprobs", "blocks", "kv", "attention")  # how deep an engine can be looked into


@dataclass(frozen=True)
class Settings:
    """One run, as asked for on the command line or through pytest's options."""

    engine: str  # name of an installed adapter, or module:factory
    model: str  # name of a model kvfence brings along, or a folder
    profile: str = "quick"
    report: Path = Path("kvfence-report")
    seed: int = 0
    dtypes: tuple[str, ...] = ()  # empty = the profile's
    cases: tuple[str, ...] = ()  # patterns of case ids; empty = all
    engine_args: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    deadline: float = DEADLINE
    in_process: bool = False
    watch: tuple[str, ...] | None = None  # of what engines let be observed; None = as the profile has it
    baseline: Path | None = None  # of violations that are known
    require_level: str | None = None  # what must have been looked at for a case to conform
    schedule: Path | None = None  # a schedule file that is run in the place of the profile's cases

    def __post_init__(self) -> None:
        try:
            registry.spec(self.engine)
        except EngineStartError as error:
            raise UsageError(str(error)) from error
        if self.profile not in PROFILES:
            raise UsageError(f"no profile {self.profile!r}: choose one of {', '.join(PROFILES)}")
        if self.require_level not in (None, *LEVELS):
            raise UsageError(f"no level {self.require_level!r}: choose one of {', '.join(LEVELS)}")
        if not 0 < self.deadline <= WEEK:
            raise UsageError(f"a deadline of {self.deadline:g} s makes no sense; give more than 0, at most {WEEK:,}")
        if odd := [dtype for dtype in self.dtypes if dtype not in KNOWN_DTYPES]:
            raise UsageError(f"no dtype {odd[0]}: choose one of {', '.join(KNOWN_DTYPES)}")
        if self.device.startswith("cuda") and not _has_cuda():
            raise UsageError(
                f"no CUDA device is here for --device {self.device}; take cpu, or a torch that sees the card"
            )

    @property
    def plan(self) -> Profile:
        return PROFILES[self.profile]

    @property
    def observe(self) -> tuple[str, ...]:
        """What the engine is asked to let be observed."""
        return self.plan.observe if self.watch is None else self.watch

    def selects(self, case: Subject) -> bool:
        """Whether a case is asked for."""
        return not self.cases or any(fnmatchcase(case.id, pattern) for pattern in self.cases)

    def config(self, case: Subject, pool_size: int) -> EngineConfig:
        """The engine configuration a case runs in, with room for `pool_size` tokens of KV if it asks for none."""
        asked = isinstance(case, Scenario)
        setup = case.setup if isinstance(case, Scenario) else Setup(case.mode == "shared", max(self.plan.concurrencies))
        return EngineConfig(
            sharing=setup.sharing,
            max_concurrency=setup.concurrency,
            dtype=case.dtype,
            device=self.device,
            block_size=setup.block if asked else None,
            pool_size=setup.pool or pool_size,
            chunk_size=setup.chunk,
            observe=self.observe,
            seed=self.seed,
            engine_args=self.engine_args,
        )

    def command(self, case: Subject | None = None, earlier: Sequence[str] = ()) -> str:
        """The shell command that repeats this run, or one case of it after those earlier ones that leaked into it."""
        if self.schedule:
            return self.replay(self.schedule)
        words = ["kvfence", "run", *self._engine_words(), "--profile", self.profile]
        words += ["--seed", str(self.seed)] if self.seed else []
        words += ["--require-level", self.require_level] if self.require_level else []
        words += ["--baseline", str(self.baseline)] if self.baseline else []
        if case is not None:
            words += [w for name in sorted({*earlier, case.id}) for w in ("--case", name)]
        else:
            words += [w for dtype in self.dtypes for w in ("--dtype", dtype)]
            words += [w for pattern in self.cases for w in ("--case", pattern)]
        return shlex.join(words)

    def replay(self, file: Path) -> str:
        """The shell command that runs a schedule file on this engine."""
        return shlex.join(["kvfence", "replay", str(file), *self._engine_words()])

    def _engine_words(self) -> list[str]:
        words = ["--engine", self.engine, "--model", self.model]
        words += ["--device", self.device] if self.device != "cpu" else []
        return words + [w for key, value in self.engine_args.items() for w in ("--engine-arg", f"{key}={value}")]


def spare_threads(model: str) -> None:
    """Compute the canary on one thread, here and in children, if OMP_NUM_THREADS does not say otherwise.

    It is so small that threads wait for each other longer than they compute.
    """
    if model == "canary":
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _has_cuda() -> bool:
    import torch  # takes a second

    return torch.cuda.is_available()


def engine_arguments(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse ``key=value`` pairs. Raises UsageError for anything else."""
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise UsageError(f"engine argument {pair!r} is not key=value")
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
