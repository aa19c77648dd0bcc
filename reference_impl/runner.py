"""The runner: one forward pass of a transformers model over the rows of many sequences."""

from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvfence.reference_impl.paged import NAME, Batch, Group, UnsupportedModelError, Visit, paged_attention
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.sequence import Row, slot_mapping
from kvfence.reference_impl.storage import Shape, Storage

WASTE = 1.25  # keys gathered, over those needed, beyond which rows are not computed together


@dataclass(frozen=True)
class Packed:
    """Rows laid out as one flat batch."""

    rows: list[Row]  # in the order of their tokens
    tokens: list[int]  # [N]
    positions: Tensor  # [N]
    batch: Batch
    wanted: list[int]  # indices, of N, whose logits are wanted; row by row


class Runner:
    """A model that reads and writes its K/V through block tables. Raises UnsupportedModelError if it does not."""

    def __init__(self, model: Any, buckets: abc.Sequence[int] = ()) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, paged_attention)
        self.model, self.device = model, model.device
        self._buckets = tuple(sorted(buckets))
        if not getattr(model, "_supports_attention_backend", False):
            raise UnsupportedModelError(f"{type(model).__name__} does not use transformers' attention interface")
        model.set_attn_implementation(NAME)
        self.window = _window(model.config)

    @torch.inference_mode()
    def forward(
        self, storage: Storage, rows: abc.Sequence[Row], visit: Visit | None = None
    ) -> tuple[list[Row], Tensor]:
        """Compute rows, writing their K/V. Returns them in another order, and logits [samples, vocabulary] in that."""
        packed = self.pack(storage, rows, visit)
        logits = self.compute(packed)
        return packed.rows, logits

    def compute(self, packed: Packed) -> Tensor:
        """Run the model over a flat batch; logits [wanted, vocabulary], float32."""
        ids = torch.tensor([packed.tokens], device=self.device)
        wanted = torch.tensor(packed.wanted, dtype=torch.long, device=self.device)
        out = self.model(
            input_ids=ids,
            position_ids=packed.positions[None],
            use_cache=False,
            logits_to_keep=wanted,
            paged=packed.batch,
        )
        logits: Tensor = out.logits[0].float()
        return logits

    def pack(self, storage: Storage, rows: abc.Sequence[Row], visit: Visit | None = None) -> Packed:
        """Lay rows out, those with equally many queries and similar lengths next to each other."""
        size = storage.block_size
        ordered = sorted(rows, key=lambda row: (row.stop - row.start, row.stop))
        tokens: list[int] = []
        positions: list[np.ndarray[Any, Any]] = []
        slots: list[np.ndarray[Any, Any]] = []
        wanted: list[int] = []
        groups: list[Group] = []
        for members in _alike(ordered):
            first = len(tokens)
            for row in members:
                tokens += tokens_of(row)
                positions.append(np.arange(row.start, row.stop))
                slots.append(slot_mapping(row.blocks, size, row.start, row.stop))
                wanted += range(len(tokens) - row.samples, len(tokens))
            tables = [row.blocks[: -(-row.stop // size)] for row in members]
            at = [positions[len(positions) - len(members) + i] for i in range(len(members))]
            missing = self._missing(members)
            tables += [(SCRATCH,)] * missing
            at += [np.zeros(1, np.int64)] * missing
            tokens += [0] * missing
            positions += [np.zeros(1, np.int64)] * missing
            slots += [np.zeros(1, np.int64)] * missing
            groups.append(self._group(first, tables, np.stack(at), size))
        flat = torch.from_numpy(np.concatenate(positions)).to(self.device)
        batch = Batch(storage, torch.from_numpy(np.concatenate(slots)).to(self.device), groups, visit)
        return Packed(ordered, tokens, flat, batch, wanted)

    def _missing(self, members: abc.Sequence[Row]) -> int:
        """Rows of padding that bring decoding rows to the size of a bucket."""
        if members[0].stop - members[0].start > 1:
            return 0
        return next((bucket - len(members) for bucket in self._buckets if bucket >= len(members)), 0)

    def _group(self, first: int, tables: list[tuple[int, ...]], positions: Any, size: int) -> Group:
        longest = max(map(len, tables))
        padded = [table + (SCRATCH,) * (longest - len(table)) for table in tables]
        blocks = torch.tensor(padded, device=self.device)
        return Group(first, blocks, torch.from_numpy(positions).to(self.device), longest * size)


def probe(runner: Runner) -> Shape:
    """The shape of cache a model asks for, by running it on one token. Raises UnsupportedModelError."""
    seen: list[tuple[int, int, int, int]] = []

    class Probe(Storage):
        def __init__(self) -> None:
            self.block_size = 1

        def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
            seen.append((layer, key.shape[1], key.shape[2], value.shape[2]))
            self._last = key[None], value[None]

        def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
            return self._last

    position = torch.zeros(1, dtype=torch.long, device=runner.device)
    group = Group(0, position[None], position[None], 1)
    with torch.inference_mode():
        runner.compute(Packed([], [0], position, Batch(Probe(), position, [group]), [0]))
    layers = {layer for layer, *_ in seen}
    shapes = {(heads, width, values) for _, heads, width, values in seen}
    name = type(runner.model).__name__
    if layers != set(range(runner.model.config.get_text_config().num_hidden_layers)):
        raise UnsupportedModelError(f"{name}: attention of {len(layers)} layers goes through the attention interface")
    if len(shapes) > 1 or any(width != values for _, width, values in shapes):
        raise UnsupportedModelError(f"{name}: layers whose K and V differ in shape are not supported")
    heads, width, _ = shapes.pop()
    return Shape(len(layers), heads, width)


def tokens_of(row: Row) -> list[int]:
    """The tokens of a row: its sequence's, then those guessed."""
    return [*row.sequence.tokens[row.start : row.stop - len(row.draft)], *row.draft]


def _alike(rows: list[Row]) -> Iterator[list[Row]]:
    """Rows, in order of queries and length, in groups that can be computed together without much padding."""
    for _, same in groupby(rows, key=lambda row: row.stop - row.start):
        group: list[Row] = []
        needed = 0
        for row in same:
            needed += row.stop
            if group and row.stop * (len(group) + 1) > WASTE * needed:
                yield group
                group, needed = [], row.stop
            group.append(row)
        yield group


def _window(config: Any) -> int | None:
    """The window behind which no layer reads, or None if some layer reads everything."""
    config = config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    if getattr(config, "use_sliding_window", True) is False or any(kind != "sliding_attention" for kind in kinds):
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window
