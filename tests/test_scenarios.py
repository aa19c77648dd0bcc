"""Scenarios: the reference engine conforms in each, on grounds that leave no doubt, and each does what it is for."""

from dataclasses import replace
from itertools import pairwise

import pytest

from kvfence.adapters.api import EngineFaultError
from kvfence.adapters.schedule import Verb, capabilities
from kvfence.conformance.catalogue import requirements
from kvfence.conformance.driver import Driver
from kvfence.conformance.oracles.side import SAMPLES
from kvfence.conformance.performance import check_played
from kvfence.conformance.plan import Plan
from kvfence.conformance.scenarios import REPERTOIRE
from kvfence.conformance.scenarios.scenario import BLOCK
from kvfence.conformance.settings import Settings
from kvfence.conformance.trial import Trial
from kvfence.conformance.yardstick import Yardstick
from kvfence.prompts import alphabet
from kvfence.reports.outcome import Outcome

NAMES = REPERTOIRE.matching(("*",))
MARGIN = 19.0  # logits from golden's token to the next best one


class Rig:
    """The suite's parts on the reference engine, in this process."""

    def __init__(self, **settings):
        asked = {"engine": "reference", "model": "canary", "profile": "scenarios", "in_process": True}
        self.settings = Settings(**{**asked, **settings})
        self.plan = Plan(self.settings)
        self.driver = Driver(self.settings, self.plan, lambda record: None)
        self.yardstick = Yardstick(self.settings, self.plan, lambda record: None)
        self.trial = Trial(self.settings, self.plan, self.yardstick)

    def case(self, name):
        return next(case for case in self.plan.cases if case.name == name)

    def judge(self, name):
        case = self.case(name)
        return self.trial.judge(
            self.driver.drive(case, lambda info: self.yardstick.prepare(case, info, self.driver.solo))
        )

    def close(self):
        self.driver.close()
        self.yardstick.close()


@pytest.fixture(scope="module")
def rig():
    rig = Rig(watch=("events", "kv"))
    yield rig
    rig.close()


@pytest.mark.parametrize(("asked", "astray"), [("scenarios", True), ("controls", False)])
def test_noise_is_measured_where_histories_lead_nowhere(asked, astray):
    rig = Rig(profile=asked, watch=("kv",))
    prompts = []

    def solo(prompt, n):
        prompts.append(prompt)
        return rig.driver.solo(prompt, n)

    rig.driver.drive(rig.plan.cases[0], lambda info: rig.yardstick.prepare(rig.plan.cases[0], info, solo))
    rig.close()
    strays = [alphabet.unambiguous(prompt, 8) < 8 for prompt in prompts]
    # Every second run is held out, of what K/V and attention may be off.
    assert (any(strays[::2]), any(strays[1::2])) == (astray, astray)
    assert not all(strays)


def test_attention_is_what_one_is_about():
    rig = Rig()
    judged = rig.judge("attention.long-beside-short")
    rig.close()
    assert judged.ruling.outcome is Outcome.CONFORMS
    assert "attention" in judged.asked


def test_where_attention_is_not_shown_there_is_no_pass_of_it(rig):
    ruling = rig.judge("attention.long-beside-short").ruling
    assert ruling.outcome is Outcome.NOT_OBSERVABLE
    assert ruling.reason == "level attention is required, and the engine shows no attention"


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("attention.")])
def test_the_reference_engine_conforms(rig, name):
    judged = rig.judge(name)
    assert judged.ruling.outcome is Outcome.CONFORMS, judged.ruling.reason
    assert judged.observations
    # What stands in the place of a picture is no word, so that two tokens may by chance be as likely.
    assert judged.ruling.ties == 0 or any(one.media for one in judged.observations)
    golden = rig.yardstick.golden("float32")
    for one in judged.observations:
        if one.media:
            continue
        n = len(one.completion.tokens)
        best = golden.logits([*one.prompt.tokens, *one.completion.tokens[:-1]], n).topk(2).values
        assert float((best[:, 0] - best[:, 1]).min()) > MARGIN, one.prompt.name


def test_times_of_the_reference_engine_tell_nothing_of_other_tenants():
    rig = Rig(profile="times")
    judged = rig.judge("side.first-token")
    rig.close()
    # On a machine that is too busy its control shows nothing.
    assert judged.ruling.outcome in (Outcome.CONFORMS, Outcome.INCONCLUSIVE), judged.ruling.reason
    assert len(judged.observations) == 4 * SAMPLES


def test_scenarios_of_one_setup_follow_each_other():
    plan = Plan(Settings("reference", "canary", "scenarios"))
    setups = [case.setup for case in plan.cases]
    changes = sum(a != b for a, b in pairwise(setups))
    assert changes == len(set(setups)) - 1
    assert [case.name for case in plan.cases] == NAMES
    assert {case.requirement for case in plan.cases} < requirements().keys()
    assert all(case.requirement.partition(".")[0] == case.name.partition(".")[0] for case in plan.cases)


def test_a_scenario_is_the_same_in_every_run():
    one, other = (Plan(Settings("reference", "canary", "scenarios")).cases for _ in range(2))
    for a, b in zip(one, other, strict=True):
        assert [op.request for op in a.schedule] == [op.request for op in b.schedule]
    third = Plan(Settings("reference", "canary", "scenarios", seed=1)).cases
    assert all(a.schedule != c.schedule for a, c in zip(one, third, strict=True))


@pytest.mark.parametrize("seed", [110, 125])
def test_no_seed_writes_a_word_twice(seed):
    """Each once gave two neighbours of a prefix one word as their twin."""
    assert len(Plan(Settings("reference", "canary", "scenarios", seed=seed)).cases) == len(NAMES)


def test_every_operation_and_capability_is_played():
    plan = Plan(Settings("reference", "canary", "scenarios"))
    verbs = {operation.verb for case in plan.cases for operation in case.schedule}
    assert verbs == set(Verb)
    wanted = set().union(*(capabilities(case.schedule) for case in plan.cases))
    assert wanted == {
        "session", "salt", "adapters", "weights", "media", "conversations", "fork", "preempt", "reset_cache",
    }  # fmt: skip


def test_polynomial_twins_are_one_under_base_31_block_for_block(rig):
    prompts = rig.case("prefix.polynomial-twins").prompts
    tokens = [prompts[name].tokens[: prompts[name].prefix_tokens] for name in ("A", "B")]
    for start in range(0, len(tokens[0]), BLOCK):
        one, other = (part[start : start + BLOCK] for part in tokens)
        assert sum(a != b for a, b in zip(one, other, strict=True)) >= 8
        assert polynomial(one) == polynomial(other)


def polynomial(tokens):
    value = 0
    for token in tokens:
        value = 31 * value + token
    return value


def test_engines_that_lack_what_it_takes_are_told_apart():
    rig = Rig(engine="hf")
    try:
        forked, batched = rig.judge("fork.in-a-block"), rig.judge("batch.strangers")
    finally:
        rig.close()
    assert forked.ruling.outcome is Outcome.NOT_APPLICABLE
    assert forked.ruling.reason == "the engine has no fork: a batch runs to its end in one call"
    assert batched.ruling.outcome is Outcome.CONFORMS


def played(rig, name):
    case = rig.case(name)
    rig.judge(name)
    return case, rig.driver._host.play(case.schedule)


def without(played, id):
    return replace(played, completions=[completion for completion in played.completions if completion.id != id])


@pytest.mark.parametrize("name", ["batch.ragged", "fork.in-a-block"])
def test_an_answer_that_never_comes_is_no_pass(rig, name):
    """The last one's; where there are forks, one of theirs."""
    case, whole = played(rig, name)
    assert check_played(case, whole, 10**6) is whole
    lost = [*(completion.id for completion in whole.completions), *whole.parents][-1]
    with pytest.raises(EngineFaultError, match=f"{lost} was neither answered nor withdrawn"):
        check_played(case, without(whole, lost), 10**6)


def test_who_was_withdrawn_or_given_up_owes_no_answer(rig):
    case, whole = played(rig, "cancel.retried")
    assert f"{case.id}/goes" not in {completion.id for completion in whole.completions}
    failed = f"{case.id}/retry"
    excused = replace(without(whole, failed), failed={failed: "out of memory"})
    assert check_played(case, excused, 10**6) is excused
