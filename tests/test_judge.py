from dataclasses import replace

import pytest
import samples
import watched

from kvfence.adapters.api import Completion
from kvfence.conformance.case import Case
from kvfence.conformance.control import Control
from kvfence.conformance.judge import foremost, rule
from kvfence.prompts.edges import EDGES
from kvfence.reports.outcome import Outcome


def case(mode):
    return Case(mode, "canary", EDGES["block"], "partner", 2, "float32")


def ruling(mode, cached, longest=17, block_size=16, ties=0):
    control = Control(shareable=longest, longest=longest, cached=cached)
    return rule(case(mode), control, block_size, (), ties)


@pytest.mark.parametrize(
    ("mode", "cached", "longest", "block", "outcome", "reason"),
    [
        ("serial", 0, 17, 16, Outcome.CONFORMS, "all outputs are golden's"),
        ("independent", None, 17, 16, Outcome.CONFORMS, "all outputs are golden's"),
        ("independent", 16, 17, 16, Outcome.INCONCLUSIVE, "16 prompt tokens came from the cache with sharing off"),
        ("shared", 16, 17, 16, Outcome.CONFORMS, "all outputs are golden's; 16 prompt tokens were shared"),
        ("shared", 0, 17, 16, Outcome.INCONCLUSIVE, "the cache was never hit, though prompts had 17 tokens in common"),
        ("shared", None, 17, 16, Outcome.NOT_OBSERVABLE, "the engine does not tell whether its cache was hit"),
        ("shared", 0, 15, 16, Outcome.CONFORMS, "all outputs are golden's; nothing could be shared"),
        ("shared", 0, 1, None, Outcome.INCONCLUSIVE, "the cache was never hit, though prompts had 1 tokens in common"),
    ],
)
def test_silence_counts_only_with_its_control(mode, cached, longest, block, outcome, reason):
    result = ruling(mode, cached, longest, block)
    assert (result.outcome, result.reason) == (outcome, reason)


@pytest.mark.parametrize("mode", ["serial", "shared"])
@pytest.mark.parametrize("cached", [0, 16, None])
def test_silence_of_what_was_not_shown_is_no_pass(mode, cached):
    result = rule(case(mode), Control(17, 17, cached), 16, (), 1, "nothing was shown")
    assert (result.outcome, result.reason, result.ties) == (Outcome.INCONCLUSIVE, "nothing was shown", 1)


def test_a_finding_stands_whatever_was_not_shown():
    found = samples.finding("A0", "B0", 2, 3, case="x")
    result = rule(case("serial"), Control(17, 17, 0), 16, (found,), 0, "nothing was shown")
    assert (result.outcome, result.reason, result.findings) == (Outcome.VIOLATES, found.summary, (found,))


def test_told_first_is_whose_source_is_known_and_what_is_more_than_a_trace():
    attention = watched.attention()
    trace = replace(attention, excess=(0.5,) * len(attention.excess))
    plain = samples.finding("A0", "B0", 2, 3, case="x")
    nobody = replace(plain, victim="A1", source=None, first_step=0)
    faint = replace(plain, victim="A2", oracles=("attention",), attention=trace, first_step=0)
    late = replace(plain, victim="A3", oracles=("attention",), attention=attention, first_step=5)
    assert foremost([nobody, faint, late, plain]) is plain
    assert foremost([nobody, faint, late]) is late
    assert foremost([nobody, faint]) is faint


def test_ties_are_told():
    assert ruling("serial", 0, ties=2).reason == "all outputs are golden's up to 2 numeric ties"


def test_control_counts_what_earlier_requests_have_in_common_and_a_cache_can_serve():
    prompts = [(1, 2, 3, 4), (1, 2, 9), (1, 2, 3, 4)]
    completions = [Completion(str(i), (5,), cached_tokens=n) for i, n in enumerate((0, 2, 3))]
    assert Control.of(prompts, completions) == Control(shareable=5, longest=3, cached=5)


def test_control_counts_what_was_sent_before():
    control = Control.of([(1, 2, 3)], [Completion("A0", (5,), cached_tokens=2)], before=[(1, 2, 3, 4)])
    assert control == Control(shareable=2, longest=2, cached=2)


@pytest.mark.parametrize(
    ("longest", "cached", "missed"), [(16, 0, True), (15, 0, False), (16, 1, False), (16, None, False)]
)
def test_a_miss_is_a_block_that_could_have_been_shared(longest, cached, missed):
    assert Control(longest, longest, cached).missed(block_size=16) is missed


def test_control_of_an_engine_that_does_not_tell():
    assert Control.of([(1, 2)], [Completion("A0", (5,))]).cached is None
