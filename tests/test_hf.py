import eager
import pytest
import torch

from kvfence.adapters import hf
from kvfence.adapters.api import EngineConfig, EngineStartError, Request, Support, UnsupportedConfigError
from kvfence.adapters.observation import Observed
from kvfence.prompts import alphabet
from kvfence.reference_impl.golden import Golden

SHARED = tuple(range(100, 120))
PROMPTS = [alphabet.prompt_tokens((*SHARED, *range(200 + 20 * i, 203 + 20 * i + i)), start=i) for i in range(3)] + [
    alphabet.prompt_tokens(range(400, 404))
]


def run(folder, n=12, calls=None, **config):
    engine = hf.open_engine(str(folder.path), EngineConfig(max_concurrency=4, **config))
    requests = [Request(str(i), prompt, n) for i, prompt in enumerate(PROMPTS)]
    batches = [[request] for request in requests] if calls == "serial" else [requests]
    return [completion for batch in batches for completion in engine.generate(batch)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("sharing", "calls"), [(False, "serial"), (False, "batch"), (True, "batch"), (True, "serial")])
def test_every_mode_is_golden_on_the_canary(canary_folder, dtype, sharing, calls):
    completions = run(canary_folder, dtype=dtype, sharing=sharing, calls=calls)
    assert [c.tokens for c in completions] == [alphabet.answer(prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("sharing", [False, True])
def test_logprobs_are_goldens_up_to_rounding(random_folder, sharing):
    golden = Golden.load(random_folder.path)
    for prompt, completion in zip(PROMPTS, run(random_folder, sharing=sharing), strict=True):
        expected = golden.verify(prompt, completion.tokens)
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert [best[0] for best in completion.top_logprobs] == [
            (token, pytest.approx(logprob, abs=1e-6))
            for token, logprob in zip(completion.tokens, completion.logprobs, strict=True)
        ]


def test_sharing_takes_exactly_the_common_prefix(canary_folder):
    assert [c.cached_tokens for c in run(canary_folder, sharing=False)] == [0, 0, 0, 0]
    # BOS and the shared words; the stranger shares BOS alone.
    assert [c.cached_tokens for c in run(canary_folder, sharing=True)] == [21, 21, 21, 1]
    assert [c.cached_tokens for c in run(canary_folder, sharing=True, calls="serial")] == [0, 21, 21, 1]


def test_reset_forgets_the_shared_prefix(canary_folder):
    engine = hf.open_engine(str(canary_folder.path), EngineConfig(sharing=True))
    request = Request("r", PROMPTS[0], 2)
    hits = [engine.generate([request])[0].cached_tokens for _ in range(2)]
    engine.reset_cache()
    hits.append(engine.generate([request])[0].cached_tokens)
    assert hits == [0, len(PROMPTS[0]) - 1, 0]


def test_each_request_gets_its_own_number_of_tokens_and_eos_does_not_end_it(canary_folder):
    engine = hf.open_engine(str(canary_folder.path), EngineConfig(max_concurrency=2))
    # EOS becomes likelier than any word, so an engine that stops at it would stop at once.
    with torch.no_grad():
        engine._model.lm_head.weight[alphabet.EOS] = 100 * engine._model.lm_head.weight[1300]
        engine._model.lm_head.weight[alphabet.EOS] += 100 * engine._model.lm_head.weight[1301:2592].sum(0)
    requests = [Request(str(n), PROMPTS[0], n) for n in (5, 3, 7)]
    completions = engine.generate(requests)
    assert [len(c.tokens) for c in completions] == [5, 3, 7]
    assert alphabet.EOS in completions[0].tokens


def test_unsupported_configurations(canary_folder):
    path = str(canary_folder.path)
    with pytest.raises(UnsupportedConfigError, match="no dtype int8; it has float32"):
        hf.open_engine(path, EngineConfig(dtype="int8"))
    with pytest.raises(EngineStartError, match="no engine argument page_size"):
        hf.open_engine(path, EngineConfig(engine_args={"page_size": "16"}))


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(EngineStartError, match=r"cannot load .* as a causal LM"):
        hf.open_engine(str(tmp_path), EngineConfig())


@pytest.mark.parametrize("sharing", [False, True])
def test_observed_attention_is_that_of_an_eager_forward(random_folder, sharing):
    engine = hf.open_engine(
        str(random_folder.path), EngineConfig(max_concurrency=4, sharing=sharing, observe=("attention",))
    )
    requests = [Request(str(i), prompt, 3 + i) for i, prompt in enumerate(PROMPTS)]
    completions = engine.generate(requests)
    # Rows of several lengths, and with sharing a gap of padding after the shorter prefix.
    assert len({(len(r.prompt), c.cached_tokens) for r, c in zip(requests, completions, strict=True)}) == 4
    seen = engine.observe()
    assert (seen.events, seen.kv) == ((), {})
    for request, completion in zip(requests, completions, strict=True):
        eager.assert_attention(seen.attention[request.id], str(random_folder.path), request.prompt, completion.tokens)
    assert not engine.observe().attention


def test_observing_changes_nothing(random_folder):
    plain, seen = (run(random_folder, sharing=True, observe=what) for what in ((), ("attention", "events", "kv")))
    assert plain == seen


def test_what_cannot_be_observed(canary_folder):
    able = hf.open_engine(str(canary_folder.path), EngineConfig(observe=("kv",)))
    assert able.capabilities["attention"].state is Support.SUPPORTED
    assert able.capabilities["kv"].state is Support.UNSUPPORTED
    able.generate([Request("r", PROMPTS[0], 2)])
    assert able.observe() == Observed()
    args = {"attn_implementation": "eager"}
    engine = hf.open_engine(str(canary_folder.path), EngineConfig(observe=("attention",), engine_args=args))
    assert "no function to wrap" in engine.capabilities["attention"].reason
    engine.generate([Request("r", PROMPTS[0], 2)])
    assert engine.observe() == Observed()
