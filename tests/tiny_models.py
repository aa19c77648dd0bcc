"""Tiny models of random weights, one builder for all families: the shapes of attention that an engine must get right.

Weights are wide enough that an output depends on all of its context: at the usual deviation, 0.02, eight other tokens
in a prompt of 40 leave most of GPT-2's outputs as they were.
"""

from typing import Any

import torch
import transformers

VOCABULARY, HIDDEN, HEADS, LAYERS = 256, 64, 4, 2
WINDOW = 24  # tokens, of the families that have one
WIDTH, BIAS = 0.15, 0.02  # deviation of weights; of biases and norms, which are even in a new model
POSITIONS = 512

# Model class, configuration class, and what the family's configuration says beside the sizes.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": WINDOW}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {}),
    # Scores are scaled by another number than the head's size, and capped where they really are.
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {"sliding_window": WINDOW, "query_pre_attn_scalar": 24,
                                                     "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {"sliding_window": WINDOW, "query_pre_attn_scalar": 24,
                                                         "layer_types": ["sliding_attention", "full_attention"]}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"initializer_range": 0.25}),
    "gpt-oss": ("GptOssForCausalLM", "GptOssConfig", {"num_local_experts": 2, "num_experts_per_tok": 1}),
}  # fmt: skip
SUPPORTED = tuple(family for family in FAMILIES if family != "gpt-oss")
KV_HEADS = (4, 2, 1)  # multi-head, grouped-query and multi-query attention; gpt2 has the first only


def tiny(
    family: str, kv_heads: int | None = None, dtype: torch.dtype = torch.float32, seed: int = 0, **config: Any
) -> Any:
    """A model of a family, in evaluation mode, the same for the same arguments; `config` goes before the sizes here.

    `kv_heads` is 4 of 4 heads where it is not given.
    """
    model_class, config_class, special = FAMILIES[family]
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "max_position_embeddings": POSITIONS,
        "initializer_range": WIDTH,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    if family != "gpt2":
        sizes |= {
            "intermediate_size": 2 * HIDDEN,
            "num_key_value_heads": kv_heads or HEADS,
            "head_dim": HIDDEN // HEADS,
            "tie_word_embeddings": False,
        }
    elif kv_heads not in (None, HEADS):
        raise ValueError("gpt2 has as many KV heads as heads")
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        made = getattr(transformers, model_class)(getattr(transformers, config_class)(**{**sizes, **special, **config}))
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.ndim == 1:
                    parameter += BIAS * torch.randn_like(parameter)
    finally:
        torch.set_rng_state(state)
    return made.to(dtype).eval()
