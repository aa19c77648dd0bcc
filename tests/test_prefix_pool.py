import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from kvfence.adapters.prefix_pool import Entry, PrefixPool, common, stack

TOKENS = st.lists(st.integers(0, 2), max_size=8).map(tuple)


def entry(tokens, value=1.0):
    kv = torch.full((2, len(tokens), 4), value)
    return Entry(tuple(tokens), [(kv, 10 * kv)])


@given(TOKENS, TOKENS)
def test_common_is_the_longest_equal_head(a, b):
    n = common(a, b)
    assert a[:n] == b[:n]
    assert a[: n + 1] != b[: n + 1] or n == min(len(a), len(b))


@given(st.lists(TOKENS.filter(bool), min_size=1, max_size=5), TOKENS.filter(bool))
def test_longest_is_the_best_of_all_entries_and_leaves_a_token_to_compute(entries, prompt):
    pool = PrefixPool(1000)
    for tokens in entries:
        pool.add(entry(tokens))
    best, n = pool.longest(prompt)
    assert n == min(max(common(tokens, prompt) for tokens in entries), len(prompt) - 1)
    assert best.tokens[:n] == prompt[:n]


def test_an_empty_pool_has_nothing():
    assert PrefixPool(10).longest((1, 2)) == (None, 0)


def test_the_least_recently_used_entry_leaves_first():
    pool = PrefixPool(6)
    for first in (1, 2):
        pool.add(entry((first, 0, 0)))
    pool.longest((1, 0, 0, 5))
    pool.add(entry((3, 0, 0)))
    assert [pool.longest((first, 0, 0, 5))[1] for first in (1, 2, 3)] == [3, 0, 3]


def test_an_entry_takes_the_place_of_those_it_contains():
    pool = PrefixPool(6)
    pool.add(entry((1, 2)))
    pool.add(entry((1, 2, 3)))
    pool.add(entry((9, 9, 9)))
    assert pool.longest((1, 2, 3, 4))[1] == 3


def test_clear_forgets_everything():
    pool = PrefixPool(10)
    pool.add(entry((1, 2)))
    pool.clear()
    assert pool.longest((1, 2, 3)) == (None, 0)


def test_rows_are_left_padded_copies():
    source = entry((1, 2, 3), value=5.0)
    cache = stack([(source, 3), (None, 0), (source, 1)], DynamicCache(), source.layers)
    keys, values = cache.layers[0].keys, cache.layers[0].values
    assert keys.shape == (3, 2, 3, 4)
    assert keys[:, 0, :, 0].tolist() == [[5, 5, 5], [0, 0, 0], [0, 0, 5]]
    assert values[0, 0, 0, 0] == 50
    keys[0] = -1
    assert source.layers[0][0].min() == 5
