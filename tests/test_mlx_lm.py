"""mlx-lm itself, where it is installed: the extra `mlx` brings it."""

import json
import shutil
import sys

import pytest
import torch
from llama_servers import HEAD, PROMPTS, N, finish, requests, right, step_until

from kvfence.adapters import mlx_lm
from kvfence.adapters.api import (
    CAPABILITIES,
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    RefusedError,
    Request,
    Support,
    UnsupportedConfigError,
)
from kvfence.prompts import alphabet, canary, models
from kvfence.reference_impl.golden import Golden

for package in ("mlx", "mlx_lm"):
    pytest.importorskip(package, reason=f"{package} is not installed: the extra mlx brings it")

LONG = alphabet.prompt_tokens(range(500, 600))


def open_engine(folder, **config):
    return mlx_lm.open_engine(str(folder.path), EngineConfig(**{"max_concurrency": 4, **config}))


def in_batch(engine):
    """Numbers of the requests that the batch generator knows of."""
    generator = engine._batch._generator
    waiting = [entry[0] for entry in generator._unprocessed_sequences]
    return [*waiting, *generator._prompt_batch.uids, *generator._generation_batch.uids]


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("chunk", [None, 16])
def test_every_mode_is_golden_on_the_canary(canary_folder, sharing, chunk):
    engine = open_engine(canary_folder, sharing=sharing, chunk_size=chunk)
    assert right(engine.generate(requests())) == [True] * 4
    again = engine.generate(requests())
    assert right(again) == [True] * 4
    whole = [len(prompt) - 1 for prompt in PROMPTS]
    assert [c.cached_tokens for c in again] == (whole if sharing else [0] * 4)
    # Two that go on differently from what they have in common with the first.
    heads = [engine.generate([Request("0", (*PROMPTS[0][:HEAD], *PROMPTS[i][-3:]), 1)])[0] for i in (1, 2)]
    assert [c.cached_tokens for c in heads] == [HEAD * sharing] * 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_golden_on_the_canary(canary_folder, dtype):
    engine = open_engine(canary_folder, dtype=dtype, sharing=True)
    assert right(engine.generate(requests())) == [True] * 4
    assert right(engine.generate(requests())) == [True] * 4


def test_logprobs_and_kv_are_goldens_up_to_rounding(random_folder):
    golden = Golden.load(random_folder.path)
    engine = open_engine(random_folder, observe=("kv",))
    completions = engine.generate(requests())
    seen = engine.observe().kv
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        expected = golden.verify(prompt, completion.tokens)
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert [best[0][0] for best in completion.top_logprobs] == list(completion.tokens)
        assert [best[0][1] for best in completion.top_logprobs] == list(completion.logprobs)
        kv = golden.kv((*prompt, *completion.tokens))
        shown = seen[completion.id]
        assert shown.keys.shape == kv[0].shape
        assert shown.keys == pytest.approx(kv[0], abs=1e-3)
        assert shown.values == pytest.approx(kv[1], abs=1e-3)
    assert engine.observe().kv == {}


def test_eos_is_a_token_like_any_other(canary_folder, tmp_path):
    folder = tmp_path / "eos"
    model = canary.build()
    # EOS becomes likelier than any word, so an engine that stops at it would stop at once.
    with torch.no_grad():
        model.lm_head.weight[alphabet.EOS] = 100 * model.lm_head.weight[1300:2592].sum(0)
    model.save_pretrained(folder)
    shutil.copy(canary_folder.path / "tokenizer.json", folder)
    (completion,) = mlx_lm.open_engine(str(folder), EngineConfig()).generate(requests()[:1])
    assert completion.tokens == (alphabet.EOS,) * N


def test_reset_forgets_and_salts_separate(canary_folder):
    engine = open_engine(canary_folder, sharing=True)

    def hits(salt=None):
        return engine.generate([Request("0", PROMPTS[0], N, salt=salt)])[0].cached_tokens

    whole = len(PROMPTS[0]) - 1
    assert [hits(salt) for salt in (None, None, "x", "x", "y", None)] == [0, whole, 0, whole, 0, whole]
    engine.reset_cache()
    assert [hits(salt) for salt in (None, "x")] == [0, 0]


@pytest.mark.parametrize(("config", "hit"), [({}, True), ({"pool_size": 60}, False), ({"entries": 1}, False)])
def test_no_more_is_kept_than_was_said(canary_folder, config, hit):
    arguments = {"prompt_cache_size": str(config.pop("entries", 64))}
    engine = open_engine(canary_folder, sharing=True, engine_args=arguments, **config)
    for i in (0, 3, 0):
        (completion,) = engine.generate(requests()[i : i + 1])
    # BOS is what it has in common with the other.
    assert completion.cached_tokens == (len(PROMPTS[0]) - 1 if hit else 1)


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("state", ["submitted", "waiting", "half prefilled", "prefilled", "decoding"])
def test_a_cancelled_request_is_gone_and_hurts_nobody(canary_folder, state, sharing):
    engine = open_engine(canary_folder, sharing=sharing, max_concurrency=2 if state == "waiting" else 4, chunk_size=32)
    session = engine.session()
    for request in requests()[:2]:
        session.submit(request)
    step_until(session, "0", 2)
    session.submit(Request("gone", LONG if state == "half prefilled" else PROMPTS[2], N))
    number = session._live["gone"].number
    for _ in range({"submitted": 0, "decoding": 4, "prefilled": 2}.get(state, 1)):
        session.step()
    assert bool(session._live["gone"].tokens) == (state == "decoding")
    assert engine._batch.runs(number) == (state not in ("submitted", "waiting"))
    session.cancel("gone")
    assert number not in in_batch(engine)
    # It may come again, under the same name, while the others still run.
    session.submit(Request("gone", PROMPTS[3], 2))
    session.cancel("gone")
    session.submit(requests()[3])
    done = finish(session)
    assert sorted(c.id for c in done) == ["0", "1", "3"]
    assert right(done) == [True] * 3
    assert in_batch(engine) == []
    session.cancel("0")  # ended already: nothing to do
    session.close()
    assert right(engine.generate(requests())) == [True] * 4


def test_closing_a_session_withdraws_what_is_left(canary_folder):
    engine = open_engine(canary_folder)
    session = engine.session()
    for request in requests(400):
        session.submit(request)
    step_until(session, "0", 1)
    with pytest.raises(RefusedError, match="request 0 is running already"):
        session.submit(requests()[0])
    with pytest.raises(RefusedError, match="request empty was not accepted: its prompt is empty"):
        session.submit(Request("empty", (), 2))
    with pytest.raises(EngineFaultError, match="one at a time"):
        engine.session()
    session.close()
    assert in_batch(engine) == []
    session = engine.session()
    assert session.step() == {}
    assert session.completions() == []
    session.close()
    assert right(engine.generate(requests())) == [True] * 4


def test_a_step_that_broke_off_leaves_nothing_behind(canary_folder, monkeypatch):
    engine = open_engine(canary_folder)
    with monkeypatch.context() as patch:
        patch.setattr(type(engine._batch._model), "__call__", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(EngineFaultError, match="mlx-lm broke off: division by zero"):
            engine.generate(requests())
    assert right(engine.generate(requests())) == [True] * 4


@pytest.mark.parametrize("sharing", [False, True])
def test_a_conversation_goes_on_from_its_history(canary_folder, sharing):
    engine = open_engine(canary_folder, sharing=sharing)
    session = engine.session()
    session.submit(Request("one", PROMPTS[0], N, conversation="talk"))
    with pytest.raises(RefusedError, match="runs already"):
        session.submit(Request("early", PROMPTS[1], N, conversation="talk"))
    with pytest.raises(RefusedError, match="no history that could be edited now"):
        session.edit("talk", (1, 2))
    (first,) = finish(session)
    new = alphabet.prompt_tokens(range(600, 610))
    session.submit(Request("two", new, 8, conversation="talk"))
    session.submit(Request("other", (*PROMPTS[0], *first.tokens, *new), 8))
    two, other = sorted(finish(session), key=lambda c: c.id, reverse=True)
    history = (*PROMPTS[0], *first.tokens)
    # The step that handed out the last token has computed its K/V.
    assert two.cached_tokens == len(history)
    assert two.tokens == other.tokens == alphabet.answer((*history, *new), 8)
    assert other.cached_tokens == sharing * len(history)
    session.edit("talk", PROMPTS[0][:8])
    session.submit(Request("three", new, 8, conversation="talk"))
    (third,) = finish(session)
    assert (third.cached_tokens, third.tokens) == (8, alphabet.answer(new, 8))
    session.close()


def test_forks_go_on_by_themselves(canary_folder):
    engine = open_engine(canary_folder, observe=("kv",))
    session = engine.session()
    session.submit(Request("parent", PROMPTS[0], N))
    session.submit(requests()[3])
    with pytest.raises(RefusedError, match="once it has emitted a token"):
        session.fork("parent", (7,))
    emitted = step_until(session, "parent", 3)["parent"]
    words = [PROMPTS[0][at] + alphabet.WORDS for at in (5, 9)]
    children = session.fork("parent", words)
    done = {c.id: c for c in finish(session)}
    assert done["parent"].tokens == alphabet.answer(PROMPTS[0], N)
    assert done["3"].tokens == alphabet.answer(PROMPTS[3], N)
    kv = engine.observe().kv
    for child, word in zip(children, words, strict=True):
        begun = (*emitted[:2], word)
        assert done[child].tokens == (*begun, *alphabet.answer((*PROMPTS[0], *begun), N - 3))
        assert (done[child].forced, len(done[child].top_logprobs)) == (2, N)
        assert kv[child].keys.shape[2] == len(PROMPTS[0]) + N
    session.close()


@pytest.mark.parametrize("steps", [1, 2, 6, 7, 8, 12])
def test_a_preempted_request_is_golden(canary_folder, steps):
    engine = open_engine(canary_folder, chunk_size=32, sharing=True)
    session = engine.session()
    session.submit(Request("long", LONG, N))
    session.submit(requests()[0])
    with pytest.raises(RefusedError, match="request long is not in the batch"):
        session.preempt("long")
    for _ in range(steps):
        session.step()
    number = session._live["long"].number
    session.preempt("long")
    assert number not in in_batch(engine)
    assert len(in_batch(engine)) == 2
    done = {c.id: c for c in finish(session)}
    assert done["long"].tokens == alphabet.answer(LONG, N)
    assert done["0"].tokens == alphabet.answer(PROMPTS[0], N)
    assert [best[0][0] for best in done["long"].top_logprobs] == list(done["long"].tokens)
    assert done["long"].cached_tokens == 0
    session.close()


def test_capabilities_say_why_not(canary_folder):
    known = open_engine(canary_folder).capabilities
    assert known.keys() == CAPABILITIES.keys()
    lacking = {name for name, c in known.items() if c.state is Support.UNSUPPORTED}
    assert lacking == {"adapters", "weights", "media", "events", "attention"}
    assert all(known[name].reason for name in lacking)
    assert {c.state for c in known.values()} == {Support.SUPPORTED, Support.UNSUPPORTED}


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        ({"dtype": "int8"}, UnsupportedConfigError, "mlx-lm has no dtype int8; it has float32"),
        ({"device": "cuda"}, UnsupportedConfigError, "run on cpu, not on cuda"),
        ({"engine_args": {"page": "1"}}, EngineStartError, "no engine argument page; it has prompt_cache_size"),
        ({"engine_args": {"prompt_cache_size": "0"}}, EngineStartError, "a number from 1 to 9999, not 0"),
    ],
)
def test_unsupported_configurations(canary_folder, config, error, match):
    with pytest.raises(error, match=match):
        open_engine(canary_folder, **config)


def test_what_cannot_be_loaded(canary_folder, tmp_path, monkeypatch):
    with pytest.raises(EngineStartError, match="leaves out the sliding window"):
        open_engine(models.resolve("windowed"))
    with pytest.raises(EngineStartError, match=r"^mlx-lm cannot load /nowhere: .*config\.json"):
        mlx_lm.open_engine("/nowhere", EngineConfig())
    config = json.loads((canary_folder.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineStartError, match="No safetensors"):
        mlx_lm.open_engine(str(tmp_path), EngineConfig())
    (tmp_path / "model.safetensors").symlink_to(canary_folder.path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "nobodys"}))
    with pytest.raises(EngineStartError, match="nobodys not supported"):
        mlx_lm.open_engine(str(tmp_path), EngineConfig())
    monkeypatch.setitem(sys.modules, "mlx_lm.utils", None)
    with pytest.raises(EngineStartError, match=r"pip install 'kvfence\[mlx\]'"):
        open_engine(canary_folder)
