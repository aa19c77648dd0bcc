"""What an engine says it shows is a control: where it was asked for and not shown, silence of its oracle is no pass."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvfence.conformance import noise
from kvfence.conformance.case import PROFILES
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.suite import Suite
from kvfence.reference_impl.golden import Golden
from kvfence.reports.groups import rows
from kvfence.reports.outcome import Outcome, exit_code
from kvfence.reports.records import read
from kvfence.reports.view import view

CASE = "independent-*-alone-c1-float32"


@pytest.fixture(autouse=True)
def short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "EXACT_POSITIONS", 300)
    monkeypatch.setattr(noise, "POSITIONS", 300)
    monkeypatch.setattr(noise, "ATTENTION_RUNS", 8)
    short = replace(PROFILES["article"], solo_positions=128, max_tokens=8, serialise=False)
    monkeypatch.setitem(PROFILES, "article", short)


def examine(tmp_path: Path, shows: str, case: str = CASE, model: str = "canary", fault: str = "none"):
    """The record of one case of the article's profile on the shy engine, and the run it is part of."""
    settings = Settings(
        engine="shy_engine:open_engine",
        model=model,
        profile="article",
        report=tmp_path,
        cases=(case,),
        engine_args={"shows": shows, "fault": fault},
        in_process=True,
    )
    plan = Plan(settings)
    with Suite(settings, plan, "run") as suite:
        (record,) = map(suite.examine, plan.cases)
        suite.finish(exit_code(suite.outcomes))
    return record, read(tmp_path)


def test_an_engine_that_shows_all_conforms(tmp_path):
    record, run = examine(tmp_path, "all")
    assert (record.outcome, record.reason) == (Outcome.CONFORMS, "all outputs are golden's")
    (measured,) = run.noise
    assert (measured["attention_judged"], measured["attention_reason"], measured["solo_fault"]) == (True, "", "")
    # Half of four runs of 32 tokens and of eight sequences in equal shapes, 32 steps each.
    assert measured["attention_positions"] == 192
    assert {row.figures[5] for row in rows(run)} == {"not moved"}


@pytest.mark.parametrize(
    ("shows", "reason"),
    [
        ("no-attention-of-b", "the engine says it shows attention, and showed none of B0"),
        ("no-events-of-b", "the engine says it shows events, and showed none of B0"),
        ("no-events", "the engine says it shows events, and showed none of any request"),
        ("no-attention-alone", "the engine says it shows attention, and showed it in 0 of 4 solo runs"),
        ("no-attention-sometimes", "the engine says it shows attention, and showed it in 3 of 4 solo runs"),
        ("nothing", "the engine says it shows attention, and showed it in 0 of 4 solo runs"),
    ],
)
def test_what_was_not_shown_is_no_pass(tmp_path, shows, reason):
    record, run = examine(tmp_path, shows)
    assert (record.outcome, record.reason) == (Outcome.INCONCLUSIVE, reason)
    assert run.end["exit_code"] == 3


def test_what_is_not_declared_is_not_asked_after(tmp_path):
    record, run = examine(tmp_path, "undeclared")
    assert (record.outcome, record.reason) == (Outcome.CONFORMS, "all outputs are golden's")
    assert {row.figures[5] for row in rows(run)} == {"not observed"}


@pytest.mark.parametrize(
    ("shows", "reason"),
    [
        ("other-attention-alone", "it shifts by 1 of total variation in runs that should be clean, above 0.25"),
        ("other-attention-every-second-time", "its noise is not bounded: held-out runs shift it by "),
    ],
)
def test_noise_that_is_not_bounded_is_told_and_leaves_the_verdict_to_the_others(tmp_path, shows, reason):
    record, run = examine(tmp_path, shows)
    assert record.outcome is Outcome.CONFORMS
    assert record.reason.startswith(f"all outputs are golden's; attention not judged: {reason}")
    assert {row.figures[5] for row in rows(run)} == {"not judged"}
    assert any(f"Attention in float32, to 512 tokens, was not judged: {reason}" in said for said in view(run).proof)


@pytest.mark.parametrize(
    ("shows", "unjudged"),
    [("no-attention-of-b", ""), ("other-attention-alone", "; attention not judged: it shifts by 1 ")],
)
def test_a_violation_stands_whatever_was_not_shown(tmp_path, shows, unjudged):
    record, _ = examine(tmp_path, shows, "serial-*-alone-c1-float32", fault="length")
    assert record.outcome is Outcome.VIOLATES
    assert record.reason.startswith("request ")
    assert unjudged in record.reason
    assert ("not judged" in record.reason) == bool(unjudged)


# The random model's noise is doubted too, for more than this limit.
@pytest.mark.parametrize(("model", "limit"), [("canary", noise.SOLO_LIMIT), ("random", 0.0)])
def test_a_rule_of_ownership_that_solo_runs_break_is_no_pass(tmp_path, monkeypatch, model, limit):
    monkeypatch.setattr(noise, "SOLO_LIMIT", limit)
    record, run = examine(tmp_path, "a-stale-length-alone", model=model)
    assert record.outcome is Outcome.INCONCLUSIVE
    assert record.reason.startswith("solo runs broke a rule of ownership: noise/1 begins at offset 7 of slot 0 ")
    assert run.noise[0]["solo_fault"] == record.reason


def test_attention_of_other_layers_than_the_models_is_an_error_of_its_case(tmp_path):
    record, _ = examine(tmp_path, "a-layer-more")
    assert record.outcome is Outcome.SUITE_ERROR
    assert record.reason == "the engine shows attention of 4 layers; the model has 3"


def test_a_golden_that_cannot_be_watched_leaves_attention_unjudged(tmp_path, monkeypatch):
    load = Golden.load

    def eager(*arguments):
        golden = load(*arguments)
        golden.model.set_attn_implementation("eager")
        return golden

    monkeypatch.setattr(Golden, "load", eager)
    record, run = examine(tmp_path, "all")
    assert record.outcome is Outcome.CONFORMS
    assert "; attention not judged: golden cannot show it: attention implementation 'eager'" in record.reason
    assert run.noise[0]["attention_judged"] is False
    assert {row.figures[5] for row in rows(run)} == {"not observed"}
