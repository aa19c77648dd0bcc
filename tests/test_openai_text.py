"""The adapter `openai` where tokens come as text alone: which of them are certain, and what is told if they change."""

import json
from functools import partial

import pytest
from endpoint_engines import opener, supported
from faulty_proxy import FaultyProxy, answer
from llama_servers import PROMPTS

from kvfence.adapters.api import EngineFaultError, EngineStartError, Request
from kvfence.adapters.openai_answers import Words
from kvfence.adapters.openai_endpoint import PROBE
from kvfence.prompts import alphabet

pytest.importorskip("httpx", reason="httpx is not installed: the extra openai brings it")
WORDS = alphabet.answer(PROMPTS[0], 3)


@pytest.fixture
def words(canary_folder):
    return Words(str(canary_folder.path))


@pytest.fixture
def proxy():
    proxy = FaultyProxy("http://127.0.0.1:9/v1")  # behind which there is nothing: all that it answers is planned
    yield proxy
    proxy.close()


@pytest.fixture
def opened(canary_folder, proxy):
    with opener(canary_folder, proxy.url, prompts="text", served="canary", attempts="1") as open_engine:
        yield open_engine


def stream(*pieces, prompt=PROBE, length=2, cached=None):
    """An answer of text in so many pieces, with its usage at the end."""
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    usage = {"prompt_tokens": prompt, "completion_tokens": length, **details}
    events = [{"choices": [{"text": piece}]} for piece in pieces] + [{"choices": [], "usage": usage}]
    return answer(200, "".join(f"data: {json.dumps(event)}\n\n" for event in events))


def held(*pieces):
    """As much of an answer, and no more as long as the test lasts."""

    def fault(proxy, handler, body):
        stream(*pieces)(proxy, handler, body)
        proxy.released.wait()

    return fault


two = partial(stream, "Bulu", " BULU")  # what a probe is answered


def spelled(tokens):
    return [" " * (i > 0) + alphabet.spell(token) for i, token in enumerate(tokens)]


@pytest.mark.parametrize(
    ("text", "certain"),
    [("", 0), ("bake", 0), ("bake Bake", 1), ("bake Bake ", 1), ("bake <bos>", 1), ("<bos> bake BAKE Ba", 3)],
)
def test_a_word_is_certain_when_the_next_has_come(words, text, certain):
    assert words.settled(text) == words.encode(text)[:certain]


def test_a_word_of_several_tokens_waits_as_a_whole(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2, "ab": 3}, [("a", "b")]))
    letters.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    letters.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    words = Words(str(tmp_path))
    assert [words.settled(text) for text in ("ca", "cab", "cab c")] == [(), (), (2, 3)]


def test_a_session_hands_on_each_word_and_the_last_at_the_end(opened, proxy):
    proxy.plan.extend([two(), two()])
    engine = opened()
    assert supported(engine) == {"session", "reopen", "conversations"}
    proxy.plan.append(stream(*spelled(WORDS), prompt=len(PROMPTS[0]), length=3))
    session = engine.session()
    session.submit(Request("0", PROMPTS[0], 3))
    assert [session.step() for _ in range(3)] == [{"0": (token,)} for token in WORDS]
    assert [c.tokens for c in session.completions()] == [WORDS]


def test_a_session_does_not_wait_for_the_whole_answer(opened, proxy):
    proxy.plan.extend([two(), two()])
    engine = opened()
    proxy.plan.append(held(*spelled(WORDS)))
    session = engine.session()
    session.submit(Request("0", PROMPTS[0], 4))
    assert [session.step() for _ in range(2)] == [{"0": (token,)} for token in WORDS[:2]]
    session.close()


def test_an_answer_in_one_piece_is_no_session(opened, proxy):
    proxy.plan.extend([stream("Bulu BULU")] * 2)
    engine = opened()
    assert engine.capabilities["session"].reason == "its answers come in one piece"
    proxy.plan.append(stream("".join(spelled(WORDS)), prompt=len(PROMPTS[0]), length=3))
    assert [c.tokens for c in engine.generate([Request("0", PROMPTS[0], 3)])] == [WORDS]


def test_text_that_changes_what_was_certain_is_a_fault(opened, proxy, monkeypatch):
    proxy.plan.extend([two(), two()])
    engine = opened()
    monkeypatch.setattr(Words, "settled", lambda words, text: words.encode(text))
    # Without its last letters the first word is another.
    proxy.plan.append(stream("Ba", "ke BAKE bake", prompt=len(PROMPTS[0]), length=3))
    with pytest.raises(EngineFaultError, match="what came of the text later changed the tokens that it began with"):
        engine.generate([Request("0", PROMPTS[0], 3)])


def test_a_special_token_that_is_left_out_of_the_text_is_told(opened, proxy):
    proxy.plan.extend([two(), two()])
    engine = opened()
    proxy.plan.append(stream("bake", " BAKE", prompt=len(PROMPTS[0]), length=3))
    with pytest.raises(EngineFaultError, match="its text is split into 2 tokens, the server counts 3"):
        engine.generate([Request("0", PROMPTS[0], 3)])


@pytest.mark.parametrize(
    ("cached", "told", "size"),
    [
        (149, (1,), 1),  # token by token
        (144, (0, 0, 0, 0, 16), 16),
        (128, (32,), 32),
        (128, (0, 64), 64),
        (128, (0, 0, 128), 128),
        (128, (0, 0, 0), None),
        (0, (), None),
        (None, (), None),
    ],
)
def test_the_size_of_a_block_is_found_by_what_is_cached(opened, proxy, words, cached, told, size):
    proxy.plan.extend([two(cached=None if cached is None else 0), two(cached=cached)])
    # Blocks of these sizes, and of no others, would have been given out as far as this.
    sizes = {149: (1,), 144: (6, 8, 9, 12, 16), 128: (32, 64, 128)}.get(cached, ())
    proxy.plan.extend(two(prompt=n + 1, cached=n_told) for n, n_told in zip(sizes, told, strict=False))
    assert opened().block_size == size
    assert len(proxy.plan) == 0
    lengths = [len(words.encode(json.loads(body)["prompt"])) for _, _, body in proxy.seen[2:]]
    assert lengths == [n + 1 for n in sizes[: len(told)]]


def test_a_text_that_is_split_otherwise_does_not_keep_an_endpoint_from_being_asked(opened, proxy):
    """What the model says to a probe is nothing that it is asked for."""
    proxy.plan.extend([stream("Bulu", length=2), stream("Bulu", length=2)])
    engine = opened()
    proxy.plan.append(stream(*spelled(WORDS), prompt=len(PROMPTS[0]), length=3))
    assert [c.tokens for c in engine.generate([Request("0", PROMPTS[0], 3)])] == [WORDS]


def test_of_ways_that_do_not_do_the_best_is_told(opened, proxy):
    proxy.plan.extend([two(prompt=PROBE + 7), *[two(prompt=PROBE + 1)] * 5])
    with pytest.raises(EngineStartError, match=f"cannot be used: a prompt of {PROBE} tokens was taken as {PROBE + 7}$"):
        opened()


def test_an_answer_that_ends_early_is_told(opened, proxy):
    proxy.plan.extend([two(), two()])
    engine = opened()
    proxy.plan.append(stream(*spelled(WORDS[:2]), prompt=len(PROMPTS[0]), length=2))
    with pytest.raises(EngineFaultError, match=r"2 tokens came, 3 were asked for \(finish reason None\)"):
        engine.generate([Request("0", PROMPTS[0], 3)])


@pytest.mark.parametrize("name", ["salt", "prefix_cache"])
def test_a_switch_is_on_or_off(opened, name):
    with pytest.raises(EngineStartError, match=f"{name} is on or off"):
        opened(**{name: "maybe"})
