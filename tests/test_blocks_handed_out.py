"""Rules of ownership that a log which tells to whom slots are handed out lets be checked."""

import pytest

from kvfence.adapters.observation import Action, CacheEvent
from kvfence.conformance.oracles.blocks import Ledger
from kvfence.conformance.oracles.slots import Mark

A, B, C = {"A": (1, 2, 3, 4)}, {"B": (1, 2, 5, 6)}, {"C": (1, 2, 3, 4)}


def line(action):
    def of(request, slot, start=0, length=4, position=None):
        at = start if position is None else position
        return CacheEvent(0, request, Action(action), slot, start, length, at)

    return of


allocate, write, copy, restore, fetch = map(line, ("allocate", "write", "copy", "restore", "fetch"))
publish, reuse, fork, evict, free = map(line, ("publish", "reuse", "fork", "evict", "free"))


def breaches(*events, tokens=None):
    found = Ledger().replay(events, A | B | C if tokens is None else tokens)
    return [(b.kind, b.victim, b.source, b.cause) for b in found]


OWN = allocate("A", 7), write("A", 7), publish("A", 7)


@pytest.mark.parametrize(
    "events",
    [
        (*OWN, reuse("C", 7), write("C", 8, length=1, position=4)),
        (*OWN, reuse("B", 7, length=2), allocate("B", 8), copy("B", 8, length=2), free("B", 7), write("B", 8, 2, 2)),
        (*OWN, free("A", 7), evict("", 7), allocate("B", 7), write("B", 7), free("B", 7)),
        (allocate("A", 7), write("A", 7, length=2), fork("B", 7, length=2), free("A", 7), write("B", 8, 0, 1, 2)),
        (allocate("A", 7), fetch("A", 7), free("A", 7), allocate("B", 7), restore("B", 7)),
    ],
    ids=["shared", "copied", "again", "forked", "brought"],
)
def test_what_keeps_the_rules_is_no_breach(events):
    assert breaches(*events) == []


def test_what_is_taken_may_be_written_until_the_taker_computes():
    early = allocate("A", 7), publish("A", 7), reuse("C", 7)
    assert breaches(*early, write("A", 7), write("C", 8, length=1, position=4)) == []
    late = breaches(*early, write("C", 8, length=1, position=4), write("A", 7))
    assert late == [("key", "C", None, "unwritten"), ("overlap", "C", "A", "handed")]


def test_what_was_left_there_before_is_not_what_was_published():
    events = allocate("B", 7), write("B", 7), free("B", 7), allocate("A", 7), publish("A", 7), reuse("C", 7)
    assert breaches(*events, write("C", 8, length=1, position=4)) == [("key", "C", "B", "unwritten")]


def test_two_that_share_a_slot_and_write_behind_what_they_share_write_over_each_other():
    shared = allocate("A", 7), write("A", 7, length=2), publish("A", 7, length=2), free("A", 7), reuse("B", 7, length=2)
    both = *shared, reuse("D", 7, length=2)
    tokens = A | B | {"D": (1, 2, 7, 8)}
    assert breaches(*both, write("B", 7, 2, 2), write("D", 8, 2, 2), tokens=tokens) == []
    found = breaches(*both, write("B", 7, 2, 2), write("D", 7, 2, 2), tokens=tokens)
    assert found == [("overlap", "B", "D", "shared")]


def test_who_is_preempted_before_it_computes_is_judged_by_what_was_there():
    events = *OWN, reuse("C", 7), free("C", 7), free("A", 7), evict("", 7), allocate("B", 7), write("B", 7)
    assert breaches(*events, write("C", 8)) == []
    assert breaches(allocate("B", 7), write("B", 7), publish("A", 7), reuse("C", 7), free("C", 7)) == [
        ("key", "C", "B", "overwritten")
    ]


@pytest.mark.parametrize(
    ("between", "cause"),
    [
        ((free("A", 7), evict("", 7)), "withdrawn"),
        ((free("A", 7), allocate("B", 7), write("B", 7)), "withdrawn"),
        ((free("A", 7), write("B", 7)), "overwritten"),
    ],
)
def test_what_can_be_found_no_more(between, cause):
    found = breaches(*OWN, *between, reuse("C", 7), write("C", 8, length=1, position=4))
    assert [b[3] for b in found if b[0] == "key"] == [cause]


def test_what_was_never_published_for_these_tokens_is_a_leftover():
    events = allocate("B", 7), write("B", 7), publish("B", 7), free("B", 7), evict("", 7), reuse("C", 7)
    assert breaches(*events, write("C", 8, length=1, position=4)) == [("key", "C", "B", "leftover")]


def test_what_its_publisher_has_not_written_when_it_lets_go_never_comes():
    events = allocate("A", 7), publish("A", 7), free("A", 7), reuse("C", 7)
    assert breaches(*events, write("C", 8, length=1, position=4)) == [("key", "C", None, "abandoned")]


def test_a_slot_handed_to_two():
    assert breaches(allocate("A", 7), allocate("B", 7)) == [("owner", "A", "B", "")]


def test_a_slot_let_go_of_by_who_does_not_have_it():
    assert breaches(*OWN, write("B", 8), free("B", 7)) == [("free", "A", "B", "twice")]
    assert breaches(*OWN, free("A", 7), free("A", 7)) == [("free", "A", None, "twice")]
    # It went on with the slot, as its table still named it.
    assert breaches(*OWN, free("A", 7), write("A", 8), free("A", 7)) == [("free", "A", None, "used")]
    # Its last call may have let it keep what it lets go of now, whoever is called so now.
    assert breaches(*OWN, free("X", 7)) == []
    assert breaches(free("B", 7), *OWN, write("B", 8)) == []


@pytest.mark.parametrize(
    ("writer", "cause"),
    [
        ((write("", 7),), "padding"),
        ((fetch("B", 7),), "fetched"),
        ((write("B", 7),), "stray"),
        ((reuse("C", 7), write("C", 7, 3, 1)), "shared"),
    ],
)
def test_an_overlap_says_how_the_writer_came_there(writer, cause):
    assert breaches(*OWN, *writer) == [("overlap", "A", writer[-1].request or None, cause)]


def test_a_write_that_lands_when_its_slot_is_anothers():
    events = allocate("B", 7), write("B", 7, length=3), free("B", 7), allocate("A", 7), write("B", 7, 3, 1)
    assert breaches(*events) == [("overlap", "A", "B", "freed")]


def test_a_fork_that_takes_what_is_not_its_parents():
    assert breaches(allocate("A", 7), write("A", 7), fork("B", 7), write("B", 8, 0, 1, 4)) == [
        ("fork", "B", "A", "token")
    ]


@pytest.mark.parametrize("name", ["salt", "adapter", "weights", "media"])
def test_what_the_key_has_forgotten_is_named(name):
    plain = Mark(1, None, None, "", ())
    other = plain._replace(**{name: {"adapter": ("x", "folder"), "media": ((0, "cat"),)}.get(name, "other")})
    tokens = {"A": [plain] * 4, "C": [other] * 4}
    found = breaches(*OWN, reuse("C", 7), write("C", 8, length=1, position=4), tokens=tokens)
    assert found == [("key", "C", "A", name)]
