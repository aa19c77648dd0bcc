"""Shrinking: what is needed stays, what is not goes, and never more is asked than allowed."""

import pytest

from kvfence.adapters.schedule import Verb
from kvfence.conformance.plan import Plan
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.settings import Settings
from kvfence.conformance.shrink import Shrinker, Size, without_words
from kvfence.prompts import alphabet


@pytest.fixture(scope="module")
def cases():
    return {case.name: case for case in Plan(Settings("reference", "canary", "scenarios")).cases}


def requests(scenario: Scenario):
    return {scenario.short(op.request.id): op.request for op in scenario.schedule if op.request}


def shared(scenario, a, b):
    pair = zip(requests(scenario)[a].prompt, requests(scenario)[b].prompt, strict=False)
    return next((i for i, (x, y) in enumerate(pair) if x != y), 0)


def test_two_requests_and_what_they_share_are_left(cases):
    """Fails while the two share a block, and one of them is asked for five tokens."""

    def fails(scenario):
        known = requests(scenario)
        return {"A", "keeps"} <= set(known) and shared(scenario, "A", "keeps") >= 16 and known["keeps"].max_tokens >= 5

    whole = cases["cancel.decoding"]
    assert fails(whole)
    small = Shrinker(fails).shrink(whole)
    assert fails(small)
    known = requests(small)
    assert set(known) == {"A", "keeps"}
    assert [op.verb for op in small.schedule] == [Verb.SUBMIT, Verb.SUBMIT]
    assert (known["keeps"].max_tokens, known["A"].max_tokens) == (5, 1)
    assert shared(small, "A", "keeps") in (16, 17)
    # BOS, what is shared, ASK and the start word, which must be known.
    assert all(len(request.prompt) <= 22 for request in known.values())
    assert not any(op.when for op in small.schedule)


def test_an_operation_that_it_takes_is_left(cases):
    def fails(scenario):
        return any(op.verb is Verb.CANCEL and op.target.endswith("goes2") for op in scenario.schedule)

    small = Shrinker(fails).shrink(cases["cancel.at-any-point"])
    assert [op.verb for op in small.schedule] == [Verb.SUBMIT, Verb.CANCEL]
    assert Size.of(small) < Size.of(cases["cancel.at-any-point"])


def test_what_loads_an_adapter_is_left_with_a_request_for_it(cases):
    def fails(scenario):
        return any(request.adapter == "b" for request in requests(scenario).values())

    small = Shrinker(fails).shrink(cases["key.adapters-in-a-batch"])
    assert [(op.verb, op.target) for op in small.schedule if op.verb is not Verb.SUBMIT] == [(Verb.ADAPTER, "b")]
    assert [request.adapter for request in requests(small).values()] == ["b"]


def test_what_cannot_be_shrunk_stays_as_it_is(cases):
    whole = cases["fork.in-a-block"]
    small = Shrinker(lambda scenario: scenario.schedule == whole.schedule).shrink(whole)
    assert small.schedule == whole.schedule
    assert small.prompts == whole.prompts


def test_no_more_is_asked_than_allowed(cases):
    asked = []

    def fails(scenario):
        asked.append(scenario.schedule)
        return True

    Shrinker(fails, questions=7).shrink(cases["accounting.churn"])
    assert len(asked) <= 7
    assert len(set(asked)) == len(asked)


def test_words_go_from_all_prompts_at_once(cases):
    whole = cases["conversation.edited"]
    word = requests(whole)["swapped0"].prompt[5]
    small = without_words(whole, {word})
    assert all(word not in request.prompt for request in requests(small).values())
    prompt, old = small.prompts["swapped0"], whole.prompts["swapped0"]
    assert prompt.prefix_tokens == old.prefix_tokens - 1
    assert alphabet.spell(word) in old.words
    assert alphabet.spell(word) not in prompt.words
    histories = [op.tokens for op in small.schedule if op.verb is Verb.EDIT]
    assert all(word not in history for history in histories)
