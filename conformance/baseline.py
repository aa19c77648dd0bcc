"""The baseline: requirements that an engine is known to violate, each with a reason. It is strict both ways.

A violation that it names does not fail a run. A requirement that it names and the engine keeps does, and so does one
that no case was about.
"""

import json
import shlex
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from kvfence.conformance.catalogue import requirements
from kvfence.conformance.settings import Settings, UsageError
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import Run, read

HEAD = "# Requirements that engines are known to violate. `kvfence baseline update` adds and removes entries.\n"


@dataclass(frozen=True)
class Known:
    """One requirement that versions of an engine violate."""

    requirement: str
    engine: str  # as in --engine
    versions: str  # a specifier such as ">=0.10,<0.12", or a version by itself; "" = all
    reason: str
    link: str = ""

    def applies(self, engine: str, version: str) -> bool:
        """Whether it is about a version of an engine."""
        if self.engine != engine:
            return False
        if self.versions in ("", version):
            return True
        try:
            return SpecifierSet(self.versions).contains(Version(version), prereleases=True)
        except (InvalidSpecifier, InvalidVersion):
            return False

    def __str__(self) -> str:
        return f"{self.requirement} of {self.engine} {self.versions}".rstrip()


@dataclass(frozen=True)
class Baseline:
    """What is known of engines."""

    known: tuple[Known, ...] = ()

    @classmethod
    def load(cls, file: Path) -> "Baseline":
        """Read a baseline. Raises UsageError for a file that is none, in one line."""
        try:
            data = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            told = (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)
            raise UsageError(f"cannot read baseline {file}: {told}; `kvfence baseline update` writes one") from error
        entries = data.get("known", [])
        if set(data) - {"known"} or not isinstance(entries, list):
            raise UsageError(f"{file} is no baseline: it holds [[known]] tables and nothing else")
        return cls(tuple(_entry(file, place, entry) for place, entry in enumerate(entries, 1)))

    def of(self, requirement: str, engine: str, version: str) -> Known | None:
        """What is known of a requirement on a version of an engine."""
        matching = (one for one in self.known if one.requirement == requirement and one.applies(engine, version))
        return next(matching, None)

    def stale(self, run: Run) -> list[str]:
        """What no longer holds of the engine of a run, a line each. A run of some cases only says nothing of that."""
        engine, version = run.header["engine"], _version(run)
        return [
            f"{one} {why}; take it out of the baseline"
            for one in self.known
            if one.applies(engine, version) and (why := _stale(one, run))
        ]

    def updated(self, run: Run) -> "Baseline":
        """With an entry for each requirement that was violated in a run, and without those that were kept."""
        engine, version = run.header["engine"], _version(run)
        kept = [one for one in self.known if not (one.applies(engine, version) and _stale(one, run))]
        violated = {case["requirement"]: case for case in run.cases if case["outcome"] == Outcome.VIOLATES}
        new = [
            Known(id, engine, version, f"not looked into: {case['reason']}")
            for id, case in sorted(violated.items())
            if not self.of(id, engine, version)
        ]
        return Baseline((*kept, *new))

    def dumps(self) -> str:
        """As TOML."""
        return "\n".join([HEAD, *map(_table, self.known)])


def stale(settings: Settings, run: str) -> list[str]:
    """Entries of the baseline of a run, if it has one, that the run has shown not to hold: a line each."""
    if settings.baseline is None:
        return []
    return Baseline.load(settings.baseline).stale(read(settings.report, run))


def _entry(file: Path, place: int, entry: object) -> Known:
    names = {field.name for field in fields(Known)}
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise UsageError(f"{file}: entry {place} must be a table of strings")
    odd = "none of them" if set(entry) - names else "missing"
    if wrong := sorted(set(entry) - names) + sorted(names - {"link"} - set(entry)):
        raise UsageError(f"{file}: entry {place} must have requirement, engine, versions, reason; {wrong[0]} is {odd}")
    if entry["requirement"] not in requirements():
        raise UsageError(
            f"{file}: entry {place} is of {entry['requirement']}, which is no requirement; see `kvfence list`"
        )
    return Known(**entry)


def _version(run: Run) -> str:
    return str(run.engines[0]["version"]) if run.engines else ""


def _whole(run: Run) -> bool:
    """Whether no case of a run's profile was left out, by a choice or because it was cut short."""
    chosen = {"--case", "--dtype"}.intersection(shlex.split(run.header["command"]))
    return not chosen and len(run.cases) >= run.header["cases"]


def _stale(known: Known, run: Run) -> str:
    """Why an entry does not hold in a run, or nothing."""
    outcomes = [Outcome(case["outcome"]) for case in run.cases if case["requirement"] == known.requirement]
    if Outcome.VIOLATES in outcomes or not _whole(run):
        return ""
    if Outcome.CONFORMS in outcomes:
        return "is kept now"
    return "" if outcomes else "was not tested"


def _table(known: Known) -> str:
    # A JSON string without surrogates is a TOML string.
    told = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in asdict(known).items() if value)
    lines = ["[[known]]", *told]
    if not known.versions:
        lines.insert(3, 'versions = ""')
    return "\n".join(lines) + "\n"
