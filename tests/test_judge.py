import pytest

from kvfence.adapters.api import Completion
from kvfence.conformance.case import Case
from kvfence.conformance.judge import Control, rule
from kvfence.prompts.edges import EDGES
from kvfence.prompts.prompt import Prompt
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


def test_ties_are_told():
    assert ruling("serial", 0, ties=2).reason == "all outputs are golden's up to 2 numeric ties"


def prompt(name, tokens):
    return Prompt(name, name[0], tuple(tokens), 1, (), ())


def test_control_counts_what_earlier_requests_have_in_common_and_a_cache_can_serve():
    prompts = [prompt("A0", [1, 2, 3, 4]), prompt("B0", [1, 2, 9]), prompt("A1", [1, 2, 3, 4])]
    completions = [Completion(p.name, (5,), cached_tokens=n) for p, n in zip(prompts, (0, 2, 3), strict=True)]
    assert Control.of(prompts, completions) == Control(shareable=5, longest=3, cached=5)


def test_control_of_an_engine_that_does_not_tell():
    assert Control.of([prompt("A0", [1, 2])], [Completion("A0", (5,))]).cached is None
