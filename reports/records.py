"""Records: the lines of NDJSON a run leaves behind, the only thing reports are made from.

One line is one JSON object with ``kind`` and ``schema``; ``schema.json`` beside this file defines each kind. Lines
are flushed one by one, so a run that is killed keeps every case it had finished.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from kvfence.reports.finding import Finding, LogLine, Telltale
from kvfence.reports.outcome import Outcome

SCHEMA = 2


@dataclass(frozen=True)
class RunRecord:
    """First line of a run: what was run on what."""

    kind: ClassVar[str] = "run"
    run: str  # sortable id: UTC start time and four random hex digits
    command: str
    started: str  # ISO 8601, UTC
    kvfence: str
    engine: str
    engine_args: dict[str, str]
    model: str  # as the user named it
    model_kind: str  # canary, random, smollm2 or other
    profile: str
    seed: int
    cases: int  # planned
    versions: dict[str, str]  # package -> version, of the controlling process
    strength: int = 0  # how many factor values are to come together in all combinations; 0 = none are
    combinations: int = 0  # of so many values, that are possible


@dataclass(frozen=True)
class EngineRecord:
    """One opened engine: its configuration and what it lets us observe."""

    kind: ClassVar[str] = "engine"
    config: dict[str, Any]
    name: str
    version: str
    block_size: int | None  # tokens per shareable block; 1 = token by token; None = unknown
    capabilities: dict[str, dict[str, str]]  # name -> {"state": ..., "reason": ...}
    seconds: float  # to open


@dataclass(frozen=True)
class NoiseRecord:
    """Calibration of the margin rule for one dtype and one length bucket."""

    kind: ClassVar[str] = "noise"
    dtype: str
    bucket: int  # longest position (tokens) this calibration speaks for
    resolution: float  # logits, rounding step of the largest logit
    shapes_positions: int  # compared between golden and golden in equal shapes
    shapes_max: float  # logits, largest margin error there
    solo_positions: int  # compared between golden and the engine's solo runs
    solo_max: float  # logits, without what no rounding explains
    solo_outliers: int  # positions of solo runs that no rounding explains: they are violations, not noise
    epsilon: float  # logits, the threshold
    held_out_positions: int  # compared afterwards, to check the threshold
    held_out_max: float  # logits
    attention_positions: int = 0  # steps of solo runs and of equal shapes compared with golden's attention; 0 = none
    attention_max: float = 0.0  # largest total variation there
    attention_held_out: float = 0.0  # largest excess over the thresholds, at as many steps held out
    attention_judged: bool = False  # whether these bound the noise, so that attention can be said to move
    attention_reason: str = ""  # why it is not judged though the engine says it shows it; one line
    solo_fault: str = ""  # what the solo runs themselves show to be wrong with the engine; one line


@dataclass(frozen=True)
class RequestRecord:
    """One request of a case and what came back."""

    request: str  # name within the case, such as "A0"
    group: str  # A, B or C
    prompt_tokens: int
    prefix_tokens: int
    secret: str  # its passphrase
    output: tuple[int, ...]
    cached_tokens: int | None
    edit_distance: int | None = None  # tokens to insert, delete or replace to reach golden's; None = not computed
    first_changed: int | None = None  # first output position whose token is not golden's; None = all are
    largest_margin: float = 0.0  # logits
    attention_step: int | None = None  # first output step at which attention moved; None = it did not, or not judged
    attention_shift: float | None = None  # largest total variation from golden's attention; None = not compared


@dataclass(frozen=True)
class Rung:
    """One question of a diagnosis, and what came of it."""

    name: str
    state: str  # fails, holds or unknown
    told: str


@dataclass(frozen=True)
class CaseRecord:
    """One conformance case and its verdict."""

    kind: ClassVar[str] = "case"
    case: str
    requirement: str
    outcome: Outcome
    reason: str  # one line
    mode: str  # serial, independent, shared
    layout: str  # canary, tokens, en, zh
    edge: str  # length edge
    company: str  # alone, partner, stranger, mixed
    concurrency: int
    dtype: str
    reproduce: str  # shell command
    engine_seconds: float = 0.0
    suite_seconds: float = 0.0
    shareable_tokens: int | None = None  # prompt tokens an engine with perfect sharing would not compute again
    cached_tokens: int | None = None
    positions: int = 0  # output positions compared
    ties: int = 0  # numeric ties: emitted token is not golden's, margin within epsilon
    requests: tuple[RequestRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    log: tuple[LogLine, ...] = ()  # of a case that violates, where the engine lets its cache be observed
    log_left_out: int = 0  # lines beyond those that are recorded
    telltales: tuple[Telltale, ...] = ()
    asked: tuple[str, ...] = ()  # names of the oracles that were
    schedule: tuple[str, ...] = ()  # of a scenario that violates, an operation a line
    replay: str = ""  # the shell command that runs that schedule again
    known: str = ""  # why the baseline expects the violation
    ladder: tuple[Rung, ...] = ()  # of a diagnosis, lowest first
    factors: dict[str, str] = field(default_factory=dict)  # the value of each, of a case that was made of them


@dataclass(frozen=True)
class EndRecord:
    """Last line of a run that was not killed."""

    kind: ClassVar[str] = "end"
    seconds: float
    exit_code: int


Record = RunRecord | EngineRecord | NoiseRecord | CaseRecord | EndRecord


@dataclass(frozen=True)
class Run:
    """Everything recorded of one run, as plain JSON objects; ``end`` is None for a run that did not finish."""

    header: dict[str, Any]
    engines: list[dict[str, Any]] = field(default_factory=list)
    noise: list[dict[str, Any]] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    torn_lines: int = 0  # lines that cannot be read, such as one cut short by a kill

    @property
    def outcomes(self) -> list[Outcome]:
        return [Outcome(case["outcome"]) for case in self.cases]


WHOLE = {field.name for field in fields(CaseRecord)}


class RecordError(Exception):
    """Records that cannot be written or read; the message is one line for the user."""


class Writer:
    """Appends records of one worker of one run to ``folder/records/<run>.<worker>.ndjson``, one flushed line each."""

    def __init__(self, folder: Path, run: str, worker: str = "main") -> None:
        try:
            (folder / "records").mkdir(parents=True, exist_ok=True)
            self._lock = Lock()
            self._file = (folder / "records" / f"{run}.{worker}.ndjson").open("a", encoding="utf-8")
        except OSError as error:
            raise RecordError(
                f"cannot write to report folder {folder}: {error.strerror}; name another with --report"
            ) from error

    def write(self, record: Record) -> None:
        line = json.dumps({"kind": record.kind, "schema": SCHEMA, **asdict(record)}, ensure_ascii=False)
        # Lone surrogates of a broken decoder must not stop a run: they are kept as escapes.
        text = line.encode("utf-8", "backslashreplace").decode() + "\n"
        with self._lock:
            self._file.write(text)
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def runs(folder: Path) -> list[str]:
    """Ids of the runs recorded in a report folder, oldest first."""
    files = (folder / "records").glob("*.ndjson")
    return sorted({file.name.split(".")[0] for file in files if file.stat().st_size})


def read(folder: Path, run: str | None = None) -> Run:
    """Merge the records of all workers of one run, the newest by default.

    Raises RecordError when there is nothing to report on or the records are of another schema.
    """
    known = runs(folder)
    if not known:
        raise RecordError(f"nothing to report on: no records in {folder}; `kvfence run --report {folder}` makes some")
    run = run or known[-1]
    if run not in known:
        raise RecordError(f"no run {run} in {folder}; it has {', '.join(known)}")
    lines, torn = _lines(folder, run)
    of_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ("run", "engine", "noise", "case", "end")}
    for line in lines:
        if line.get("schema", SCHEMA) != SCHEMA:
            raise RecordError(f"run {run} in {folder} has records of another schema; this kvfence reads {SCHEMA}")
        kind = line.get("kind")
        if kind not in of_kind or "schema" not in line or (kind == CaseRecord.kind and not line.keys() >= WHOLE):
            torn += 1
        else:
            of_kind[kind].append(line)
    if not any(of_kind.values()):
        raise RecordError(f"run {run} in {folder} holds no record; was it written by something else?")
    if not of_kind["run"]:
        raise RecordError(f"run {run} in {folder} has no header: it was killed before its first case")
    return Run(
        header=of_kind["run"][0],
        engines=of_kind["engine"],
        noise=of_kind["noise"],
        cases=sorted({case["case"]: case for case in of_kind["case"]}.values(), key=lambda case: str(case["case"])),
        end=of_kind["end"][-1] if of_kind["end"] else None,
        torn_lines=torn,
    )


def _lines(folder: Path, run: str) -> tuple[list[dict[str, Any]], int]:
    lines, torn = [], 0
    for text in _texts(folder, run):
        try:
            line = json.loads(text)
        except ValueError:
            torn += 1
            continue
        if isinstance(line, dict):
            lines.append(line)
        else:
            torn += 1
    return lines, torn


def _texts(folder: Path, run: str) -> Iterator[str]:
    for file in sorted((folder / "records").glob(f"{run}.*.ndjson")):
        with file.open(encoding="utf-8", errors="replace") as handle:
            yield from (text for text in handle if text.strip())
