"""The runner: one forward pass of a transformers model over the rows of many sequences."""

import os
from collections import abc, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvfence.reference_impl.adapter import Adapters
from kvfence.reference_impl.key import AdapterId
from kvfence.reference_impl.ledger import Shape
from kvfence.reference_impl.media import embed
from kvfence.reference_impl.paged import (
    NAME,
    PROBE,
    Attend,
    Batch,
    Group,
    UnsupportedModelError,
    paged_attention,
    window_of,
)
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.sequence import Row
from kvfence.reference_impl.storage import Storage

Indices = NDArray[np.int64]
WASTE = 1.25  # keys gathered, over those needed, beyond which rows are not computed together


@dataclass(frozen=True)
class Packed:
    """Rows laid out as one flat batch."""

    members: list[list[Row]]  # of each group, in the order of their tokens; padding comes after them
    tokens: list[int]  # [N]
    positions: Tensor  # [N]
    batch: Batch
    wanted: list[int]  # indices, of N, whose logits are wanted; row by row
    media: list[tuple[int, str]] = field(default_factory=list)  # index, of N, and content
    adapter: AdapterId | None = None

    @property
    def rows(self) -> list[Row]:
        """All rows in the order of their tokens."""
        return [row for members in self.members for row in members]


class Runner:
    """A model that reads and writes its K/V through block tables. Raises UnsupportedModelError if it does not."""

    def __init__(self, model: Any, buckets: abc.Sequence[int] = (), kernel: bool = False) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        for name in (PROBE, NAME):
            AttentionInterface.register(name, paged_attention)
        AttentionMaskInterface.register(PROBE, window_of)
        self.model, self.device, self.adapters = model, model.device, Adapters(model)
        self._buckets = tuple(sorted(buckets))
        self._attend = _kernel(model.device) if kernel else None
        if not getattr(model, "_supports_attention_backend", False):
            raise UnsupportedModelError(f"{type(model).__name__} does not use transformers' attention interface")
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        model.set_attn_implementation(PROBE)
        self.shape, self.window = _probe(self)
        model.set_attn_implementation(NAME)

    def unknown(self, tokens: Iterable[int]) -> str | None:
        """Why the model cannot read these, or None."""
        odd = next((token for token in tokens if not 0 <= token < self._vocabulary), None)
        return None if odd is None else f"there is no token {odd}; the vocabulary has {self._vocabulary}"

    def passes(self, rows: abc.Sequence[Row]) -> list[list[Row]]:
        """Divide rows into those that one forward pass can compute: they run with the same adapter."""
        by_adapter: defaultdict[AdapterId | None, list[Row]] = defaultdict(list)
        for row in rows:
            by_adapter[row.sequence.namespace.adapter].append(row)
        return list(by_adapter.values())

    @torch.inference_mode()
    def compute(self, packed: Packed) -> Tensor:
        """Run the model over a flat batch; logits [wanted, vocabulary], float32."""
        ids = torch.tensor([packed.tokens], device=self.device)
        wanted = torch.tensor(packed.wanted, dtype=torch.long, device=self.device)
        with self.adapters.applied(packed.adapter):
            inputs = {"input_ids": ids}
            if packed.media:
                inputs = {"inputs_embeds": embed(self.model.get_input_embeddings(), ids, packed.media)}
            out = self.model(
                **inputs,
                position_ids=packed.positions[None],
                use_cache=False,
                logits_to_keep=wanted,
                paged=packed.batch,
            )
        logits: Tensor = out.logits[0].float()
        return logits

    def pack(self, storage: Storage, rows: abc.Sequence[Row]) -> Packed:
        """Lay rows of one pass out, those with equally many queries and similar lengths next to each other."""
        size = storage.block_size
        together = list(_alike(sorted(rows, key=lambda row: (row.stop - row.start, row.stop))))
        tokens: list[int] = []
        positions: list[Indices] = []
        slots: list[Indices] = []
        wanted: list[int] = []
        media: list[tuple[int, str]] = []
        groups: list[Group] = []
        for members in together:
            tables, at = _laid_out(members, self._missing(members), size)
            groups.append(Group(len(tokens), self._tensor(tables), self._tensor(at), tables.shape[1] * size))
            for row in members:
                media += _media_of(row, len(tokens))
                tokens += tokens_of(row)
                wanted += range(len(tokens) - row.samples, len(tokens))
            tokens += [0] * (at.size - len(members) * at.shape[1])
            positions.append(at.ravel())
            # The slot mapping: block × block_size + offset.
            slots.append((np.take_along_axis(tables, at // size, 1) * size + at % size).ravel())
        flat = self._tensor(np.concatenate(positions))
        batch = Batch(storage, self._tensor(np.concatenate(slots)), groups, self._attend)
        return Packed(together, tokens, flat, batch, wanted, media, rows[0].sequence.namespace.adapter)

    def _missing(self, members: abc.Sequence[Row]) -> int:
        """Rows of padding that bring decoding rows to the size of a bucket."""
        if members[0].stop - members[0].start > 1:
            return 0
        return next((bucket - len(members) for bucket in self._buckets if bucket >= len(members)), 0)

    def _tensor(self, indices: Indices) -> Tensor:
        return torch.from_numpy(indices).to(self.device)


def _kernel(device: torch.device) -> Attend:
    """Triton's kernel. Raises UnsupportedModelError where it cannot run."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise UnsupportedModelError(f"the kernel needs a CUDA device, or TRITON_INTERPRET=1; the model is on {device}")
    try:
        from kvfence.reference_impl.kernel import attend
    except ImportError as error:
        raise UnsupportedModelError("the kernel needs triton: pip install triton") from error
    return attend


class _Asked(Storage):
    """Stands in for a cache of one token, and notes what layers ask of it."""

    def __init__(self) -> None:
        self.block_size = 1
        self.layers: list[int] = []
        self.shapes: set[tuple[int, int]] = set()

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        if key.shape != value.shape:
            raise UnsupportedModelError("K and V of different shapes are not supported")
        self.layers.append(layer)
        self.shapes.add((key.shape[1], key.shape[2]))
        self._last = key[None], value[None]

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        return self._last


def _probe(runner: Runner) -> tuple[Shape, int | None]:
    """The shape of cache a model asks for, and the window behind which no layer reads, by running it on one token."""
    asked, position = _Asked(), torch.zeros(1, dtype=torch.long, device=runner.device)
    group = Group(0, position[None], position[None], 1)
    name, layers = type(runner.model).__name__, runner.model.config.get_text_config().num_hidden_layers
    try:
        runner.compute(Packed([], [0], position, Batch(asked, position, [group]), [0]))
    except Exception as error:  # whatever a model's code raises where its attention is another's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnsupportedModelError(f"{name}: {reason}") from error
    if sorted(asked.layers) != list(range(layers)):
        raise UnsupportedModelError(f"{name}: not each layer attends once through transformers' attention interface")
    if len(asked.shapes) > 1:
        raise UnsupportedModelError(f"{name}: layers whose K and V differ in shape are not supported")
    [(heads, width)] = asked.shapes
    windows = list(group.masks)
    return Shape(layers, heads, width), None if None in windows else max(filter(None, windows))


def _laid_out(members: list[Row], missing: int, size: int) -> tuple[Indices, Indices]:
    """Block tables [R, T / block_size], filled up with the scratch block, and positions [R, Q] of rows and padding."""
    tables = np.full((len(members) + missing, -(-max(row.stop for row in members) // size)), SCRATCH, np.int64)
    for i, row in enumerate(members):
        blocks = row.blocks[: -(-row.stop // size)]
        tables[i, : len(blocks)] = blocks
    starts = np.array([row.start for row in members] + [0] * missing)
    return tables, starts[:, None] + np.arange(members[0].stop - members[0].start)


def tokens_of(row: Row) -> list[int]:
    """The tokens of a row: its sequence's, then those guessed."""
    return [*row.sequence.tokens[row.start : row.stop - len(row.draft)], *row.draft]


def _media_of(row: Row, first: int) -> Iterator[tuple[int, str]]:
    """Index and content of the media that stand in a row whose tokens begin at index `first`."""
    for item in row.sequence.namespace.media:
        if row.start <= item.position < row.stop:
            yield first + item.position - row.start, item.content


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
