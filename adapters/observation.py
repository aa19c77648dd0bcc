"""What an engine can be observed doing beside its answers: attention, uses of the cache, K/V.

All of it is optional, asked for by name (`EngineConfig.observe`) and collected by `Engine.observe`. Observing must not
change what the engine computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the contract is read by what must start fast
    import numpy as np
    from numpy.typing import NDArray

TOP = 3  # keys of largest attention that are kept for showing


@dataclass(frozen=True)
class Attention:
    """Attention of one request at each of its n output steps, in every layer and head.

    The query of step i is the token before output token i. Keys are told by their distance back from the query, 0 the
    query itself: so a key that is too old to be the request's own is told as such.
    """

    rows: NDArray[np.float32]  # [n, layers, heads, bins] probability, summed over the keys of each distance bin
    maximum: NDArray[np.float32]  # [n, layers, heads] largest probability of a key
    entropy: NDArray[np.float32]  # [n, layers, heads] nats
    top: NDArray[np.int32]  # [n, layers, heads, TOP] distances of the keys of largest probability; -1 = no such key
    # [n, layers, heads] probability of keys that are not the request's own, by the request whose K/V they are ("" =
    # nobody's): for an engine that tags each slot with its owner.
    foreign: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def last(self, n: int) -> Attention:
        """That of the last `n` steps."""
        foreign = {owner: mass[-n:] for owner, mass in self.foreign.items()}
        return Attention(self.rows[-n:], self.maximum[-n:], self.entropy[-n:], self.top[-n:], foreign)


class Action(StrEnum):
    """What happened to a slot."""

    ALLOCATE = "allocate"  # a request got it to itself, and what it held is void
    WRITE = "write"  # K/V of a request's tokens were computed and written to it
    COPY = "copy"  # K/V of a request's tokens were copied to it from another slot
    RESTORE = "restore"  # K/V of a request's tokens came back to it from the host
    FETCH = "fetch"  # K/V of a request's tokens came to it from another store
    PUBLISH = "publish"  # what it holds of a request was made findable under a key
    REUSE = "reuse"  # a request took what it holds instead of computing it
    FORK = "fork"  # a request took what another has written, as its fork or its conversation's next turn
    EVICT = "evict"  # what it holds can be found no more
    FREE = "free"  # a request let go of it


@dataclass(frozen=True)
class CacheEvent:
    """One use of a slot: the unit of cache an engine hands out, such as a block or a row of its pool.

    What a REUSE takes has been published before, in the same slot and under the same key, in a line of its own. A log
    that tells ALLOCATE of a slot tells of all that comes there, in the order in which it can be read.
    """

    step: int  # forward passes of the engine before it, since it was opened
    request: str  # "" where it is nobody's, such as padding
    action: Action
    slot: int
    start: int  # offset in the slot, tokens
    length: int  # tokens; 0 = not told, at least one
    position: int = 0  # the request's own position of the first of these tokens
    key: str = ""  # what PUBLISH and REUSE go by, as the engine has it


@dataclass(frozen=True)
class KV:
    """K and V that the cache held for a request when it ended, position by position."""

    keys: NDArray[np.float32]  # [layers, kv_heads, T, head_dim]
    values: NDArray[np.float32]  # [layers, kv_heads, T, head_dim]


@dataclass(frozen=True)
class Observed:
    """What was seen since the last call of `Engine.observe`, by request id where it is about requests."""

    attention: Mapping[str, Attention] = field(default_factory=dict)
    events: tuple[CacheEvent, ...] = ()
    kv: Mapping[str, KV] = field(default_factory=dict)


def join(
    steps: Sequence[tuple[NDArray[Any], ...]], foreign: Sequence[Mapping[str, NDArray[np.float32]]] = ()
) -> Attention:
    """Attention of a request from that of its steps, each (rows, maximum, entropy, top) of [layers, heads, ...].

    Later steps see more keys; shorter rows are filled up with zeros. `foreign` is [layers, heads] by owner, of each.
    """
    import numpy as np

    rows, maximum, entropy, top = zip(*steps, strict=True)
    bins = max(row.shape[-1] for row in rows)
    filled = [np.pad(row, ((0, 0), (0, 0), (0, bins - row.shape[-1]))) for row in rows]
    owners = {owner for step in foreign for owner in step}
    none = np.zeros_like(maximum[0])
    whose = {owner: np.stack([step.get(owner, none) for step in foreign]) for owner in owners}
    return Attention(np.stack(filled), np.stack(maximum), np.stack(entropy), np.stack(top), whose)
