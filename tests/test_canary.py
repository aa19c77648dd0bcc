import copy
import functools
import inspect
import random
from itertools import pairwise, product

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GenerationConfig, LlamaForCausalLM

from kvfence.prompts import alphabet, canary

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [canary.Shape(), canary.Shape(head_dim=128), canary.Shape(kv_heads=8)]
BLOCK = 16
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


@functools.cache
def model(shape=SHAPES[0], dtype=torch.float32):
    return canary.build(shape) if dtype == torch.float32 else copy.deepcopy(model(shape)).to(dtype)


def words(n, seed=0):
    return random.Random(seed).sample(range(alphabet.FIRST_WORD, alphabet.WORDS), n)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("canary")
    canary.write(folder)
    return folder


@torch.no_grad()
def margins(subject, prompt, n):
    """Logit of each of the n expected answer tokens less the best other logit, in the model's own dtype."""
    tokens = torch.tensor((*prompt, *alphabet.answer(prompt, n)))
    logits = subject(input_ids=tokens[None, :-1], use_cache=False, logits_to_keep=n).logits[0]
    expected = tokens[-n:, None]
    best_other = logits.scatter(-1, expected, -torch.inf).amax(-1)
    return logits.gather(-1, expected)[:, 0] - best_other


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("n_words", "start", "n"),
    [(1, 0, 12), (8, 4, 40), (100, 0, 310), (100, 99, 310), (1000, 0, 1200), (1000, 900, 200)],
)
def test_answer_is_exact_with_a_wide_margin(n_words, start, n, dtype):
    prompt = alphabet.prompt_tokens(words(n_words), start)
    assert set(map(alphabet.alphabet_of, alphabet.answer(prompt, n))) == {1, 2}
    assert margins(model(dtype=dtype), prompt, n).min() >= 15


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [*SHAPES[1:], canary.Shape(kv_heads=4), canary.Shape(head_dim=128, kv_heads=8)], ids=str
)
def test_variant_is_as_exact(shape, dtype):
    assert margins(model(shape, dtype), alphabet.prompt_tokens(words(60)), 130).min() >= 15


def test_answer_is_exact_to_the_end_of_the_context():
    prompt = alphabet.prompt_tokens(words(1000))
    assert margins(model(), prompt, canary.CONTEXT - len(prompt)).min() >= 15


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_generate_answers_a_padded_batch(folder, dtype):
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    prompts = [alphabet.prompt_tokens(words(n, seed=n), start) for n, start in ((30, 0), (12, 5), (3, 2))]
    width = max(map(len, prompts))
    ids = torch.tensor([[alphabet.PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = loaded.generate(ids, attention_mask=mask, max_new_tokens=64)[:, width:]
    assert list(map(tuple, output.tolist())) == [alphabet.answer(prompt, 64) for prompt in prompts]


def test_the_folder_says_what_it_is(folder):
    assert AutoConfig.from_pretrained(folder).kvfence_model == "canary"
    assert {"model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {file.name for file in folder.iterdir()}
    generation = GenerationConfig.from_pretrained(folder).to_diff_dict()
    assert set(generation) <= {"bos_token_id", "eos_token_id", "pad_token_id", "transformers_version"}


def test_the_folder_holds_the_built_weights_in_float32(folder):
    loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert {weight.dtype for weight in loaded.values()} == {torch.float32}
    assert same_weights(loaded, model().state_dict())


def same_weights(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_seed_always_gives_the_same_weights(shape):
    assert same_weights(canary.build(shape).state_dict(), model(shape).state_dict())
    assert not same_weights(canary.build(shape, seed=1).state_dict(), model(shape).state_dict())


def test_building_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    canary.build()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("seed", [1, 2])
def test_any_seed_is_exact(seed):
    assert margins(canary.build(canary.Shape(kv_heads=8), seed), alphabet.prompt_tokens(words(50)), 110).min() >= 15


@pytest.mark.parametrize(("head_dim", "kv_heads"), [(32, 2), (96, 2), (64, 1), (64, 3), (64, 16)])
def test_another_shape_is_refused_in_one_line(head_dim, kv_heads):
    with pytest.raises(ValueError, match=f"^no canary with head_dim {head_dim} and {kv_heads} KV heads.*$"):
        canary.Shape(head_dim, kv_heads)


def test_shares_sum_to_the_identity():
    shares = canary.shares(4, 9, torch.Generator().manual_seed(0))
    torch.testing.assert_close(shares.sum(0), torch.eye(9))


@torch.no_grad()
def cached(subject, tokens):
    """The KV cache of a sequence: (layer, key or value, KV head, position, head_dim)."""
    cache = DynamicCache()
    subject(input_ids=torch.tensor([tokens]), **{CACHE: cache})
    return torch.stack([torch.stack((layer.keys[0], layer.values[0])) for layer in cache.layers])


@torch.no_grad()
def decoded(subject, caches, token, n):
    """What is answered, (batch, n), from caches with a batch dimension in front, greedily, after `token`."""
    cache = DynamicCache()
    for number in range(caches.shape[1]):
        cache.update(caches[:, number, 0], caches[:, number, 1], number)
    last = torch.full((len(caches), 1), token)
    answer = []
    for _ in range(n):
        last = subject(input_ids=last, **{CACHE: cache}).logits[:, -1].argmax(-1, keepdim=True)
        answer.append(last)
    return torch.cat(answer, dim=1)


def sequences(n_words, n_generated):
    """Two requests that share no word, each with the start of its answer, and how the first one's answer goes on."""
    both = words(2 * n_words)
    prompts = [alphabet.prompt_tokens(own) for own in (both[:n_words], both[n_words:])]
    answers = [alphabet.answer(prompt, n_generated + n_words + 2) for prompt in prompts]
    own, foreign = (prompt + answer[:n_generated] for prompt, answer in zip(prompts, answers, strict=True))
    return own, foreign, answers[0][n_generated:]


CASES = [
    pytest.param(shape, n_words, n_generated, id=f"{shape}-{'generated' if n_generated else 'prompt'}")
    for shape, n_words in zip(SHAPES, (46, 30, 30), strict=True)
    for n_generated in (0, n_words + 1)
]


@pytest.mark.parametrize(("shape", "n_words", "n_generated"), CASES)
def test_every_cell_of_a_full_copy_has_a_witness(shape, n_words, n_generated):
    own, foreign, expected = sequences(n_words, n_generated)
    expected = torch.tensor(expected)
    subject = model(shape)
    mine, theirs = cached(subject, own[:-1]), cached(subject, foreign[:-1])
    layers, parts, heads = mine.shape[:3]
    # Blocks of the prompt, or of what was generated from it: those that the coming round reads.
    first = len(own) - n_words - 2 if n_generated else 0
    blocks = [slice(at, at + BLOCK) for at in range(first, len(own) - BLOCK, BLOCK)]
    cells = list(product(range(layers), range(parts), range(heads), blocks))
    caches = mine.repeat(len(cells) + 1, 1, 1, 1, 1, 1)
    for cache, cell in zip(caches, cells, strict=False):
        cache[cell] = theirs[cell]
    *damaged, undamaged = decoded(subject, caches, own[-1], len(expected))
    assert torch.equal(undamaged, expected)
    assert [cell for cell, answer in zip(cells, damaged, strict=True) if torch.equal(answer, expected)] == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("block", [1, 2, 3])
def test_a_foreign_block_behind_a_shared_prefix_is_spelled_out(shape, block):
    both = words(140)
    n_shared = BLOCK * block - 1
    own, foreign = both[:70], both[:n_shared] + both[70 + n_shared :]
    prompt = alphabet.prompt_tokens(own)
    subject = model(shape)
    cache = cached(subject, prompt[:-1])
    place = slice(BLOCK * block, BLOCK * (block + 1))
    cache[..., place, :] = cached(subject, alphabet.prompt_tokens(foreign)[:-1])[..., place, :]
    answer = [alphabet.word_of(token) for token in decoded(subject, cache[None], prompt[-1], 70)[0].tolist()]
    theirs = foreign[n_shared:]
    run = longest = 1
    for pair in pairwise(answer):
        run = run + 1 if pair in set(pairwise(theirs)) else 1
        longest = max(longest, run)
    assert longest >= 3
