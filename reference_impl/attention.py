"""Attention, watched: what a transformers model attends to, reduced while it runs, its output untouched.

A model's attention is a function that it looks up by name (`AttentionInterface`). A wrapper put in that function's
place calls it and then shows its arguments to whoever watches the model; probabilities are computed anew from them, for
the few queries that matter, so that whole matrices never exist.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NEAR = 512  # distances told one by one; farther keys are told in bins of `FAR`
FAR = 16
TOP = 3


class NotWatchableError(Exception):
    """A model whose attention cannot be watched; the message is one line for the user."""


@dataclass(frozen=True)
class Call:
    """One call of a layer's attention function."""

    layer: int
    query: Tensor  # [B, heads, Q, head_dim]
    key: Tensor  # [B, kv_heads, K, head_dim]
    mask: Tensor | None  # broadcastable to [B, heads, Q, K]: True or added where visible; None = causal
    scaling: float
    extra: Mapping[str, Any]  # the function's other arguments


Visit = Callable[[Call], None]
_visits: dict[int, tuple[int, Visit]] = {}  # by identity of the attention module: its layer, and who watches it
_wrapped: set[str] = set()


@contextmanager
def watched(model: Any, visit: Visit) -> Iterator[None]:
    """Show every attention call of a transformers model to `visit` while this is open.

    Raises NotWatchableError for a model that does not use the attention interface, or whose function has no name
    there (plain "eager"), and for one that is watched already.
    """
    modules = _attention_modules(model)
    name = model.config._attn_implementation
    _wrap(name)
    if any(id(module) in _visits for module in modules):
        raise NotWatchableError("the model's attention is being watched already")
    _visits.update({id(module): (module.layer_idx, visit) for module in modules})
    try:
        yield
    finally:
        for module in modules:
            _visits.pop(id(module), None)


def watchable(model: Any) -> str | None:
    """Why a model cannot be watched, or None."""
    try:
        _attention_modules(model)
        _wrap(model.config._attn_implementation)
    except NotWatchableError as error:
        return str(error)
    return None


def scores_of(call: Call, queries: slice | Tensor) -> Tensor:
    """Scores [B, heads, queries, K], nats, float32, of some of a call's queries with all its keys, before any mask."""
    batch, kv_heads, keys, width = call.key.shape
    query = call.query[:, :, queries]
    grouped = query.reshape(batch, kv_heads, -1, query.shape[2], width)
    scores = torch.matmul(grouped, call.key[:, :, None].transpose(-1, -2)).float() * call.scaling
    return scores.reshape(batch, -1, query.shape[2], keys)


def probabilities(call: Call, queries: slice | Tensor) -> Tensor:
    """Attention probabilities [B, heads, queries, K], float32, of some of a call's queries, over all its keys."""
    scores = scores_of(call, queries)
    keys = scores.shape[-1]
    if call.mask is None:
        total = call.query.shape[2]
        at = torch.arange(total, device=scores.device)[queries] + keys - total
        scores.masked_fill_(torch.arange(keys, device=scores.device) > at[:, None], -torch.inf)
    elif call.mask.dtype == torch.bool:
        scores.masked_fill_(~call.mask[:, :, queries, :keys], -torch.inf)
    else:
        scores += call.mask[:, :, queries, :keys].float()
    return scores.softmax(-1)


def summarise(probabilities: Tensor, at: Tensor) -> tuple[NDArray[Any], ...]:
    """Rows, maximum, entropy and top keys (see `Attention` of the adapter contract) of probabilities [..., Q, K].

    `at` [Q] is the key index of each query itself; keys after it are not looked at.
    """
    distance = torch.arange(probabilities.shape[-1], device=probabilities.device)
    index = at[:, None] - distance
    seen = index >= 0
    back = probabilities.gather(-1, index.clamp(min=0).expand_as(probabilities)) * seen
    far = back[..., NEAR:]
    far = torch.nn.functional.pad(far, (0, -far.shape[-1] % FAR))
    far = far.reshape(*far.shape[:-1], -1, FAR).sum(-1)
    rows = torch.cat([back[..., :NEAR], far], dim=-1)
    entropy = -torch.xlogy(back, back).sum(-1)
    values, top = torch.nn.functional.pad(back, (0, TOP)).topk(TOP, dim=-1)
    top = torch.where((values > 0) & (top < back.shape[-1]), top, -1)
    return tuple(t.cpu().numpy() for t in (rows, values[..., 0], entropy, top.to(torch.int32)))


@dataclass(frozen=True)
class Attended:
    """Attention of the query that one output token comes from; keys are told by distance, as `summarise` does."""

    rows: NDArray[np.float32]  # [layers, heads, bins] probability, summed over the keys of each distance bin
    maximum: NDArray[np.float32]  # [layers, heads] largest probability of a key
    entropy: NDArray[np.float32]  # [layers, heads] nats
    top: NDArray[np.int32]  # [layers, heads, 3] distances of the keys of largest probability; -1 = no such key
    foreign: NDArray[np.float32]  # [layers, heads] probability of keys that are not the sequence's own
    whose: Mapping[str, NDArray[np.float32]]  # [layers, heads] of it, by the request whose K/V they are; "" nobody's


class LastQueries:
    """A visit that keeps the rows of the last `n` queries of sequences, over all forwards of them that it is shown.

    A sequence of `lengths` is the end of its row of the batch; the keys before it are padding, and not looked at.
    """

    def __init__(self, lengths: Sequence[int], n: int) -> None:
        self._lengths, self._n = lengths, n
        # By sequence and layer: [heads, queries, bins] of each forward.
        self._seen: list[defaultdict[int, list[NDArray[np.float32]]]] = [defaultdict(list) for _ in lengths]

    def __call__(self, call: Call) -> None:
        batch = probabilities(call, slice(-self._n, None))
        for row, length, layers in zip(batch, self._lengths, self._seen, strict=True):
            keys = min(length, row.shape[-1])
            queries = min(row.shape[-2], keys)
            at = torch.arange(keys - queries, keys, device=row.device)
            layers[call.layer].append(summarise(row[:, -queries:, -keys:], at)[0])

    def rows(self, sequence: int) -> NDArray[np.float32]:
        """Rows [n, layers, heads, bins] of a sequence; fewer than n where it is shorter."""
        layers = [self._seen[sequence][layer] for layer in sorted(self._seen[sequence])]
        bins = max(part.shape[-1] for parts in layers for part in parts)
        filled = [np.concatenate([_fill(part, bins) for part in parts], axis=1)[:, -self._n :] for parts in layers]
        return np.stack(filled).transpose(2, 0, 1, 3)


def total_variation(p: NDArray[np.float32], q: NDArray[np.float32]) -> NDArray[np.float32]:
    """Total variation distance [...], 0 to 1, between rows [..., bins] of `summarise`; shorter rows end in zeros.

    Mass that a row lacks to 1 went to keys that are not among its own: it counts as a key of its own.
    """
    bins = max(p.shape[-1], q.shape[-1])
    p, q = _fill(p, bins), _fill(q, bins)
    elsewhere = np.abs(p.sum(-1) - q.sum(-1))
    distance: NDArray[np.float32] = (np.abs(p - q).sum(-1) + elsewhere) / 2
    return distance


def _fill(rows: NDArray[np.float32], bins: int) -> NDArray[np.float32]:
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, bins - rows.shape[-1])])


def _attention_modules(model: Any) -> list[Any]:
    modules = [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "scaling")]
    if len({module.layer_idx for module in modules}) != model.config.get_text_config().num_hidden_layers:
        raise NotWatchableError(f"the attention layers of {type(model).__name__} cannot be told apart")
    return modules


def _wrap(name: str) -> None:
    """Put a wrapper, once, in the place of the attention function of that name."""
    from transformers.modeling_utils import AttentionInterface

    if name in _wrapped:
        return
    function = AttentionInterface._global_mapping.get(name)
    if function is None:
        raise NotWatchableError(f"attention implementation {name!r} has no function to wrap; sdpa has")

    @wraps(function)
    def wrapper(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **kwargs: Any) -> Any:
        out = function(module, query, key, value, mask, *args, **kwargs)
        if (watch := _visits.get(id(module))) is not None:
            scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
            watch[1](Call(watch[0], query, key, mask, scaling, kwargs))
        return out

    AttentionInterface.register(name, wrapper)
    _wrapped.add(name)
