"""The memory ledger: the formula, a plan, an engine at work and the tensor it holds must tell the same."""

import json
import random
from dataclasses import replace

import pytest
from tiny_models import KV_HEADS, SUPPORTED, tiny

from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import DTYPES
from kvfence.reference_impl.ledger import ITEMSIZE, Ledger, Shape
from kvfence.reference_impl.occupancy import occupancy
from kvfence.reference_impl.runner import Runner
from kvfence.reference_impl.settings import Settings

SMOLLM2 = Shape(layers=30, kv_heads=3, head_dim=64)
BLOCK = 8
TOKENS = range(2, 256)


@pytest.fixture(scope="module")
def model():
    return tiny("llama", 2)


def beside_each_other(model, plan, prefix, length, prompt):
    """An engine with the pool of a plan, at the step in which all its sequences hold `length` tokens."""
    rng = random.Random(0)
    engine = ReferenceEngine(model, Settings(blocks=plan.blocks, block_size=BLOCK))
    shared = rng.sample(TOKENS, prefix)
    count = plan.tokens // length
    for i in range(count):
        # Others wait one step for what the first computes of their prefix; meanwhile it comes one token on.
        own = rng.sample(TOKENS, prompt - prefix - (i == 0 and bool(prefix)))
        engine.submit(str(i), [*shared, *own], length - prompt + 3)
    while any(sequence.written < length for sequence in engine.sequences.values()):
        engine.step()
    assert len(engine.sequences) == count
    assert engine.metrics.preemptions == 0
    return engine


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_plan_engine_and_tensor_agree(kv_heads, dtype):
    model = tiny("llama", kv_heads, DTYPES[dtype])
    plan = Ledger.plan(Shape(2, kv_heads, 16), dtype, 3, 45, BLOCK, prefix=21)
    engine = beside_each_other(model, plan, 21, 45, 40)
    assert occupancy(engine) == plan
    assert plan.allocated_bytes == engine.storage.kv.nbytes
    # 2 of 6 blocks are shared by three: 2 + 3 × 4, each of which ends with 3 empty slots.
    token = 2 * 2 * kv_heads * 16 * engine.storage.kv.element_size()
    assert (plan.used, plan.used_bytes) == (14, 14 * BLOCK * token)
    assert (plan.empty, plan.wasted_bytes) == (9, 9 * token)
    assert (plan.entries, plan.shared_bytes) == (18, 4 * BLOCK * token)
    assert plan.formula_bytes == 135 * token


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("count", [1, 4])
def test_plan_and_engine_agree_at_the_edges_of_a_block(model, length, count):
    plan = replace(Ledger.plan(Shape(2, 2, 16), "float32", count, length, BLOCK), blocks=64)
    assert occupancy(beside_each_other(model, plan, 0, length, length - 2)) == plan


def test_formula():
    plan = Ledger.plan(SMOLLM2, "bfloat16", 16, 2048)
    assert SMOLLM2.bytes(1, 2) == 23_040
    assert plan.formula_bytes == plan.used_bytes == 2 * 30 * 3 * 64 * 16 * 2048 * 2
    assert plan.wasted_bytes == plan.shared_bytes == 0
    assert plan.blocks == 16 * 2048 / 16 + 1


def test_dtypes_are_golden_s():
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == ITEMSIZE


def test_at_every_step_of_a_crowded_pool_slots_are_counted_as_if_one_by_one(model):
    rng = random.Random(1)
    engine = ReferenceEngine(model, Settings(blocks=24, block_size=BLOCK, token_budget=24, max_concurrency=6))
    shared = rng.sample(TOKENS, 20)
    for i in range(10):
        engine.submit(str(i), [*shared, *rng.sample(TOKENS, rng.randint(1, 20))], rng.randint(2, 30))
    seen = set()
    while engine.sequences:
        engine.step()
        if len(engine.scheduler.running) == 3 and (forked := engine.scheduler.running[0]).decoding:
            engine.fork(forked.id, [5])
        ledger = occupancy(engine)
        tables = [(s.table.blocks, s.written) for s in engine.sequences.values()]
        slots = {(blocks[p // BLOCK], p % BLOCK) for blocks, written in tables for p in range(written)}
        assert ledger.used == engine.pool.used == len({block for blocks, _ in tables for block in blocks})
        assert ledger.empty == ledger.used * BLOCK - len(slots)
        assert ledger.tokens == sum(written for _, written in tables)
        assert ledger.entries == sum(engine.pool.references)
        seen |= {f"empty {ledger.empty > 0}", f"shared {ledger.entries > ledger.used}"}
    assert engine.metrics.preemptions
    assert {"empty True", "shared True"} <= seen
    end = occupancy(engine)
    assert (end.used, end.entries, end.tokens, end.empty) == (0, 0, 0, 0)
    assert end.allocated_bytes == engine.storage.kv.nbytes


def test_blocks_behind_a_window_are_not_used():
    window = 3 * BLOCK
    engine = ReferenceEngine(tiny("mistral", sliding_window=window), Settings(blocks=32, block_size=BLOCK))
    sequence = engine.submit("a", list(range(2, 60)), 20)
    for step in range(15):
        engine.step()
        ledger = occupancy(engine)
        assert ledger.used == ledger.entries == engine.pool.used <= window // BLOCK + 1 < len(sequence.table.blocks)
        # What is left of the window's first block stays with it.
        first = (58 + step - window + 1) // BLOCK * BLOCK
        assert ledger.tokens == 58 + step - first


@pytest.mark.parametrize("order", [(7, 2), (2, 7)])
def test_a_block_holds_what_the_table_with_most_of_it_says(model, order):
    engine = ReferenceEngine(model, Settings(blocks=8, block_size=BLOCK))
    for id, written in zip("ab", order, strict=True):
        sequence = engine.submit(id, [2, 3], 1)
        sequence.table.blocks, sequence.written = [5], written
    ledger = occupancy(engine)
    assert (ledger.used, ledger.entries, ledger.tokens, ledger.empty) == (1, 2, 9, 1)


@pytest.mark.parametrize("family", SUPPORTED)
def test_the_shape_in_a_configuration_is_that_of_the_cache_the_model_asks_for(family):
    model = tiny(family, None if family == "gpt2" else 2)
    assert Shape.of(json.loads(model.config.to_json_string())) == Runner(model).shape


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_attention_heads": 4, "hidden_size": 64}, "num_hidden_layers"),
        ({"num_hidden_layers": 2, "hidden_size": 64}, "num_attention_heads"),
        ({"num_hidden_layers": 2, "num_attention_heads": "4", "hidden_size": 64}, "num_attention_heads"),
        ({"num_hidden_layers": 2, "num_attention_heads": 4}, "hidden_size"),
    ],
)
def test_a_configuration_that_does_not_tell_the_shape(config, message):
    with pytest.raises(ValueError, match=f"it does not say {message}"):
        Shape.of(config)


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"kv_lora_rank": 8}, "kv_lora_rank"),
        ({"multi_query": True}, "multi_query"),
        ({"num_kv_shared_layers": 1}, "num_kv_shared_layers"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ],
)
def test_a_cache_that_a_shape_does_not_tell(more, name):
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    assert Shape.of({**config, "layer_types": ["sliding_attention", "full_attention"]}) == Shape(2, 4, 16)
    with pytest.raises(ValueError, match=f"it has {name}, which the formula does not cover"):
        Shape.of({**config, **more})


def test_the_text_part_of_a_configuration_counts():
    text = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    assert Shape.of({"text_config": text, "hidden_size": 999}) == Shape(2, 4, 16)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dtype": "int8"}, "unknown dtype int8"),
        ({"concurrency": 0}, "concurrency of 0"),
        ({"length": 0}, "length of 0"),
        ({"block_size": -1}, "block size of -1"),
        ({"prefix": 10}, "prefix of 10"),
        ({"prefix": -1}, "prefix of -1"),
    ],
)
def test_a_plan_that_makes_no_sense(wrong, message):
    right = {"dtype": "float32", "concurrency": 2, "length": 10, "block_size": 4, "prefix": 9}
    assert Ledger.plan(SMOLLM2, **right).used == 2 + 2
    with pytest.raises(ValueError, match=message):
        Ledger.plan(SMOLLM2, **{**right, **wrong})
