"""Mirrors: the same answers, other K/V."""

import numpy as np
import pytest
from tiny_models import tiny

from kvfence.prompts import alphabet
from kvfence.prompts.mirror import MirrorError, Part, write_adapter, write_weights
from kvfence.reference_impl.golden import Golden, load_model
from kvfence.reference_impl.lora import read_lora

PROMPT = alphabet.prompt_tokens(range(20, 50))
OUTPUT = alphabet.answer(PROMPT, 40)


@pytest.mark.parametrize(("part", "turned"), [(Part.KEYS, 0), (Part.VALUES, 1)])
def test_weights_answer_the_same_with_one_of_k_and_v_turned_around(canary_folder, tmp_path, part, turned):
    write_weights(canary_folder.path, part, tmp_path)
    own, mirror = Golden.load(canary_folder.path), Golden.load(tmp_path)
    assert own.verify(PROMPT, OUTPUT) == mirror.verify(PROMPT, OUTPUT)
    kv, other = own.kv(PROMPT), mirror.kv(PROMPT)
    assert np.array_equal(other[turned], -kv[turned])
    assert np.array_equal(other[1 - turned], kv[1 - turned])
    assert np.abs(kv).max(axis=(2, 3, 4)).min() > 0.1


@pytest.mark.parametrize("part", Part)
def test_an_adapter_is_the_same_to_the_last_bit(canary_folder, tmp_path, part):
    write_weights(canary_folder.path, part, tmp_path / "model")
    write_adapter(canary_folder.path, part, tmp_path / "adapter")
    own, mirror = load_model(canary_folder.path), load_model(tmp_path / "model")
    deltas = read_lora(tmp_path / "adapter")
    assert len(deltas) == 2 * len(own.model.layers)
    for name, delta in deltas.items():
        assert (own.get_parameter(name) + delta).equal(mirror.get_parameter(name))


def test_a_model_that_has_none(tmp_path):
    for content in (None, "junk"):
        if content:
            (tmp_path / "model.safetensors").write_text(content)
        with pytest.raises(MirrorError, match="cannot read"):
            write_weights(tmp_path, Part.KEYS, tmp_path / "mirror")
    tiny("gpt2").save_pretrained(tmp_path / "gpt2")
    with pytest.raises(MirrorError, match="has no projections without bias named v_proj and o_proj"):
        write_adapter(tmp_path / "gpt2", Part.VALUES, tmp_path / "mirror")
