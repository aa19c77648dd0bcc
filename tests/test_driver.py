"""The driver and the log of an engine: whose uses of the cache are seen, and what is known after a failure."""

from dataclasses import replace

import pytest

from kvfence.conformance import noise
from kvfence.conformance.case import PROFILES
from kvfence.conformance.driver import Driver
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.suite import Suite
from kvfence.prompts import alphabet
from kvfence.reports.outcome import Outcome

PARTNER, LAST, STRANGER = (
    f"shared-canary-prompt-128-{company}-c8-float32" for company in ("partner", "partner-c", "stranger")
)
SERIAL = "serial-canary-prompt-128-stranger-c8-float32"


def settings(how, *cases, **options):
    options.setdefault("in_process", True)
    return Settings(
        engine="logged_engine:open_engine",
        model="canary",
        profile="article",
        cases=cases or (PARTNER, STRANGER),
        engine_args={"how": how},
        **options,
    )


@pytest.fixture
def driven():
    """Drives cases one after another: what came of each, and the records of engines opened."""
    drivers = []

    def drive(how, *cases, prepare=lambda driver: None, again=False, **options):
        asked, opened = settings(how, *cases, **options), []
        plan = Plan(asked)
        driver = Driver(asked, plan, opened.append)
        drivers.append(driver)
        done = [driver.drive(case, lambda info: prepare(driver)) for case in plan.cases]
        done += [driver.again(case, one_by_one=False) for case in plan.cases if again]
        return done, opened

    yield drive
    for driver in drivers:
        driver.close()


def broken(answers):
    return [(b.kind, b.victim, b.source) for answer in answers for b in answer.breaches]


@pytest.mark.parametrize(("case", "engines"), [("key.salts-float32", 1), ("key.adapters-float32", 2)])
def test_adapters_that_are_left_loaded_are_not_gone_on_with(case, engines):
    asked, opened = Settings("reference", "canary", "scenarios", cases=(case,), in_process=True), []
    plan = Plan(asked)
    driver = Driver(asked, plan, opened.append)
    done = [driver.drive(plan.cases[0], lambda info: False) for _ in range(2)]
    driver.close()
    assert [each.outcome for each in done] == [None, None]
    assert len(opened) == engines


def test_an_engine_that_keeps_the_rules_breaks_none(driven):
    done, opened = driven("")
    assert [(case.outcome, broken(case.answers), len(case.answers)) for case in done] == [(None, [], 8)] * 2
    assert all(case.control.cached > 0 for case in done)
    assert len(opened) == 1
    # What the second case took was published in the first: its requests have one token in common with it.
    first = next(event for event in done[1].events if event.action == "reuse")
    assert (first.length, any(event.slot == first.slot for event in done[1].events if event.action == "publish")) == (
        1, False,
    )  # fmt: skip


@pytest.mark.parametrize(("how", "reason", "openings"), [
    ("fail-raise", "block table is full", 1),
    ("fail-few", "8 requests got 7 completions", 1),
    ("fail-exit", "process died (exit code 7)", 2),
    ("fail-hang", "did not answer within 3 s", 2),
    # What is left of a log would seem to break rules: the engine is begun anew.
    ("lost", "block table is full", 2),
    ("nothing", "observe() must return an Observed, got NoneType", 2),
    ("odd", "observe() must show each Attention as such, got str", 2),
])  # fmt: skip
def test_after_a_failed_call_the_next_case_breaks_no_rule(driven, how, reason, openings):
    apart = how in ("fail-exit", "fail-hang")
    cases = (PARTNER, STRANGER, LAST)
    (failed, *rest), opened = driven(how, *cases, in_process=not apart, deadline=3.0)
    assert failed.outcome is Outcome.SUITE_ERROR
    assert reason in failed.reason
    for after in rest:
        assert (after.outcome, broken(after.answers), len(after.answers)) == (None, [], 8)
        assert not [event for event in after.events if event.request.startswith(PARTNER)]
    assert len(opened) == openings
    # An engine that died is not begun again before it is needed.
    assert not apart or opened[1].seconds > 0.02


def test_what_a_failed_request_put_out_may_be_taken(driven):
    plan = Plan(settings("", PARTNER))
    prompt = next(p.tokens for p in plan.prompts(plan.cases[0]) if p.name == "B3")
    longer = (*prompt, *alphabet.answer(prompt, 32))
    cases, taken = iter((PARTNER, STRANGER)), []

    def prepare(driver):
        if next(cases) == STRANGER:
            taken.append(driver.solo(longer, 4))

    (failed, _), _ = driven("fail-raise+keep", prepare=prepare)
    assert failed.outcome is Outcome.SUITE_ERROR
    assert taken[0].completion.cached_tokens == len(longer) - 2 > len(prompt)
    assert broken(taken) == []


def judged(tmp_path, monkeypatch, how, *cases):
    """Records of cases, noise measured in haste."""
    monkeypatch.setattr(noise, "EXACT_POSITIONS", 100)
    monkeypatch.setitem(PROFILES, "article", replace(PROFILES["article"], solo_positions=64))
    asked = settings(how, *cases, report=tmp_path)
    plan = Plan(asked)
    with Suite(asked, plan, "run") as suite:
        return list(suite.run_all(plan.cases))


def test_a_case_after_a_failed_one_conforms_and_tells_nothing(tmp_path, monkeypatch):
    failed, after = judged(tmp_path, monkeypatch, "fail-raise")
    assert (failed.outcome, after.outcome) == (Outcome.SUITE_ERROR, Outcome.CONFORMS)
    assert after.telltales == ()


def test_a_case_violates_if_only_a_primer_is_hit(tmp_path, monkeypatch):
    (record,) = judged(tmp_path, monkeypatch, "late+stale-primer", PARTNER)
    assert record.outcome is Outcome.VIOLATES
    assert [(finding.victim, "blocks" in finding.oracles) for finding in record.findings] == [("primer0", True)]
    assert [(tale.kind, tale.victim) for tale in record.telltales] == [("length", "primer0"), ("lock", "")]


def test_a_primer_that_is_hit_is_an_answer_of_its_case(driven):
    (clean,), _ = driven("late", PARTNER)
    names = [answer.prompt.name for answer in clean.answers]
    assert len(names) == 16
    assert names[8:] == [f"{name}-primed" for name in names[:8]]
    (hit,), _ = driven("late+stale-primer", PARTNER)
    assert [answer.prompt.name for answer in hit.answers] == [*names[:8], "primer0", *names[8:]]
    assert broken(hit.answers) == [("length", f"{PARTNER}/primer0", None)]
    assert hit.control == clean.control


def test_a_fresh_engine_holds_nothing(driven):
    (hit, again), _ = driven("late+stale-primer", PARTNER, again=True)
    # None: on the engine before, it would have been left there by a primer.
    assert broken(hit.answers) == broken(again.answers) == [("length", f"{PARTNER}/primer0", None)]


def test_a_solo_run_tells_the_rules_it_broke(driven):
    prompt = alphabet.prompt_tokens(range(50, 60))
    for how, found in (("", []), ("stale-noise", [("length", "noise/1", None)])):
        solo = []
        driven(how, SERIAL, prepare=lambda driver, solo=solo: solo.append(driver.solo(prompt, 4)))
        assert broken(solo) == found


def test_each_opening_is_recorded(driven):
    _, opened = driven("", STRANGER, again=True)
    assert len(opened) == 2
    assert replace(opened[0], seconds=0) == replace(opened[1], seconds=0)
    assert opened[1].config["sharing"]
    assert opened[1].seconds >= 0
