"""What an engine refuses: no failure of others, expected where a scenario says so, and no part of what was sent."""

from dataclasses import replace

import pytest

from kvfence.adapters.api import EngineConfig, RefusedError, Request
from kvfence.adapters.player import play
from kvfence.adapters.reference import open_engine
from kvfence.adapters.schedule import Moment, Operation, Verb, submit
from kvfence.conformance.leave_out import scenario_without
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.stage import Stage, wanted

PROMPT = tuple(range(8, 40))


@pytest.fixture(scope="module")
def engine(canary_folder):
    engine = open_engine(str(canary_folder.path), EngineConfig(max_concurrency=2, pool_size=128, block_size=16))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def plan():
    return Plan(Settings("reference", "canary", "scenarios"))


def case(plan, name):
    return next(case for case in plan.cases if case.name == name)


def test_a_request_that_is_refused_fails_and_the_others_go_on(engine):
    small, large = Request("small", PROMPT, 4), Request("large", PROMPT * 8, 4)
    played = play(engine, (submit(small), submit(large)))
    assert [completion.id for completion in played.completions] == ["small"]
    assert dict(played.failed) == {"large": "request large needs 259 tokens of KV; the pool has 128"}
    assert played.missed == ""


def test_an_operation_that_is_refused_ends_the_schedule(engine):
    late = Operation(Verb.PREEMPT, "a", Moment("a"))
    played = play(engine, (submit(Request("a", PROMPT, 2)), late, submit(Request("b", PROMPT, 2))))
    assert played.missed == "preempt a was refused: there is no request a"
    assert [completion.id for completion in played.completions] == ["a"]


def test_a_call_that_is_refused_raises(engine):
    with pytest.raises(RefusedError, match="needs 259 tokens of KV"):
        engine.generate([Request("large", PROMPT * 8, 4)])


def stage(plan, name, change=lambda scenario: scenario):
    """A scenario as the right engine plays it; what is expected of it may be changed afterwards."""
    scenario = case(plan, name)
    config = EngineConfig(
        sharing=True, max_concurrency=scenario.setup.concurrency, pool_size=scenario.setup.pool or 4096,
        chunk_size=scenario.setup.chunk, block_size=scenario.setup.block,
    )  # fmt: skip
    engine = open_engine(str(scenario.model), config)
    try:
        played = play(engine, scenario.schedule)
    finally:
        engine.close()
    return Stage(change(scenario), played, plan.layout(scenario), ())


@pytest.mark.parametrize("name", ["capacity.beyond-all-room", "cancel.refused"])
def test_what_was_to_be_refused_was_and_is_no_part_of_what_was_sent(plan, name):
    seen = stage(plan, name)
    assert seen.silent == ""
    assert not set(seen._scenario.refused) & {part.prompt.name for part in seen.parts}


def test_a_refusal_that_nobody_expects_is_no_pass(plan):
    seen = stage(plan, "capacity.beyond-all-room", lambda scenario: replace(scenario, refused=()))
    assert seen.silent.startswith("request large failed: request capacity.beyond-all-room-float32/large needs")


def test_what_is_taken_against_all_expectation_is_no_pass(plan):
    seen = stage(plan, "capacity.beyond-all-room", lambda scenario: replace(scenario, refused=("large", "B0")))
    assert seen.silent == "the engine was to refuse B0, and did not"


def test_it_takes_a_session_and_is_left_out_with_its_request(plan):
    scenario = case(plan, "cancel.refused")
    assert "session" in wanted(scenario)
    assert scenario_without(scenario, ["goes"]).refused == ()
