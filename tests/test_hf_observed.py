import eager
import numpy as np
import pytest
from continuous import OBSERVE, PROMPTS, N, open_engine, replay, requests

from kvfence.adapters.observation import Action, Observed


@pytest.mark.parametrize("arguments", [{}, {"attn_implementation": "eager"}, {"max_batch_tokens": "33"}])
@pytest.mark.parametrize("sharing", [False, True])
def test_observed_attention_is_that_of_an_eager_forward(random_folder, sharing, arguments):
    engine = open_engine(random_folder, sharing=sharing, observe=("attention",), engine_args=arguments)
    engine.generate(requests()[:2])
    engine.observe()
    completions = engine.generate(requests())
    assert any(c.cached_tokens for c in completions) == sharing
    seen = engine.observe()
    assert (seen.events, seen.kv) == ((), {})
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        eager.assert_attention(seen.attention[completion.id], str(random_folder.path), prompt, completion.tokens)
    assert engine.observe() == Observed()


def test_attention_to_others_is_missing_from_a_requests_own(random_folder, monkeypatch):
    engine = open_engine(random_folder, observe=("attention",))
    engine.generate(requests(2))
    for attention in engine.observe().attention.values():
        np.testing.assert_allclose(attention.rows.sum(-1), 1, atol=1e-5)
    everything = "transformers.generation.continuous_batching.input_outputs.build_attention_mask"
    monkeypatch.setattr(everything, lambda attention_mask, **_: attention_mask.zero_())
    engine.generate(requests(2))
    for attention in engine.observe().attention.values():
        assert (attention.rows.sum(-1) < 0.6).all()


@pytest.mark.parametrize("sharing", [False, True])
def test_observed_kv_is_that_of_a_plain_forward(random_folder, sharing):
    engine = open_engine(random_folder, sharing=sharing, observe=("kv",))
    engine.generate(requests()[:2])
    engine.observe()
    completions = engine.generate(requests())
    assert any(c.cached_tokens for c in completions) == sharing
    seen = engine.observe()
    assert (seen.events, seen.attention) == ((), {})
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        # The last token is never fed back.
        _, keys, values = eager.forward(str(random_folder.path), (*prompt, *completion.tokens[:-1]))
        np.testing.assert_allclose(seen.kv[completion.id].keys, keys, atol=1e-5)
        np.testing.assert_allclose(seen.kv[completion.id].values, values, atol=1e-5)


@pytest.mark.parametrize("sharing", [False, True])
def test_events_tell_where_each_token_is(canary_folder, sharing):
    engine = open_engine(canary_folder, sharing=sharing, observe=("events",))
    keys, published = {}, set()
    for call in range(2):
        completions = engine.generate(requests())
        events = engine.observe().events
        for request, completion in zip(requests(), completions, strict=True):
            own = [event for event in events if event.request == request.id]
            assert replay(own, request.id) == len(request.prompt) + N - 1
            assert completion.cached_tokens == sum(
                e.length for e in own if e.action is Action.REUSE and e.step == own[0].step
            )
        for event in events:
            if event.action is Action.PUBLISH:
                keys[event.slot] = event.key
                published.add(event.key)
            elif event.action is Action.REUSE:
                assert event.key == keys[event.slot]
        assert bool(published) == sharing
        reused = {event.request for event in events if event.action is Action.REUSE}
        # Blocks that requests of one step computed twice are merged; later ones are found.
        assert reused == (({"1", "2"}, {"0", "1", "2", "3"})[call] if sharing else set())


def test_observing_changes_no_bit(random_folder):
    plain, seen = (
        open_engine(random_folder, sharing=True, max_concurrency=3, observe=what).generate(requests())
        for what in ((), OBSERVE)
    )
    assert plain == seen
