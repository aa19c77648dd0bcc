"""Equal shapes: the same computation laid out differently, so that only rounding can differ.

A batched, left-padded or prefix-reusing forward gives in exact arithmetic the logits and the attention of a forward
alone. How far they are apart is the noise that the oracles must tolerate. Each of them shows its attention to a visit,
where there is one; NotWatchableError if it cannot be had.
"""

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch

from kvfence.reference_impl.attention import Visit, watched

TOP = 4  # runners-up whose distance to the top logit is compared: a flip is between near neighbours


@torch.inference_mode()
def alone(model: Any, tokens: Sequence[int], visit: Visit | None = None) -> torch.Tensor:
    """Logits [T, vocabulary], float32, of a forward over one sequence without a cache."""
    with _shown(model, visit):
        logits: torch.Tensor = model(input_ids=_ids(model, [tokens]), use_cache=False).logits
    return logits[0].float()


@torch.inference_mode()
def padded(
    model: Any, sequences: Sequence[Sequence[int]], pad: int = 0, visit: Visit | None = None
) -> list[torch.Tensor]:
    """Logits [T_i, vocabulary], float32, of each sequence in one left-padded batch."""
    longest = max(map(len, sequences))
    ids = _ids(model, [[pad] * (longest - len(s)) + list(s) for s in sequences])
    lengths = torch.tensor([len(s) for s in sequences], device=ids.device)
    mask = (torch.arange(longest, device=ids.device)[None] >= longest - lengths[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with _shown(model, visit):
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return [row[-len(s) :].float() for row, s in zip(logits, sequences, strict=True)]


@torch.inference_mode()
def prefix_reused(
    model: Any, tokens: Sequence[int], cut: int, decoded: int, visit: Visit | None = None
) -> torch.Tensor:
    """Logits [T, vocabulary], float32: `tokens[:cut]` first, the rest on its K/V, the last `decoded` one by one."""
    name = _cache_name(model)
    ids = _ids(model, [tokens])
    cache: dict[str, Any] = {}
    logits = []
    ends = [cut, *range(len(tokens) - decoded, len(tokens) + 1)]
    with _shown(model, visit):
        for begin, end in pairwise([0, *sorted(set(ends))]):
            out = model(input_ids=ids[:, begin:end], use_cache=True, **cache)
            cache = {name: getattr(out, name)}
            logits.append(out.logits[0])
    return torch.cat(logits).float()


@torch.inference_mode()
def cached_greedy(model: Any, tokens: Sequence[int], n: int) -> tuple[int, ...]:
    """The `n` tokens of greedy decoding with a KV cache: golden's up to rounding, and many times faster."""
    name = _cache_name(model)
    cache: dict[str, Any] = {}
    output: list[int] = []
    ids = _ids(model, [tokens])
    for _ in range(n):
        out = model(input_ids=ids, use_cache=True, **cache)
        cache = {name: getattr(out, name)}
        output.append(int(out.logits[0, -1].argmax()))
        ids = _ids(model, [output[-1:]])
    return tuple(output)


@torch.inference_mode()
def kept_kv(model: Any, tokens: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """K and V [kv_heads, T, head_dim] of each layer, of all T tokens, also those that a window has left behind."""
    from transformers import DynamicCache

    name, cache = _cache_name(model), DynamicCache()  # made without the model's configuration it keeps everything
    model(input_ids=_ids(model, [tokens]), use_cache=True, **{name: cache})
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def margin_errors(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Errors [T] of margins, in logits, between two logits [T, vocabulary] of the same tokens.

    The error at a position is the largest change of the distance between the reference's top token and one of its
    `TOP` - 1 runners-up: the most by which rounding alone could have turned their order.
    """
    values, index = reference.topk(TOP, dim=-1)
    there = other.gather(-1, index)
    return ((values - values[:, :1]) - (there - there[:, :1])).abs().amax(-1)


def _shown(model: Any, visit: Visit | None) -> AbstractContextManager[None]:
    return watched(model, visit) if visit else nullcontext()


def _cache_name(model: Any) -> str:
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _ids(model: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.tensor([list(row) for row in rows], dtype=torch.long, device=model.device)
