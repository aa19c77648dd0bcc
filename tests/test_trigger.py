"""What a victim takes: found by leaving its neighbours out."""

from dataclasses import replace

import pytest
from samples import finding

from kvfence.adapters.api import EngineFaultError, Request
from kvfence.adapters.schedule import submit
from kvfence.conformance.driven import Driven
from kvfence.conformance.scenarios.scenario import ROOMY, Scenario
from kvfence.conformance.trigger import find_trigger, neighbours

VICTIM = finding("V", "B", 0, 3, case="c-float32")


def driven(*requests):
    return Driven(Scenario("c", "r", ROOMY, "float32", "canary", tuple(map(submit, requests)), {}, (), None))


def request(name, talk=None):
    return Request(f"c-float32/{name}", (1, 2), 4, conversation=talk)


FOUR = driven(*map(request, "AVBC"))


def test_the_source_is_left_out_first_and_the_victim_never():
    assert neighbours(FOUR, VICTIM) == ["B", "A", "C"]
    assert neighbours(FOUR, replace(VICTIM, victim="V.3")) == ["B", "A", "C"]


def test_a_turn_needs_those_before_it():
    talking = driven(request("A", "t"), request("V", "t"), request("B"), request("C", "u"))
    assert neighbours(talking, VICTIM) == ["B", "C"]


@pytest.mark.parametrize(
    ("harmed", "requests", "takes"),
    [
        (lambda without: "B" not in without, ("B",), "neighbours"),
        (lambda without: not {"A", "C"} & set(without), ("A", "C"), "neighbours"),
        (lambda without: len(without) < 2, (), "several"),
        (lambda without: True, (), "nobody"),
        (lambda without: False, (), "before"),
    ],
)
def test_what_it_takes(harmed, requests, takes):
    found = find_trigger(FOUR, VICTIM, lambda without: ["V"] if harmed(without) else [])
    assert (set(found.requests), found.takes) == (set(requests), takes)


def test_an_engine_that_fails_then_is_told_of():
    def fails(without):
        raise EngineFaultError("out of memory")

    found = find_trigger(FOUR, VICTIM, fails)
    assert (found.takes, found.how) == ("unknown", "it could not be tried again: out of memory")


def test_what_only_brings_a_prefix_is_not_tried_without_those_it_is_for():
    found = find_trigger(FOUR, replace(VICTIM, victim="primer0"), lambda without: 1 / 0)
    assert (found.requests, found.takes) == ((), "unknown")
