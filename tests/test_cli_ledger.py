"""`kvfence ledger` as a user meets it."""

import json
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from kvfence.conformance.cli import main
from kvfence.reference_impl.golden import load_model

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path):
    def write(name="model", **config):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**CONFIG, **config}))
        return tmp_path / name

    return write


def ledger(*args, expect=0):
    done = CliRunner().invoke(main, ["ledger", *map(str, args)])
    assert done.exit_code == expect, done.output
    return done


def rows(output):
    """Blocks and memory of each row, by its name."""
    lines = output.splitlines()[4:]
    return {line[:24].strip(): (line[24:36].strip(), line[36:].strip()) for line in lines}


def test_what_it_says_of_the_canary(canary_folder):
    args = ["--model", canary_folder.path, "--concurrency", 16, "--length", 1000, "--prefix", 520]
    done = ledger(*args, "--dtype", "float16", "--block-size", 16)
    assert done.stdout.splitlines()[:3] == [
        "canary-1: 3 layers, 2 KV heads of 64, float16",
        "16 × 1,000 tokens, the first 520 shared, in blocks of 16",
        "formula: 2 × layers × KV heads × head size × 16,000 tokens × 2 bytes",
    ]
    # A token is 1,536 bytes, a block 24 KiB; 32 of 63 blocks are shared, and the last one of each is half empty.
    assert rows(done.stdout) == {
        "K/V of one token": ("", "1.50 KiB"),
        "formula, nothing shared": ("", "23.44 MiB"),
        "in whole blocks": ("1,008", "23.62 MiB"),
        "saved by sharing": ("480", "11.25 MiB"),
        "needed": ("528", "12.38 MiB"),
        "of it empty": ("", "192.00 KiB"),
        "weights": ("", "5.22 MiB"),
    }
    parameters = sum(p.numel() for p in load_model(canary_folder.path).parameters())
    assert f"{parameters * 2 / 1024**2:.2f}" == "5.22"


def test_a_model_is_by_default_in_the_dtype_it_was_saved_in(folder):
    saved = folder()
    assert "bfloat16" in ledger("--model", saved).stdout
    assert rows(ledger("--model", saved).stdout)["K/V of one token"] == ("", "128 B")
    assert rows(ledger("--model", saved, "--dtype", "float32").stdout)["K/V of one token"] == ("", "256 B")


def test_weights_of_all_shards_and_of_no_other_file(folder):
    saved = folder()
    assert rows(ledger("--model", saved).stdout)["weights"] == ("", "not known")
    for name in ("model-00001-of-00002", "model-00002-of-00002", "consolidated"):
        save_file({"weight": torch.zeros(3, 100)}, saved / f"{name}.safetensors")
    assert rows(ledger("--model", saved).stdout)["weights"] == ("", "1.17 KiB")
    save_file({"weight": torch.zeros(3, 100, dtype=torch.int8)}, saved / "model-00002-of-00002.safetensors")
    assert rows(ledger("--model", saved).stdout)["weights"] == ("", "not known")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "nope"], "no model 'nope'"),
        (["--model", "missing/folder"], "no model folder missing/folder"),
        (["--model", "mute"], "cannot tell from mute/config.json what K/V take: it does not say num_hidden_layers"),
        (["--model", "odd"], "it has kv_lora_rank, which the formula does not cover"),
        (["--model", "quantised"], "unknown dtype float8_e4m3fn; choose one of float64, float32, bfloat16, float16"),
        (["--model", "broken"], "cannot read broken/model.safetensors"),
        (["--dtype", "int8"], "unknown dtype int8"),
        (["--concurrency", "0"], "a concurrency of 0 makes no sense"),
        (["--length", "-3"], "a length of -3 makes no sense"),
        (["--block-size", "0"], "a block size of 0 makes no sense"),
        (["--prefix", "1024"], "a prefix of 1024 tokens does not fit"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_2(monkeypatch, tmp_path, folder, canary_folder, args, message):
    monkeypatch.chdir(tmp_path)
    folder("mute", num_hidden_layers=None)
    folder("odd", kv_lora_rank=512)
    folder("quantised", dtype="float8_e4m3fn")
    (folder("broken") / "model.safetensors").write_bytes(b"no tensors")
    args = [f"{tmp_path}/{arg}" if arg in ("mute", "odd", "quantised", "broken") else arg for arg in args]
    default = ["--model", canary_folder.path] if "--model" not in args else []
    done = ledger(*default, *args, expect=2)
    assert message in done.stderr.replace(f"{tmp_path}/", "")
    assert done.stderr.startswith("kvfence: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_it_does_not_import_torch(canary_folder):
    script = (
        "import sys\nfrom kvfence.conformance.cli import main\n"
        f"try: main(['ledger', '--model', {str(canary_folder.path)!r}])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "needed" in done.stdout
