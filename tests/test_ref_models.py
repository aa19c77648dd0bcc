"""Models on the reference engine: one of each kind of attention answers as golden; others are turned down in a line."""

from itertools import product

import pytest
import transformers
from roads import assert_empty, finish
from seams import NOISE, engine_on, margin, prompts
from tiny_models import FAMILIES, KV_HEADS, SUPPORTED, tiny

from kvfence.reference_impl.golden import DTYPES, Golden
from kvfence.reference_impl.paged import UnsupportedModelError
from kvfence.reference_impl.runner import Runner

LENGTH, PREFIX = 12, 40
CASES = [
    *product(SUPPORTED, KV_HEADS[:1], ["float32"]),
    *product(sorted({*SUPPORTED} - {"gpt2"}), KV_HEADS[1:], ["float32"]),
    *product(SUPPORTED, [None], ["float16", "bfloat16"]),
]


@pytest.mark.parametrize(("family", "kv_heads", "dtype"), CASES)
def test_outputs_are_golden(family, kv_heads, dtype):
    golden = Golden(tiny(family, kv_heads, DTYPES[dtype]))
    engine = engine_on(tiny(family, kv_heads, DTYPES[dtype]), token_budget=48, max_concurrency=3)
    asked = prompts(4, PREFIX)
    for i, prompt in enumerate(asked):
        engine.submit(str(i), prompt, LENGTH)
    done = finish(engine)
    assert all(done[str(i)].cached >= PREFIX for i in range(1, 4))
    # Two roundings of the largest logit; a foreign block is a hundred times as much.
    noise = NOISE if dtype == "float32" else 2 * max(golden.resolution(s.tokens) for s in done.values())
    assert margin(golden, done.values()) <= noise
    assert_empty(engine)


def test_these_models_depend_on_all_of_their_context():
    """The positive control: one foreign block would show, in every family."""
    for family in SUPPORTED:
        golden = Golden(tiny(family))
        [prompt] = prompts(1, own=8)
        output = golden.generate(prompt, LENGTH)
        foreign = [*prompt[:32], *prompts(1, prefix=8, own=0)[0], *prompt[40:]]
        assert max(golden.verify(foreign, output).margins) > 100 * NOISE, family


def built(model, config, **sizes):
    """A model of 2 layers that is not among the families."""
    plain = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    plain |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
    return getattr(transformers, model)(getattr(transformers, config)(**plain | sizes)).eval()


def failing(model, message):
    def fail(*_):
        raise ValueError(message)

    model.model.layers[1].register_forward_pre_hook(fail)
    return model


UNSUPPORTED = {
    "does not use transformers' attention interface": lambda: built("BloomForCausalLM", "BloomConfig"),
    "attention sinks are not supported": lambda: tiny("gpt-oss"),
    "attention to later tokens is not supported": lambda: built("BertLMHeadModel", "BertConfig", pad_token_id=0),
    "not each layer attends once through transformers' attention interface": lambda: built(
        "DiffLlamaForCausalLM", "DiffLlamaConfig", intermediate_size=64, num_key_value_heads=4
    ),
    "attention masks other than a sliding window are not supported": lambda: built(
        "PhimoeForCausalLM", "PhimoeConfig", intermediate_size=64, num_key_value_heads=4, sliding_window=24
    ),
    "K and V of different shapes are not supported": lambda: built(
        "MiMoV2FlashForCausalLM",
        "MiMoV2FlashConfig",
        intermediate_size=64,
        moe_intermediate_size=16,
        n_routed_experts=2,
        num_experts_per_tok=1,
        num_key_value_heads=2,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        head_dim=16,
        v_head_dim=8,
    ),
    "no attention like that": lambda: failing(tiny("llama"), "no attention like that\nand more"),
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_a_model_that_would_be_run_wrongly_is_turned_down_in_one_line(reason):
    model = UNSUPPORTED[reason]()
    with pytest.raises(UnsupportedModelError) as raised:
        engine_on(model)
    assert str(raised.value).replace(":", "").split() == [type(model).__name__, *reason.split()]


@pytest.mark.parametrize("family", SUPPORTED)
def test_the_window_is_what_every_layer_is_limited_to(family):
    windows = {"mistral": 24}
    assert Runner(tiny(family)).window == windows.get(family)
    assert set(windows) < set(FAMILIES)
