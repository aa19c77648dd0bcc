"""Hit counts in a cache that could not be emptied before: what it may have held is nobody's leak."""

from dataclasses import replace

import pytest

from kvfence.adapters.api import EngineConfig, Request
from kvfence.adapters.player import play
from kvfence.adapters.reference import open_engine
from kvfence.adapters.schedule import Moment, Operation, Verb, served_before, submit
from kvfence.conformance.plan import Plan
from kvfence.conformance.scenarios.scenario import TIGHT
from kvfence.conformance.settings import Settings
from kvfence.conformance.stage import Stage


@pytest.fixture(scope="module")
def played():
    """One prompt by two tenants and by nobody's, as the right engine plays it."""
    return of("key.salts")


@pytest.fixture(scope="module")
def batch():
    """Batches of eight that have the first token in common."""
    return of("prefix.many")


def of(name):
    plan = Plan(Settings("reference", "canary", "scenarios", cases=(f"{name}-float32",)))
    [scenario] = plan.cases
    engine = open_engine(str(scenario.model), EngineConfig(sharing=True, max_concurrency=8, block_size=16))
    try:
        return scenario, play(engine, scenario.schedule), plan.layout(scenario)
    finally:
        engine.close()


def told(played, name, cached, emptied, **order):
    """What side says of a request that is told to have had so many tokens cached."""
    scenario, was, layout = played
    changed = tuple(
        replace(one, cached_tokens=cached) if scenario.short(one.id) == name else one for one in was.completions
    )
    stage = Stage(scenario, replace(was, completions=changed), layout, (), emptied=emptied, **order)
    found = {answer.prompt.name: answer.side for answer in stage.answers((), {})}
    assert not any(side for other, side in found.items() if other != name)
    return found[name]


def test_what_nobody_sent_may_have_been_there_before(played):
    assert told(played, "x0", 1, emptied=True).source is None
    assert told(played, "x0", 1, emptied=False) is None


@pytest.mark.parametrize(("block_size", "told"), [(16, "the cache was not hit by"), (64, "")])
def test_a_hit_is_asked_for_where_a_block_of_the_engines_could_be_shared(played, block_size, told):
    scenario, was, layout = played
    none = tuple(replace(one, cached_tokens=0) for one in was.completions)
    stage = Stage(scenario, replace(was, completions=none), layout, (), block_size=block_size)
    assert scenario.hits
    assert stage.silent.startswith(told)
    assert bool(stage.silent) == bool(told)


def test_in_a_batch_a_later_one_may_have_been_computed_first(batch):
    scenario, *_ = batch
    first = next(iter(scenario.prompts))
    assert told(batch, first, 1, emptied=True).source is None
    assert told(batch, first, 1, emptied=True, in_waves=True) is None
    assert told(batch, first, 20, emptied=True, in_waves=True) is not None


def test_where_there_is_no_order_a_later_one_may_have_been_begun_first(batch, played):
    scenario, *_ = batch
    first = next(iter(scenario.prompts))
    assert told(batch, first, 1, emptied=True, ordered=False) is None
    assert told(batch, first, 20, emptied=True, ordered=False) is not None
    # Those that waited for it were not.
    assert told(played, "x0", 1, emptied=True, ordered=False).source is None


def test_where_room_is_short_a_later_one_may_have_overtaken_one_that_was_pushed_out(batch, played):
    scenario, *rest = batch
    first = next(iter(scenario.prompts))

    def held(tokens):
        return replace(scenario, setup=replace(scenario.setup, pool=tokens)), *rest

    needed = sum(-(-(len(op.request.prompt) + op.request.max_tokens) // 16) * 16 for op in scenario.schedule)
    assert told(held(needed), first, 1, emptied=True, block_size=16).source is None
    assert told(held(needed - 1), first, 1, emptied=True, block_size=16) is None
    assert told(held(needed - 1), first, 20, emptied=True, block_size=16) is not None
    # Those that waited until it had ended did not.
    short = (replace(played[0], setup=TIGHT), *played[1:])
    assert told(short, "x0", 1, emptied=True, block_size=16).source is None


def test_what_is_preempted_may_be_overtaken_too(batch):
    scenario, *rest = batch
    first = next(iter(scenario.prompts))
    schedule = (*scenario.schedule, Operation(Verb.PREEMPT, scenario.schedule[0].target))
    assert told((replace(scenario, schedule=schedule), *rest), first, 1, emptied=True) is None


def test_one_that_has_begun_finds_nothing_new_and_one_that_is_begun_anew_does():
    a, b, c = (Request(name, (1, 2), 8) for name in "abc")
    schedule = (submit(a), submit(b, Moment("a", 4)), submit(c, Moment("a")))
    assert served_before(schedule, ended=False) == {"a": set(), "b": {"a"}, "c": {"a"}}
    assert served_before(schedule, ended=True) == {"a": set(), "b": set(), "c": {"a"}}


@pytest.mark.parametrize("emptied", [True, False])
def test_what_another_tenant_sent_is_a_leak_all_the_same(played, emptied):
    found = told(played, "y0", 16, emptied)
    assert (found.source.request, found.differs) == ("x0", "salt")
