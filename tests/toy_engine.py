"""A deliberately simple engine: one pool tensor cut into slots, each with key, value and a length.

`fault=shared-slot` breaks it as in the experiment kvfence grew out of: every request is steered to the same slot, and
the slot's length is not reset. It exists to be found out; nothing here is a model of a good engine.
"""

from collections.abc import Mapping, Sequence

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from kvfence.adapters.api import Capability, Completion, Engine, EngineConfig, Request, Support, supported

CAPACITY = 4096


class SlotEngine(Engine):
    name = "toy-slots"
    version = "1"

    def __init__(self, model, config: EngineConfig) -> None:
        self._model = model
        self._shared_slot = config.engine_args.get("fault") == "shared-slot"
        shape = model.config
        slots = config.max_concurrency
        size = (slots, 2, shape.num_hidden_layers, shape.num_key_value_heads, CAPACITY, shape.head_dim)
        self._pool = torch.zeros(size, dtype=model.dtype)
        self._length = [0] * slots

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        return {
            **supported("token_prompts", "logprobs", "reopen"),
            "sharing": Capability(Support.UNSUPPORTED, "slots are private"),
        }

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        slots, last = {}, {}
        for i, request in enumerate(requests):
            slots[request.id] = self._assign(i)
            last[request.id] = self._forward(slots[request.id], request.prompt)
        outputs = {request.id: [last[request.id]] for request in requests}
        for _ in range(max(request.max_tokens for request in requests) - 1):
            for request in requests:
                token, _ = outputs[request.id][-1]
                outputs[request.id].append(self._forward(slots[request.id], [token]))
        return [_completion(request, outputs[request.id][: request.max_tokens]) for request in requests]

    def _assign(self, i: int) -> int:
        if self._shared_slot:
            return 0
        self._length[i] = 0
        return i

    def _forward(self, slot: int, tokens: Sequence[int]) -> tuple[int, float]:
        """Append tokens to a slot and return the next one with its logprob."""
        if self._length[slot] + len(tokens) > CAPACITY:
            self._length[slot] = 0
        begin, end = self._length[slot], self._length[slot] + len(tokens)
        cache = DynamicCache()
        for layer in range(self._pool.shape[2]) if begin else ():
            keys, values = self._pool[slot, :, layer, :, :begin]
            cache.update(keys[None], values[None], layer)
        logits = self._model(input_ids=torch.tensor([list(tokens)]), cache=cache, use_cache=True).logits
        for layer, kv in enumerate(cache.layers):
            self._pool[slot, 0, layer, :, begin:end] = kv.keys[0, :, begin:end]
            self._pool[slot, 1, layer, :, begin:end] = kv.values[0, :, begin:end]
        self._length[slot] = end
        logprob, token = logits[0, -1].float().log_softmax(-1).max(-1)
        return int(token), float(logprob)


def _completion(request: Request, emitted: Sequence[tuple[int, float]]) -> Completion:
    return Completion(request.id, tuple(t for t, _ in emitted), tuple(logprob for _, logprob in emitted))


def open_engine(model: str, config: EngineConfig) -> SlotEngine:
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, config.dtype))
    return SlotEngine(loaded.eval(), config)
