"""Forward: what the attention of vLLM's layers is given in each pass, shown to the logs; its output is untouched."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kvfence.adapters.hf_attention import AttentionLog
from kvfence.adapters.hf_blocks import wrap
from kvfence.adapters.vllm_blocks import BlockLog
from kvfence.adapters.vllm_cache import Cells
from kvfence.adapters.vllm_core import Core


class Forward:
    """Watches the attention of all layers, or of the first one where only slots are asked for."""

    def __init__(
        self, core: Core, layers: Mapping[int, Any], log: BlockLog | None, cells: Cells | None, attention: bool
    ) -> None:
        self._core, self._log, self._cells = core, log, cells
        self.attention = AttentionLog() if attention else None
        self._slots: list[int] = []  # of the tokens of this pass
        first = min(layers)
        if log is not None:
            wrap(layers[first].impl, "do_kv_cache_update", self._update)
        for layer in layers if attention else (first,):
            wrap(layers[layer].impl, "forward", self._visitor(layer, layer == first))

    def _update(self, method: Callable[..., None], layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        self._slots = slots.tolist()
        method(layer, key, value, cache, slots)

    def _visitor(self, layer: int, first: bool) -> Callable[..., Any]:
        def visit(method: Callable[..., Any], module: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
            out = method(module, query, *args, **kwargs)
            metadata = args[3] if len(args) > 3 else kwargs.get("attn_metadata")
            if metadata is not None:  # else nothing is computed
                if first and self._log is not None:
                    self._write(metadata, self._log)
                if self.attention is not None and self._cells is not None:
                    self._watch(layer, module.impl, query, metadata, self.attention, self._cells)
            return out

        return visit

    def _rows(self, metadata: Any) -> list[tuple[str, int, int, int]]:
        """Of each request of the pass in the scheduler's order: vLLM's name, row, first query and end of queries."""
        bounds = metadata.query_start_loc.tolist()
        names = self._core.runner.input_batch.req_ids
        rows = {name: (name, i, bounds[i], bounds[i + 1]) for i, name in enumerate(names)}
        return [rows[name] for name in self._core.scheduled]

    def _write(self, metadata: Any, log: BlockLog) -> None:
        lengths = metadata.seq_lens.tolist()
        # In the scheduler's order: who reuses what another writes in the same pass comes behind.
        for name, i, begin, end in self._rows(metadata):
            log.written(name, self._slots[begin:end], lengths[i] - (end - begin))

    def _watch(
        self, layer: int, kernel: Any, query: torch.Tensor, metadata: Any, attention: AttentionLog, cells: Cells
    ) -> None:
        """Note the last query of each request that gets a token, over the keys its row of the block table names."""
        lengths = metadata.seq_lens.tolist()
        size = self._core.block_size
        for name, i, _, end in self._rows(metadata):
            length = lengths[i]
            if length < self._core.scheduler.requests[name].num_tokens:  # in the middle of its prompt
                continue
            blocks = metadata.block_table[i, : -(-length // size)].long()
            keys = cells.read(layer, blocks, slice(1))[0, :, :length].float()
            last = query[end - 1].reshape(keys.shape[0], -1, keys.shape[-1]).float()
            scores = torch.matmul(last, keys.transpose(1, 2)) * kernel.scale
            attention.add(self._core.ours[name], layer, scores.softmax(-1).flatten(0, 1))
