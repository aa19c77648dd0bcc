"""Oracle `kv`: does the cache hold the K/V that the request's own tokens give at each position?

Golden's K/V come from one forward over the same tokens. Every cell, one position of one KV head of one layer, K or V,
is held against the most that clean runs of the engine were off there. A cell that is off is looked for among golden's
K/V of the other requests, and of the request itself at other positions: it may be somebody's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvfence.adapters.api import EngineFaultError
from kvfence.adapters.observation import KV
from kvfence.conformance.oracles.canary import Owner
from kvfence.reports.finding import KVRow

FACTOR = 4.0
ALIGNED = 0.98
SEVERAL = 4  # positions at which a wrong residual would have moved more heads than one
PARTS = ("K", "V")
Cells = NDArray[np.float32]  # [2, layers, kv_heads, T, head_dim], K first


@dataclass(frozen=True)
class KVTolerance:
    """How far an element may be off and still be rounding: [2, layers, kv_heads]."""

    values: NDArray[np.float32]

    @classmethod
    def of(cls, clean: NDArray[np.float32], scale: NDArray[np.float32], rounding: float) -> "KVTolerance":
        """From errors [runs, 2, layers, kv_heads] of clean runs, the largest element there, and the rounding of 1."""
        return cls(FACTOR * np.maximum(clean.max(0), rounding * scale))


@dataclass(frozen=True)
class KVEvidence:
    """Cells that do not hold what they should."""

    positions: tuple[int, ...]  # ascending
    layers: tuple[int, ...]
    heads: tuple[int, ...]  # KV heads
    parts: tuple[str, ...]  # of "K" and "V"
    first_layer: tuple[str, ...]  # of these, what is off in layer 0, whose K/V are made of one token only
    one_head: bool  # whether, where layer 0 is right, it is one head alone in the first layer that is off
    whole: bool  # whether all of layer 0 is off at some position, as another token's is
    scaled: bool  # whether its cells are what they should be but for a factor
    excess: float  # largest error over its tolerance
    relative: float  # largest error over the largest element that should be there, cell by cell
    source: Owner | None  # whose K/V the first of these positions holds; None = nobody's that is known
    source_position: int | None  # the position there that they belong to
    shape: tuple[int, int, int]  # layers, KV heads and positions that were compared
    rows: tuple[KVRow, ...]  # the cells, by K and V, layer and head


def cells(kv: KV) -> Cells:
    """What an engine showed, in one array."""
    return np.stack([kv.keys, kv.values])


def errors(shown: Cells, golden: Cells) -> NDArray[np.float32]:
    """Largest error of an element in each cell: [2, layers, kv_heads, T], of the positions that both have.

    Raises EngineFaultError if the engine's K/V are not of the layers and heads of the model.
    """
    if shown.shape[:3] != golden.shape[:3] or shown.shape[-1] != golden.shape[-1]:
        told = f"the engine shows K/V of shape {list(shown.shape)}; the model's are {list(golden.shape)}"
        raise EngineFaultError(told)
    n = min(shown.shape[3], golden.shape[3])
    off: NDArray[np.float32] = np.abs(shown[..., :n, :] - golden[..., :n, :]).max(-1)
    return off


def examine(
    shown: Cells, golden: Cells, tolerance: KVTolerance, known: Mapping[Owner, Cells], own: Owner
) -> KVEvidence | None:
    """The cells that are off, and whose they are among `known`; None if there are none."""
    excess = errors(shown, golden) / tolerance.values[..., None]
    # Written so that NaN, from an engine that overflowed, is wrong.
    wrong = ~(excess <= 1)
    if not wrong.any():
        return None
    parts, layers, heads, positions = (np.unique(axis).tolist() for axis in np.nonzero(wrong))
    source, where = _whose(shown, wrong, positions, tolerance, known, own)
    worst = float(np.nan_to_num(excess, nan=np.inf)[wrong].max())
    size = np.abs(golden[..., : wrong.shape[-1], :]).max(-1)[wrong]
    relative = float((np.nan_to_num(errors(shown, golden)[wrong], nan=np.inf) / np.maximum(size, 1e-9)).max())
    names = tuple(PARTS[part] for part in parts)
    there = wrong[..., positions[0]]
    scaled = _scaled(shown[..., positions[0], :][there], golden[..., positions[0], :][there])
    whole = bool(wrong[:, 0].all(axis=(0, 1)).any())
    first = tuple(name for name, at in zip(PARTS, wrong[:, 0], strict=True) if at.any())
    one = not first and _one_head(wrong[:, layers[0]])
    return KVEvidence(
        tuple(positions), tuple(layers), tuple(heads), names, first, one, whole, scaled, worst, relative, source, where,
        wrong.shape[1:], tuple(_rows(wrong, excess)),
    )  # fmt: skip


def _rows(wrong: NDArray[np.bool_], excess: NDArray[np.float32]) -> Iterator[KVRow]:
    """Stretches of cells that are off, of [2, layers, kv_heads, T]."""
    for part, layer, head in np.argwhere(wrong.any(-1)).tolist():
        at = np.flatnonzero(wrong[part, layer, head])
        stretches = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
        worst = float(np.nan_to_num(excess[part, layer, head][at], nan=np.inf).max())
        yield KVRow(PARTS[part], layer, head, tuple((int(each[0]), int(each[-1])) for each in stretches), worst)


def _one_head(wrong: NDArray[np.bool_]) -> bool:
    """Whether one of several heads is off, at `SEVERAL` positions or more: [2, kv_heads, T] of a layer."""
    off: NDArray[np.bool_] = np.asarray(wrong.any(axis=0))
    return len(off) > 1 and off.any(1).sum() == 1 and off.any(0).sum() >= SEVERAL


def _scaled(shown: NDArray[np.float32], golden: NDArray[np.float32]) -> bool:
    """Whether cells [cells, head_dim] point where golden's do: the cosine of the angle between them."""
    sizes = np.linalg.norm(shown, axis=-1) * np.linalg.norm(golden, axis=-1)
    return bool(((shown * golden).sum(-1) >= ALIGNED * np.maximum(sizes, np.finfo(np.float32).tiny)).all())


def _whose(
    shown: Cells,
    wrong: NDArray[np.bool_],
    positions: list[int],
    tolerance: KVTolerance,
    known: Mapping[Owner, Cells],
    own: Owner,
) -> tuple[Owner | None, int | None]:
    """Owner and position of the K/V that the first wrong position holds which can be recognised."""
    for position in positions:
        at = wrong[..., position]
        # Layer 0 depends on one token only: where more is wrong it is the deeper layers that tell owners apart.
        seen, bound = shown[..., position, :][at], tolerance.values[at][:, None, None]
        for owner, theirs in known.items():
            there = theirs[at]  # [cells, T, head_dim]
            equal = (np.abs(there - seen[:, None, :]) <= bound).all(-1).all(0)
            if owner == own and position < len(equal):
                equal[position] = False
            if equal.any():
                return owner, int(equal.argmax())
    return None, None
