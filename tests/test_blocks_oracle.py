import pytest

from kvfence.adapters.observation import Action, CacheEvent
from kvfence.conformance.oracles.blocks import Ledger


def event(request, action, slot, start, length, position=None, key=""):
    return CacheEvent(0, request, action, slot, start, length, start if position is None else position, key)


def write(request, slot, start, length, position=None):
    return event(request, Action.WRITE, slot, start, length, position)


def publish(request, slot, start, length, position=None, key="k"):
    return event(request, Action.PUBLISH, slot, start, length, position, key)


def reuse(request, slot, start, length, position=None, key="k"):
    return event(request, Action.REUSE, slot, start, length, position, key)


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
    events = [publish("A", 7, 0, 2), reuse("B", 7, 0, 2), write("B", 0, 2, 2)]
    assert breaches((events, A | B)) == [[]]


def test_what_was_reused_in_the_middle_of_a_slot_is_gone_on_from_there():
    events = [publish("A", 7, 4, 4, position=0), reuse("B", 7, 4, 2, position=0), write("B", 7, 6, 2, position=2)]
    assert breaches((events, A | B)) == [[]]


def test_blocks_of_a_table_start_anew():
    events = [write("A", 3, 0, 16), write("A", 9, 0, 4, position=16), write("A", 9, 4, 1, position=20)]
    assert breaches((events, {"A": range(21)})) == [[]]


@pytest.mark.parametrize(("length", "found"), [(2, []), (3, [("key", "B", "A")])])
def test_the_key_log_shows_whose_tokens_were_taken(length, found):
    assert breaches(([publish("A", 7, 0, 4)], A), ([reuse("B", 7, 0, length)], B)) == [[], found]


@pytest.mark.parametrize("taken", [reuse("B", 8, 0, 2), reuse("B", 7, 0, 2, key="l"), reuse("B", 7, 0, 0, key="l")])
def test_what_nobody_published_under_a_key_in_a_slot(taken):
    assert breaches(([publish("A", 7, 0, 4), taken], A | B)) == [[("key", "B", "A" if taken.slot == 7 else None)]]
    written = [write("A", 7, 0, 4), write("A", 8, 0, 4), taken]
    assert breaches((written, A), ([taken], B)) == [[], [("key", "B", "A")]]


def test_a_publication_comes_before_what_takes_it():
    events = [reuse("B", 7, 0, 2), publish("A", 7, 0, 4)]
    assert breaches((events, A | B)) == [[("key", "B", None)]]


@pytest.mark.parametrize(
    ("start", "length", "right"),
    [
        (0, 4, True),
        (1, 2, True),
        (3, 1, True),
        (2, 0, True),
        (0, 5, False),
        (3, 2, False),
        (5, 1, False),
        (5, 0, False),
    ],
)
def test_a_part_of_what_was_published_is_taken_and_no_more(start, length, right):
    # Published are offsets 0 to 4, of positions 10 to 14.
    tokens = range(100, 120)
    taken = reuse("B", 7, start, length, position=10 + start)
    events = [write("A", 7, 0, 8, position=10), publish("A", 7, 0, 4, position=10), taken]
    assert breaches((events, {"A": tokens, "B": tokens})) == [[] if right else [("key", "B", "A")]]


def test_offsets_before_what_was_published():
    tokens = range(100, 120)
    for start, found in ((8, []), (7, [("key", "B", None)])):
        events = [publish("A", 7, 8, 4), reuse("B", 7, start, 2)]
        assert breaches((events, {"A": tokens, "B": tokens})) == [found]


def test_equal_tokens_behind_another_prefix_have_other_kv():
    for first, found in ((1, []), (9, [("key", "B", "A")])):
        tokens = {"A": (1, 2, 3, 4), "B": (first, 2, 3, 4)}
        assert breaches(([publish("A", 7, 0, 2, position=2), reuse("B", 7, 0, 2, position=2)], tokens)) == [found]


def test_equal_tokens_at_another_position_have_other_kv():
    same = {"A": (5,) * 8, "B": (5,) * 8}
    for position, found in ((2, []), (3, [("key", "B", "A")]), (1, [("key", "B", "A")])):
        events = [publish("A", 7, 0, 2, position=2), reuse("B", 7, 0, 2, position=position)]
        assert breaches((events, same)) == [found]
    # A part of what was published has its place in it.
    for position, found in ((3, []), (2, [("key", "B", "A")])):
        events = [publish("A", 7, 0, 2, position=2), reuse("B", 7, 1, 1, position=position)]
        assert breaches((events, same)) == [found]


def test_more_than_its_publisher_or_its_taker_ever_had():
    longer, shorter = (1, 2, 3, 4), (1, 2, 3)
    for length, found in ((3, []), (4, [("key", "B", "A")])):
        events = [publish("A", 7, 0, 4), reuse("B", 7, 0, length)]
        assert breaches((events, {"A": shorter, "B": longer})) == [found]
        assert breaches((events, {"A": longer, "B": shorter})) == [found]


@pytest.mark.parametrize(("published", "taken", "right"), [
    (4, 0, False), (2, 0, True), (0, 3, False), (0, 2, True),
    # Neither is told: that is one token.
    (0, 0, True),
])  # fmt: skip
def test_a_length_that_is_not_told(published, taken, right):
    # A and B differ from their third token on.
    events = [publish("A", 7, 0, published), reuse("B", 7, 0, taken)]
    assert breaches((events, A | B)) == [[] if right else [("key", "B", "A")]]
    # What lay there before does not count, even if the log does not say how much of it is gone.
    before = [write("D", 7, 0, 4)]
    assert breaches((before, {"D": range(4)}), (events, A | B))[1] == ([] if right else [("key", "B", "A")])


def test_one_token_is_taken_at_least_and_written_at_least():
    stranger = {"C": (9, 2, 3, 4)}
    assert breaches(([publish("A", 7, 0, 0), reuse("C", 7, 0, 0)], A | stranger)) == [[("key", "C", "A")]]
    assert breaches(([write("A", 0, 0, 0), write("C", 0, 0, 0)], A | stranger)) == [[("overlap", "A", "C")]]


SAME, OTHER = {"C": (1, 2, 3, 4)}, {"D": (1, 7, 3, 4)}


@pytest.mark.parametrize(("length", "found"), [(1, []), (2, [("key", "C", "D")])])
@pytest.mark.parametrize("over", [write("D", 7, 1, 1), write("D", 7, 0, 4), publish("D", 7, 0, 4, key="l")])
def test_what_was_overwritten_since_is_of_who_wrote_it(over, length, found):
    published = [write("A", 7, 0, 4), publish("A", 7, 0, 4)]
    taken = reuse("C", 7, 0, length)
    assert breaches((published, A), ([over], OTHER), ([taken], SAME)) == [[], [], found]


def test_what_was_overwritten_with_the_same_tokens_is_the_same():
    published, again = [publish("A", 7, 0, 4), write("A", 7, 3, 1)], [write("E", 7, 0, 4)]
    calls = (published, A), (again, {"E": (1, 2, 3, 4)}), ([reuse("C", 7, 0, 4)], SAME)
    assert breaches(*calls) == [[], [], []]


def test_the_rest_of_what_was_overwritten_is_still_there():
    over = [write("D", 7, 0, 1, position=8)]
    for start, found in ((1, []), (0, [("key", "C", "D")])):
        calls = ([publish("A", 7, 0, 4)], A), (over, {"D": range(20)}), ([reuse("C", 7, start, 3)], SAME)
        assert breaches(*calls) == [[], [], found]


def test_what_is_published_anew_counts():
    calls = ([publish("D", 7, 0, 4), write("D", 7, 0, 4)], OTHER), ([publish("A", 7, 0, 4)], A)
    assert breaches(*calls, ([reuse("C", 7, 0, 4)], SAME)) == [[], [], []]


def test_of_a_failed_call_only_the_log_is_known():
    ledger = Ledger()
    # A's output is not known, nor how it would have ended: it held its slot, and broke a rule.
    failed = [write("A", 7, 3, 1, position=0), write("A", 7, 0, 4), publish("A", 7, 0, 4)]
    ledger.replay_failed(failed, {"A": (1, 2)})
    taken = reuse("C", 7, 0, 4)
    assert ledger.replay([taken, write("C", 7, 4, 1), write("C", 7, 0, 2)], SAME) == []
    (breach,) = ledger.replay([reuse("D", 7, 0, 4)], OTHER)
    assert (breach.kind, breach.source) == ("key", "C")


def test_of_a_request_that_is_not_known_nothing_can_be_said():
    assert breaches(([publish("warm-up", 7, 0, 4), reuse("A", 7, 0, 4)], A)) == [[]]


def test_a_breach_that_hits_a_request_of_an_earlier_call_is_not_told():
    late = [write("A", 0, 0, 4), write("B", 0, 0, 4)]
    assert breaches(([], A), (late, B)) == [[], []]


def test_two_writers_on_one_slot_hit_each_other():
    events = [write("A", 0, 0, 4), write("B", 0, 0, 6), write("A", 0, 4, 1)]
    assert breaches((events, A | B)) == [[("overlap", "A", "B"), ("overlap", "B", "A")]]


def test_who_always_writes_last_is_not_hit():
    events = [write("A", 0, 0, 4), write("B", 0, 0, 4), write("A", 0, 4, 1), write("B", 0, 4, 1)]
    assert breaches((events, A | B)) == [[("overlap", "A", "B")]]


def test_one_after_another_is_no_overlap():
    freed = event("A", Action.FREE, 0, 0, 0)
    assert breaches(([write("A", 0, 0, 4), freed, write("B", 0, 0, 4)], A | B)) == [[]]
    assert breaches(([write("A", 0, 0, 4)], A), ([write("B", 0, 0, 4)], A | B)) == [[], []]


def test_side_by_side_in_one_slot_is_no_overlap():
    assert breaches(([write("A", 0, 0, 4), write("B", 0, 4, 4, position=4)], A | B)) == [[]]


def test_writing_over_what_another_request_reuses():
    for length in (2, 0):
        events = [publish("A", 5, 0, 2), reuse("B", 5, 0, length), write("A", 5, 1, 1)]
        assert breaches((events, A | B)) == [[("overlap", "B", "A")]]


@pytest.mark.parametrize(("events", "told"), [
    ([reuse("B", 7, 0, 3)], "takes 3 tokens of K/V by key k from slot 7; nobody has published them"),
    ([publish("A", 7, 0, 2), reuse("B", 7, 0, 3)], "; published were 2 from offset 0 on"),
    ([publish("A", 7, 0, 4), reuse("B", 7, 1, 3, 0)], "; the K/V for position 0 are those of position 1"),
    ([publish("A", 7, 0, 4), reuse("B", 7, 0, 3)], "; they were made for other tokens, from position 2 on"),
    ([publish("B", 7, 0, 4), write("A", 7, 0, 4), reuse("B", 7, 0, 3)],
     "; they were overwritten by A, whose tokens are others from position 2 on"),
])  # fmt: skip
def test_a_breach_of_the_key_rule_says_what_is_wrong(events, told):
    (breach,) = [b for b in Ledger().replay(events, A | B) if b.kind == "key"]
    assert breach.told.endswith(told)


def test_a_breach_is_told_once_for_two_requests():
    events = [write("A", 0, 0, 4), *(write("B", 0, i, 1) for i in range(4))]
    assert breaches((events, A | B)) == [[("overlap", "A", "B")]]
