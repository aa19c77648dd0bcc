import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny

from kvfence.prompts import alphabet
from kvfence.reference_impl.golden import Golden, GoldenError, load_model
from kvfence.reference_impl.shapes import cached_greedy


@pytest.fixture(scope="module")
def golden(random_folder):
    return Golden.load(random_folder.path)


PROMPT = tuple(range(8, 40))


def test_generator_is_greedy_by_full_recomputation(golden):
    tokens = list(PROMPT)
    for _ in range(6):
        with torch.no_grad():
            tokens.append(int(golden.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    assert golden.generate(PROMPT, 6) == tuple(tokens[len(PROMPT) :])


def test_verifier_agrees_with_generator(golden):
    output = golden.generate(PROMPT, 8)
    verification = golden.verify(PROMPT, output)
    assert verification.choices == output
    assert verification.margins == (0.0,) * 8


@pytest.mark.parametrize("wrong", [(), (0,), (7,), (2, 3, 5)])
def test_a_draft_that_errs_is_made_right(golden, monkeypatch, wrong):
    drafts = []

    def erring(model, tokens, n):
        drafts.append(n)
        draft = cached_greedy(model, tokens, n)
        offset = len(tokens) - len(PROMPT)
        return tuple((token + (offset + i in wrong and len(drafts) == 1)) % 3904 for i, token in enumerate(draft))

    monkeypatch.setattr("kvfence.reference_impl.golden.cached_greedy", erring)
    assert golden.output(PROMPT, 8) == golden.generate(PROMPT, 8)
    assert drafts == [8] if not wrong or wrong == (7,) else len(drafts) == 2


def test_verifier_measures_a_changed_token(golden):
    output = list(golden.generate(PROMPT, 8))
    output[3] = (output[3] + 1) % 3904
    verification = golden.verify(PROMPT, output)
    with torch.no_grad():
        logits = golden.model(torch.tensor([[*PROMPT, *output[:3]]]), use_cache=False).logits[0, -1]
    assert verification.margins[:3] == (0.0,) * 3
    assert verification.margins[3] == pytest.approx(float(logits.max() - logits[output[3]]), abs=1e-4)
    assert verification.logprobs[3] == pytest.approx(float(logits.log_softmax(-1)[output[3]]), abs=1e-4)


def test_canary_is_golden_by_closed_form(canary_folder):
    prompt = alphabet.prompt_tokens(range(100, 140), 3)
    assert Golden.load(canary_folder.path).generate(prompt, 60) == alphabet.answer(prompt, 60)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_any_dtype(canary_folder, dtype):
    golden = Golden.load(canary_folder.path, dtype)
    prompt = alphabet.prompt_tokens(range(100, 110))
    assert golden.model.dtype == getattr(torch, dtype)
    assert golden.logits(prompt, 1).dtype == (torch.float64 if dtype == "float64" else torch.float32)
    assert max(golden.verify(prompt, alphabet.answer(prompt, 20)).margins) == 0


def test_model_without_logits_to_keep_gives_the_same(golden):
    class Plain:
        device = golden.model.device

        def forward(self, input_ids, use_cache):
            return SimpleNamespace(logits=golden.model(input_ids=input_ids, use_cache=use_cache).logits)

        __call__ = forward

    # A product with fewer rows may round otherwise.
    torch.testing.assert_close(Golden(Plain()).logits(PROMPT, 5), golden.logits(PROMPT, 5), rtol=0, atol=1e-5)


def test_overflow_shows_as_nan(golden):
    class Overflowing:
        device = golden.model.device

        def forward(self, input_ids, use_cache):
            return SimpleNamespace(logits=torch.full((1, input_ids.shape[1], 50), float("nan")))

        __call__ = forward

    assert all(math.isnan(margin) for margin in Golden(Overflowing()).verify(PROMPT, (1, 2)).margins)


@pytest.mark.parametrize(("prompt", "output"), [((), (1,)), ((1,), ())])
def test_nothing_to_verify(golden, prompt, output):
    with pytest.raises(ValueError, match="at least one token"):
        golden.verify(prompt, output)


def test_unknown_dtype_and_unloadable_model(canary_folder, tmp_path):
    with pytest.raises(GoldenError, match="unknown dtype int8; choose one of"):
        Golden.load(canary_folder.path, "int8")
    with pytest.raises(GoldenError, match=r"cannot load .* as a causal LM"):
        Golden.load(tmp_path)
    for file in canary_folder.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:2000])
    with pytest.raises(GoldenError, match=r"cannot load .* as a causal LM"):
        Golden.load(tmp_path)


def test_models_that_are_loaded_at_once_have_all_their_weights(tmp_path):
    tied = tiny("gpt2")  # its head is saved as the embedding only
    tied.save_pretrained(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        models = list(threads.map(load_model, [tmp_path] * 12))
    assert all(torch.equal(model.lm_head.weight, tied.lm_head.weight) for model in models)
