from itertools import pairwise

import pytest

from kvfence.prompts import alphabet
from kvfence.prompts.edges import BLOCK, EDGES, Edge, window_edges
from kvfence.prompts.text_layout import TextLayout
from kvfence.prompts.word_layout import WordLayout


class Characters:
    """A tokenizer with one token per character, so that lengths can be checked by eye."""

    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


LAYOUTS = {
    "canary": lambda: WordLayout(0, reach=48),
    "zh": lambda: TextLayout("zh", Characters(), bos=1, seed=0),
    "en": lambda: TextLayout("en", Characters(), bos=None, seed=0),
}
FITTING = [edge for edge in EDGES.values() if edge.name != "long"]


def common(a, b):
    return next((i for i in range(min(len(a), len(b))) if a[i] != b[i]), min(len(a), len(b)))


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]()


@pytest.mark.parametrize("edge", FITTING, ids=lambda edge: edge.name)
def test_partners_share_exactly_the_prefix(layout, edge):
    a, b = layout.compose(edge, "partner", 2)
    if edge.prefix is not None:
        bos = len(layout.write("A0", (), a.secret, 0, 0.0).tokens) - layout.overhead
        assert a.prefix_tokens == b.prefix_tokens >= edge.prefix + bos
    assert a.tokens[: a.prefix_tokens] == b.tokens[: b.prefix_tokens]
    assert a.tokens != b.tokens


@pytest.mark.parametrize("edge", FITTING, ids=lambda edge: edge.name)
def test_strangers_share_the_question_and_differ_where_the_edge_says(layout, edge):
    a, c = layout.compose(edge, "stranger", 2)
    first, other = a.tokens[: a.prefix_tokens], c.tokens[: c.prefix_tokens]
    bos = a.prefix_tokens - (edge.prefix if edge.prefix is not None else a.prefix_tokens)
    places = [i - bos for i, (x, y) in enumerate(zip(first, other, strict=True)) if x != y] if edge.differs else None
    expected = {"first": [0], "middle": [(edge.prefix or 0) // 2], "last": [(edge.prefix or 0) - 1], None: None}
    assert places == expected[edge.differs]
    if layout.name != "canary":
        question = layout._language.questions[0]
        assert layout.text(a.tokens).endswith(question)
        assert layout.text(c.tokens).endswith(question)


def test_every_member_has_a_secret_of_its_own_in_its_private_part_only(layout):
    prompts = layout.compose(EDGES["block+1"], "mixed", 16)
    assert [p.name for p in prompts[:5]] == ["A0", "B0", "C0", "A1", "B1"]
    assert len({p.secret for p in prompts}) == 16
    for prompt in prompts:
        private = layout.text(prompt.tokens[prompt.prefix_tokens :])
        assert " ".join(prompt.secret) in private
        for other in prompts:
            if other is not prompt:
                assert " ".join(other.secret) not in layout.text(prompt.tokens)


def test_a_whole_prompt_edge_repeats_prompts_within_a_group(layout):
    prompts = layout.compose(EDGES["whole-prompt"], "mixed", 6)
    assert prompts[0].tokens == prompts[3].tokens != prompts[1].tokens


def test_secrets_are_found_in_an_output_that_spells_them(layout):
    prompt = layout.compose(EDGES["block"], "alone", 1)[0]
    words = [word for word, _ in layout.words(prompt.tokens)]
    start = words.index(prompt.secret[0])
    assert tuple(words[start : start + len(prompt.secret)]) == prompt.secret


def test_word_positions_are_those_of_their_first_token():
    layout = LAYOUTS["en"]()
    assert layout.words(layout._tokenizer.encode("say lusab, babad!")) == [("lusab", 4), ("babad", 11)]
    canary = LAYOUTS["canary"]()
    word = alphabet.spell(100)
    assert canary.words((3, 100, 100 + alphabet.WORDS, alphabet.WORDS + 3)) == [(word, 1), (word, 2)]


def test_canary_pairs_are_unique_over_a_run_except_in_shared_parts():
    layout = LAYOUTS["canary"]()
    seen: set = set()
    for edge in FITTING:
        for prompt in layout.compose(edge, "mixed", 8):
            if edge.repeated and int(prompt.name[1:]):
                continue
            pairs = set(pairwise(prompt.secret))
            assert not pairs & seen, edge.name
            seen |= pairs


def test_long_canary_prompts_are_asked_for_in_stretches_that_cover_them():
    layout = LAYOUTS["canary"]()
    prompts = layout.compose(EDGES["thousand"], "mixed", 16)
    starts = [prompt.words.index(alphabet.spell(alphabet.word_of(prompt.tokens[-1]))) for prompt in prompts]
    assert starts[0] == len(prompts[0].words) - 48
    assert starts == sorted(starts, reverse=True)
    assert len(set(starts)) == 16
    short = layout.compose(EDGES["block"], "mixed", 4)
    assert all(p.words[0] == alphabet.spell(alphabet.word_of(p.tokens[-1])) for p in short)


def test_the_same_seed_gives_the_same_prompts(layout):
    again = LAYOUTS[layout.name]()
    for edge in FITTING[:4]:
        assert layout.compose(edge, "mixed", 5) == again.compose(edge, "mixed", 5)


def test_samples_have_their_length_and_differ(layout):
    samples = [layout.sample(70) for _ in range(5)]
    assert {len(sample) for sample in samples} == {70}
    assert len(set(samples)) == 5


def test_a_stray_has_its_length_and_cannot_be_answered():
    layout = WordLayout(0, reach=48)
    strays = [layout.stray(n) for n in (12, 70, 70, 70)]
    assert [len(stray) for stray in strays] == [12, 70, 70, 70]
    assert len(set(strays)) == 4
    assert all(alphabet.unambiguous(stray, 12) < 12 for stray in strays)


def test_text_prompts_hold_the_sentences_of_the_experiment():
    a, b, c = LAYOUTS["zh"]().compose(EDGES["system-prompt"], "alone", 3)
    texts = [Characters().decode(p.tokens) for p in (a, b, c)]
    assert "系统提示：你是一个助手" in texts[0]
    assert "1+1等于几" in texts[0]
    assert "2+2等于几" in texts[1]
    assert "系统提示：你是一个翻译" in texts[2]
    assert "1+1等于几" in texts[2]


def test_edges_stand_around_the_block():
    assert [EDGES[n].prefix for n in ("block-1", "block", "block+1", "3-blocks")] == [15, 16, 17, 48]
    assert BLOCK == 16


def test_window_edges_are_prompt_lengths():
    assert window_edges(32, overhead=10) == [Edge("window-1", 21), Edge("window", 22), Edge("window+1", 23)]
    assert window_edges(8, overhead=10) == []
