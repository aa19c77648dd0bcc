"""What the adapter of vLLM says before there is a vLLM."""

import os
import sys

import pytest

from kvfence.adapters import vllm_start
from kvfence.adapters.api import EngineConfig, EngineStartError, UnsupportedConfigError
from kvfence.adapters.vllm import open_engine


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in vllm_start.ENVIRONMENT:
        # Both are put back: what the adapter sets, and what was there before.
        monkeypatch.setenv(name, "as it was")
        monkeypatch.delenv(name)


def test_without_vllm_one_line_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EngineStartError, match=r"^vllm cannot be imported: .* `make engine-vllm` builds \(.*\)$"):
        open_engine("anywhere", EngineConfig())


def test_what_the_user_has_set_is_left(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    with pytest.raises(EngineStartError):
        open_engine("anywhere", EngineConfig())
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_a_dtype_is_refused_before_anything_is_imported():
    with pytest.raises(UnsupportedConfigError, match="vllm has no dtype float64"):
        open_engine("anywhere", EngineConfig(dtype="float64"))


@pytest.mark.parametrize(
    ("device", "asked", "size", "blocks"),
    [("cpu", None, 32, 8), ("cpu", 16, 32, 8), ("cpu", 33, 64, 5), ("cuda", None, 16, 14), ("cuda", 16, 16, 14)],
)
def test_blocks_are_those_the_device_has_and_hold_what_was_asked_for(device, asked, size, blocks):
    chosen = vllm_start.arguments("m", EngineConfig(block_size=asked, pool_size=208), device)
    assert (chosen["block_size"], chosen["num_gpu_blocks_override"]) == (size, blocks)


def test_arguments_of_vllms_own_go_before_ours():
    config = EngineConfig(
        chunk_size=8, max_concurrency=16, engine_args={"max_model_len": "64", "kv_cache_dtype": "fp8"}
    )
    chosen = vllm_start.arguments("m", config, "cpu")
    assert (chosen["max_model_len"], chosen["kv_cache_dtype"]) == (64, "fp8")
    assert chosen["max_num_batched_tokens"] == 16


def test_what_is_wrong_is_told_in_a_line():
    nested = ValueError("1 validation error for M\n  Value error, no such folder [type=value_error, input]\n x")
    assert vllm_start.told(nested) == "no such folder"
    assert vllm_start.told(RuntimeError("")) == "RuntimeError"
