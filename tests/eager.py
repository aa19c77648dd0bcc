"""A second view of what a model computes: transformers' eager attention and a plain forward with a DynamicCache."""

import inspect
from functools import cache

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache


@cache
def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def forward(path, tokens):
    """Attention [layers, heads, T, T], keys and values [layers, kv_heads, T, head_dim] over `tokens`."""
    model, kept = load(path), DynamicCache()
    # transformers has renamed it.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    out = model(input_ids=torch.tensor([tokens]), use_cache=True, output_attentions=True, **{name: kept})
    stacks = (out.attentions, [layer.keys for layer in kept.layers], [layer.values for layer in kept.layers])
    return [torch.cat(list(tensors)).numpy() for tensors in stacks]


def assert_attention(seen, path, prompt, output):
    """`seen` is the attention of the queries before each output token, by distance back, in every layer and head."""
    attention, _, _ = forward(path, (*prompt, *output[:-1]))
    assert len(seen.rows) == len(output)
    for step in range(len(output)):
        at = len(prompt) - 1 + step
        row = attention[:, :, at, at::-1]  # by distance back from the query
        np.testing.assert_allclose(seen.rows[step, :, :, : at + 1], row, atol=1e-5)
        assert not seen.rows[step, :, :, at + 1 :].any()
        np.testing.assert_allclose(seen.maximum[step], row.max(-1), atol=1e-5)
        logs = np.log(row, out=np.zeros_like(row), where=row > 0)
        np.testing.assert_allclose(seen.entropy[step], -(row * logs).sum(-1), atol=1e-4)
        chosen = np.take_along_axis(row, seen.top[step].clip(0), -1) * (seen.top[step] >= 0)
        np.testing.assert_allclose(chosen, -np.sort(-row, axis=-1)[..., :3], atol=1e-5)
