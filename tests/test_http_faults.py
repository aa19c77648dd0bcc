"""What a client makes of an endpoint that answers badly: one clear line, or another try, and it goes on afterwards."""

import time

import pytest
from faulty_proxy import FaultyProxy, answer, echo_key, hang, hang_after, start, stop_after, tear_after, without_event
from llama_servers import PROMPTS, N, requests, right, step_until

from kvfence.adapters import openai
from kvfence.adapters.api import EngineConfig, EngineFaultError, EngineStartError, Request, Support

for package in ("xllamacpp", "gguf", "httpx"):
    pytest.importorskip(package, reason=f"{package} is not installed: the extra llama-cpp brings it")


@pytest.fixture(scope="module")
def server(canary_folder):
    from kvfence.adapters.llama_cpp_server import LlamaServer

    server = LlamaServer(str(canary_folder.path), EngineConfig(sharing=True, max_concurrency=4))
    yield server
    server.close()


@pytest.fixture
def proxy(server):
    proxy = FaultyProxy(f"{server.address}/v1")
    yield proxy
    proxy.close()


@pytest.fixture
def opened(canary_folder, proxy):
    engines = []

    def open_engine(**args):
        config = EngineConfig(sharing=True, max_concurrency=4, engine_args={"url": proxy.url, **args})
        engines.append(openai.open_engine(str(canary_folder.path), config))
        proxy.seen.clear()
        return engines[-1]

    yield open_engine
    proxy.released.set()
    for engine in engines:
        engine.close()


FAULTS = {
    "500": (answer(500, '{"error": {"message": "out of\\nmemory"}}'), "the server answered 500: out of memory"),
    "500 in HTML": (answer(500, "<html>sorry</html>"), "the server answered 500: <html>sorry</html>"),
    "400": (answer(400, '{"error": {"message": "no"}}'), "the server answered 400: no"),
    "422 of FastAPI": (answer(422, '{"detail": [{"msg": "odd"}]}'), "the server answered 422: .*odd"),
    "moved": (answer(307, "", Location="http://127.0.0.1:9/"), "the server answered 307"),
    "429 for ever": (lambda p, h, b: (p.plan.appendleft(busy_for_ever), busy(p, h, b)), "answered 429: slow down"),
    "garbage": (answer(200, "data: {not json\n\n"), "no JSON: {not json"),
    "deep": (answer(200, "data: " + "[" * 100_000 + "\n\n"), "no JSON"),
    "a number": (answer(200, "data: 7\n\n"), "answered int, not an object"),
    "a list": (answer(200, "data: []\n\n"), "answered list, not an object"),
    "HTML": (answer(200, "<html>\n</html>\n"), "tells no usage"),
    "nothing": (answer(200, ""), "tells no usage"),
    "odd choices": (answer(200, 'data: {"choices": [3]}\n\n'), "not the form of a completion"),
    "odd usage": (answer(200, 'data: {"choices": [], "usage": {"prompt_tokens": "x"}}\n\n'), "not the form"),
    "another length": (
        answer(200, 'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 12}}\n\n'),
        f"a prompt of {len(PROMPTS[0])} tokens was taken as 7",
    ),
    "an error in the stream": (answer(200, 'data: {"error": {"message": "lost"}}\n\n'), "the server broke off: lost"),
    "half": (stop_after(5), "tells no usage|5 tokens came"),
    "torn": (tear_after(5), "the connection broke off"),
    "too few": (without_event(3), "11 tokens came, the server counts 12, 12 were asked for"),
}


def busy(proxy, handler, body):
    start(handler, 429, Retry_After="0")
    handler.wfile.write(b'{"error": {"message": "slow down"}}')


def busy_for_ever(proxy, handler, body):
    proxy.plan.appendleft(busy_for_ever)
    busy(proxy, handler, body)


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_answer_is_told_in_one_line_and_the_engine_goes_on(opened, proxy, name):
    fault, expected = FAULTS[name]
    engine = opened()
    proxy.plan.append(fault)
    with pytest.raises(EngineFaultError, match=expected) as told:
        engine.generate(requests()[:1])
    assert len(str(told.value).splitlines()) == 1
    assert len(str(told.value)) < 400
    assert proxy.seen  # it really got there
    proxy.plan.clear()
    assert right(engine.generate(requests())) == [True] * 4


@pytest.mark.parametrize("fault", [hang, hang_after(4)])
def test_a_server_that_falls_silent_is_given_up(opened, proxy, fault):
    engine = opened(timeout="3")
    proxy.plan.append(fault)
    with pytest.raises(EngineFaultError, match="the server said nothing for 3 s"):
        engine.generate(requests()[:1])


def test_one_bad_answer_is_no_other_requests_business(opened, proxy):
    engine = opened()
    session = engine.session()
    proxy.plan.append(answer(500, "no"))
    session.submit(requests()[0])
    step_until_failed = {}
    while session.step():
        step_until_failed |= session.failures()
    step_until_failed |= session.failures()
    assert step_until_failed.keys() == {"0"}
    for request in requests()[1:]:
        session.submit(request)
    while session.step():
        pass
    assert right(session.completions()) == [True] * 3
    session.close()


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(opened, proxy, status):
    engine = opened()
    proxy.plan.extend([answer(status, "", Retry_After="0")] * 2)
    assert right(engine.generate(requests()[:1])) == [True]
    assert len(proxy.seen) == 3


def test_what_has_begun_to_answer_is_not_asked_again(opened, proxy):
    engine = opened()
    proxy.plan.append(tear_after(2))
    with pytest.raises(EngineFaultError):
        engine.generate(requests()[:1])
    assert len(proxy.seen) == 1


def test_a_withdrawn_request_closes_its_connection(opened, proxy, server):
    engine = opened()
    session = engine.session()
    session.submit(Request("gone", PROMPTS[0], 1000))
    step_until(session, "gone", 3)
    assert any(slot["is_processing"] for slot in server.slots())
    session.cancel("gone")
    server.let_go(0)  # raises if it goes on
    session.submit(requests()[1])
    while session.step():
        pass
    assert right(session.completions()) == [True]
    session.close()


def test_a_foreign_cache_is_emptied_only_with_consent(opened, proxy):
    assert opened().capabilities["reset_cache"].state is Support.UNSUPPORTED
    engine = opened(reset="/slots/0?action=erase")
    assert engine.capabilities["reset_cache"].state is Support.SUPPORTED
    engine.reset_cache()
    assert [path for path, _, _ in proxy.seen] == ["/slots/0?action=erase"]


def test_the_key_is_sent_and_never_told(opened, proxy, monkeypatch):
    monkeypatch.setenv("KVFENCE_API_KEY", "s3cret-key")
    engine = opened()
    proxy.plan.append(echo_key)
    with pytest.raises(EngineFaultError, match=r"does not let us in \(401: no such key: Bearer \*\*\*\)"):
        engine.generate(requests()[:1])
    assert proxy.seen[0][1]["Authorization"] == "Bearer s3cret-key"


def test_no_more_requests_are_sent_than_allowed(opened, proxy):
    engine = opened(max_requests="6", served="canary")  # of which the first three find out what the endpoint takes
    with pytest.raises(EngineFaultError, match="all of max_requests=6 requests have been sent"):
        engine.generate(requests())
    assert len(proxy.seen) == 3


def test_requests_are_spread_over_time(opened, proxy):
    engine = opened(rate="20")
    begun = time.monotonic()
    assert right(engine.generate(requests())) == [True] * 4
    assert time.monotonic() - begun >= 3 / 20


def test_an_endpoint_that_is_not_there(canary_folder, opened, proxy):
    engine = opened(attempts="2")
    proxy.close()
    with pytest.raises(EngineFaultError, match="the connection broke off"):
        engine.generate(requests(N)[:1])
    with pytest.raises(EngineStartError, match="the endpoint cannot be asked: the connection broke off"):
        opened(attempts="1")


def test_what_is_no_endpoint(opened, proxy):
    proxy.plan.extend([answer(500, "no")] * 20)
    with pytest.raises(EngineStartError, match="the endpoint cannot be used: the server answered 500: no"):
        opened()
