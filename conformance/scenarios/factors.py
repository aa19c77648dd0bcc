"""Factors of a schedule and their values; cells, of one value each, in which all pairs, or triples, come together.

Covering arrays: Kuhn, Kacker and Lei, "Practical Combinatorial Testing", NIST SP 800-142 (2010).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from itertools import combinations, product
from typing import Any

MAXIMUM = 32  # requests at once


@dataclass(frozen=True)
class Configuration:
    """What an engine is opened with: opening is slow, so that these are few. Any two values come together in one."""

    dtype: str
    sharing: bool
    block: int  # tokens
    chunk: int | None  # tokens

    @property
    def name(self) -> str:
        """Of what is not the dtype."""
        chunk = f"-c{self.chunk}" if self.chunk else ""
        return f"{'shared' if self.sharing else 'private'}-b{self.block}{chunk}"


CONFIGURATIONS = (
    Configuration("float32", True, 16, 32),
    Configuration("float32", False, 32, None),
    Configuration("bfloat16", True, 2 * 16, 32),
    Configuration("bfloat16", False, 16, None),
    Configuration("float16", True, 16, None),
    Configuration("float16", False, 2 * 16, 32),
)


@dataclass(frozen=True)
class Cell:
    """One value of each factor."""

    arrival: str  # how requests come: each when the one before has ended, all at once, or while others run
    requests: int
    edge: int  # tokens from the edge of a block to the end of the prefix
    relation: str  # of the prefixes of the other requests to that of the first
    operation: str  # on the second request, or the only one
    configuration: Configuration

    @property
    def name(self) -> str:
        """The same in every run."""
        edge = {-1: "edge-1", 0: "edge", 1: "edge+1"}[self.edge]
        words = (self.arrival, str(self.requests), edge, self.relation, self.operation, self.configuration.name)
        return "cover." + "-".join(words)

    @property
    def told(self) -> dict[str, str]:
        """The value of each factor, for people."""
        said = {field.name: str(getattr(self, field.name)) for field in fields(self)}
        return said | {"configuration": f"{self.configuration.dtype} {self.configuration.name}"}


# In the order of the fields.
FACTORS: dict[str, tuple[Any, ...]] = {
    "arrival": ("serial", "at-once", "staggered"),
    "requests": (1, 2, 3, 8, 16, MAXIMUM),
    "edge": (-1, 0, 1),
    "relation": ("none", "equal", "differ-first", "differ-middle", "differ-last", "contains"),
    "operation": (
        "nothing",
        "cancel-waiting",
        "cancel-prefilling",
        "cancel-decoding",
        "fork",
        "preempt",
        "continue",
        "edit",
    ),
    "configuration": CONFIGURATIONS,
}

# What cannot be: a value, the factor that it limits, and what is left of that.
LIMITS: tuple[tuple[str, object, str, tuple[object, ...]], ...] = (
    # One alone has no other to be related to, or to come with.
    ("requests", 1, "relation", ("none",)),
    ("requests", 1, "arrival", ("serial",)),
    # A prompt that is not cut into chunks is computed in one step.
    ("operation", "cancel-prefilling", "configuration", tuple(c for c in CONFIGURATIONS if c.chunk)),
)

Values = tuple[tuple[str, object], ...]  # of some factors, by name


def possible(cell: Cell) -> bool:
    """Whether none of the limits forbids a cell."""
    return all(getattr(cell, factor) != value or getattr(cell, other) in left for factor, value, other, left in LIMITS)


def values(cell: Cell, strength: int) -> Iterator[Values]:
    """All combinations of so many of its values."""
    return combinations(((field.name, getattr(cell, field.name)) for field in fields(cell)), strength)


@cache
def combinable(strength: int) -> frozenset[Values]:
    """All combinations of so many values that some possible cell has."""
    every = (Cell(*chosen) for chosen in product(*FACTORS.values()))
    return frozenset(found for cell in every if possible(cell) for found in values(cell, strength))


@cache
def cells(strength: int) -> tuple[Cell, ...]:
    """Cells in which all combinations of so many values come, those of one configuration together."""
    from covertable import make

    constraints = [
        {
            "operator": "or",
            "conditions": [
                {"operator": "ne", "left": factor, "value": value},
                {"operator": "in", "left": other, "values": list(left)},
            ],
        }
        for factor, value, other, left in LIMITS
    ]
    rows = make({name: list(of) for name, of in FACTORS.items()}, strength=strength, constraints=constraints)
    found = [Cell(**row) for row in rows]
    return tuple(sorted(found, key=lambda cell: (CONFIGURATIONS.index(cell.configuration), cell.name)))
