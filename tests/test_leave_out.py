from kvfence.adapters.api import Request
from kvfence.adapters.schedule import Moment, Operation, Verb, submit
from kvfence.conformance.leave_out import without

A, B, C = (Request(name, (1, 2), 4) for name in "ABC")
FORK = Operation(Verb.FORK, "B", Moment("B", 1), None, (7, 8))


def test_what_waited_for_one_left_out_waits_for_what_that_one_waited_for():
    schedule = submit(A), submit(B, Moment("A")), FORK, submit(C, Moment("B", 3)), Operation(Verb.STEP)
    assert without(schedule, {"B"}) == (submit(A), submit(C, Moment("A")), Operation(Verb.STEP))
    assert without(schedule, {"A", "B"}) == (submit(C), Operation(Verb.STEP))
    assert without(schedule, ()) == schedule


def test_a_history_is_edited_as_long_as_its_conversation_has_a_turn():
    one, two = (Request(name, (1, 2), 4, conversation="talk") for name in ("one", "two"))
    edit = Operation(Verb.EDIT, "talk", None, None, (3, 4))
    schedule = submit(one), edit, submit(two)
    assert without(schedule, {"one"}) == (edit, submit(two))
    assert without(schedule, {"one", "two"}) == ()
