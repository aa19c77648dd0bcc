"""Golden's K/V beside an engine's: whose they are, also where an earlier case has left them."""

import numpy as np
import pytest

from kvfence.adapters.api import Completion
from kvfence.adapters.observation import KV
from kvfence.conformance.driven import Answer
from kvfence.conformance.golden_kv import GoldenKV
from kvfence.conformance.oracles.canary import Owner
from kvfence.conformance.oracles.kv import KVTolerance
from kvfence.conformance.oracles.side import Domain, Sent
from kvfence.prompts.prompt import Prompt

TOLERANCE = KVTolerance(np.full((2, 2, 1), 1e-4, np.float32))


class Drawn:
    """A golden whose K/V at a position are drawn from all tokens up to it."""

    asked = 0

    def kv(self, tokens):
        self.asked += 1
        seeds = [tokens[: i + 1] for i in range(len(tokens))]
        cells = [np.random.default_rng(seed).normal(size=(2, 2, 1, 4)) for seed in seeds]
        return np.stack(cells, axis=3).astype(np.float32)


def answer(name, tokens, shown=None):
    keys, values = Drawn().kv(tokens) if shown is None else shown
    return Answer(Prompt(name, "", tokens[:-1], 0, (), ()), Completion(name, tokens[-1:]), kv=KV(keys, values))


def left(tokens):
    return Sent(Owner("before", "X"), Domain(), tokens)


@pytest.fixture
def golden():
    return Drawn()


OWN, OTHER, OLD = (1, 2, 3, 4), (1, 5, 6), (7, 8, 9)


def with_cell(tokens, at, of, position):
    shown = Drawn().kv(tokens)
    shown[..., at, :] = Drawn().kv(of)[..., position, :]
    return answer("A", tokens, shown)


def test_what_is_right_asks_for_nobody_elses(golden):
    compared = GoldenKV(golden, "now", [answer("A", OWN), answer("B", OTHER)], [left(OLD)])
    assert compared.examine(answer("A", OWN), TOLERANCE) is None
    assert golden.asked == 1


def test_a_neighbours_is_found_before_what_was_left_earlier(golden):
    compared = GoldenKV(golden, "now", [answer("A", OWN), answer("B", OTHER)], [left(OTHER)])
    found = compared.examine(with_cell(OWN, 2, OTHER, 1), TOLERANCE)
    assert (found.source, found.source_position, golden.asked) == (Owner("now", "B"), 1, 2)


def test_what_an_earlier_case_has_left_is_named(golden):
    compared = GoldenKV(golden, "now", [answer("A", OWN), answer("B", OTHER)], [left(OLD)])
    found = compared.examine(with_cell(OWN, 2, OLD, 1), TOLERANCE)
    assert (found.positions, found.source, found.source_position) == ((2,), Owner("before", "X"), 1)
    assert GoldenKV(golden, "now", [answer("A", OWN)]).examine(with_cell(OWN, 2, OLD, 1), TOLERANCE).source is None
