import pytest

from kvfence.reference_impl.clock import Clock, Stream

STEPS, COPIES, TRANSFERS = Stream


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def landed():
    """Names of work in the order in which it landed."""
    return []


def launch(clock, landed, name, stream=STEPS, delay=0, after=()):
    return clock.launch(stream, lambda: landed.append(name), delay, after)


def test_work_without_delay_lands_at_once(clock, landed):
    assert launch(clock, landed, "a").landed
    assert landed == ["a"]
    assert clock.in_flight(STEPS) == []


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_work_lands_as_many_ticks_later_as_it_is_delayed(clock, landed, delay):
    operation = launch(clock, landed, "a", delay=delay)
    for now in range(1, delay + 1):
        assert (operation.landed, clock.in_flight(STEPS)) == (False, [operation])
        clock.tick()
        assert clock.now == now
    assert landed == ["a"]
    assert (operation.landed, clock.in_flight(STEPS)) == (True, [])


def test_a_stream_keeps_its_order_whatever_is_due(clock, landed):
    launch(clock, landed, "late", delay=3)
    launch(clock, landed, "early", delay=1)
    clock.tick()
    assert landed == []
    clock.tick()
    clock.tick()
    assert landed == ["late", "early"]


def test_streams_do_not_wait_for_each_other(clock, landed):
    launch(clock, landed, "step", STEPS, delay=3)
    launch(clock, landed, "copy", COPIES, delay=2)
    launch(clock, landed, "transfer", TRANSFERS, delay=1)
    for _ in range(3):
        clock.tick()
    assert landed == ["transfer", "copy", "step"]


def test_waiting_brings_what_is_before_it_in_its_stream_and_nothing_else(clock, landed):
    launch(clock, landed, "first", COPIES, delay=5)
    wanted = launch(clock, landed, "wanted", COPIES, delay=5)
    launch(clock, landed, "behind", COPIES, delay=5)
    launch(clock, landed, "elsewhere", STEPS, delay=5)
    clock.wait(wanted)
    assert landed == ["first", "wanted"]
    clock.wait(wanted)
    assert landed == ["first", "wanted"]
    assert clock.now == 0


def test_work_in_no_hurry_lands_before_what_is_launched_behind_it_at_once(clock, landed):
    launch(clock, landed, "first", delay=5)
    launch(clock, landed, "at once")
    assert landed == ["first", "at once"]


def test_a_fence_has_another_stream_land_first(clock, landed):
    step = launch(clock, landed, "step", STEPS, delay=9)
    launch(clock, landed, "copy", COPIES, delay=1, after=[step])
    clock.tick()
    assert landed == ["step", "copy"]


def test_fences_hold_through_several_streams(clock, landed):
    transfer = launch(clock, landed, "transfer", TRANSFERS, delay=9)
    launch(clock, landed, "other step", STEPS, delay=9)
    step = launch(clock, landed, "step", STEPS, delay=9, after=[transfer])
    launch(clock, landed, "other copy", COPIES, delay=9)
    copy = launch(clock, landed, "copy", COPIES, delay=9, after=[step])
    launch(clock, landed, "behind", STEPS, delay=9)
    clock.wait(copy)
    assert landed == ["other copy", "other step", "transfer", "step", "copy"]


def test_a_fence_may_name_work_of_the_same_stream(clock, landed):
    first = launch(clock, landed, "first", delay=1)
    launch(clock, landed, "second", delay=2, after=[first])
    clock.drain()
    assert landed == ["first", "second"]


def test_two_streams_may_fence_each_other(clock, landed):
    step = launch(clock, landed, "step", STEPS, delay=9)
    copy = launch(clock, landed, "copy", COPIES, delay=9, after=[step])
    launch(clock, landed, "next step", STEPS, delay=9, after=[copy])
    clock.drain()
    assert landed == ["step", "copy", "next step"]


def test_work_that_lands_may_wait_for_what_waits_for_it(clock, landed):
    copies = []

    def run():
        clock.wait(copies[0])
        landed.append("step")

    step = clock.launch(STEPS, run, 9)
    copies.append(launch(clock, landed, "copy", COPIES, delay=9, after=[step]))
    launch(clock, landed, "behind", COPIES, delay=9)
    clock.wait(copies[0])
    assert landed == ["copy", "step"]


def test_fences_that_have_landed_are_forgotten(clock, landed):
    assert launch(clock, landed, "b", delay=1, after=[launch(clock, landed, "a")]).after == ()


def test_those_who_want_to_know_are_told_once_it_has_landed(clock, landed):
    operation = launch(clock, landed, "work", delay=1)
    operation.then.append(lambda: landed.append(("told", operation.landed)))
    clock.tick()
    assert landed == ["work", ("told", True)]


def test_everything_lands_when_the_clock_is_drained(clock, landed):
    operations = [launch(clock, landed, (stream, delay), stream, delay) for delay in (2, 1) for stream in Stream]
    clock.drain()
    assert sorted(landed) == sorted((stream, delay) for delay in (2, 1) for stream in Stream)
    assert all(operation.landed for operation in operations)
    assert not any(clock.in_flight(stream) for stream in Stream)
    assert clock.now == 0


def test_work_sees_memory_as_it_is_when_it_lands(clock):
    memory, seen = ["old"], []
    clock.launch(COPIES, lambda: seen.append(memory[0]), 1)
    memory[0] = "new"
    clock.tick()
    assert seen == ["new"]
