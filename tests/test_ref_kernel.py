"""The Triton kernel, here in Triton's interpreter: it attends as the road that gathers does, and engines run on it."""

import os

import pytest
import torch
from roads import assert_empty, finish
from seams import NOISE, engine_on, margin, prompts
from tiny_models import KV_HEADS, WINDOW, tiny

from kvfence.reference_impl.golden import Golden
from kvfence.reference_impl.ledger import Shape
from kvfence.reference_impl.paged import Batch, Group, UnsupportedModelError, paged_attention
from kvfence.reference_impl.runner import Runner
from kvfence.reference_impl.scaled import ScaledStorage
from kvfence.reference_impl.storage import Storage

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton", reason="triton is not installed: make kernel")
kernel = pytest.importorskip("kvfence.reference_impl.kernel")

HEADS, BLOCKS = 4, 40


class Layer:
    layer_idx, is_causal = 1, True


def attended(attend, size, kv_heads, rows, width=16, dtype=torch.float32, storage=Storage, **how):
    """What a layer gives for rows (start, stop) whose earlier K and V lie in shuffled blocks."""
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    cache = storage(Shape(2, kv_heads, width), BLOCKS, size, dtype, DEVICE)
    for layer in range(2):
        cache.write(layer, torch.arange(BLOCKS * size, device=DEVICE), *drawn(2, BLOCKS * size, kv_heads, width))
    free = (torch.randperm(BLOCKS - 1, generator=generator) + 1).tolist()
    columns = -(-max(stop for _, stop in rows) // size)
    tables = torch.zeros(len(rows), columns, dtype=torch.long)
    for table, (_, stop) in zip(tables, rows, strict=True):
        used = -(-stop // size)
        table[:used] = torch.tensor([free.pop() for _ in range(used)])
    at = torch.stack([torch.arange(*row) for row in rows])
    slots = (tables.gather(1, at // size) * size + at % size).flatten()
    group = Group(0, tables.to(DEVICE), at.to(DEVICE), columns * size)
    batch = Batch(cache, slots.to(DEVICE), [group], attend)
    query, key, value = (drawn(1, heads, len(slots), width) for heads in (HEADS, kv_heads, kv_heads))
    return paged_attention(Layer(), query, key, value, None, paged=batch, **how)[0]


def both(*arguments, **how):
    return (attended(attend, *arguments, **how) for attend in (None, kernel.attend))


DECODING = ((0, 1), (40, 41), (17, 18), (63, 64))
CHUNKS = ((0, 19), (30, 49))  # no tile of queries is full


@pytest.mark.parametrize("rows", [DECODING, CHUNKS], ids=["decoding", "chunks"])
@pytest.mark.parametrize("kv_heads", KV_HEADS)
@pytest.mark.parametrize("size", [4, 16])
def test_it_attends_as_the_road_that_gathers(size, kv_heads, rows):
    gathered, direct = both(size, kv_heads, rows)
    assert (gathered - direct).abs().max() < 1e-5
    # A positive control: another row's blocks would show.
    assert (gathered - attended(kernel.attend, size, kv_heads, rows[::-1])).abs().max() > 0.1


@pytest.mark.parametrize("rows", [DECODING, CHUNKS], ids=["decoding", "chunks"])
@pytest.mark.parametrize(
    "how", [{"sliding_window": 5}, {"sliding_window": 33}, {"softcap": 2.0}, {"scaling": 0.7}], ids=str
)
def test_windows_caps_and_scales(how, rows):
    gathered, direct = both(16, 2, rows, **how)
    assert (gathered - direct).abs().max() < 1e-5
    assert (direct - attended(kernel.attend, 16, 2, rows)).abs().max() > 1e-3


@pytest.mark.parametrize("width", [8, 24, 64])
def test_heads_of_any_size(width):
    gathered, direct = both(4, 2, CHUNKS, width=width)
    assert (gathered - direct).abs().max() < 1e-5


def test_half_precision():
    gathered, direct = both(4, 2, DECODING, dtype=torch.float16)
    assert direct.dtype == torch.float16
    assert (gathered - direct).abs().max() < 4e-3  # two roundings of what is about 1


def test_a_storage_with_scales():
    gathered, direct = both(4, 2, DECODING, storage=ScaledStorage)
    assert (gathered - direct).abs().max() < 1e-5


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "gpt2"])
def test_an_engine_on_it_answers_as_golden(family, monkeypatch):
    calls, attend = [], kernel.attend
    monkeypatch.setattr(kernel, "attend", lambda *arguments: calls.append(1) or attend(*arguments))
    engine = engine_on(tiny(family).to(DEVICE), kernel=True, token_budget=32, max_concurrency=3)
    for i, prompt in enumerate(prompts(3, WINDOW, own=5)):
        engine.submit(str(i), prompt, 4)
    done = finish(engine)
    assert calls
    assert margin(Golden(tiny(family)), done.values()) <= NOISE
    assert_empty(engine)


def test_where_it_cannot_run_that_is_told(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedModelError, match="the kernel needs a CUDA device, or TRITON_INTERPRET=1"):
        Runner(tiny("llama"), kernel=True)
