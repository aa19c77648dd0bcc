"""Batcher: transformers' paged continuous batching, run one forward pass at a time.

transformers runs it in a thread of its own; stepped from outside, what happens in which order depends on the calls
alone.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from kvfence.adapters.api import Request
from kvfence.adapters.hf_attention import AttentionLog
from kvfence.adapters.hf_blocks import BlockLog, wrap
from kvfence.adapters.hf_model import best
from kvfence.reference_impl.attention import Call, probabilities, watched


@dataclass
class Live:
    """A request that has not ended."""

    request: Request
    emitted: int = 0
    reached: int = 0  # the most of its tokens that were ever computed
    cached: int = 0
    best: list[tuple[tuple[int, float], ...]] = field(default_factory=list)


class Batcher:
    """transformers' batch processor, run one forward pass at a time, and what is noted of the requests meanwhile."""

    def __init__(self, manager: Any, observe: Sequence[str]) -> None:
        self.manager = manager
        self.processor = manager.batch_processor = manager._create_batch_processor()
        self.cache = self.processor.cache
        self.live: dict[str, Live] = {}
        self.attention = AttentionLog() if "attention" in observe else None
        self.blocks: BlockLog | None = None
        if self.one_allocator and {"events", "kv"} & set(observe):
            self.blocks = BlockLog(self.allocators[0], "events" in observe, "kv" in observe)
        wrap(self.cache, "search_prefix_match", self._match)
        wrap(self.processor.model_runner, "_sample", self._sample)

    @property
    def allocators(self) -> list[Any]:
        """One for each kind of layers; before 5.18 they have no names."""
        named = getattr(self.cache, "cache_allocators", None)
        return list(self.cache.group_cache_managers if named is None else named.values())

    @property
    def one_allocator(self) -> bool:
        return list(getattr(self.cache, "cache_allocators", ())) == ["full_attention"]

    @property
    def page(self) -> int:
        """Tokens of a block."""
        config = self.manager.continuous_batching_config
        return int(config.page_size if hasattr(config, "page_size") else config.block_size)

    @property
    def capacity(self) -> int:
        """Tokens whose KV the pool can hold in all layers."""
        return int(self.cache.num_blocks * self.page)

    @torch.inference_mode()
    def forward(self) -> dict[str, int]:
        """One forward pass; how many of its tokens each request in it has had computed. Empty if nothing could run."""
        if not self.processor.prepare_next_batch():
            return {}
        with watched(self.manager.model, self._watch) if self.attention else nullcontext():
            self.manager._generation_step()
        if self.blocks:
            self.blocks.passes += 1
        self.processor.update_batch()
        return {future.state.request_id: future.state.position_offset for future in self._batch}

    @torch.inference_mode()
    def withdraw(self, id: str) -> bool:
        """Take a request out, wherever it is; False if the scheduler or a block table still holds it afterwards.

        This is the head of `prepare_next_batch`, where cancellations take effect, and no more. Its rest schedules a
        batch and counts its tokens as computed: left without its forward pass, that would corrupt all others in it.
        """
        self.manager.cancel_request(id)
        self.processor._update_tp_group_state()
        for state in self.processor.scheduler.clear_cancelled_requests():
            self.processor.offloading_manager.free_request_cpu_cache(state)
        tables = [allocator.block_table for allocator in self.allocators]
        return self.processor.scheduler.request_is_cancelled(id) and not any(id in table for table in tables)

    @torch.inference_mode()
    def reset(self) -> None:
        """Drop every request after a fault; a pass may have broken off in the middle."""
        self.processor._update_tp_group_state()
        self.processor.reset()

    @property
    def _batch(self) -> list[Any]:
        return list(self.processor.inputs_and_outputs.requests_in_batch)

    def _match(self, method: Callable[..., int], id: str, tokens: list[int]) -> int:
        n = method(id, tokens)
        # A request that was preempted comes back with its output in its prompt; only its first coming counts.
        if (live := self.live.get(id)) and not live.emitted:
            live.cached = n
        return n

    def _sample(self, method: Callable[..., None], scores: torch.Tensor, outputs: torch.Tensor) -> None:
        method(scores, outputs)
        ids = [future.state.request_id for future in self._batch if future.has_new_token]
        for id, row in zip(ids, best(scores[0, : len(ids)].log_softmax(-1)), strict=True):
            self.live[id].best.append(row)

    def _watch(self, call: Call) -> None:
        """Note the last query of each request that gets a token. Queries and keys of all requests are packed."""
        assert self.attention is not None
        queries, keys = call.extra["cu_seq_lens_q"].tolist(), call.extra["cu_seq_lens_k"].tolist()
        rows = [(i, future.state.request_id) for i, future in enumerate(self._batch) if future.has_new_token]
        if not rows:  # all are in the middle of their prompts
            return
        last = torch.tensor([queries[i + 1] - 1 for i, _ in rows], dtype=torch.long, device=call.query.device)
        for (i, id), seen in zip(rows, probabilities(call, last)[0].unbind(1), strict=True):
            self.attention.add(id, call.layer, seen[:, keys[i] : keys[i + 1]])
