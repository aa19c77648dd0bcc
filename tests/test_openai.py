import pytest
from llama_servers import HEAD, PROMPTS, N, requests, right, step_until

from kvfence.adapters import openai
from kvfence.adapters.api import EngineConfig, EngineFaultError, EngineStartError, Request, Support
from kvfence.adapters.openai_answers import read
from kvfence.prompts import alphabet

for package in ("xllamacpp", "gguf", "httpx"):
    pytest.importorskip(package, reason=f"{package} is not installed: the extra llama-cpp brings it")


@pytest.fixture(scope="module")
def server(canary_folder):
    from kvfence.adapters.llama_cpp_server import LlamaServer

    server = LlamaServer(str(canary_folder.path), EngineConfig(sharing=True, max_concurrency=4))
    yield server
    server.close()


@pytest.fixture
def opened(canary_folder, server):
    engines = []

    def open_engine(folder=canary_folder, at=server, sharing=True, **args):
        args = {"url": f"{at.address}/v1", **args}
        config = EngineConfig(sharing=sharing, max_concurrency=4, engine_args=args)
        engines.append(openai.open_engine(str(folder.path), config))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("prompts", ["auto", "ids", "text"])
def test_the_canary_through_llama_cpp(opened, prompts):
    engine = opened(prompts=prompts)
    assert (engine.capabilities["token_prompts"].state is Support.SUPPORTED) == (prompts != "text")
    assert engine.block_size == 1
    assert right(engine.generate(requests())) == [True] * 4
    again = [engine.generate([request])[0] for request in requests()]
    assert right(again) == [True] * 4
    assert all(c.cached_tokens >= HEAD for c in again[:3])
    assert {name for name, c in engine.capabilities.items() if c.state is Support.SUPPORTED} >= {
        *("sharing", "cached_tokens", "logprobs", "top_logprobs", "session", "conversations"),
    }
    assert all(c.reason for c in engine.capabilities.values() if c.state is not Support.SUPPORTED)


def test_without_sharing_llama_cpp_takes_nothing_from_its_cache(opened):
    engine = opened(sharing=False)
    assert [engine.generate([request])[0].cached_tokens for request in requests() * 2] == [0] * 8


def test_logprobs_are_goldens_up_to_rounding(random_folder, opened):
    from kvfence.adapters.llama_cpp_server import LlamaServer
    from kvfence.reference_impl.golden import Golden

    server = LlamaServer(str(random_folder.path), EngineConfig(max_concurrency=4))
    try:
        golden = Golden.load(random_folder.path)
        for prompt, completion in zip(PROMPTS, opened(random_folder, server).generate(requests()), strict=True):
            expected = golden.verify(prompt, completion.tokens)
            assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
            assert [best[0][0] for best in completion.top_logprobs] == list(completion.tokens)
    finally:
        server.close()


def test_a_session_hands_on_token_by_token(opened):
    session = opened().session()
    for request in requests():
        session.submit(request)
    emitted = step_until(session, "0", N)
    assert emitted["0"] == alphabet.answer(PROMPTS[0], N)
    session.close()


def test_text_that_the_server_splits_otherwise_is_told(opened):
    engine = opened(prompts="text")
    # Behind a space the server has no BOS of its own.
    twice = (*PROMPTS[0], *PROMPTS[1])
    with pytest.raises(EngineFaultError, match=f"a prompt of {len(twice)} tokens was taken as {len(twice) + 1}"):
        engine.generate([Request("0", twice, N)])
    assert right(engine.generate(requests())) == [True] * 4


def test_salts_are_sent_and_a_reset_changes_them(opened):
    engine = opened(salt="on")
    assert engine.capabilities["salt"].state is engine.capabilities["reset_cache"].state is Support.SUPPORTED
    bodies = [engine._endpoint._body(Request("r", PROMPTS[0], 1, salt=salt), PROMPTS[0]) for salt in ("x", "x", "y")]
    first, again, other = (body["cache_salt"] for body in bodies)
    assert first == again != other
    engine.reset_cache()
    assert engine._endpoint._body(Request("r", PROMPTS[0], 1, salt="x"), PROMPTS[0])["cache_salt"] != first


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"url": ""}, "openai needs the endpoint"),
        ({"url": "ftp://host/"}, "openai needs the endpoint"),
        ({"url": "http://user:pass@host/v1"}, "a key belongs in the environment"),
        ({"url": "http://host/v1?key=1"}, "a key belongs in the environment"),
        ({"key": "1"}, "no engine argument key"),
        ({"prompts": "both"}, "prompts is ids, text or auto"),
        ({"rate": "fast"}, "are numbers"),
        ({"max_requests": "0"}, "above zero"),
    ],
)
def test_arguments_that_make_no_sense(opened, args, match):
    with pytest.raises(EngineStartError, match=match) as told:
        opened(**args)
    assert "pass" not in str(told.value)


@pytest.mark.parametrize(
    ("choice", "tokens", "logprobs", "best"),
    [
        ({"token_ids": [5, 6], "logprobs": None}, (5, 6), None, None),
        (
            {
                "logprobs": {
                    "tokens": ["token_id:7"],
                    "token_logprobs": [-0.5],
                    "top_logprobs": [{"token_id:9": -2.0, "token_id:7": -0.5}],
                }
            },
            (7,),
            (-0.5,),
            (((7, -0.5), (9, -2.0)),),
        ),
        ({"logprobs": {"tokens": ["bake"], "token_logprobs": [-0.5]}}, None, (-0.5,), None),
        (
            {"logprobs": {"content": [{"id": 3, "logprob": -1.0, "top_logprobs": [{"id": 3, "logprob": -1.0}]}]}},
            (3,),
            (-1.0,),
            (((3, -1.0),),),
        ),
    ],
)
def test_each_form_of_answer_is_read(choice, tokens, logprobs, best):
    """The forms that vLLM 0.32, llama.cpp and OpenAI's own reference give."""
    piece = read({"choices": [{"text": "x", **choice}]})
    assert (piece.tokens, piece.logprobs, piece.best) == (tokens, logprobs, best)


def test_two_sessions_at_a_time_are_one_too_many(opened):
    engine = opened()
    engine.session()
    with pytest.raises(EngineFaultError, match="one at a time"):
        engine.session()
