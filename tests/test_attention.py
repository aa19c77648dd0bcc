import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from kvfence.adapters.observation import join
from kvfence.reference_impl import attention
from kvfence.reference_impl.attention import NotWatchableError, probabilities, summarise, total_variation, watched
from kvfence.reference_impl.golden import Golden

TOKENS = tuple(range(100, 160))
N = 7


def tiny(kind=LlamaForCausalLM, **options):
    config = {LlamaForCausalLM: LlamaConfig, MistralForCausalLM: MistralConfig}[kind](
        vocab_size=200, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, **options
    )
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.3)
    return model


def eager(model, tokens):
    """Whole attention matrices [layers, heads, T, T] from transformers' own eager implementation."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([tokens]), use_cache=False, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return torch.stack([layer[0] for layer in out])


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_probabilities_are_those_of_eager_attention(kv_heads):
    model, seen = tiny(num_key_value_heads=kv_heads), {}
    Golden(model).verify(TOKENS, (5,) * N, lambda layer, p: seen.update({layer: p}))
    expected = eager(model, (*TOKENS, *(5,) * (N - 1)))[:, :, -N:]
    torch.testing.assert_close(torch.stack([seen[0], seen[1]]), expected, atol=5e-6, rtol=0)
    # A positive control: attention is no constant.
    assert expected.max() > 0.5


def test_a_sliding_window_is_seen():
    model, seen = tiny(MistralForCausalLM, sliding_window=8, num_key_value_heads=2), {}
    Golden(model).verify(TOKENS, (5,) * N, lambda layer, p: seen.update({layer: p}))
    torch.testing.assert_close(seen[1], eager(model, (*TOKENS, *(5,) * (N - 1)))[1, :, -N:], atol=5e-6, rtol=0)
    assert (seen[1][..., : len(TOKENS) - 9] == 0).all()


def test_watching_changes_no_bit(random_folder):
    golden = Golden.load(random_folder.path)
    seen = []
    assert golden.verify(TOKENS, (5,) * N, lambda layer, p: seen.append(layer)) == golden.verify(TOKENS, (5,) * N)
    assert seen == list(range(6))
    # Nobody watches any more.
    golden.verify(TOKENS, (5,) * N)
    assert len(seen) == 6


def test_two_models_are_watched_apart_and_one_model_once():
    first, second, calls = tiny(), tiny(), []
    ids = torch.tensor([TOKENS])
    with watched(first, lambda call: calls.append(1)), watched(second, lambda call: calls.append(2)):
        second(input_ids=ids)
        with pytest.raises(NotWatchableError, match="being watched already"), watched(first, calls.append):
            pass
        first(input_ids=ids)
    assert calls == [2, 2, 1, 1]


def test_what_cannot_be_watched_says_so(random_folder):
    model = AutoModelForCausalLM.from_pretrained(random_folder.path, attn_implementation="eager")
    assert "'eager' has no function to wrap; sdpa has" in attention.watchable(model)
    model.set_attn_implementation("sdpa")
    assert attention.watchable(model) is None
    for layer in model.model.layers[1:]:
        del layer.self_attn.layer_idx
    assert "cannot be told apart" in attention.watchable(model)


def random_rows(heads, queries, keys):
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(heads, queries, keys, generator=generator)
    at = torch.arange(keys - queries, keys)
    scores.masked_fill_(torch.arange(keys) > at[:, None], -math.inf)
    return scores.softmax(-1), at


def test_a_summary_tells_keys_by_their_distance():
    p, at = random_rows(2, 3, 40)
    rows, maximum, entropy, top = summarise(p, at)
    for head in range(2):
        for query in range(3):
            own = p[head, query, : at[query] + 1].flip(0).numpy()
            np.testing.assert_array_equal(rows[head, query, : len(own)], own)
            assert not rows[head, query, len(own) :].any()
            assert maximum[head, query] == own.max()
            assert entropy[head, query] == pytest.approx(-(own * np.log(own)).sum(), abs=1e-5)
            assert top[head, query].tolist() == np.argsort(-own)[:3].tolist()


def test_far_keys_are_told_in_bins_and_nothing_is_lost():
    p, at = random_rows(1, 2, 1000)
    rows = summarise(p, at)[0]
    assert rows.shape[-1] == attention.NEAR + math.ceil((1000 - attention.NEAR) / attention.FAR)
    np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-6)
    back = p[0, 1].flip(0)
    assert rows[0, 1, attention.NEAR] == pytest.approx(float(back[512:528].sum()), abs=1e-7)


def test_the_first_token_has_one_key():
    rows, maximum, entropy, top = summarise(torch.ones(1, 1, 1), torch.tensor([0]))
    assert (rows.tolist(), maximum.tolist(), entropy.tolist()) == ([[[1.0]]], [[1.0]], [[0.0]])
    assert top.tolist() == [[[0, -1, -1]]]


@pytest.mark.parametrize(
    ("p", "q", "distance"),
    [
        ([0.5, 0.5], [0.5, 0.5], 0.0),
        ([1.0, 0.0], [0.0, 1.0], 1.0),
        ([0.7, 0.3], [0.5, 0.5], 0.2),
        ([0.6, 0.3, 0.1], [0.7, 0.3], 0.1),
        # Mass that went to keys of others.
        ([0.5, 0.3], [0.6, 0.4], 0.2),
    ],
)
def test_total_variation(p, q, distance):
    p, q = np.array(p, np.float32), np.array(q, np.float32)
    assert total_variation(p, q) == pytest.approx(distance, abs=1e-6)
    assert total_variation(q, p) == pytest.approx(distance, abs=1e-6)


def test_probabilities_obey_masks_of_either_kind():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(1, 2, 3, 8, generator=generator), torch.randn(1, 1, 5, 8, generator=generator)
    visible = torch.tensor([[1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], dtype=torch.bool)[None, None]
    added = torch.zeros(visible.shape).masked_fill(~visible, -math.inf)
    by = [probabilities(attention.Call(0, query, key, mask, 1.0, {}), slice(-2, None)) for mask in (visible, added)]
    torch.testing.assert_close(by[0], by[1])
    expected = (query @ key.transpose(-1, -2) + added).softmax(-1)[:, :, -2:]
    torch.testing.assert_close(by[0], expected)


def test_steps_are_joined_with_zeros_for_keys_to_come():
    steps = [summarise(torch.full((2, 3, 1, n), 1 / n), torch.tensor([n - 1])) for n in (2, 3)]
    joined = join([tuple(array.squeeze(2) for array in step) for step in steps])
    assert joined.rows.shape == (2, 2, 3, 3)
    np.testing.assert_allclose(joined.rows[:, 0, 0], [[0.5, 0.5, 0], [1 / 3] * 3], atol=1e-6)
