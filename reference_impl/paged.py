"""Paged attention: K and V are written to the cache and read from it through block tables.

Put in the place of a transformers model's attention function (`AttentionInterface`), so that the model's own code runs
unchanged. A batch is one flat row of tokens [1, N] of many sequences; which token belongs to whom is in the `Batch`.
Follows Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention (SOSP 2023).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvfence.reference_impl.storage import Storage

# Under the first name a model is told what masks it would make, to see that they can be done without; under the second
# it makes none, which takes time in every pass.
PROBE, NAME = "kvfence_paged_probe", "kvfence_paged"


class UnsupportedModelError(Exception):
    """A model that the engine cannot run; the message is one line for the user."""


@dataclass
class Group:
    """Neighbouring rows of a batch with equally many queries, computed together."""

    first: int  # of the batch's N tokens, where the group begins
    blocks: Tensor  # [R, T / block_size]; shorter tables are filled up with the scratch block
    positions: Tensor  # [R, Q] of the queries
    keys: int  # T
    masks: dict[int | None, Tensor] = field(default_factory=dict)  # by window, as layers have asked for them

    @property
    def shape(self) -> tuple[int, int]:
        """Rows R and queries Q of each."""
        rows, queries = self.positions.shape
        return rows, queries

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """What is added to scores [R, 1, Q, T]: 0 where a key is the query's own or before it and in its window."""
        if window not in self.masks:
            at = torch.arange(self.keys, device=self.positions.device)
            back = self.positions[:, None, :, None] - at
            hidden = (back < 0) if window is None else (back < 0) | (back >= window)
            self.masks[window] = torch.zeros(hidden.shape, dtype=dtype, device=at.device).masked_fill_(
                hidden, -torch.inf
            )
        return self.masks[window]


# Sees a group and one layer's probabilities [R, heads, Q, T], float32.
Visit = Callable[[int, Group, Tensor], None]


# A kernel: queries, K and V of a layer, block tables, positions, scaling, window, softcap; see kernel.py.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, int | None, float | None], Tensor]


@dataclass
class Batch:
    """One forward pass: where its tokens' K and V go, and what each token may see."""

    storage: Storage
    slots: Tensor  # [N]
    groups: list[Group]
    attend: Attend | None = None  # what attends to pages where they lie; None = they are gathered
    visit: Visit | None = None


def window_of(*_: Any, local_size: int | None = None, **__: Any) -> int | None:
    """What transformers takes for a mask: how far back a query sees. Masks themselves are made for each group."""
    return local_size


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | int | None,
    *,
    paged: Batch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention [1, N, heads, head_dim] of queries [1, heads, N, head_dim], as transformers calls it.

    `key` and `value` [1, kv_heads, N, head_dim] go into the cache first; attention is to what the cache holds then.
    """
    if s_aux is not None:
        raise UnsupportedModelError("attention sinks are not supported")
    if not getattr(module, "is_causal", True):
        raise UnsupportedModelError("attention to later tokens is not supported")
    if isinstance(attention_mask, Tensor) or attention_mask not in (None, sliding_window):
        raise UnsupportedModelError("attention masks other than a sliding window are not supported")
    paged.storage.write(module.layer_idx, paged.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = query.new_empty(query.shape[2], query.shape[1], query.shape[3])
    for group in paged.groups:
        rows, queries = group.shape
        tokens = slice(group.first, group.first + rows * queries)
        grouped = _by_kv_head(query[0, :, tokens], rows, queries, key.shape[1])
        if paged.attend and not paged.visit:
            pages = paged.storage.pages(module.layer_idx)
            seen = paged.attend(grouped, *pages, group.blocks, group.positions, scaling, sliding_window, softcap)
        else:
            seen = _gathered(paged, module.layer_idx, group, grouped, scaling, sliding_window, softcap)
        out[tokens] = _by_token(seen, rows, queries)
    return out[None], None


def _gathered(
    paged: Batch,
    layer: int,
    group: Group,
    grouped: Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Attention [R, kv_heads, heads / kv_heads × Q, head_dim] of queries of that shape to gathered keys."""
    keys, values = (kv.transpose(1, 2) for kv in paged.storage.gather(layer, group.blocks))
    rows, queries = group.shape
    added = group.mask(window, grouped.dtype)
    if queries > 1:
        # Query heads that share a KV head are told apart by their row only.
        added = added.repeat(1, 1, grouped.shape[2] // queries, 1)
    if paged.visit or softcap:
        weights = _probabilities(grouped, keys, added, scaling, softcap)
        if paged.visit:
            paged.visit(layer, group, weights.reshape(rows, -1, queries, group.keys))
    if softcap:
        return torch.matmul(weights.to(values.dtype), values)
    return scaled_dot_product_attention(grouped, keys, values, attn_mask=added, scale=scaling)


def _by_kv_head(query: Tensor, rows: int, queries: int, kv_heads: int) -> Tensor:
    """Queries [heads, R × Q, head_dim] as [R, kv_heads, heads / kv_heads × Q, head_dim]."""
    width = query.shape[-1]
    return query.view(kv_heads, -1, rows, queries, width).permute(2, 0, 1, 3, 4).reshape(rows, kv_heads, -1, width)


def _by_token(seen: Tensor, rows: int, queries: int) -> Tensor:
    """The way back: [R, kv_heads, heads / kv_heads × Q, head_dim] as [R × Q, heads, head_dim]."""
    kv_heads, width = seen.shape[1], seen.shape[-1]
    apart = seen.reshape(rows, kv_heads, -1, queries, width).permute(0, 3, 1, 2, 4)
    return apart.reshape(rows * queries, -1, width)


def _probabilities(query: Tensor, keys: Tensor, added: Tensor, scaling: float, softcap: float | None) -> Tensor:
    scores = torch.matmul(query, keys.transpose(-1, -2)).float() * scaling
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    return (scores + added.float()).softmax(-1)
