"""Oracle `attention`: does a request attend to others' keys, or otherwise than golden does, given the same tokens?

For each output step, layer and head the total variation distance between the engine's distribution and golden's is
held against the most that clean runs of the engine showed. Where the engine tags slots with their owners, probability
of another's key is no noise, however small. Where attention is concentrated is shown, never judged.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, arange

from kvfence.adapters.api import EngineFaultError
from kvfence.adapters.observation import Attention
from kvfence.reference_impl.attention import NEAR, summarise, total_variation

FACTOR = 4.0


@dataclass(frozen=True)
class Thresholds:
    """The largest total variation [layers, heads] that is still noise."""

    values: NDArray[np.float32]

    @classmethod
    def boundless(cls) -> "Thresholds":
        """Where noise is not known: only owner tags can tell then."""
        return cls(np.array(np.inf, np.float32))

    @classmethod
    def of(cls, clean: NDArray[np.float32], resolution: float) -> "Thresholds":
        """From shifts [positions, layers, heads] of clean runs and the rounding step of a probability near 1."""
        return cls(FACTOR * np.maximum(clean.max(0), resolution).astype(np.float32))


@dataclass(frozen=True)
class Peak:
    """Where one query's attention is concentrated."""

    maximum: float
    entropy: float  # nats
    top: tuple[tuple[int, float | None], ...]  # distance back from the query and probability, largest first


@dataclass(frozen=True)
class AttentionEvidence:
    """That attention moved, or else met others' keys: first at `step`, there most in `layer` and `head`."""

    step: int
    layer: int
    head: int
    shifts: NDArray[np.float32]  # [n, layers, heads]
    excess: NDArray[np.float32]  # [n, layers, heads] over the thresholds; above 1 = moved
    engine: Peak
    golden: Peak
    beyond: float  # most probability, of any layer and head at that step, that went to keys which are not its own
    # Whose keys were met ("" = nobody's), and the most probability that went there at any step; largest first.
    foreign: tuple[tuple[str, float], ...]


class Comparison:
    """Golden's attention beside an engine's, layer by layer: what `Golden.verify` shows its layers to.

    Raises EngineFaultError, here or when shown a layer, if the engine's are not the layers and heads of the model.
    """

    def __init__(self, engine: Attention, layers: int) -> None:
        if (shown := engine.maximum.shape[1]) != layers:
            raise EngineFaultError(f"the engine shows attention of {shown} layers; the model has {layers}")
        self._engine = engine
        # [n, layers, heads] total variation, 0 to 1
        self.shifts: NDArray[np.float32] = np.zeros(engine.maximum.shape, np.float32)
        self._maximum = np.zeros_like(engine.maximum)
        self._entropy = np.zeros_like(engine.entropy)
        self._top = np.zeros_like(engine.top)
        self._probable = np.zeros(engine.top.shape, np.float32)

    def __call__(self, layer: int, probabilities: Tensor) -> None:
        heads, n, keys = probabilities.shape
        if (shown := self.shifts.shape[2]) != heads:
            raise EngineFaultError(f"the engine shows attention of {shown} heads; layer {layer} has {heads}")
        at = arange(keys - n, keys, device=probabilities.device)
        rows, maximum, entropy, top = (array.swapaxes(0, 1) for array in summarise(probabilities, at))
        self.shifts[:, layer] = total_variation(self._engine.rows[:, layer], rows)
        self._maximum[:, layer], self._entropy[:, layer], self._top[:, layer] = maximum, entropy, top
        self._probable[:, layer] = _at(rows, top)

    def examine(self, thresholds: Thresholds) -> AttentionEvidence | None:
        """The first step at which attention moved by more than noise, or None."""
        excess = self.shifts / thresholds.values
        # Written so that NaN, from an engine that overflowed, is a shift.
        moved, weight = ~(excess <= 1) & np.isfinite(thresholds.values), excess
        if not moved.any():  # then what is others' is all there is to tell of
            weight = sum(self._engine.foreign.values(), np.zeros_like(excess))
            moved = weight > 0
        if not moved.any():
            return None
        step = int(moved.any(axis=(1, 2)).argmax())
        at = np.unravel_index(int(np.nan_to_num(weight[step], nan=np.inf).argmax()), excess.shape[1:])
        layer, head = int(at[0]), int(at[1])
        where = (step, layer, head)
        seen = self._engine
        engine = _peak(
            seen.maximum[where], seen.entropy[where], seen.top[where], _at(seen.rows[where], seen.top[where])
        )
        golden = _peak(self._maximum[where], self._entropy[where], self._top[where], self._probable[where])
        beyond = float(1 - seen.rows[step].sum(-1).min())
        met = {owner: float(mass.max()) for owner, mass in seen.foreign.items()}
        foreign = tuple(sorted(((o, p) for o, p in met.items() if p > 0), key=lambda pair: (-pair[1], pair[0])))
        return AttentionEvidence(step, layer, head, self.shifts, excess, engine, golden, beyond, foreign)


def _at(rows: NDArray[np.float32], top: NDArray[np.int32]) -> NDArray[np.float32]:
    """Probabilities of the keys at distances `top`; NaN where rows tell only those of bins, or there is no key."""
    found = np.take_along_axis(rows, np.clip(top, 0, rows.shape[-1] - 1), axis=-1)
    return np.where((top >= 0) & (top < NEAR), found, np.nan).astype(np.float32)


def _peak(maximum: np.float32, entropy: np.float32, top: NDArray[np.int32], probable: NDArray[np.float32]) -> Peak:
    pairs = zip(top.tolist(), probable.tolist(), strict=True)
    keys = tuple((distance, None if math.isnan(p) else p) for distance, p in pairs if distance >= 0)
    return Peak(float(maximum), float(entropy), keys)
