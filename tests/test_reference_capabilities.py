"""What the reference engine can do beside answering, reached through the adapter contract."""

import json
from types import SimpleNamespace

import pytest
import torch
from continuous import LONG, PROMPTS, N
from safetensors.torch import save_file
from tiny_models import tiny

from kvfence.adapters import reference
from kvfence.adapters.api import CAPABILITIES, EngineConfig, EngineFaultError, Media, Request, Support
from kvfence.prompts import alphabet
from kvfence.reference_impl.golden import Golden, load_model
from kvfence.reference_impl.lora import LoraError, read_lora

RANK, ALPHA = 4, 12


def open_engine(folder, **config):
    settings = {"sharing": True, "max_concurrency": 4, "block_size": 8, "pool_size": 2048}
    return reference.open_engine(str(folder.path), EngineConfig(**{**settings, **config}))


def ask(engine, id="r", prompt=LONG, n=N, **what):
    (completion,) = engine.generate([Request(id, tuple(prompt), n, **what)])
    return completion


def finish(session):
    while session.step():
        pass
    return {completion.id: completion for completion in session.completions()}


def golden(folder, deltas=None):
    model = load_model(folder.path)
    with torch.no_grad():
        for name, delta in (deltas or {}).items():
            model.get_parameter(name).add_(delta)
    return Golden(model)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder of a model that answers at once, and with all of its context."""
    path = tmp_path_factory.mktemp("small")
    tiny("qwen2", vocab_size=alphabet.VOCAB_SIZE).save_pretrained(path)
    return SimpleNamespace(path=path)


@pytest.fixture(scope="module")
def lora(small, tmp_path_factory):
    """A LoRA folder, and the deltas it stands for, by hand."""
    return write_lora(tmp_path_factory.mktemp("lora"), load_model(small.path), 1)


def write_lora(folder, model, seed, **config):
    generator = torch.Generator().manual_seed(seed)
    modules = [name for name, _ in model.named_modules() if name.endswith(("k_proj", "v_proj"))]
    assert len(modules) > 3
    tensors, deltas = {}, {}
    for name in modules:
        out, wide = model.get_submodule(name).weight.shape
        a, b = (torch.randn(shape, generator=generator) / 20 for shape in ((RANK, wide), (out, RANK)))
        tensors |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
        deltas[f"{name}.weight"] = torch.einsum("or,rw->ow", b, a) * 3.0
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "fan_in_fan_out": False}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder, deltas


def test_it_can_do_all_that_the_contract_has_a_word_for(canary_folder):
    states = {name: capability.state for name, capability in open_engine(canary_folder).capabilities.items()}
    assert states == dict.fromkeys(CAPABILITIES, Support.SUPPORTED)


def test_requests_share_with_their_own_salt_only(canary_folder):
    engine = open_engine(canary_folder)
    shared = len(LONG) - 1  # the last token is always computed
    cached = [ask(engine, salt=salt).cached_tokens for salt in ("a", "b", None, "a", "b", None)]
    assert cached == [0, 0, 0, shared, shared, shared]


def test_a_request_runs_with_the_adapter_it_names_and_shares_with_it_only(small, lora, tmp_path):
    folder, deltas = lora
    engine = open_engine(small)
    engine.load_adapter("a", str(folder))
    plain, adapted = golden(small), golden(small, deltas)
    assert plain.generate(LONG, N) != adapted.generate(LONG, N)
    for adapter, expected, cached in ((None, plain, 0), ("a", adapted, 0), ("a", adapted, 99), (None, plain, 99)):
        completion = ask(engine, adapter=adapter)
        assert completion.tokens == expected.generate(LONG, N)
        assert (completion.cached_tokens > 0) == (cached > 0)
    # Another one of that name shares nothing with the last.
    folder, other = write_lora(tmp_path / "other", load_model(small.path), 2)
    engine.load_adapter("a", str(folder))
    completion = ask(engine, adapter="a")
    assert (completion.tokens, completion.cached_tokens) == (golden(small, other).generate(LONG, N), 0)
    with pytest.raises(EngineFaultError, match="r: there is no adapter b"):
        ask(engine, adapter="b")


def test_exchanged_weights_leave_nothing_of_the_old_ones(small, tmp_path):
    model = load_model(small.path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("k_proj.weight"):
                parameter.mul_(-1)
    model.save_pretrained(tmp_path)
    engine = open_engine(small)
    old = ask(engine).tokens
    assert old == golden(small).generate(LONG, N)
    engine.load_weights(str(tmp_path))
    completion = ask(engine)
    expected = Golden(load_model(tmp_path)).generate(LONG, N)
    assert expected != old
    assert (completion.tokens, completion.cached_tokens) == (expected, 0)


def test_weights_that_do_not_fit_leave_the_engine_as_it_was(small, tmp_path):
    tiny("llama").save_pretrained(tmp_path / "tiny")
    engine = open_engine(small)
    answer = ask(engine)
    for folder, told in (("tiny", "are not of the shapes of this model's"), ("none", "cannot load")):
        with pytest.raises(EngineFaultError, match=told):
            engine.load_weights(str(tmp_path / folder))
    again = ask(engine)
    assert (again.tokens, again.cached_tokens) == (answer.tokens, len(LONG) - 1)


def test_media_are_read_and_share_with_equal_ones_only(small):
    engine = open_engine(small)
    seen = [ask(engine, media=(Media(3, what),)) for what in ("cat", "dog", "cat")]
    assert seen[0].tokens == seen[2].tokens != seen[1].tokens
    assert [completion.cached_tokens for completion in seen] == [0, 0, len(LONG) - 1]
    with pytest.raises(EngineFaultError, match="a media item stands at position 200 of a prompt of"):
        ask(engine, media=(Media(200, "cat"),))


def test_a_turn_goes_on_from_its_conversation_until_it_is_edited(small):
    engine, plain = open_engine(small, sharing=False), golden(small)
    session = engine.session()
    history: list[int] = []

    def turn(id):
        new = PROMPTS[len(id) - 1]
        session.submit(Request(id, new, N, conversation="talk"))
        (completion,) = finish(session).values()
        assert completion.tokens == plain.generate((*history, *new), N)
        history.extend((*new, *completion.tokens))
        return completion.cached_tokens

    assert turn("a") == 0
    assert turn("aa") == len(PROMPTS[0]) + N - 1
    del history[5]
    session.edit("talk", history)
    assert turn("aaa") == 0
    session.edit("talk", [10**9])
    with pytest.raises(EngineFaultError, match="request odd: there is no token 1000000000"):
        session.submit(Request("odd", (7,), 1, conversation="talk"))
    with pytest.raises(EngineFaultError, match="there is no conversation tale"):
        session.edit("tale", history)


def test_forks_go_on_from_the_token_they_are_given(small):
    engine, plain = open_engine(small), golden(small)
    session = engine.session()
    session.submit(Request("r", LONG, N))
    with pytest.raises(EngineFaultError, match="r can be forked once it has emitted a token"):
        session.fork("r", (7,))
    emitted: tuple[int, ...] = ()
    while len(emitted) < 3:
        emitted += session.step()["r"]
    with pytest.raises(EngineFaultError, match="a fork of request r: there is no token -1"):
        session.fork("r", (700, -1))
    firsts = (700, 800)
    ids = session.fork("r", firsts)
    done = finish(session)
    assert done["r"].tokens == plain.generate(LONG, N)
    for id, first in zip(ids, firsts, strict=True):
        begun = (*emitted[:-1], first)
        assert done[id].tokens == (*begun, *plain.generate((*LONG, *begun), N - len(begun)))
        assert len(done[id].logprobs) == len(done[id].top_logprobs) == N
    assert done.keys() == {"r", *ids}


@pytest.mark.parametrize("how", ["recompute", "swap"])
def test_a_preempted_request_comes_back(canary_folder, how):
    engine = open_engine(canary_folder, engine_args={"preemption": how})
    session = engine.session()
    session.submit(Request("r", LONG, N))
    session.step()
    session.preempt("r")
    with pytest.raises(EngineFaultError, match=r"request r is (waiting|swapped), not in the batch"):
        session.preempt("r")
    assert finish(session)["r"].tokens == alphabet.answer(LONG, N)
    assert engine.engine.scheduler.preempted == 1


@pytest.mark.parametrize("arguments", [{"remote": "64", "transfer_steps": "3"}, {"buckets": "2,8"}], ids=str)
def test_further_switches_are_the_engines(canary_folder, arguments):
    engine = open_engine(canary_folder, engine_args=arguments)
    settings = engine.engine.settings
    assert {name: getattr(settings, name) for name in arguments} == {
        name: (2, 8) if name == "buckets" else int(value) for name, value in arguments.items()
    }
    assert ask(engine).tokens == alphabet.answer(LONG, N)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"use_dora": True}, "its use_dora is not supported"),
        ({"bias": "all"}, "its bias is not supported"),
        ({"r": "four"}, "unsupported operand"),
        ({"r": 0}, "division by zero"),
    ],
)
def test_an_adapter_that_is_none_is_told_in_a_line(small, tmp_path, config, told):
    folder, _ = write_lora(tmp_path / "lora", load_model(small.path), 1, **config)
    with pytest.raises(EngineFaultError, match=told):
        open_engine(small).load_adapter("a", str(folder))


def test_what_is_no_lora_folder(tmp_path, lora):
    folder, _ = lora
    with pytest.raises(LoraError, match=r"cannot read .* as a LoRA adapter"):
        read_lora(tmp_path)
    (tmp_path / "adapter_config.json").write_bytes((folder / "adapter_config.json").read_bytes())
    (tmp_path / "adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(LoraError, match=r"cannot read .* as a LoRA adapter"):
        read_lora(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes((folder / "adapter_model.safetensors").read_bytes())
    (tmp_path / "adapter_config.json").write_text('{"bias": "none", "r": 4}')
    with pytest.raises(LoraError, match="there is no 'lora_alpha'"):
        read_lora(tmp_path)
    save_file({"model.embedding": torch.zeros(3)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_bytes((folder / "adapter_config.json").read_bytes())
    with pytest.raises(LoraError, match=r"it holds model\.embedding, which is no factor"):
        read_lora(tmp_path)


def test_factors_of_a_layer_whose_weights_lie_the_other_way_round(tmp_path):
    model = tiny("gpt2")
    a, b = torch.randn(RANK, 64), torch.randn(192, RANK)
    name = "base_model.model.transformer.h.0.attn.c_attn.lora_{}.weight"
    save_file({name.format("A"): a, name.format("B"): b}, tmp_path / "adapter_model.safetensors")
    settings = {"r": RANK, "lora_alpha": ALPHA, "bias": "none", "fan_in_fan_out": True}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    ((own, delta),) = read_lora(tmp_path).items()
    assert delta.shape == model.get_parameter(own).shape == (64, 192)
    assert torch.allclose(delta, 3.0 * (b @ a).T)
