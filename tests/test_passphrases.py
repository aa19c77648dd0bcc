import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.prompts.passphrases import TEXT_WORDS, Deck, proquint, proquints
from kvfence.prompts.word_layout import DECK, SECRET_WORDS


def test_proquints_are_those_of_the_paper():
    # 127.0.0.1 and 63.84.220.193 in arXiv:0901.4016.
    assert [proquint(v) for v in (0x7F00, 0x0001, 0x3F54, 0xDCC1)] == ["lusab", "babad", "gutih", "tugad"]


def test_proquints_are_all_different():
    assert len({proquint(value) for value in range(1 << 16)}) == 1 << 16


@pytest.mark.parametrize("value", [-1, 1 << 16])
def test_proquint_holds_16_bits(value):
    with pytest.raises(ValueError, match="16 bits"):
        proquint(value)


def test_passphrases_have_at_least_48_bits():
    assert TEXT_WORDS * 16 >= 48
    assert math.log2(math.perm(len(DECK), SECRET_WORDS)) >= 48


def test_passphrases_come_from_the_seed():
    assert proquints(random.Random(1)) == proquints(random.Random(1)) != proquints(random.Random(2))


@given(st.integers(0, 1000), st.lists(st.integers(1, 12), max_size=60))
def test_no_pair_is_dealt_twice_and_no_word_before_its_turn(seed, sizes):
    deck = Deck(range(100), random.Random(seed))
    hands = [deck.deal(n) for n in sizes]
    pairs = [pair for hand in hands for pair in pairwise(hand)]
    assert len(pairs) == len(set(pairs))
    dealt: list[int] = []
    for hand in hands:
        dealt += hand
        assert len(set(dealt)) == min(len(dealt), 100)
    assert all(len(set(hand)) == len(hand) for hand in hands)


@given(st.sets(st.integers(0, 19), max_size=15), st.integers(1, 5))
def test_avoided_words_are_not_dealt(avoid, n):
    deck = Deck(range(20), random.Random(0))
    # So that words to be avoided are next in the pile.
    deck.deal(1)
    for _ in range(3):
        assert not avoid.intersection(deck.deal(n, avoid=avoid))


def test_a_deck_says_when_it_is_exhausted():
    deck = Deck(range(4), random.Random(0))
    with pytest.raises(ValueError, match="cannot deal 3 words: only 2 are left"):
        deck.deal(3, avoid=(0, 1))
    with pytest.raises(ValueError, match="without a used pair"):
        # Four words have twelve ordered pairs.
        list(map(deck.deal, [2] * 13))
