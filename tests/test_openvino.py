import pytest
import torch
from llama_servers import finish, right, step_until
from tiny_models import tiny

from kvfence.adapters import openvino, openvino_session
from kvfence.adapters.api import (
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    RefusedError,
    Request,
    Support,
    UnsupportedConfigError,
)
from kvfence.prompts import alphabet, canary
from kvfence.reference_impl.golden import Golden

pytest.importorskip("openvino_genai", reason="openvino-genai is not installed: the extra openvino brings it")

SHARED = tuple(range(100, 170))  # with BOS two blocks and a piece of one
PROMPTS = [alphabet.prompt_tokens((*SHARED, *range(200 + 20 * i, 206 + 20 * i))) for i in range(3)] + [
    alphabet.prompt_tokens(range(400, 410))
]
HEAD = 64  # tokens of the common prefix in whole blocks
N = 12


def requests(n=N, prompts=PROMPTS):
    return [Request(str(i), prompt, n) for i, prompt in enumerate(prompts)]


def used(engine):
    """Percent of the pool."""
    return engine._pipeline._pipeline.get_metrics().cache_usage


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return tmp_path_factory.mktemp("converted")


@pytest.fixture(autouse=True)
def own_cache(canary_folder, random_folder, converted, monkeypatch):
    """Keep what is converted here out of the user's cache, in which the models are."""
    monkeypatch.setenv("KVFENCE_CACHE", str(converted))


@pytest.fixture
def opened():
    engines = []

    def open_engine(folder, **config):
        engines.append(openvino.open_engine(str(folder), EngineConfig(**{"max_concurrency": 4, **config})))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("pool", [None, 1024])
@pytest.mark.parametrize("fuse", ["on", "off"])
@pytest.mark.parametrize("sharing", [False, True])
def test_every_mode_is_golden_on_the_canary(canary_folder, opened, sharing, fuse, pool):
    engine = opened(canary_folder.path, sharing=sharing, pool_size=pool, engine_args={"split_fuse": fuse})
    assert right(engine.generate(requests()), PROMPTS) == [True] * 4
    again = engine.generate(requests())
    assert right(again, PROMPTS) == [True] * 4
    assert [c.cached_tokens for c in again] == [HEAD * sharing] * 3 + [0]


@pytest.mark.parametrize("chunk", [5, 32, 48])
def test_prompts_in_chunks_are_golden(canary_folder, opened, chunk):
    engine = opened(canary_folder.path, sharing=True, chunk_size=chunk)
    told = [c.cached_tokens for _ in range(2) for c in engine.generate(requests())]
    assert right(engine.generate(requests()), PROMPTS) == [True] * 4
    # Of requests that come together, the later ones were looked up before the first was computed.
    assert told == [0] * 4 + [HEAD] * 3 + [0]


def test_bfloat16_is_golden_on_the_canary(canary_folder, opened):
    try:
        engine = opened(canary_folder.path, dtype="bfloat16", sharing=True)
    except UnsupportedConfigError as error:
        pytest.skip(str(error))
    for _ in range(2):
        assert right(engine.generate(requests()), PROMPTS) == [True] * 4


def test_logprobs_are_goldens_up_to_rounding(random_folder, opened):
    golden = Golden.load(random_folder.path)
    for prompt, completion in zip(PROMPTS, opened(random_folder.path).generate(requests()), strict=True):
        expected = golden.verify(prompt, completion.tokens)
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_eos_is_a_token_like_any_other(canary_folder, opened, tmp_path):
    folder = tmp_path / "eos"
    model = canary.build()
    # EOS becomes likelier than any word, so an engine that stops at it would stop at once.
    with torch.no_grad():
        model.lm_head.weight[alphabet.EOS] = 100 * model.lm_head.weight[1300:2592].sum(0)
    model.save_pretrained(folder)
    (completion,) = opened(folder).generate(requests()[:1])
    assert completion.tokens == (alphabet.EOS,) * N


def test_reset_forgets(canary_folder, opened):
    engine = opened(canary_folder.path, sharing=True)
    hits = [engine.generate(requests()[:1])[0].cached_tokens for _ in range(2)]
    engine.reset_cache()
    hits.append(engine.generate(requests()[:1])[0].cached_tokens)
    assert hits == [0, HEAD, 0]
    session = engine.session()
    session.submit(Request("runs", PROMPTS[0], N))
    with pytest.raises(RefusedError, match="while requests run"):
        engine.reset_cache()


@pytest.mark.parametrize("echo", ["on", "off"])
def test_cached_tokens_are_told_by_the_echo_alone(canary_folder, opened, echo):
    engine = opened(canary_folder.path, sharing=True, engine_args={"echo": echo})
    engine.generate(requests())
    done = engine.generate(requests())
    assert right(done, PROMPTS) == [True] * 4
    assert [len(c.logprobs) for c in done] == [N] * 4
    known = engine.capabilities["cached_tokens"]
    assert (known.state is Support.SUPPORTED, done[0].cached_tokens) == (
        (True, HEAD) if echo == "on" else (False, None)
    )


def test_how_many_were_cached_by_how_many_were_told():
    # Computed from the start, one is made up; of what was computed twice too many are told.
    assert [openvino_session.cached_tokens(79, n) for n in (79, 14, 78 - 32, 120)] == [0, 64, 32, 0]


def test_no_more_run_at_a_time_than_there_is_room_for(canary_folder, opened):
    engine = opened(canary_folder.path, max_concurrency=2)
    session = engine.session()
    for request in requests():
        session.submit(request)
    first = session.step()
    assert {id: len(tokens) for id, tokens in first.items()} == {"0": 1, "1": 1, "2": 0, "3": 0}
    assert right(finish(session), PROMPTS) == [True] * 4


def test_a_cancelled_request_is_gone_and_hurts_nobody(canary_folder, opened):
    engine = opened(canary_folder.path, pool_size=1024)
    session = engine.session()
    for request in requests(200, PROMPTS[:2]):
        session.submit(request)
    with pytest.raises(RefusedError, match="0 is running already"):
        session.submit(requests()[0])
    emitted = step_until(session, "0", 3)
    before = used(engine)
    session.cancel("0")
    session.step()
    # The pass in which the cancelled one left counts its blocks still; the next one does not.
    session.step()
    assert used(engine) == pytest.approx(before / 2)
    # It may come again under the same name, while the other still runs.
    session.submit(Request("0", PROMPTS[0], N))
    session.submit(Request("2", PROMPTS[2], N))
    emitted = step_until(session, "2", N)
    done = finish(session)
    session.close()
    assert {c.id: len(c.tokens) for c in done} == {"0": N, "1": 200, "2": N}
    assert emitted["2"] == next(c.tokens for c in done if c.id == "2")
    # The round ends after so many words, behind which an answer to nothing follows.
    assert [c.tokens[:N] == alphabet.answer(PROMPTS[int(c.id)], N) for c in done] == [True] * 3


def test_what_others_emit_while_one_is_cancelled_is_handed_on_once(canary_folder, opened):
    session = opened(canary_folder.path).session()
    for request in requests():
        session.submit(request)
    seen = dict.fromkeys("0123", ())
    for cancelled in (None, "3", None, "2", "1"):
        if cancelled:
            session.cancel(cancelled)
        for id, tokens in session.step().items():
            seen[id] = (*seen[id], *tokens)
    while stepped := session.step():
        seen["0"] = (*seen["0"], *stepped["0"])
    (done,) = session.completions()
    assert (done.id, done.tokens) == ("0", seen["0"])
    assert right([done], PROMPTS) == [True]


def test_closing_a_session_withdraws_what_is_left(canary_folder, opened):
    engine = opened(canary_folder.path, max_concurrency=3)
    session = engine.session()
    for request in requests(400):
        session.submit(request)
    step_until(session, "0", 1)
    with pytest.raises(EngineFaultError, match="one at a time"):
        engine.session()
    session.close()
    assert not engine._pipeline._pipeline.has_non_finished_requests()
    assert right(engine.generate(requests()), PROMPTS) == [True] * 4


def test_a_conversation_goes_on_from_its_history(canary_folder, opened):
    engine = opened(canary_folder.path, sharing=True)
    session = engine.session()
    session.submit(Request("one", PROMPTS[0], 30, conversation="talk"))
    with pytest.raises(RefusedError, match="runs already"):
        session.submit(Request("early", PROMPTS[1], N, conversation="talk"))
    (first,) = finish(session)
    new = alphabet.prompt_tokens(range(600, 610))
    session.submit(Request("two", new, 8, conversation="talk"))
    (second,) = finish(session)
    history = (*PROMPTS[0], *first.tokens)
    # The last token that was emitted has no K/V yet; the piece of a block behind the last whole one is found too.
    assert second.cached_tokens == len(history) - 1
    assert second.tokens == alphabet.answer((*history, *new), 8)
    session.edit("talk", PROMPTS[0][:HEAD])
    session.submit(Request("three", new, 8, conversation="talk"))
    (third,) = finish(session)
    assert (third.cached_tokens, third.tokens) == (HEAD, alphabet.answer(new, 8))
    session.close()


@pytest.mark.parametrize("sharing", [False, True])
def test_requests_that_do_not_fit_together_are_preempted_and_still_right(canary_folder, opened, sharing):
    engine = opened(canary_folder.path, sharing=sharing, pool_size=256)
    assert right(engine.generate(requests(40, PROMPTS)), PROMPTS) == [True] * 4


def test_what_never_fits_is_refused_and_the_engine_goes_on(canary_folder, opened):
    engine = opened(canary_folder.path, max_concurrency=1, pool_size=250)
    with pytest.raises(RefusedError, match=r"request long needs 513 tokens of KV; the pool has 256"):
        engine.generate([Request("long", PROMPTS[3], 501)])
    assert right(engine.generate(requests()), PROMPTS) == [True] * 4
    whole = opened(canary_folder.path, engine_args={"split_fuse": "off"}, chunk_size=64)
    with pytest.raises(RefusedError, match="has 90 tokens; a pass that prefills whole prompts takes 64"):
        whole.generate(requests()[:1])


def test_what_the_engine_gives_up_is_told_and_it_goes_on(canary_folder, opened, monkeypatch):
    engine = opened(canary_folder.path, pool_size=256)
    monkeypatch.setattr(type(engine._pipeline), "fits", lambda *_: "")
    session = engine.session()
    session.submit(Request("long", PROMPTS[0], 300))
    emitted = []
    while stepped := session.step():
        emitted += stepped["long"]
    assert len(emitted) >= 256 - len(PROMPTS[0])
    assert session.failures() == {"long": "the pool was full, and the engine gave it up"}
    assert not session.completions()
    session.close()
    assert right(engine.generate(requests()), PROMPTS) == [True] * 4


def test_logprobs_of_a_large_vocabulary_are_told_on_demand(opened, tmp_path):
    """OpenVINO GenAI adds up its probabilities in float32, one by one."""
    tiny("llama", vocab_size=8_193).save_pretrained(tmp_path / "large")
    (auto,) = opened(tmp_path / "large").generate(requests()[:1])
    engine = opened(tmp_path / "large", engine_args={"logprobs": "on"})
    (told,) = engine.generate(requests()[:1])
    assert (auto.tokens, auto.logprobs, len(told.logprobs)) == (told.tokens, None, N)
    assert engine.capabilities["logprobs"].state is Support.SUPPORTED
    known = opened(tmp_path / "large").capabilities["logprobs"]
    assert (known.state, "8,193 probabilities" in known.reason) == (Support.UNSUPPORTED, True)


def test_capabilities_say_why_not(canary_folder, opened):
    known = opened(canary_folder.path).capabilities
    assert {name for name, c in known.items() if c.state is Support.SUPPORTED} == {
        *("token_prompts", "sharing", "cached_tokens", "logprobs", "reset_cache", "reopen", "session", "ordered"),
        "conversations",
    }
    assert all(c.reason for c in known.values() if c.state is not Support.SUPPORTED)


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        ({"dtype": "int8"}, UnsupportedConfigError, "no dtype int8"),
        ({"device": "cuda"}, UnsupportedConfigError, "runs on cpu"),
        ({"engine_args": {"page": "1"}}, EngineStartError, "no engine argument page; it has kv_cache_precision"),
        ({"engine_args": {"echo": "yes"}}, EngineStartError, "echo is on or off, not yes"),
        ({"engine_args": {"logprobs": "5"}}, EngineStartError, "logprobs is auto, on or off, not 5"),
        ({"engine_args": {"threads": "-1"}}, EngineStartError, "threads is a number, not -1"),
        ({"engine_args": {"kv_cache_precision": "none"}}, EngineStartError, "did not open"),
    ],
)
def test_unsupported_configurations(canary_folder, opened, config, error, match):
    with pytest.raises(error, match=match):
        opened(canary_folder.path, **config)
