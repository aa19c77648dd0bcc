"""The catalogue of requirements."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Requirement:
    """One MUST sentence of the suite."""

    id: str  # permanent, such as "modes.shared"
    must: str
    why: str
    level: str  # what must be observable: tokens, logprobs, blocks, kv or attention
    control: str  # what must have happened for a pass to count
    since: str


@cache
def requirements() -> dict[str, Requirement]:
    """Every requirement by id."""
    families = tomllib.loads((files(__package__) / "catalogue.toml").read_text(encoding="utf-8"))
    return {
        f"{family}.{name}": Requirement(f"{family}.{name}", **fields)
        for family, members in families.items()
        for name, fields in members.items()
    }
