"""The adapter `openai` on `transformers serve`, which takes prompts as text alone and tells tokens as text alone."""

import sys
from pathlib import Path

import pytest
from endpoint_engines import opener, run, supported
from llama_servers import PROMPTS, N, finish, requests, right, step_until
from server_process import ServerProcess

from kvfence.adapters.api import EngineStartError, Request, Support
from kvfence.prompts import alphabet

for package in ("fastapi", "uvicorn", "openai", "httpx"):
    pytest.importorskip(package, reason=f"{package} is not installed: the extra serve brings it")

WAYS = {
    "generate": (),
    # Its own choice of a pool is most of the machine's memory.
    "continuous": (
        *("--continuous-batching", "--cb-block-size", "16", "--cb-num-blocks", "512"),
        *("--cb-max-batch-tokens", "512"),
    ),
}
LONG = {"generate": 100_000, "continuous": 7_000}  # tokens; the pool has 8,192


@pytest.fixture(scope="module", params=WAYS)
def server(request, canary_folder, tmp_path_factory):
    transformers = Path(sys.executable).with_name("transformers")
    server = ServerProcess(
        [transformers, "serve", canary_folder.path, "--device", "cpu", "--dtype", "float32", *WAYS[request.param]],
        tmp_path_factory.mktemp("transformers") / "log",
    )
    server.way = request.param
    yield server
    server.close()


@pytest.fixture
def opened(canary_folder, server):
    with opener(canary_folder, server.url) as open_engine:
        yield open_engine


def test_what_it_takes_and_tells(opened):
    engine = opened()
    assert supported(engine) == {"session", "reopen", "conversations"}
    states = engine.capabilities
    assert states["token_prompts"].reason == "prompts are sent as text"
    assert states["cached_tokens"].reason == "its usage does not tell cached tokens"
    assert states["logprobs"].reason == states["top_logprobs"].reason == "it does not tell them by token id"
    assert states["sharing"].state is Support.UNKNOWN
    assert engine.block_size is None


def test_that_it_has_a_cache_is_believed(opened):
    assert supported(opened(prefix_cache="on")) == {"session", "reopen", "conversations", "sharing"}


@pytest.mark.parametrize("prompts", ["auto", "text"])
def test_the_canary_answers_alone_and_in_parallel(opened, prompts):
    engine = opened(prompts=prompts)
    assert right(engine.generate(requests())) == [True] * 4
    alone = [engine.generate([request])[0] for request in requests()]
    assert right(alone) == [True] * 4
    assert [(len(c.tokens), c.logprobs, c.top_logprobs, c.cached_tokens) for c in alone] == [(N, None, None, None)] * 4


def test_prompts_as_ids_it_does_not_take(opened):
    with pytest.raises(EngineStartError, match=r"cannot be used: the server answered 400: prompt must be a string\.$"):
        opened(prompts="ids")


def test_salts_it_does_not_take(opened):
    with pytest.raises(EngineStartError, match=r"the server answered 422: .*cache_salt"):
        opened(salt="on")


def test_a_session_hands_on_word_by_word(opened):
    session = opened().session()
    for request in requests():
        session.submit(request)
    emitted = step_until(session, "0", 3)
    assert emitted["0"] == alphabet.answer(PROMPTS[0], 3)
    done = finish(session)
    assert sorted(completion.id for completion in done) == ["0", "1", "2", "3"]
    assert right(done) == [True] * 4
    session.close()


def test_a_withdrawn_request_stops_there_and_hurts_nobody(opened, server):
    """Where requests run one after another, nobody would be answered for minutes if it went on."""
    session = opened(timeout="30").session()
    session.submit(Request("gone", PROMPTS[1], LONG[server.way]))
    assert step_until(session, "gone", 3)["gone"] == alphabet.answer(PROMPTS[1], 3)
    session.submit(requests()[0])
    session.cancel("gone")
    session.submit(requests()[2])
    assert right(finish(session)) == [True] * 2
    session.close()


def test_a_run_ends_with_a_report_and_nothing_violated(canary_folder, server, tmp_path):
    code, outcomes = run(canary_folder, server.url, tmp_path / "out", prefix_cache="on")
    # It does not tell whether its cache was hit.
    assert {outcome for outcome, _ in outcomes.values()} == {"conforms", "not-observable"}, outcomes
    assert outcomes["conversation.edited-float32"][0] == "conforms"
    unseen = ("not-observable", "the engine does not tell whether its cache was hit")
    assert outcomes["cancel.decoding-float32"] == unseen
    assert code == 0
