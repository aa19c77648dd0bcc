"""A Triton kernel of paged attention: K and V are read where they lie, through the block tables; nothing is gathered.

Softmax goes on from tile to tile of keys (Dao et al., FlashAttention, NeurIPS 2022). Runs on CUDA, and anywhere in
Triton's interpreter (TRITON_INTERPRET=1).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 32  # keys, and at most as many queries, that are worked on at a time
LEAST = 16  # of each side of a product


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tables: Tensor,
    positions: Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention [R, kv_heads, heads / kv_heads × Q, head_dim] of queries of that shape, those of one head together.

    `key` and `value` [blocks, block_size, kv_heads, head_dim] are one layer of the cache, `tables` [R, columns] the
    blocks of each row and `positions` [R, Q] where its queries stand. A query sees its own key and those before it,
    `window` of them if there is one.
    """
    rows, kv_heads, queries, width = query.shape
    query, out = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
    tile = min(TILE, max(LEAST, triton.next_power_of_2(queries)))
    _attend[(rows, kv_heads, triton.cdiv(queries, tile))](
        query,
        key,
        value,
        out,
        tables,
        positions,
        scaling,
        softcap or 0.0,
        window or 0,
        queries,
        positions.shape[1],
        tables.shape[1],
        kv_heads=kv_heads,
        width=width,
        size=key.shape[1],
        query_tile=tile,
        key_tile=TILE,
        wide=max(LEAST, triton.next_power_of_2(width)),
        capped=softcap is not None,
        windowed=window is not None,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    out,
    tables,
    positions,
    scaling,
    softcap,
    window,
    queries,
    tokens,
    columns,
    kv_heads: tl.constexpr,
    width: tl.constexpr,
    size: tl.constexpr,
    query_tile: tl.constexpr,
    key_tile: tl.constexpr,
    wide: tl.constexpr,
    capped: tl.constexpr,
    windowed: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    index = tl.program_id(2) * query_tile + tl.arange(0, query_tile)
    element = tl.arange(0, wide)
    there, inside = index < queries, element < width
    where = ((row * kv_heads + head) * queries + index)[:, None] * width + element[None, :]
    asked = tl.load(query + where, mask=there[:, None] & inside[None, :], other=0.0)
    at = tl.load(positions + row * tokens + index % tokens, mask=there, other=0)
    stop = tl.max(at, 0) + 1
    start = 0
    if windowed:
        first = tl.min(tl.where(there, at, stop), 0) - window + 1
        start = tl.maximum(first, 0) // key_tile * key_tile
    highest = tl.full((query_tile,), float("-inf"), tl.float32)
    total = tl.zeros((query_tile,), tl.float32)
    seen = tl.zeros((query_tile, wide), tl.float32)
    for tile in range(start, stop, key_tile):
        position = tile + tl.arange(0, key_tile)
        known = position < stop
        block = tl.load(tables + row * columns + position // size, mask=known, other=0)
        slot = block * size + position % size
        cell = (slot * kv_heads + head)[:, None] * width + element[None, :]
        readable = known[:, None] & inside[None, :]
        keys = tl.load(key + cell, mask=readable, other=0.0)
        score = tl.dot(asked, tl.trans(keys), input_precision="ieee") * scaling
        if capped:
            score = (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0) * softcap
        back = at[:, None] - position[None, :]
        visible = back >= 0
        if windowed:
            visible = visible & (back < window)
        score = tl.where(visible, score, float("-inf"))
        now = tl.maximum(highest, tl.max(score, 1))
        # A query may see nothing of a tile that another one's window begins in.
        base = tl.where(now == float("-inf"), 0.0, now)
        weight, kept = tl.exp(score - base[:, None]), tl.exp(highest - base)
        values = tl.load(value + cell, mask=readable, other=0.0)
        seen = seen * kept[:, None] + tl.dot(weight.to(values.dtype), values, input_precision="ieee")
        total = total * kept + tl.sum(weight, 1)
        highest = now
    total = tl.where(there, total, 1.0)  # what fills up a tile may have seen nothing
    tl.store(out + where, (seen / total[:, None]).to(out.dtype.element_ty), mask=there[:, None] & inside[None, :])
