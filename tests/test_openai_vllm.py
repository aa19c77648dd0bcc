"""The adapter `openai` on vLLM's own server; `make endpoints` runs this in the environment that vLLM has."""

import re
import sys

import pytest
from endpoint_engines import opener, run, supported
from llama_servers import finish, right, step_until
from server_process import ServerProcess, until

from kvfence.adapters.api import EngineStartError, Request, Support
from kvfence.prompts import alphabet
from kvfence.reference_impl.golden import Golden

for package in ("vllm", "httpx"):
    pytest.importorskip(package, reason=f"{package} is not installed: make endpoints brings it")

BLOCK = 32
SHARED = tuple(range(100, 170))  # with BOS two blocks, and a few more
PROMPTS = [alphabet.prompt_tokens((*SHARED, *range(200 + 20 * i, 206 + 20 * i))) for i in range(3)] + [
    alphabet.prompt_tokens(range(400, 410))
]
FRESH, AGAIN = [0, 64, 64, 0], [64, 64, 64, 0]  # cached tokens of each: whole blocks, of a cache without and with them
N = 12
# So long that a request lasts many times the seconds by which a busy machine may bring its first tokens late.
CONTEXT = 16_384


@pytest.fixture(scope="module")
def server(canary_folder, tmp_path_factory):
    server = ServerProcess(
        [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", canary_folder.path.resolve()),
            *("--served-model-name", "canary", "--dtype", "float32", "--enforce-eager", "--block-size", BLOCK),
            *("--max-model-len", CONTEXT, "--hf-overrides", f'{{"max_position_embeddings": {CONTEXT}}}'),
            *("--max-num-seqs", 4, "--num-gpu-blocks-override", 513),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
        ],
        tmp_path_factory.mktemp("vllm") / "log",
        VLLM_SERVER_DEV_MODE="1",  # opens /reset_prefix_cache
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        TORCHDYNAMO_DISABLE="1",
    )
    yield server
    server.close()


@pytest.fixture
def opened(canary_folder, server):
    with opener(canary_folder, server.url, reset="/reset_prefix_cache") as open_engine:
        yield open_engine


def requests(salt=None, n=N):
    return [Request(str(i), prompt, n, salt) for i, prompt in enumerate(PROMPTS)]


def one_by_one(engine, sent):
    return [engine.generate([request])[0] for request in sent]


def cached(engine, sent):
    return [completion.cached_tokens for completion in one_by_one(engine, sent)]


def count(server, name):
    """What the server has counted so far."""
    _, text = server.get("/metrics")
    return sum(float(value) for value in re.findall(rf"^vllm:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE))


def test_what_it_takes_and_tells(opened):
    engine = opened(salt="on")
    assert supported(engine) == {
        *("token_prompts", "sharing", "cached_tokens", "logprobs", "top_logprobs", "salt", "reset_cache", "session"),
        *("reopen", "conversations"),
    }
    assert engine.version.startswith("vllm-")
    assert engine.block_size == BLOCK


def test_what_is_not_agreed_to_is_not_claimed(canary_folder, server):
    with opener(canary_folder, server.url) as open_engine:
        states = open_engine().capabilities
    assert states["salt"].state is states["reset_cache"].state is Support.UNSUPPORTED


@pytest.mark.parametrize("prompts", ["auto", "ids", "text"])
def test_the_canary_answers_alone_and_in_parallel(opened, prompts):
    engine = opened(prompts=prompts)
    assert (engine.capabilities["token_prompts"].state is Support.SUPPORTED) == (prompts != "text")
    engine.reset_cache()
    assert right(engine.generate(requests()), PROMPTS) == [True] * 4
    engine.reset_cache()
    for expected in (FRESH, AGAIN):
        alone = one_by_one(engine, requests())
        assert right(alone, PROMPTS) == [True] * 4
        assert [c.cached_tokens for c in alone] == expected


def test_logprobs_are_goldens_up_to_rounding(canary_folder, opened):
    golden = Golden.load(canary_folder.path)
    for prompt, completion in zip(PROMPTS, opened().generate(requests()), strict=True):
        assert completion.logprobs == pytest.approx(golden.verify(prompt, completion.tokens).logprobs, abs=1e-3)
        assert [best[0] for best in completion.top_logprobs] == list(
            zip(completion.tokens, completion.logprobs, strict=True)
        )


def test_a_salt_finds_its_own_and_no_other(opened):
    engine = opened(salt="on")
    assert cached(engine, requests("x")) == FRESH
    assert cached(engine, requests("y")) == FRESH
    assert cached(engine, requests()) == FRESH
    assert cached(engine, requests("x")) == cached(engine, requests("y")) == AGAIN


def test_without_sharing_nothing_is_taken_from_the_cache(opened):
    engine = opened(salt="on", sharing=False)
    assert cached(engine, requests() * 2) == [0] * 8


@pytest.mark.parametrize("args", [{}, {"salt": "on"}, {"salt": "on", "reset": ""}])
def test_a_reset_forgets(opened, args):
    engine = opened(**args)
    engine.reset_cache()
    for _ in range(2):
        assert cached(engine, requests()[:1] * 2) == [0, 64]
        engine.reset_cache()


def test_a_withdrawn_request_stops_there_and_hurts_nobody(opened, server):
    engine, long = opened(), CONTEXT - 200
    before = count(server, "generation_tokens_total")
    session = engine.session()
    session.submit(Request("gone", PROMPTS[1], long))
    session.submit(Request("0", PROMPTS[0], 200))
    assert step_until(session, "gone", 3)["gone"] == alphabet.answer(PROMPTS[1], 3)
    session.cancel("gone")
    assert right(finish(session), PROMPTS) == [True]
    until(lambda: count(server, "num_requests_running") == 0)
    assert count(server, "generation_tokens_total") - before < long
    session.close()
    assert right(engine.generate(requests()), PROMPTS) == [True] * 4


def test_what_the_server_refuses_is_told(opened):
    with pytest.raises(EngineStartError, match=r"the endpoint cannot be used: the server answered 404: .*nobody"):
        opened(served="nobody")


def test_a_run_ends_with_a_report_and_nothing_violated(canary_folder, server, tmp_path):
    code, outcomes = run(canary_folder, server.url, tmp_path / "out", salt="on")
    assert {outcome for outcome, _ in outcomes.values()} == {"conforms"}, outcomes
    assert len(outcomes) > 8
    assert code == 0
    # The prefix of these is longer than a block.
    assert "prompt tokens were shared" in outcomes["batch.eight-on-a-prefix-float32"][1]
