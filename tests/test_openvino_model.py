import json
import shutil
import sys

import pytest
from tiny_models import tiny

from kvfence.adapters import openvino, openvino_model
from kvfence.adapters.api import EngineConfig, EngineStartError, Request
from kvfence.prompts import canary, models
from kvfence.reference_impl.golden import Golden

pytest.importorskip("openvino_genai", reason="openvino-genai is not installed: the extra openvino brings it")


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("tied", [False, True])
def test_a_converted_model_is_golden_up_to_rounding(tmp_path, kv_heads, tied, monkeypatch):
    monkeypatch.setenv("KVFENCE_CACHE", str(tmp_path / "cache"))
    tiny("llama", kv_heads, tie_word_embeddings=tied, rope_theta=500.0).save_pretrained(tmp_path / "tiny")
    golden = Golden.load(tmp_path / "tiny")
    prompts = [tuple(range(2 + i, 62 + 3 * i)) for i in range(3)]
    engine = openvino.open_engine(str(tmp_path / "tiny"), EngineConfig(max_concurrency=3))
    completions = engine.generate([Request(str(i), prompt, 24) for i, prompt in enumerate(prompts)])
    engine.close()
    for prompt, done in zip(prompts, completions, strict=True):
        expected = golden.verify(prompt, done.tokens)
        assert max(expected.margins) < 1e-4
        assert done.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_a_folder_is_converted_once(canary_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("KVFENCE_CACHE", str(tmp_path / "cache"))
    folder = openvino_model.model_folder(str(canary_folder.path))
    written = (folder / openvino_model.NAME).stat()
    assert openvino_model.model_folder(str(canary_folder.path)) == folder
    assert (folder / openvino_model.NAME).stat() == written
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    # Other weights in the same place are another model.
    copy = shutil.copytree(canary_folder.path, tmp_path / "copy")
    one = openvino_model.model_folder(str(copy))
    canary.write(copy, seed=1)
    assert openvino_model.model_folder(str(copy)) != one


def test_what_cannot_be_converted(canary_folder, tmp_path, monkeypatch):
    windowed = str(models.resolve("windowed").path)
    monkeypatch.setenv("KVFENCE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(EngineStartError, match="sliding window, which openvino"):
        openvino_model.model_folder(windowed)
    tiny("llama", attention_bias=True).save_pretrained(tmp_path / "biased")
    with pytest.raises(EngineStartError, match=r"holds model\.layers\.0\.self_attn\.k_proj\.bias, which openvino"):
        openvino_model.model_folder(str(tmp_path / "biased"))
    tiny("llama", hidden_act="gelu").save_pretrained(tmp_path / "gelu")
    with pytest.raises(EngineStartError, match="activation gelu"):
        openvino_model.model_folder(str(tmp_path / "gelu"))
    short = shutil.copytree(canary_folder.path, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(EngineStartError, match=r"lacks model\.layers\.3\.\S+, which a Llama has"):
        openvino_model.model_folder(str(short))
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(EngineStartError, match=r"pip install 'kvfence\[openvino\]'"):
        openvino_model.model_folder(str(canary_folder.path))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
