"""The memory ledger: what K/V take, by the formula, in whole blocks.

Counted in blocks and tokens, told in bytes. Imports no torch: a plan needs a model's configuration only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ITEMSIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}  # bytes
# What a config.json calls it; GPT-2 and its kin have names of their own.
LAYERS = ("num_hidden_layers", "n_layer")
HEADS = ("num_attention_heads", "n_head")
HIDDEN = ("hidden_size", "n_embd")
KINDS = {"full_attention", "sliding_attention"}  # of layers, that keep K and V
OTHERWISE = ("kv_lora_rank", "multi_query", "num_kv_shared_layers")  # where these are said, heads do not tell all


@dataclass(frozen=True)
class Shape:
    """What a model asks of its cache."""

    layers: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """The shape that a config.json asks for. Raises ValueError where it does not say, or more than a shape."""
        config = {**config, **(config.get("text_config") or {})}
        other = [*filter(config.get, OTHERWISE), *sorted(set(config.get("layer_types") or ()) - KINDS)]
        if other:
            raise ValueError(f"it has {other[0]}, which the formula does not cover")
        heads = _number(config, *HEADS)
        width = _number(config, "head_dim") if config.get("head_dim") else _number(config, *HIDDEN) // heads
        kv_heads = _number(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
        return cls(_number(config, *LAYERS), kv_heads, width)

    def bytes(self, tokens: int, itemsize: int) -> int:
        """Bytes of K and V of so many tokens: 2 × layers × kv_heads × head_dim × tokens × itemsize."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * itemsize


@dataclass(frozen=True)
class Ledger:
    """Who takes how much of a pool, in K and V alone. A plan has all layers keep all tokens, also behind a window."""

    shape: Shape
    itemsize: int  # bytes
    block_size: int  # tokens
    blocks: int  # of the pool, the scratch block included
    used: int  # blocks that tables name
    entries: int  # of these tables: a block counts as often as it is named
    tokens: int  # whose K/V the tables hold, each time
    empty: int  # slots of used blocks that hold nothing

    @classmethod
    def plan(
        cls, shape: Shape, dtype: str, concurrency: int, length: int, block_size: int = 16, prefix: int = 0
    ) -> "Ledger":
        """What sequences of `length` tokens with K/V take, the first `prefix` of them shared, in the smallest pool.

        The last token of an output has no K/V, and sharing is of whole blocks. Raises ValueError for a dtype that has
        no meaning here, a size below 1 and a prefix that leaves a sequence nothing of its own.
        """
        if dtype not in ITEMSIZE:
            raise ValueError(f"unknown dtype {dtype}; choose one of {', '.join(ITEMSIZE)}")
        for name, size in (("concurrency", concurrency), ("length", length), ("block size", block_size)):
            if size < 1:
                raise ValueError(f"a {name} of {size} makes no sense; it is at least 1")
        if not 0 <= prefix < length:
            raise ValueError(f"a prefix of {prefix} tokens does not fit: it is shorter than the length, {length}")
        shared = prefix // block_size
        own = -(-length // block_size) - shared
        used = shared + concurrency * own
        empty = concurrency * (own * block_size - (length - shared * block_size))
        entries = concurrency * (shared + own)
        return cls(shape, ITEMSIZE[dtype], block_size, used + 1, used, entries, concurrency * length, empty)

    @property
    def formula_bytes(self) -> int:
        """What the tokens would take without blocks and without sharing: the formula."""
        return self.shape.bytes(self.tokens, self.itemsize)

    @property
    def allocated_bytes(self) -> int:
        """What the pool takes, whoever uses it."""
        return self._of(self.blocks)

    @property
    def used_bytes(self) -> int:
        """What the used blocks take."""
        return self._of(self.used)

    @property
    def shared_bytes(self) -> int:
        """What would be needed beside that if no block were shared."""
        return self._of(self.entries - self.used)

    @property
    def wasted_bytes(self) -> int:
        """What is given to requests and holds nothing."""
        return self.shape.bytes(self.empty, self.itemsize)

    def _of(self, blocks: int) -> int:
        return self.shape.bytes(blocks * self.block_size, self.itemsize)


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if isinstance(value := config.get(name), int) and value > 0:
            return value
    raise ValueError(f"it does not say {names[0]}")
