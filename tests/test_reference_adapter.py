import numpy as np
import pytest
import torch
from continuous import LONG, PROMPTS, N, requests

from kvfence.adapters import reference
from kvfence.adapters.api import EngineConfig, EngineFaultError, EngineStartError, Request, UnsupportedConfigError
from kvfence.adapters.observation import Action
from kvfence.conformance.oracles.attention import Comparison
from kvfence.prompts import alphabet
from kvfence.reference_impl.golden import Golden, load_model

SETTINGS = {"max_concurrency": 4, "block_size": 8, "pool_size": 2048}


def open_engine(folder, **config):
    return reference.open_engine(str(folder.path), EngineConfig(**{**SETTINGS, **config}))


@pytest.mark.parametrize("arguments", [{}, {"depth": "1"}, {"draft": "3"}, {"token_budget": "7"}], ids=str)
@pytest.mark.parametrize("sharing", [False, True])
def test_it_answers_the_canary_with_every_switch(canary_folder, sharing, arguments):
    engine = open_engine(canary_folder, sharing=sharing, engine_args=arguments)
    completions = engine.generate(requests())
    assert [c.tokens for c in completions] == [alphabet.answer(prompt, N) for prompt in PROMPTS]
    assert all(len(c.logprobs) == len(c.top_logprobs) == N for c in completions)
    assert all(best[0][0] == token for c in completions for best, token in zip(c.top_logprobs, c.tokens, strict=True))
    assert (max(c.cached_tokens for c in completions) > 0) == sharing


def test_a_step_is_one_forward_pass(canary_folder):
    engine = open_engine(canary_folder, engine_args={"token_budget": "60"})
    session = engine.session()
    session.submit(Request("short", PROMPTS[3], 4))
    expected = alphabet.answer(PROMPTS[3], 4)
    assert session.step() == {"short": expected[:1]}
    session.submit(Request("long", LONG, 2))
    assert session.step() == {"short": expected[1:2], "long": ()}
    assert session.step() == {"short": expected[2:3], "long": alphabet.answer(LONG, 1)}
    assert session.completions() == []
    assert session.step() == {"short": expected[3:], "long": alphabet.answer(LONG, 2)[1:]}
    assert {c.id for c in session.completions()} == {"short", "long"}
    assert session.step() == {}


def test_a_cancelled_request_is_gone_and_hurts_nobody(canary_folder):
    engine = open_engine(canary_folder, sharing=True)
    session = engine.session()
    for request in requests():
        session.submit(request)
    session.step()
    session.cancel("0")
    while session.step():
        pass
    done = {c.id: c.tokens for c in session.completions()}
    assert done == {str(i): alphabet.answer(PROMPTS[i], N) for i in (1, 2, 3)}
    session.close()
    engine.reset_cache()
    assert len(engine.engine.pool.free) == engine.engine.pool.size - 1


def test_the_events_tell_whole_sequences_and_what_was_shared(canary_folder):
    engine = open_engine(canary_folder, sharing=True, observe=("events",))
    engine.generate(requests())
    events = engine.observe().events
    assert engine.observe().events == ()
    said = (Action.ALLOCATE, Action.WRITE, Action.COPY, Action.PUBLISH, Action.REUSE, Action.FREE)
    assert {event.action for event in events} == set(said)
    for i, prompt in enumerate(PROMPTS):
        held, most = {}, 0
        for event in (event for event in events if event.request == str(i)):
            if event.action is Action.FREE:
                held = {position: slot for position, slot in held.items() if slot != event.slot}
            elif event.action is not Action.PUBLISH:
                assert event.position % 8 == event.start
                held.update(dict.fromkeys(range(event.position, event.position + event.length), event.slot))
            else:
                assert all(held[event.position + i] == event.slot for i in range(event.length))
            most = max(most, len(held))
        assert (held, most) == ({}, len(prompt) + N - 1)


def test_the_kv_shown_are_those_of_a_forward_without_cache(canary_folder):
    engine = open_engine(canary_folder, sharing=True, observe=("kv",))
    completions = engine.generate(requests())
    kv = engine.observe().kv
    model = load_model(canary_folder.path)
    for request, completion in zip(requests(), completions, strict=True):
        tokens = [*request.prompt, *completion.tokens[:-1]]
        cache = model(input_ids=torch.tensor([tokens]), use_cache=True).past_key_values
        for layer, expected in enumerate(cache.layers):
            assert kv[request.id].keys[layer].shape == expected.keys[0].shape
            assert np.abs(kv[request.id].keys[layer] - expected.keys[0].detach().numpy()).max() < 1e-4
            assert np.abs(kv[request.id].values[layer] - expected.values[0].detach().numpy()).max() < 1e-4


def test_the_attention_shown_is_that_of_a_forward_without_cache(canary_folder):
    engine = open_engine(canary_folder, sharing=True, observe=("attention",))
    completions = engine.generate(requests())
    shown = engine.observe().attention
    golden = Golden.load(canary_folder.path)
    for request, completion in zip(requests(), completions, strict=True):
        comparison = Comparison(shown[request.id], 3)
        golden.verify(request.prompt, completion.tokens, comparison)
        assert comparison.shifts.shape == (N, 3, 4)
        assert comparison.shifts.max() < 1e-6
    # A positive control: another request's attention is not its.
    comparison = Comparison(shown["3"], 3)
    golden.verify(PROMPTS[0], completions[0].tokens, comparison)
    assert comparison.shifts.max() > 0.5
    assert engine.observe().attention == {}


def test_bad_settings_are_told_in_a_line(canary_folder):
    for arguments, told in (
        ({"depht": "1"}, "reference has no engine argument depht; it has token_budget, depth, draft, remote"),
        ({"depth": "x"}, "depth is a number, not x"),
        ({"preemption": "x"}, "preemption is one of recompute, swap, not x"),
        ({"depth": "1", "draft": "2"}, "guessing ahead needs depth 0"),
        ({"depth": "2"}, "depth is 0 or 1, not 2"),
        ({"token_budget": "0"}, "token_budget is at least 1, not 0"),
        ({"buckets": "4,0"}, "a bucket holds at least 1 row, not 0"),
        ({"buckets": ""}, "buckets is a number, not nothing"),
    ):
        with pytest.raises(EngineStartError, match=told):
            open_engine(canary_folder, engine_args=arguments)
    with pytest.raises(UnsupportedConfigError, match="reference has no dtype int8"):
        open_engine(canary_folder, dtype="int8")


def test_requests_that_cannot_be_run_are_told_in_a_line(canary_folder):
    engine = open_engine(canary_folder, pool_size=64)
    with pytest.raises(EngineFaultError, match=r"request big needs 112 tokens of KV; the pool has 64"):
        engine.generate([Request("big", LONG, 10)])
    with pytest.raises(EngineFaultError, match="request odd: there is no token 3904; the vocabulary has 3904"):
        engine.generate([Request("odd", (1, 3904), 2)])
    session = engine.session()
    session.submit(requests()[3])
    with pytest.raises(EngineFaultError, match="request 3 is running already"):
        session.submit(requests()[3])
    with pytest.raises(EngineFaultError, match="a session is open already"):
        engine.session()


def test_a_failure_in_a_forward_pass_is_the_engines_fault(canary_folder, monkeypatch):
    engine = open_engine(canary_folder)

    def fail(rows):
        raise RuntimeError("the device is gone\nmore")

    monkeypatch.setattr(engine.engine.worker, "run", fail)
    with pytest.raises(EngineFaultError, match=r"request 0 failed: the device is gone$"):
        engine.generate(requests())
    monkeypatch.undo()
    assert [c.tokens for c in engine.generate(requests())] == [alphabet.answer(prompt, N) for prompt in PROMPTS]
