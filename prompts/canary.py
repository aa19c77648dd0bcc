"""The canary: a Llama whose weights are constructed, not trained, so that its answer needs the whole KV cache.

Its residual stream is a row of slots. A word's code (one-hot digits, one-hot alphabet) is written to the first by the
embedding; the attention heads fill the others, and the LM head reads the last:

    CURRENT    the token at this position               embedding
    PREVIOUS   the token one position back              layer 0, previous-token heads
    FOUND      the current word, one alphabet before    layer 0, lookup heads
    ANSWER     the token that follows FOUND             layers 1 and 2, digit heads
    CONSTANT   one dimension that is never zero         embedding

The digit heads attend to the position whose PREVIOUS is the query's FOUND and copy its CURRENT. They are induction
heads (Olsson et al. 2022, arXiv:2209.11895), but each KV head of layers 1 and 2 copies no more than its part of one
digit. So every token of an answer needs a key and a value in every layer and KV head, and a damaged cell of the cache
shows in the word it was needed for. `alphabet.answer` says what an undamaged cache answers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from kvfence.prompts import alphabet, tokenizer

CODE = alphabet.DIGITS * alphabet.BASE + alphabet.ALPHABETS  # dimensions of a word's code: digits, then alphabet
ALPHABET_CODE = list(range(CODE - alphabet.ALPHABETS, CODE))
HIDDEN = 256
CONTEXT = 4096

CURRENT, PREVIOUS, FOUND, ANSWER = (list(range(start, start + CODE)) for start in (0, 32, 64, 96))
CONSTANT = HIDDEN - 1
CONSTANT_SIZE = 2.0
# |x|² of a residual before layers 0, 1, 2 and the LM head. A word's code is five ones: embedded with the constant, then
# joined by PREVIOUS and FOUND, then by ANSWER's first two digits and alphabet, then by its last two digits.
SQUARED_NORM = (9.0, 19.0, 22.0, 24.0)

# The two query heads of a KV head in layer 0. In layers 1 and 2 they do the same, each for half of the sum.
PREVIOUS_TOKEN, LOOKUP = 0, 1

# Slow enough that a word's code in the slowest pairs of RoPE hardly turns over the whole context.
ROPE_THETA = 1e7
# Nats by which the position one back beats every other: e⁻³⁰ is lost even in the sums of float32.
POSITION_GAP = 30.0
# Nats for every digit that a key shares with the query, so a key one digit off weighs e⁻²⁵.
DIGIT_GAP = 25.0
# The alphabet counts as much as three digits: a word that a damaged cache has lost gives way to its neighbour in the
# alphabet asked for, not to itself in another, and so the answer goes on and can read what else is there.
ALPHABET_WEIGHT = 3.0
KEY_SIZE = 4.0
# Standard deviation of what the shares of a digit add on top of the digit, and cancel among themselves.
SHARE_NOISE = 2.0
# Logits between the answer and a word one digit, or one alphabet, off.
MARGIN = 20.0


@dataclass(frozen=True)
class Shape:
    """Size of a KV cache row: `kv_heads` heads (2, 4 or 8, two query heads on each) of `head_dim` (64 or 128).

    ValueError for other sizes.
    """

    head_dim: int = 64
    kv_heads: int = 2

    def __post_init__(self) -> None:
        if self.head_dim not in (64, 128) or self.kv_heads not in (2, 4, 8):
            raise ValueError(
                f"no canary with head_dim {self.head_dim} and {self.kv_heads} KV heads: 64 or 128, and 2, 4 or 8"
            )


class Heads:
    """Views of one attention's weights by KV head: what a function below assigns, the model has."""

    def __init__(self, attention: Any, shape: Shape) -> None:
        kv_heads, head_dim = shape.kv_heads, shape.head_dim
        self.query: Tensor = attention.q_proj.weight.view(kv_heads, 2, head_dim, HIDDEN)
        self.key: Tensor = attention.k_proj.weight.view(kv_heads, head_dim, HIDDEN)
        self.value: Tensor = attention.v_proj.weight.view(kv_heads, head_dim, HIDDEN)
        self.output: Tensor = attention.o_proj.weight.view(HIDDEN, kv_heads, 2, head_dim)


def build(shape: Shape = Shape(), seed: int = 0) -> LlamaForCausalLM:
    """The model in float32 on the CPU, in evaluation mode, 2.7 million parameters (4.5 million with 8 KV heads).

    `seed` turns the bases that values are cached in, not what they say. The global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):  # transformers draws weights first, all of which are replaced
        model = LlamaForCausalLM(_config(shape))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms scale by one; a matrix that is not written below, as the MLPs', adds nothing.
            parameter.fill_(1.0 if parameter.dim() == 1 else 0.0)
        write_word_code(model)
        layers = [Heads(layer.self_attn, shape) for layer in model.model.layers]
        write_previous_token_heads(layers[0], shape)
        write_lookup_heads(layers[0], shape)
        write_digit_heads(layers[1], 1, shape)
        write_digit_heads(layers[2], 2, shape)
        for number, heads in enumerate(layers):
            write_copying(heads, number, generator)
    # Left to itself, transformers copies what else the config says; greedy decoding needs the special tokens alone.
    model.generation_config = GenerationConfig(
        pad_token_id=alphabet.PAD, bos_token_id=alphabet.BOS, eos_token_id=alphabet.EOS
    )
    return model.eval()


def write(folder: Path, shape: Shape = Shape(), seed: int = 0) -> None:
    """Write a transformers folder: float32 safetensors, the tokenizer, and `kvfence_model` in the config."""
    disable_progress_bar()
    build(shape, seed).save_pretrained(folder)
    tokenizer.write(folder)


def _config(shape: Shape) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=alphabet.VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2 * shape.kv_heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        pad_token_id=alphabet.PAD,
        bos_token_id=alphabet.BOS,
        eos_token_id=alphabet.EOS,
        kvfence_model="canary",
    )


def word_code() -> Tensor:
    """Code of every token of the three alphabets, float32 (3888, 27): four digits and an alphabet, one-hot."""
    digits = torch.tensor([alphabet.digits(word) for word in range(alphabet.WORDS)])
    words = one_hot(digits, alphabet.BASE).flatten(1).repeat(alphabet.ALPHABETS, 1)
    alphabets = torch.eye(alphabet.ALPHABETS).repeat_interleave(alphabet.WORDS, dim=0)
    return torch.cat((words, alphabets), dim=1)


def write_word_code(model: LlamaForCausalLM) -> None:
    """Embed a token as its code and a constant; score a token by how much of its code ANSWER holds."""
    code = word_code()
    embedding = model.model.embed_tokens.weight
    embedding[: len(code), CURRENT] = code
    embedding[: len(code), CONSTANT] = CONSTANT_SIZE
    # Alphabet 0, and with it every special token, is only ever read: its logits stay zero.
    answers = slice(alphabet.WORDS, len(code))
    model.lm_head.weight[answers, ANSWER] = code[answers] * MARGIN / norm_gain(3)


def norm_gain(layer: int) -> float:
    """What RMSNorm multiplies a residual by before `layer` (3 is the LM head): weights divide by it to undo it."""
    return math.sqrt(HIDDEN / SQUARED_NORM[layer])


def rope_frequencies(head_dim: int) -> Tensor:
    """Radians per position by which RoPE turns dimensions i and i + head_dim/2, float64 (arXiv:2104.09864)."""
    half = head_dim // 2
    return ROPE_THETA ** (-torch.arange(half, dtype=torch.float64) / half)


def code_dims(head_dim: int) -> list[int]:
    """The head dimensions that hold the 27 places of a code in queries and keys.

    They are both dimensions of the slowest RoPE pairs, and the slowest of all for the alphabet, which weighs most.
    """
    half = head_dim // 2
    slowest_first = [pair + side for pair in reversed(range(half)) for side in (0, half)]
    alphabet_dims, digit_dims = slowest_first[: alphabet.ALPHABETS], slowest_first[alphabet.ALPHABETS : CODE]
    return digit_dims + alphabet_dims


def write_previous_token_heads(heads: Heads, shape: Shape) -> None:
    """Attend to the position one back, whatever it holds. The first position, with none before it, attends to itself.

    Query and key are the same constant at every position but for RoPE, which makes their product a sum of cosines of
    the distance. Turned by one position beforehand, the query peaks at distance one, where all cosines are 1.
    """
    fast = range(shape.head_dim // 8)  # the fastest quarter of the pairs tells neighbours apart
    turn = rope_frequencies(shape.head_dim)[: len(fast)]
    distance = torch.arange(CONTEXT, dtype=torch.float64)
    overlap = torch.cos(torch.outer(turn, distance - 1)).sum(0)
    gap = len(fast) - float(overlap[distance != 1].max())
    size = math.sqrt(POSITION_GAP * math.sqrt(shape.head_dim) / gap)
    constant = CONSTANT_SIZE * norm_gain(0)
    cosines, sines = list(fast), [pair + shape.head_dim // 2 for pair in fast]
    heads.key[:, cosines, CONSTANT] = size / constant
    heads.query[:, PREVIOUS_TOKEN, cosines, CONSTANT] = (size / constant * torch.cos(turn)).float()
    heads.query[:, PREVIOUS_TOKEN, sines, CONSTANT] = (-size / constant * torch.sin(turn)).float()


def write_lookup_heads(heads: Heads, shape: Shape) -> None:
    """Attend to the current word in the alphabet before its own. A word of alphabet 0 finds itself."""
    dims = code_dims(shape.head_dim)
    query = heads.query[:, LOOKUP]
    heads.key[:, dims, CURRENT] = KEY_SIZE / norm_gain(0)
    digits = slice(CODE - alphabet.ALPHABETS)
    query[:, dims[digits], CURRENT[digits]] = _query_size(shape) / norm_gain(0)
    for before, own in pairwise(ALPHABET_CODE):
        query[:, dims[before], CURRENT[own]] = _query_size(shape) * ALPHABET_WEIGHT / norm_gain(0)


def write_digit_heads(heads: Heads, layer: int, shape: Shape) -> None:
    """Attend to the position after the one that the lookup heads found: its PREVIOUS is this position's FOUND."""
    dims = code_dims(shape.head_dim)
    weight = torch.ones(CODE)
    weight[ALPHABET_CODE] = ALPHABET_WEIGHT
    heads.key[:, dims, PREVIOUS] = KEY_SIZE / norm_gain(layer)
    heads.query[:, :, dims, FOUND] = weight * _query_size(shape) / norm_gain(layer)


def _query_size(shape: Shape) -> float:
    # Attention divides by √head_dim; what is left of query times key is the gap.
    return DIGIT_GAP * math.sqrt(shape.head_dim) / KEY_SIZE


def write_copying(heads: Heads, layer: int, generator: torch.Generator) -> None:
    """Cache what a layer copies of the current word as values, and write what is attended to into its slot.

    Half of the KV heads carry two digits of the word in layer 0, the other half the other two; in layers 1 and 2 a half
    carries one. A KV head caches them in a random basis of its own, so that no dimension of the cache is idle.
    """
    if layer == 0:
        writes = [(PREVIOUS_TOKEN, PREVIOUS, torch.eye(CODE)), (LOOKUP, FOUND, torch.eye(CODE))]
    else:
        writes = [(query_head, ANSWER, next_alphabet() / 2) for query_head in (0, 1)]
    kv_heads, head_dim = heads.value.shape[:2]
    for half, members in enumerate(torch.arange(kv_heads).chunk(2)):
        carried = carried_code(layer, half)
        for head, share in zip(members, shares(len(members), len(carried), generator), strict=True):
            basis = torch.linalg.qr(torch.randn(head_dim, len(carried), generator=generator)).Q
            heads.value[head, :, carried] = basis / norm_gain(layer)
            for query_head, slot, code_map in writes:
                heads.output[slot, head, query_head] = code_map[:, carried] @ share @ basis.T


def carried_code(layer: int, half: int) -> list[int]:
    """The places of a code that a half of a layer's KV heads carries; the alphabet travels with the first digit."""
    digits: Sequence[int] = (2 * half, 2 * half + 1) if layer == 0 else (2 * (layer - 1) + half,)
    places = [digit * alphabet.BASE + value for digit in digits for value in range(alphabet.BASE)]
    return places + ALPHABET_CODE if 0 in digits else places


def next_alphabet() -> Tensor:
    """The map (27, 27) from the code of a token read to that of the token to write: alphabet 0 to 1, 1 to 2, 2 to 1."""
    code_map = torch.eye(CODE)
    first, second, third = ALPHABET_CODE
    code_map[ALPHABET_CODE, ALPHABET_CODE] = 0.0
    code_map[[second, third, second], [first, second, third]] = 1.0
    return code_map


def shares(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Matrices (count, width, width) that sum to the identity, and none of which can be missed; one is the identity.

    If every head held a few values of a digit, another word's cell would often agree with the right one. Shares carry
    noise that cancels in their sum, so a single foreign share leaves noise larger than the digit.
    """
    noise = SHARE_NOISE * torch.randn(count, width, width, generator=generator)
    return torch.eye(width) / count + noise - noise.mean(0)
