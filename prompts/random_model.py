"""The random model: weights drawn, not trained, of the size of the experiment kvfence grew out of.

Its margins are tiny, so next to nothing hides a changed bit: a sensitive subject, but one that never spells words.
"""

from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)
from transformers.utils.logging import disable_progress_bar

from kvfence.prompts import alphabet, tokenizer

WINDOW = 48  # tokens, three blocks of 16


def write(folder: Path, seed: int = 0) -> None:
    """Write the model as a transformers folder in float32: 6 layers, 8 heads, hidden 512, the canary's vocabulary."""
    config = LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=6, num_key_value_heads=8, **_SHARED)
    _write(LlamaForCausalLM(config), folder, seed)


def write_windowed(folder: Path, seed: int = 0) -> None:
    """Write a smaller one, 2 layers, 8 heads on 4 KV heads, hidden 256, with a sliding window of `WINDOW` tokens."""
    config = MistralConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_key_value_heads=4,
        sliding_window=WINDOW,
        # Wide enough for one position of a window to move a logprob by more than the rounding of float32.
        initializer_range=0.1,
        **_SHARED,
    )
    _write(MistralForCausalLM(config), folder, seed)


_SHARED = {
    "vocab_size": alphabet.VOCAB_SIZE,
    "num_attention_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": alphabet.BOS,
    "eos_token_id": alphabet.EOS,
    "pad_token_id": alphabet.PAD,
    "kvfence_model": "random",
}


def _write(model: PreTrainedModel, folder: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, model.config.initializer_range, generator=generator)
    disable_progress_bar()
    model.generation_config = GenerationConfig(pad_token_id=alphabet.PAD)
    model.save_pretrained(folder)
    tokenizer.write(folder)
