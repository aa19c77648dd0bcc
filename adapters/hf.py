"""Adapter `hf`: transformers' `generate` with a DynamicCache and left-padded batches.

Shared pool: before a batch runs, every prefix that a request has in common with an earlier one is prefilled once,
alone, and a copy of its K/V is handed to each request as the head of its cache.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import transformers
from transformers import DynamicCache, GenerationConfig

from kvfence.adapters.api import Capability, Completion, Engine, EngineConfig, Request, Support, supported, unsupported
from kvfence.adapters.hf_attention import AttentionLog
from kvfence.adapters.hf_model import PAD, POOL_TOKENS, best, can_share, can_watch, load
from kvfence.adapters.observation import Observed
from kvfence.adapters.prefix_pool import Entry, PrefixPool, common, stack
from kvfence.reference_impl.attention import Call, probabilities, watched

ARGUMENTS = ("attn_implementation",)


class HFEngine(Engine):
    """transformers' `generate`; one call is one or more left-padded batches of at most `max_concurrency` rows."""

    name = "hf"
    version = transformers.__version__
    block_size = 1

    def __init__(self, model: Any, config: EngineConfig) -> None:
        self._model, self._config = model, config
        self._pool = PrefixPool(config.pool_size or POOL_TOKENS)
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._watchable = can_watch(model)
        watching = "attention" in config.observe and self._watchable.state is Support.SUPPORTED
        self._attention = AttentionLog() if watching else None

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        return {
            **supported("token_prompts", "cached_tokens", "logprobs", "top_logprobs", "reset_cache", "reopen"),
            **unsupported("a batch runs to its end in one call", "session", "fork", "preempt"),
            **unsupported("generate has no such thing", "salt", "adapters", "weights", "media", "conversations"),
            "sharing": can_share(self._model.config),
            "attention": self._watchable,
            "events": Capability(Support.UNSUPPORTED, "generate tells nothing of the uses of its cache"),
            "kv": Capability(Support.UNSUPPORTED, "the cache is dropped with its batch"),
        }

    def observe(self) -> Observed:
        return Observed(self._attention.collect() if self._attention else {})

    def reset_cache(self) -> None:
        self._pool.clear()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        size = self._config.max_concurrency
        batches = [requests[i : i + size] for i in range(0, len(requests), size)]
        return [completion for batch in batches for completion in self._batch(batch)]

    @torch.inference_mode()
    def _batch(self, requests: Sequence[Request]) -> list[Completion]:
        prompts = [request.prompt for request in requests]
        prefixes = self._prefixes(prompts) if self._config.sharing else [(None, 0)] * len(prompts)
        ids, mask = _layout(prompts, [n for _, n in prefixes])
        cache = DynamicCache(config=self._model.config)
        if any(n for _, n in prefixes):
            cache = stack(prefixes, DynamicCache(), next(e for e, n in prefixes if e is not None and n).layers)
        steps = max(request.max_tokens for request in requests)
        # EOS off: a moved end of text would change the shapes of everybody's batch.
        generation = GenerationConfig(
            max_new_tokens=steps,
            do_sample=False,
            pad_token_id=PAD,
            return_dict_in_generate=True,
            output_logits=True,
        )
        ids, mask = ids.to(self._model.device), mask.to(self._model.device)
        with self._watch(requests, mask):
            out = self._model.generate(
                input_ids=ids, attention_mask=mask, generation_config=generation, **{self._cache_name: cache}
            )
        tokens = out.sequences[:, ids.shape[1] :].tolist()
        logprobs = torch.stack(out.logits, dim=1).float().log_softmax(-1)
        if self._config.sharing and len(requests) == 1:
            self._keep(prompts[0], getattr(out, self._cache_name))
        return [
            _completion(request, row[: request.max_tokens], logprobs[i], prefixes[i][1])
            for i, (request, row) in enumerate(zip(requests, tokens, strict=True))
        ]

    def _prefixes(self, prompts: Sequence[tuple[int, ...]]) -> list[tuple[Entry | None, int]]:
        """For each prompt the pool entry and the number of tokens it takes from it, prefilling what is missing."""
        for i, prompt in enumerate(prompts):
            shared = max((common(prompt, other) for other in prompts[:i]), default=0)
            if min(shared, len(prompt) - 1) > self._pool.longest(prompt)[1]:
                prefix = prompt[: min(shared, len(prompt) - 1)]
                ids = torch.tensor([prefix], device=self._model.device)
                cache = DynamicCache()
                self._model(input_ids=ids, use_cache=True, **{self._cache_name: cache})
                self._keep(prefix, cache)
        return [self._pool.longest(prompt) for prompt in prompts]

    def _keep(self, tokens: tuple[int, ...], cache: Any) -> None:
        layers = [(layer.keys[0, :, : len(tokens)], layer.values[0, :, : len(tokens)]) for layer in cache.layers]
        self._pool.add(Entry(tokens, [(k.clone(), v.clone()) for k, v in layers]))

    def _watch(self, requests: Sequence[Request], mask: torch.Tensor) -> AbstractContextManager[None]:
        """Note attention, while this is open, of the last query of each row over the keys that are its own."""
        log = self._attention
        if log is None:
            return nullcontext()

        def visit(call: Call) -> None:
            step = call.key.shape[2] - mask.shape[1]
            visible = torch.nn.functional.pad(mask, (0, step), value=1).bool()
            for request, row, own in zip(requests, probabilities(call, slice(-1, None)), visible, strict=True):
                if step < request.max_tokens:
                    log.add(request.id, call.layer, row[:, 0, own])

        return watched(self._model, visit)


def _layout(prompts: Sequence[tuple[int, ...]], reused: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask [B, L + S]: reused prefixes left-padded to L, the rest left-padded to S.

    Padding between a row's prefix and its rest is as invisible as padding before it: positions count only the mask.
    """
    head, tail = max(reused), max(len(p) - n for p, n in zip(prompts, reused, strict=True))
    ids = torch.full((len(prompts), head + tail), PAD, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, n) in enumerate(zip(prompts, reused, strict=True)):
        for end, part in ((head, prompt[:n]), (head + tail, prompt[n:])):
            ids[row, end - len(part) : end] = torch.tensor(part, dtype=torch.long)
            mask[row, end - len(part) : end] = 1
    return ids, mask


def _completion(request: Request, tokens: list[int], logprobs: torch.Tensor, reused: int) -> Completion:
    steps = logprobs[: len(tokens)]
    emitted = steps.gather(1, torch.tensor(tokens, device=steps.device).unsqueeze(1)).squeeze(1)
    return Completion(
        id=request.id,
        tokens=tuple(tokens),
        logprobs=tuple(emitted.tolist()),
        top_logprobs=tuple(best(steps)),
        cached_tokens=reused,
    )


def open_engine(model: str, config: EngineConfig) -> HFEngine:
    """Open the transformers model folder `model`. Engine argument: attn_implementation."""
    return HFEngine(load("hf", model, config, ARGUMENTS, **config.engine_args), config)
