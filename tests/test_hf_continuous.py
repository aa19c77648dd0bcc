import weakref

import pytest
import torch
from continuous import LONG, PROMPTS, N, open_engine, requests, used_blocks
from transformers import MistralConfig, MistralForCausalLM

from kvfence.adapters import hf_continuous
from kvfence.adapters.api import (
    CAPABILITIES,
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    Request,
    Support,
    UnsupportedConfigError,
)
from kvfence.adapters.observation import Observed
from kvfence.prompts import alphabet
from kvfence.reference_impl.golden import Golden


def run(folder, calls=None, **config):
    engine = open_engine(folder, **config)
    batches = [[request] for request in requests()] if calls == "serial" else [requests()]
    return [completion for batch in batches for completion in engine.generate(batch)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("sharing", "calls"), [(False, "serial"), (False, "batch"), (True, "batch"), (True, "serial")])
def test_every_mode_is_golden_on_the_canary(canary_folder, dtype, sharing, calls):
    completions = run(canary_folder, dtype=dtype, sharing=sharing, calls=calls)
    assert [c.tokens for c in completions] == [alphabet.answer(prompt, N) for prompt in PROMPTS]


@pytest.mark.parametrize("arguments", [{"attn_implementation": "eager"}, {"max_batch_tokens": "7"}])
def test_other_attention_and_prefill_in_chunks_are_golden_too(canary_folder, arguments):
    completions = run(canary_folder, sharing=True, engine_args=arguments)
    assert [c.tokens for c in completions] == [alphabet.answer(prompt, N) for prompt in PROMPTS]


@pytest.mark.parametrize("calls", ["batch", "serial"])
def test_logprobs_are_goldens_up_to_rounding(random_folder, calls):
    golden = Golden.load(random_folder.path)
    for prompt, completion in zip(PROMPTS, run(random_folder, sharing=True, calls=calls), strict=True):
        expected = golden.verify(prompt, completion.tokens)
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert {len(best) for best in completion.top_logprobs} == {5}
        assert [best[0] for best in completion.top_logprobs] == [
            (token, pytest.approx(logprob, abs=1e-5))
            for token, logprob in zip(completion.tokens, completion.logprobs, strict=True)
        ]


def test_cached_tokens_are_the_whole_blocks_that_were_there_before(canary_folder):
    assert [c.cached_tokens for c in run(canary_folder, calls="serial")] == [0, 0, 0, 0]
    # BOS and 20 words are common to three: two blocks of 8. The stranger shares BOS alone, which is none.
    assert [c.cached_tokens for c in run(canary_folder, sharing=True, calls="serial")] == [0, 16, 16, 0]
    # What arrives together finds nothing; of more requests than fit in a batch, the later ones find the first.
    assert [c.cached_tokens for c in run(canary_folder, sharing=True)] == [0, 0, 0, 0]
    assert [c.cached_tokens for c in run(canary_folder, sharing=True, max_concurrency=1)] == [0, 16, 16, 0]


def test_reset_forgets_the_shared_prefix(canary_folder):
    engine = open_engine(canary_folder, sharing=True)
    hits = [engine.generate(requests()[:1])[0].cached_tokens for _ in range(2)]
    engine.reset_cache()
    hits.append(engine.generate(requests()[:1])[0].cached_tokens)
    # A block is reused only if a token is left to compute.
    assert hits == [0, (len(PROMPTS[0]) - 1) // 8 * 8, 0]


def test_each_request_gets_its_own_number_of_tokens_and_eos_does_not_end_it(canary_folder):
    engine = open_engine(canary_folder, max_concurrency=2)
    # EOS becomes likelier than any word, so an engine that stops at it would stop at once.
    with torch.no_grad():
        head = engine._batcher.manager.model.lm_head.weight
        head[alphabet.EOS] = 100 * head[1300]
        head[alphabet.EOS] += 100 * head[1301:2592].sum(0)
    completions = engine.generate([Request(str(n), PROMPTS[0], n) for n in (5, 3, 7, 1)])
    assert [len(c.tokens) for c in completions] == [5, 3, 7, 1]
    assert [len(c.top_logprobs) for c in completions] == [5, 3, 7, 1]
    assert alphabet.EOS in completions[0].tokens


def test_a_request_that_the_pool_cannot_hold(canary_folder):
    engine = open_engine(canary_folder, pool_size=64)
    with pytest.raises(EngineFaultError, match=r"^request long needs 114 tokens of KV; the pool has 64$"):
        engine.generate([requests()[0], Request("long", LONG, N)])
    assert used_blocks(engine) == 0
    assert engine.generate(requests()[:1])[0].tokens == alphabet.answer(PROMPTS[0], N)
    # Exactly what fits, fits.
    room = 64 + 1 - len(PROMPTS[0])
    (completion,) = engine.generate([Request("r", PROMPTS[0], room)])
    assert completion.tokens == alphabet.answer(PROMPTS[0], room)


def test_a_request_that_failed_and_a_pass_that_broke_off(canary_folder, monkeypatch):
    engine = open_engine(canary_folder)
    with monkeypatch.context() as patch:
        patch.setattr(engine._batcher.processor.logit_processor, "check_kwargs", lambda _: 1 / 0)
        with pytest.raises(EngineFaultError, match="request 0 failed: division by zero"):
            engine.generate(requests())
    with monkeypatch.context() as patch:
        patch.setattr(engine._batcher.manager, "_generation_step", lambda: [][0])
        with pytest.raises(EngineFaultError, match="broke off: list index out of range"):
            engine.generate(requests())
    assert used_blocks(engine) == 0
    completions = engine.generate(requests())
    assert [c.tokens for c in completions] == [alphabet.answer(prompt, N) for prompt in PROMPTS]


def test_capabilities(canary_folder):
    capabilities = open_engine(canary_folder).capabilities
    assert capabilities.keys() == CAPABILITIES.keys()
    lacking = {name for name, c in capabilities.items() if c.state is not Support.SUPPORTED}
    assert lacking == {"salt", "adapters", "weights", "media", "conversations", "fork", "preempt"}
    assert all(capabilities[name].state is Support.UNSUPPORTED and capabilities[name].reason for name in lacking)
    assert open_engine(canary_folder).block_size == 8
    assert hf_continuous.open_engine(str(canary_folder.path), EngineConfig()).block_size == 16


def test_configurations_it_does_not_have(canary_folder):
    with pytest.raises(UnsupportedConfigError, match="hf-continuous has no dtype int8; it has float32"):
        open_engine(canary_folder, dtype="int8")
    for arguments, told in (
        ({"page_size": "16"}, "no engine argument page_size; it has attn_implementation, max_batch_tokens"),
        ({"attn_implementation": "flash_attention_2"}, "no attn_implementation flash_attention_2; it has sdpa, eager"),
        ({"max_batch_tokens": "many"}, "max_batch_tokens is a number of tokens, not many"),
    ):
        with pytest.raises(EngineStartError, match=told):
            open_engine(canary_folder, engine_args=arguments)
    with pytest.raises(EngineStartError, match=r"cannot batch .* continuously: page_size must be at least 4"):
        open_engine(canary_folder, block_size=1)


def test_a_transformers_without_what_is_needed(canary_folder, monkeypatch):
    monkeypatch.delattr("transformers.generation.continuous_batching.ContinuousBatchingManager._create_batch_processor")
    with pytest.raises(EngineStartError, match=r"cannot batch .* continuously: .*_create_batch_processor"):
        open_engine(canary_folder)


def test_a_sliding_window_is_run_but_neither_shared_nor_observed(tmp_path):
    config = MistralConfig(
        vocab_size=alphabet.VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=8,
    )
    torch.manual_seed(0)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    engine = hf_continuous.open_engine(
        str(tmp_path),
        EngineConfig(sharing=True, max_concurrency=4, pool_size=512, observe=("attention", "events", "kv")),
    )
    for name in ("sharing", "attention", "events", "kv"):
        assert engine.capabilities[name].state is Support.UNSUPPORTED
        assert "\n" not in engine.capabilities[name].reason
    golden = Golden.load(tmp_path)
    for _ in range(2):
        for request, completion in zip(requests(), engine.generate(requests()), strict=True):
            assert max(golden.verify(request.prompt, completion.tokens).margins) < 1e-4
            assert completion.cached_tokens == 0
    assert engine.observe() == Observed()


def test_closing_gives_the_pool_back(canary_folder):
    engine = open_engine(canary_folder, observe=("events",))
    engine.generate(requests())
    cache = weakref.ref(engine._batcher.cache)
    assert cache() is not None
    engine.close()
    assert cache() is None
