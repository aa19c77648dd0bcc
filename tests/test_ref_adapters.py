"""Adapters of the reference engine: a request runs with the weights it asked for, whoever is in the batch with it."""

import pytest
import torch
from roads import assert_empty, finish, step_until
from seams import NOISE, engine_on, margin, prompts
from tiny_models import tiny

from kvfence.reference_impl.engine import EngineError
from kvfence.reference_impl.golden import Golden
from kvfence.reference_impl.key import AdapterId
from kvfence.reference_impl.scheduler import Preemption

LENGTH = 10
PREFIX = 40
NAMES = (None, "a", "b")


def deltas(seed, family="qwen2"):
    """Deltas of a bias, of a layer's K and V, of the embedding and of the head."""
    generator = torch.Generator().manual_seed(seed)
    own = dict(tiny(family).named_parameters())
    ending = ("1.self_attn.k_proj.weight", "0.self_attn.v_proj.weight", "k_proj.bias", "tokens.weight", "head.weight")
    names = [name for name in own if name.endswith(ending)]
    assert len(names) == 6
    return {name: 0.1 * torch.randn(own[name].shape, generator=generator) for name in names}


def merged(changes):
    """Golden on the weights with the deltas in them."""
    model = tiny("qwen2")
    with torch.no_grad():
        for name, delta in changes.items():
            model.get_parameter(name).add_(delta)
    return Golden(model)


DELTAS = {"a": deltas(1), "b": deltas(2)}


@pytest.fixture(scope="module")
def model():
    return tiny("qwen2")


@pytest.fixture(scope="module")
def goldens():
    return {None: Golden(tiny("qwen2")), **{name: merged(changes) for name, changes in DELTAS.items()}}


@pytest.fixture
def engine(model):
    engine = engine_on(model)
    for name, changes in DELTAS.items():
        engine.load_adapter(name, changes)
    return engine


def ask(engine, name, prompt, i, **options):
    return engine.submit(f"{name}{i}", prompt, LENGTH, adapter=name, **options)


def assert_golden(goldens, sequences):
    for sequence in sequences:
        adapter = sequence.namespace.adapter
        assert margin(goldens[adapter and adapter.name], [sequence]) <= NOISE, sequence.id


def test_one_step_runs_requests_of_all_adapters_which_share_among_themselves_only(engine, goldens, monkeypatch):
    asked = prompts(3, PREFIX)
    passes = []
    divide = engine.runner.passes
    monkeypatch.setattr(engine.runner, "passes", lambda rows: passes.append(divide(rows)) or passes[-1])
    for i, prompt in enumerate(asked):
        for name in NAMES:
            ask(engine, name, prompt, i)
    done = finish(engine)
    assert max(map(len, passes)) == len(NAMES)
    assert_golden(goldens, done.values())
    for name in NAMES:
        assert done[f"{name}0"].cached == 0
        assert done[f"{name}1"].cached == done[f"{name}2"].cached == PREFIX
    outputs = {tuple(done[f"{name}0"].output) for name in NAMES}
    assert len(outputs) == len(NAMES)
    assert_empty(engine)


def test_same_prompts_one_after_another_hit_within_an_adapter_only(engine, goldens):
    [prompt] = prompts(1, PREFIX)
    cached = {}
    for turn in range(2):
        for name in NAMES:
            sequence = ask(engine, name, prompt, turn)
            assert_golden(goldens, finish(engine).values())
            cached[name, turn] = sequence.cached
    assert {cached[name, 0] for name in NAMES} == {0}
    assert {cached[name, 1] for name in NAMES} == {len(prompt) - 1}


def test_a_salt_is_no_adapter(engine):
    [prompt] = prompts(1, PREFIX)
    ask(engine, "a", prompt, 0)
    finish(engine)
    engine.submit("salted", prompt, LENGTH, salt="a")
    ask(engine, "a", prompt, 1)
    done = finish(engine)
    assert done["salted"].cached == 0
    assert done["a1"].cached == len(prompt) - 1


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("how", Preemption)
def test_forked_and_preempted_requests_keep_their_adapter(model, goldens, how, depth):
    engine = engine_on(model, depth=depth, token_budget=24)
    engine.load_adapter("a", DELTAS["a"])
    [prompt, other] = prompts(2, PREFIX)
    parent = ask(engine, "a", prompt, 0)
    ask(engine, None, other, 1)
    step_until(engine, lambda: parent.emitted > 3)
    [child] = engine.fork("a0", [5])
    place = len(child.output)
    engine.preempt("a0", how)
    done = finish(engine)
    assert done["a0"].preemptions == 1
    forced = [*prompt, *child.output[:place], 5]
    del done[child.id]
    assert_golden(goldens, done.values())
    assert max(goldens["a"].verify(forced, child.output[place + 1 :]).margins) <= NOISE


def test_a_reload_is_another_version(engine, goldens):
    [prompt] = prompts(1, PREFIX)
    ask(engine, "a", prompt, 0)
    finish(engine)
    assert engine.load_adapter("a", DELTAS["b"]) == AdapterId("a", 2)
    reloaded = ask(engine, "a", prompt, 1)
    finish(engine)
    assert reloaded.cached == 0
    assert margin(goldens["b"], [reloaded]) <= NOISE
    engine.unload_adapter("a")
    assert engine.load_adapter("a", DELTAS["a"]) == AdapterId("a", 3)
    again = ask(engine, "a", prompt, 2)
    finish(engine)
    assert again.cached == 0
    assert margin(goldens["a"], [again]) <= NOISE


def test_a_turn_with_another_adapter_does_not_go_on_from_the_last_ones_kv(engine, goldens):
    first, second, third, fourth = prompts(4, PREFIX, own=3)
    ask(engine, "a", first, 0, conversation="c")
    history = finish(engine)["a0"].written
    same = ask(engine, "a", second, 1, conversation="c")
    finish(engine)
    assert same.cached >= history > len(first)
    assert_golden(goldens, [same])
    other = ask(engine, "b", third, 2, conversation="c")
    finish(engine)
    assert other.cached == 0
    assert_golden(goldens, [other])
    plain = ask(engine, None, fourth, 3, conversation="c")
    finish(engine)
    assert plain.cached == 0
    assert_golden(goldens, [plain])


def test_new_weights_leave_requests_their_adapter(model, engine, goldens):
    [prompt] = prompts(1, PREFIX)
    sequence = ask(engine, "a", prompt, 0)
    step_until(engine, lambda: sequence.emitted > 2)
    engine.new_weights()
    finish(engine)
    assert sequence.namespace.epoch == 1
    assert sequence.namespace.adapter == AdapterId("a", 1)
    assert_golden(goldens, [sequence])


def test_weights_are_back_bit_for_bit_also_after_a_failure(model, engine, monkeypatch):
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in model.named_parameters()}
    [prompt] = prompts(1, PREFIX)
    changed = []

    def failing(*_):
        changed.append({name for name, p in model.named_parameters() if p.data_ptr() != before[name][0]})
        raise RuntimeError("no more")

    ask(engine, "a", prompt, 0)
    finish(engine)
    monkeypatch.setattr(type(engine.storage), "gather", failing)
    ask(engine, "b", prompt, 1)
    assert finish(engine)["b1"].error == "no more"
    assert changed == [set(DELTAS["b"])]
    for name, parameter in model.named_parameters():
        pointer, value = before[name]
        assert parameter.data_ptr() == pointer
        assert torch.equal(parameter, value)


def test_what_cannot_be_is_said_in_one_line(engine):
    [prompt] = prompts(1)
    with pytest.raises(EngineError, match=r"^c0: there is no adapter c$"):
        ask(engine, "c", prompt, 0)
    with pytest.raises(EngineError, match=r"^c: there is no adapter c$"):
        engine.unload_adapter("c")
    with pytest.raises(EngineError, match=r"^c: Qwen2ForCausalLM has no parameter model.nothing$"):
        engine.load_adapter("c", {"model.nothing": torch.zeros(1)})
    shapes = r"the delta of lm_head.weight is \[2, 3\], the parameter \[256, 64\]"
    with pytest.raises(EngineError, match=f"^c: {shapes}$"):
        engine.load_adapter("c", {"lm_head.weight": torch.zeros(2, 3)})
    ask(engine, "a", prompt, 0)
    for change in (lambda: engine.load_adapter("a", DELTAS["b"]), lambda: engine.unload_adapter("a")):
        with pytest.raises(EngineError, match=r"^a: it is in use by request a0$"):
            change()
    engine.load_adapter("b", DELTAS["a"])
    engine.cancel("a0")
    engine.unload_adapter("a")
    assert not engine.sequences


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deltas_are_of_the_models_dtype(dtype):
    engine = engine_on(tiny("qwen2", dtype=dtype))
    engine.load_adapter("a", DELTAS["a"])
    rounded = {name: delta.to(dtype) for name, delta in DELTAS["a"].items()}
    model = tiny("qwen2", dtype=dtype)
    with torch.no_grad():
        for name, delta in rounded.items():
            model.get_parameter(name).add_(delta)
    [prompt] = prompts(1)
    sequence = ask(engine, "a", prompt, 0)
    finish(engine)
    golden = Golden(model)
    assert margin(golden, [sequence]) <= golden.resolution(sequence.tokens) * 2
