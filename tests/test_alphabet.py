import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from kvfence.prompts import alphabet, tokenizer

WORDS = st.lists(st.integers(alphabet.FIRST_WORD, alphabet.WORDS - 1), min_size=1, max_size=40, unique=True)


def naive_answer(prompt: tuple[int, ...], n: int) -> list[int]:
    """The rule as it is told, read off the spelled text: lower case is capitalised, capitalised and upper case swap."""
    text = [alphabet.spell(token) for token in prompt]
    for _ in range(n):
        last = text[-1]
        after = text[text.index(last.lower() if last == capital(last) else capital(last)) + 1]
        text.append(after.upper() if after == capital(after) else capital(after))
    return [alphabet.parse(spelling) for spelling in text[len(prompt) :]]


def capital(spelling: str) -> str:
    return f"<{spelling[1:].capitalize()}" if spelling.startswith("<") else spelling.capitalize()


@given(words=WORDS, data=st.data(), n=st.integers(0, 150))
@settings(deadline=None)
def test_answer_follows_the_rule(words, data, n):
    prompt = alphabet.prompt_tokens(words, data.draw(st.integers(0, len(words) - 1)))
    assert alphabet.answer(prompt, n) == tuple(naive_answer(prompt, n))


def test_answer_goes_round_in_the_second_and_third_alphabet_in_turn():
    words = [alphabet.parse(word) for word in ("bake", "lily", "tuna")]
    answer = alphabet.answer(alphabet.prompt_tokens(words, start=1), 9)
    assert " ".join(map(alphabet.spell, answer)) == "Tuna <Ask> LILY TUNA <ASK> Lily Tuna <Ask> LILY"


@given(words=WORDS, start=st.integers(0, 39), n=st.integers(0, 150))
def test_a_prompt_of_distinct_words_is_unambiguous_for_three_rounds(words, start, n):
    start %= len(words)
    round_ = len(words[start:]) + 1  # and what asks
    assert alphabet.unambiguous(alphabet.prompt_tokens(words, start), n) == min(n, 3 * round_)


def test_a_word_that_stands_twice_is_ambiguous_when_the_answer_comes_to_it():
    bake, lily, tuna = map(alphabet.parse, ("bake", "lily", "tuna"))
    start = alphabet.WORDS + bake
    assert alphabet.unambiguous((alphabet.BOS, bake, lily, tuna, lily, alphabet.ASK, start), 9) == 1
    assert alphabet.unambiguous((alphabet.BOS, bake, alphabet.ASK, start + 1), 9) == 0
    assert alphabet.unambiguous((), 9) == 0


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ((), "ends with its start word"),
        ((alphabet.BOS, 8, 9, alphabet.ASK), "ends with its start word"),
        ((alphabet.BOS, 8, 9, alphabet.ASK, alphabet.WORDS + 10), f"follows {alphabet.spell(10)} in"),
    ],
)
def test_a_prompt_that_asks_for_nothing_it_holds_has_no_answer(prompt, reason):
    with pytest.raises(ValueError, match=reason):
        alphabet.answer(prompt, 1)


@pytest.mark.parametrize(
    ("words", "start", "reason"),
    [
        ([], 0, "start from word 0 of 0"),
        ([8, 9], 2, "start from word 2 of 2"),
        ([8, 9], -1, "start from word -1"),
        ([8, 9, 8], 0, f"{alphabet.spell(8)} comes twice"),
        ([8, 7], 0, "not 7"),
        ([alphabet.WORDS], 0, "not 1296"),
    ],
)
def test_a_malformed_prompt_is_refused(words, start, reason):
    with pytest.raises(ValueError, match=reason):
        alphabet.prompt_tokens(words, start)


def test_a_prompt_is_bos_words_ask_start():
    assert alphabet.prompt_tokens([8, 9, 10], start=2) == (1, 8, 9, 10, 3, 1306)


def test_every_token_has_one_spelling():
    tokens = range(alphabet.VOCAB_SIZE)
    assert [alphabet.parse(alphabet.spell(token)) for token in tokens] == list(tokens)


@pytest.mark.parametrize("token", [-1, alphabet.VOCAB_SIZE])
def test_an_id_outside_the_vocabulary_is_refused(token):
    with pytest.raises(ValueError, match=f"no token {token}"):
        alphabet.spell(token)
    assert alphabet.word_of(token) is None


@pytest.mark.parametrize("spelling", ["", "bAKE", "zzzz", "bake lily"])
def test_an_unknown_spelling_is_refused(spelling):
    with pytest.raises(ValueError, match="no token is spelled"):
        alphabet.parse(spelling)


@pytest.mark.parametrize("word", [-1, alphabet.WORDS])
def test_only_words_have_digits(word):
    with pytest.raises(ValueError, match="a word is a number"):
        alphabet.digits(word)


def test_a_damaged_digit_is_one_letter():
    word = 8 + 36 * 2
    assert alphabet.digits(word) == (0, 2, 1, 2)
    for place, weight in enumerate((216, 36, 6, 1)):
        changed = [a != b for a, b in zip(alphabet.spell(word), alphabet.spell(word + weight), strict=True)]
        assert changed == [i == place for i in range(4)]


@pytest.mark.parametrize("number", range(alphabet.ALPHABETS))
def test_a_word_is_the_same_in_every_alphabet(number):
    words = range(alphabet.FIRST_WORD, alphabet.WORDS)
    tokens = [number * alphabet.WORDS + word for word in words]
    assert [alphabet.word_of(token) for token in tokens] == list(words)
    assert {alphabet.alphabet_of(token) for token in tokens} == {number}
    assert len({alphabet.spell(token).lower() for token in tokens}) == len(words)


@pytest.mark.parametrize("token", [alphabet.ASK, alphabet.WORDS + alphabet.ASK, alphabet.ALPHABETS * alphabet.WORDS])
def test_special_and_unused_tokens_are_no_words(token):
    assert alphabet.word_of(token) is None


@pytest.fixture(scope="module")
def auto_tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.write(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_the_tokenizer_round_trips_the_vocabulary(auto_tokenizer):
    tokens = list(range(alphabet.VOCAB_SIZE))
    text = " ".join(map(alphabet.spell, tokens))
    assert auto_tokenizer.encode(text, add_special_tokens=False) == tokens
    assert auto_tokenizer.decode(tokens) == text


def test_the_tokenizer_adds_nothing_to_a_prompt(auto_tokenizer):
    prompt = alphabet.prompt_tokens([8, 9])
    assert auto_tokenizer.encode(" ".join(map(alphabet.spell, prompt))) == list(prompt)


def test_the_tokenizer_knows_the_special_tokens(auto_tokenizer):
    assert len(auto_tokenizer) == alphabet.VOCAB_SIZE
    ids = [getattr(auto_tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "unk")]
    assert ids == [alphabet.PAD, alphabet.BOS, alphabet.EOS, alphabet.UNK]
    assert auto_tokenizer.encode("nonsense", add_special_tokens=False) == [alphabet.UNK]
    told = auto_tokenizer.decode(alphabet.prompt_tokens([8]), skip_special_tokens=True)
    assert told == f"{alphabet.spell(8)} {alphabet.spell(8).capitalize()}"
