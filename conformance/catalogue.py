"""The catalogue of requirements."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

UNTESTABLE = "untestable"


@dataclass(frozen=True)
class Requirement:
    """One MUST sentence of the suite."""

    id: str  # permanent, such as "modes.shared"
    must: str
    why: str
    level: str  # what must be observable: tokens, logprobs, blocks, kv or attention
    modes: tuple[str, ...]  # in which it is tested
    capabilities: tuple[str, ...]  # of an engine, that every test of it needs
    control: str  # what must have happened for a pass to count
    tripped_by: str  # a planted fault that it trips over
    since: str


@dataclass(frozen=True)
class Untestable:
    """A MUST sentence that no test can be made for, and why."""

    id: str
    must: str
    reason: str


@cache
def requirements() -> dict[str, Requirement]:
    """Every requirement by id."""
    return {id: Requirement(id, **_fields(fields)) for id, fields in _entries() if not id.startswith(UNTESTABLE)}


@cache
def untestable() -> tuple[Untestable, ...]:
    """What cannot be tested."""
    return tuple(Untestable(id, **fields) for id, fields in _entries() if id.startswith(UNTESTABLE))


def _entries() -> Iterator[tuple[str, dict[str, Any]]]:
    families = tomllib.loads((files(__package__) / "catalogue.toml").read_text(encoding="utf-8"))
    for family, members in families.items():
        for name, fields in members.items():
            yield f"{family}.{name}", fields


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
