"""A defect: one fault that can be planted in the engine, by exchanging the parts that it lives in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvfence.reference_impl.settings import PARTS, Parts


class Sentinel:
    """Called by a faulty line whenever it makes a difference: not exercised is not survived."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@dataclass(frozen=True)
class Defect:
    """A fault of one kind, and how to plant it."""

    name: str  # permanent: "family.what"
    fault_class: str
    report: str  # a public one of its kind, "owner/repository#number"
    about: str  # what the engine does wrong
    build: Callable[[Sentinel], Parts]
    needs: Mapping[str, Any]  # settings without which the seam does not exist
    window: bool = False  # whether it exists on a model with a sliding window only
    racy: bool = False  # whether it would be a race on a device
    subtle: str = ""  # why it is easily missed, if it is
    foreign: bool = True  # whether the K/V that are met are another request's; else its own, stale, or nobody's
    right: Parts = PARTS  # what the engine is made of where the fault is not planted


DEFECTS: dict[str, Defect] = {}
Build = Callable[[Sentinel], Parts]


def defect(
    name: str,
    fault_class: str,
    report: str,
    about: str,
    *,
    needs: Mapping[str, Any] | None = None,
    window: bool = False,
    racy: bool = False,
    subtle: str = "",
    foreign: bool = True,
    right: Parts = PARTS,
) -> Callable[[Build], Build]:
    """Register the function below it, which builds the faulty parts. Raises ValueError for a name that is taken."""

    def register(build: Build) -> Build:
        if name in DEFECTS:
            raise ValueError(f"there is a defect {name} already")
        kind = (window, racy, subtle, foreign, right)
        DEFECTS[name] = Defect(name, fault_class, report, about, build, needs or {}, *kind)
        return build

    return register
