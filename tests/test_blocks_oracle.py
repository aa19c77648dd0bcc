import pytest

from kvfence.adapters.observation import Action, CacheEvent
from kvfence.conformance.oracles.blocks import Ledger


def event(request, action, slot, start, length, position=None, key=""):
    return CacheEvent(0, request, action, slot, start, length, start if position is None else position, key)


def write(request, slot, start, length, position=None):
    return event(request, Action.WRITE, slot, start, length, position)


def breaches(*calls):
    """Breaches of consecutive calls, each (events, requests with their tokens), as (kind, victim, source)."""
    ledger = Ledger()
    return [[(b.kind, b.victim, b.source) for b in ledger.replay(events, tokens)] for events, tokens in calls]


A, B = {"A": (1, 2, 3, 4)}, {"B": (1, 2, 5, 6)}


def test_a_slot_used_again_from_its_start_is_right():
    assert breaches(([write("A", 0, 0, 4)], A), ([write("B", 0, 0, 4), write("B", 0, 4, 1)], B)) == [[], []]


def test_the_length_log_shows_who_left_what_a_request_begins_behind():
    calls = ([write("A", 0, 0, 4)], A), ([write("B", 0, 4, 3, position=0), write("B", 0, 7, 1, position=3)], B)
    assert breaches(*calls) == [[], [("length", "B", "A")]]


def test_a_request_behind_what_nobody_wrote():
    (found,) = breaches(([write("B", 0, 4, 3, position=0)], B))
    assert found == [("length", "B", None)]


def test_what_was_reused_lies_before_a_write_rightly():
    events = [event("B", Action.REUSE, 7, 0, 2), write("B", 0, 2, 2)]
    assert breaches((events, B)) == [[]]


def test_blocks_of_a_table_start_anew():
    events = [write("A", 3, 0, 16), write("A", 9, 0, 4, position=16), write("A", 9, 4, 1, position=20)]
    assert breaches((events, {"A": range(21)})) == [[]]


@pytest.mark.parametrize(("length", "found"), [(2, []), (3, [("key", "B", "A")])])
def test_the_key_log_shows_whose_tokens_were_taken(length, found):
    published = event("A", Action.PUBLISH, 7, 0, 4, key="k")
    reused = event("B", Action.REUSE, 7, 0, length, key="k")
    assert breaches(([published], A), ([reused], B)) == [[], found]


def test_a_key_belongs_to_its_slot():
    published = event("A", Action.PUBLISH, 7, 0, 4, key="k")
    assert breaches(([published, event("B", Action.REUSE, 8, 0, 4, key="k")], A | B)) == [[]]


def test_tokens_of_another_position_are_other_tokens():
    published = event("A", Action.PUBLISH, 7, 0, 2, position=0, key="k")
    reused = event("B", Action.REUSE, 7, 0, 2, position=2, key="k")
    assert breaches(([published, reused], {"A": (1, 2), "B": (5, 6, 1, 2)})) == [[("key", "B", "A")]]


def test_two_writers_on_one_slot_hit_each_other():
    events = [write("A", 0, 0, 4), write("B", 0, 0, 6), write("A", 0, 4, 1)]
    assert breaches((events, A | B)) == [[("overlap", "A", "B"), ("overlap", "B", "A")]]


def test_who_always_writes_last_is_not_hit():
    events = [write("A", 0, 0, 4), write("B", 0, 0, 4), write("A", 0, 4, 1), write("B", 0, 4, 1)]
    assert breaches((events, A | B)) == [[("overlap", "A", "B")]]


def test_one_after_another_is_no_overlap():
    freed = event("A", Action.FREE, 0, 0, 0)
    assert breaches(([write("A", 0, 0, 4), freed, write("B", 0, 0, 4)], A | B)) == [[]]
    assert breaches(([write("A", 0, 0, 4)], A), ([write("B", 0, 0, 4)], B)) == [[], []]


def test_side_by_side_in_one_slot_is_no_overlap():
    assert breaches(([write("A", 0, 0, 4), write("B", 0, 4, 4, position=4)], A | B)) == [[]]


def test_writing_over_what_another_request_reuses():
    events = [event("B", Action.REUSE, 5, 0, 4), write("A", 5, 2, 1)]
    assert breaches((events, A | B)) == [[("overlap", "B", "A")]]


def test_a_breach_is_told_once_for_two_requests():
    events = [write("A", 0, 0, 4), *(write("B", 0, i, 1) for i in range(4))]
    assert breaches((events, A | B)) == [[("overlap", "A", "B")]]
