import json
import shutil
import sys

import pytest
import torch
from llama_servers import HEAD, PROMPTS, N, finish, requests, right, step_until

from kvfence.adapters import gguf_file, llama_cpp
from kvfence.adapters.api import (
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

for package in ("xllamacpp", "gguf", "httpx"):
    pytest.importorskip(package, reason=f"{package} is not installed: the extra llama-cpp brings it")


@pytest.fixture
def opened():
    engines = []

    def open_engine(folder, **config):
        engines.append(llama_cpp.open_engine(str(folder), EngineConfig(**{"max_concurrency": 4, **config})))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("unified", ["off", "on"])
@pytest.mark.parametrize("sharing", [False, True])
def test_every_mode_is_golden_on_the_canary(canary_folder, opened, sharing, unified):
    engine = opened(canary_folder.path, sharing=sharing, engine_args={"kv_unified": unified})
    assert right(engine.generate(requests())) == [True] * 4
    alone = [engine.generate([request])[0] for request in requests()]
    assert right(alone) == [True] * 4
    # Sent a second time, each prompt lies in some slot or beside it.
    assert [c.cached_tokens >= HEAD for c in alone[:3]] == [sharing] * 3
    assert sharing or [c.cached_tokens for c in alone] == [0] * 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_golden_on_the_canary(canary_folder, opened, dtype):
    assert right(opened(canary_folder.path, dtype=dtype, sharing=True).generate(requests())) == [True] * 4


def test_logprobs_are_goldens_up_to_rounding(random_folder, opened):
    golden = Golden.load(random_folder.path)
    for prompt, completion in zip(PROMPTS, opened(random_folder.path).generate(requests()), strict=True):
        expected = golden.verify(prompt, completion.tokens)
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert [best[0][0] for best in completion.top_logprobs] == list(completion.tokens)
        assert [best[0][1] for best in completion.top_logprobs] == list(completion.logprobs)


def test_eos_is_a_token_like_any_other(canary_folder, opened, tmp_path):
    folder = tmp_path / "eos"
    model = canary.build()
    # EOS becomes likelier than any word, so an engine that stops at it would stop at once.
    with torch.no_grad():
        model.lm_head.weight[alphabet.EOS] = 100 * model.lm_head.weight[1300:2592].sum(0)
    model.save_pretrained(folder)
    shutil.copy(canary_folder.path / "tokenizer.json", folder)
    (completion,) = opened(folder).generate(requests()[:1])
    assert completion.tokens == (alphabet.EOS,) * N


def test_reset_forgets(canary_folder, opened):
    engine = opened(canary_folder.path, sharing=True)
    hits = [engine.generate(requests()[:1])[0].cached_tokens for _ in range(2)]
    engine.reset_cache()
    hits.append(engine.generate(requests()[:1])[0].cached_tokens)
    assert hits == [0, len(PROMPTS[0]) - 1, 0]


@pytest.mark.parametrize("unified", ["off", "on"])
def test_a_cancelled_request_is_gone_and_hurts_nobody(canary_folder, opened, unified):
    engine = opened(canary_folder.path, sharing=True, engine_args={"kv_unified": unified})
    session = engine.session()
    for request in requests(200, PROMPTS[:2]):
        session.submit(request)
    with pytest.raises(RefusedError, match="0 is running already"):
        session.submit(requests()[0])
    emitted = step_until(session, "0", 3)
    assert len(emitted["0"]) == 3
    assert any(slot["is_processing"] for slot in engine._server.slots())
    session.cancel("0")
    assert sum(slot["is_processing"] for slot in engine._server.slots()) <= 1
    # It may come again under the same name, while the other still runs.
    session.submit(Request("0", PROMPTS[0], N))
    session.submit(Request("2", PROMPTS[2], N))
    done = finish(session)
    session.close()
    # The round ends after so many words, behind which an answer to nothing follows.
    assert {c.id: len(c.tokens) for c in done} == {"0": N, "1": 200, "2": N}
    assert [c.tokens[:N] == alphabet.answer(PROMPTS[int(c.id)], N) for c in done] == [True] * 3
    assert right(engine.generate(requests())) == [True] * 4


def test_closing_a_session_withdraws_what_is_left(canary_folder, opened):
    engine = opened(canary_folder.path)
    session = engine.session()
    for request in requests(400):
        session.submit(request)
    step_until(session, "0", 1)
    with pytest.raises(EngineFaultError, match="one at a time"):
        engine.session()
    session.close()
    assert not any(slot["is_processing"] for slot in engine._server.slots())
    assert right(engine.generate(requests())) == [True] * 4


def test_a_reset_while_requests_run_empties_idle_slots(canary_folder, opened):
    engine = opened(canary_folder.path, sharing=True, engine_args={"cache_ram": "0"})
    engine.generate([requests()[3]])
    session = engine.session()
    session.submit(Request("runs", PROMPTS[0], 400))
    step_until(session, "runs", 1)
    engine.reset_cache()
    session.submit(requests()[3])
    while not (done := session.completions()):
        assert session.step()
    session.close()
    assert done[0].cached_tokens == 0


def test_a_reset_while_requests_run_is_refused_where_prompts_are_kept_beside(canary_folder, opened):
    engine = opened(canary_folder.path, sharing=True)
    session = engine.session()
    session.submit(Request("runs", PROMPTS[0], 400))
    with pytest.raises(RefusedError, match="cache_ram=0 and slot_save=off turn it off"):
        engine.reset_cache()
    session.close()


def test_a_conversation_goes_on_from_its_history(canary_folder, opened):
    engine = opened(canary_folder.path, sharing=True)
    session = engine.session()
    session.submit(Request("one", PROMPTS[0], N, conversation="talk"))
    with pytest.raises(RefusedError, match="runs already"):
        session.submit(Request("early", PROMPTS[1], N, conversation="talk"))
    with pytest.raises(RefusedError, match="no history that could be edited now"):
        session.edit("talk", (1, 2))
    (first,) = finish(session)
    new = alphabet.prompt_tokens(range(600, 610))
    session.submit(Request("two", new, 8, conversation="talk"))
    (second,) = finish(session)
    history = (*PROMPTS[0], *first.tokens)
    # The last token that was emitted has no K/V yet.
    assert second.cached_tokens == len(history) - 1
    assert second.tokens == alphabet.answer((*history, *new), 8)
    session.edit("talk", PROMPTS[0][:8])
    session.submit(Request("three", new, 8, conversation="talk"))
    (third,) = finish(session)
    assert (third.cached_tokens, third.tokens) == (8, alphabet.answer(new, 8))
    session.close()


def test_what_does_not_fit_is_refused_and_the_engine_goes_on(canary_folder, opened):
    engine = opened(canary_folder.path, max_concurrency=1, pool_size=256)
    with pytest.raises(RefusedError, match=r"request long needs 513 tokens of KV; a slot has 256"):
        engine.generate([Request("long", PROMPTS[3], 500)])
    assert right(engine.generate(requests())) == [True] * 4


def test_capabilities_say_why_not(canary_folder, opened):
    known = opened(canary_folder.path).capabilities
    assert {name for name, c in known.items() if c.state is Support.SUPPORTED} == {
        *("token_prompts", "sharing", "cached_tokens", "logprobs", "top_logprobs"),
        *("reset_cache", "reopen", "session", "conversations"),
    }
    assert all(c.reason for c in known.values() if c.state is not Support.SUPPORTED)


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        ({"dtype": "int8"}, UnsupportedConfigError, "no dtype int8"),
        ({"device": "cuda"}, UnsupportedConfigError, "runs on cpu"),
        ({"engine_args": {"page": "1"}}, EngineStartError, "no engine argument page; it has kv_unified"),
        ({"engine_args": {"kv_unified": "yes"}}, EngineStartError, "kv_unified is on or off, not yes"),
        ({"engine_args": {"threads": "-1"}}, EngineStartError, "threads is a number, not -1"),
    ],
)
def test_unsupported_configurations(canary_folder, opened, config, error, match):
    with pytest.raises(error, match=match):
        opened(canary_folder.path, **config)


def test_a_folder_is_converted_once(canary_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("KVFENCE_CACHE", str(tmp_path))
    file = gguf_file.gguf_file(str(canary_folder.path), "float32")
    written = file.stat()
    assert gguf_file.gguf_file(str(canary_folder.path), "float32").stat() == written
    assert gguf_file.gguf_file(str(canary_folder.path), "float16").stat().st_size < written.st_size
    assert {path.suffix for path in (tmp_path / "gguf").iterdir()} == {".gguf"}
    # Other weights in the same place are another file.
    copy = shutil.copytree(canary_folder.path, tmp_path / "copy")
    one = gguf_file.gguf_file(str(copy), "float32")
    canary.write(copy, seed=1)
    assert gguf_file.gguf_file(str(copy), "float32") != one


def test_what_cannot_be_converted(canary_folder, tmp_path, monkeypatch):
    windowed = str(models.resolve("windowed").path)
    monkeypatch.setenv("KVFENCE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(EngineStartError, match="cannot read"):
        gguf_file.gguf_file(str(tmp_path), "float32")
    with pytest.raises(EngineStartError, match="sliding window"):
        gguf_file.gguf_file(windowed, "float32")
    config = json.loads((canary_folder.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineStartError, match=r"no model\.safetensors"):
        gguf_file.gguf_file(str(tmp_path), "float32")
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(EngineStartError, match="of type gpt2"):
        gguf_file.gguf_file(str(tmp_path), "float32")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(EngineStartError, match=r"pip install 'kvfence\[llama-cpp\]'"):
        gguf_file.gguf_file(str(canary_folder.path), "float32")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_what_slots_held_comes_back_from_files(canary_folder, opened):
    engine = opened(canary_folder.path, sharing=True, engine_args={"slot_save": "on"})
    first = engine.generate(requests())
    assert right(first) == [True] * 4
    files = engine._server.saved.files
    assert sorted(files) == sorted((*prompt, *alphabet.answer(prompt, N - 1)) for prompt in PROMPTS)
    again = engine.generate(requests())
    assert right(again) == [True] * 4
    assert [c.cached_tokens for c in again] == [len(prompt) - 1 for prompt in PROMPTS]
    folder = next(iter(files.values())).parent
    engine.reset_cache()
    assert list(folder.iterdir()) == []
    (forgotten,) = engine.generate(requests(prompts=PROMPTS[:1]))
    assert forgotten.cached_tokens == 0


def test_slots_of_one_cache_are_not_emptied_before_they_are_saved(canary_folder, opened):
    settings = {"slot_save": "on", "kv_unified": "on"}
    engine = opened(canary_folder.path, max_concurrency=2, sharing=True, engine_args=settings)
    prompts = [alphabet.prompt_tokens(range(100 + 16 * i, 112 + 16 * i)) for i in range(12)]
    engine.generate(requests(prompts=prompts))
    again = engine.generate(requests(prompts=prompts))
    assert right(again, prompts) == [True] * 12
    assert [completion.cached_tokens for completion in again] == [len(prompts[0]) - 1] * 12


def test_a_file_with_the_k_v_of_others_changes_the_answer(canary_folder, opened):
    """The file tells its tokens first: here they are said to be another prompt's."""
    engine = opened(canary_folder.path, sharing=True, engine_args={"slot_save": "on"})
    other = alphabet.prompt_tokens(range(500, 510))
    assert len(other) == len(PROMPTS[3])
    engine.generate([Request("3", PROMPTS[3], 1)])
    files = engine._server.saved.files
    (file,) = files.values()
    held, said = (b"".join(token.to_bytes(4, "little") for token in prompt) for prompt in (PROMPTS[3], other))
    written = file.read_bytes()
    assert written.count(held) == 1
    file.write_bytes(written.replace(held, said))
    files[other] = files.pop(PROMPTS[3])
    (wrong,) = engine.generate([Request("3", other, N)])
    assert wrong.cached_tokens == len(other) - 1
    assert wrong.tokens != alphabet.answer(other, N)


def test_a_slot_that_a_withdrawn_request_is_in_is_waited_for(canary_folder, opened):
    engine = opened(canary_folder.path, max_concurrency=1, sharing=True, engine_args={"slot_save": "on"})
    session = engine.session()
    session.submit(Request("long", PROMPTS[0], 60))
    step_until(session, "long", 3)
    session.cancel("long")
    session.submit(Request("3", PROMPTS[3], N))
    assert right(finish(session)) == [True]
