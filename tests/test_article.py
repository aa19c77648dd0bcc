"""The source experiment: three faults of a slot pool, each named with its source, and two engines that have none."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvfence.conformance import noise
from kvfence.conformance.case import PROFILES
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.suite import Suite
from kvfence.reports.outcome import Outcome

POOL = "slot_pool:open_engine"
PARTNERS = "shared-canary-prompt-128-partner-c8-float32"


@pytest.fixture(autouse=True)
def short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole calibration would take most of the time of these few cases.
    monkeypatch.setattr(noise, "EXACT_POSITIONS", 300)
    monkeypatch.setattr(noise, "POSITIONS", 500)
    monkeypatch.setitem(PROFILES, "article", replace(PROFILES["article"], solo_positions=128))


def run(tmp_path: Path, engine: str, *patterns: str, model="canary", **arguments):
    """Records of cases of the article's profile in float32, by mode."""
    cases = tuple(f"{pattern}-float32" for pattern in patterns)
    settings = Settings(
        engine=engine, model=model, profile="article", report=tmp_path, cases=cases, engine_args=arguments
    )
    plan = Plan(settings)
    with Suite(settings, plan, "run") as suite:
        return {record.mode: record for record in suite.run_all(plan.cases)}


def told(record, kind):
    return [(tale.victim, tale.source) for tale in record.telltales if tale.kind == kind]


def named(record):
    return [(finding.victim, finding.source) for finding in record.findings]


def test_a_length_that_is_not_reset_is_told_by_the_length_log(tmp_path):
    record = run(tmp_path, POOL, "serial-*-partner-c8", fault="length")["serial"]
    # A0 came first; all the others begin behind what the one before them left.
    chain = [("B0", "A0"), ("A1", "B0"), ("B1", "A1"), ("A2", "B1"), ("B2", "A2"), ("A3", "B2"), ("B3", "A3")]
    assert named(record) == chain
    assert told(record, "length") == chain
    assert told(record, "key") + told(record, "overlap") + told(record, "lock") == []
    # Where both prompts have a word, attention is divided between the two, also where the output shows nothing.
    assert (record.requests[1].attention_step, record.requests[1].first_changed) == (0, None)
    # What it begins behind is in the log: A0 held 128 prompt tokens and 31 of its answer.
    first = next(line for line in record.log if line.request == "B0" and line.action == "write")
    assert (first.start, first.position, first.length) == (159, 0, 128)


def test_a_collision_of_keys_is_told_by_the_key_log(tmp_path):
    records = run(tmp_path, POOL, "*-stranger-c8", fault="collision")
    assert records["serial"].outcome is records["independent"].outcome is Outcome.CONFORMS
    record = records["shared"]
    assert {victim[0] for victim, _ in named(record)} == {"C"}
    assert all(source == "A0" for _, source in named(record))
    assert told(record, "key") == named(record)
    assert told(record, "length") + told(record, "overlap") == []
    (lock,) = [tale for tale in record.telltales if tale.kind == "lock"]
    assert "still left golden" in lock.told


def test_two_writers_on_one_slot_are_told_by_the_lock(tmp_path):
    records = run(tmp_path, POOL, "serial-*-stranger-c8", "independent-*-stranger-c8", fault="writers")
    assert records["serial"].outcome is Outcome.CONFORMS
    record = records["independent"]
    assert named(record) == [("A0", "C0"), ("A1", "C1"), ("A2", "C2"), ("A3", "C3")]
    assert told(record, "overlap") == named(record)
    (lock,) = [tale for tale in record.telltales if tale.kind == "lock"]
    assert lock.told.endswith("all outputs are golden's: it takes two at once")


def test_a_lock_says_nothing_where_it_takes_what_came_before(tmp_path):
    # A and B have one prefix: their own keys do not collide, but those of the case before did.
    records = run(tmp_path, POOL, "shared-*-partner-c-c8", "shared-*-partner-c8", fault="collision")
    assert records["shared"].company == "partner-c"
    assert {finding.source_case for finding in records["shared"].findings} == {PARTNERS}
    (lock,) = [tale for tale in records["shared"].telltales if tale.kind == "lock"]
    assert lock.told.endswith("are golden's: it takes what came before them")


def test_attention_moves_at_or_before_the_first_changed_token_of_a_model_with_soft_attention(tmp_path):
    record = run(tmp_path, POOL, "serial-*-stranger-c8", model="random", fault="length")["serial"]
    victims = [request for request in record.requests if request.request != "A0"]
    assert all(request.attention_step == 0 for request in victims)
    assert all(request.first_changed is not None and request.edit_distance for request in victims)
    moved = [finding.attention for finding in record.findings]
    figures = [figure for one in moved for figure in (*one.shifts, *one.excess, one.shift, *sum(one.map, ()))]
    assert min(figures) < max(figures)
    # As short as float32 can be told.
    assert all(figure == float(str(np.float32(figure))) for figure in figures)
    first = record.requests[0]
    assert (first.attention_step, first.first_changed, first.edit_distance) == (None, None, 0)
    # Whose K/V it was cannot be read from a random model's output, but from the log.
    assert {finding.source for finding in record.findings} == {"A0", "C0", "A1", "C1", "A2", "C2", "A3"}


@pytest.mark.parametrize("engine", ["hf", "hf-continuous"])
@pytest.mark.parametrize("model", ["canary", "random"])
def test_engines_without_the_faults_conform_with_their_attention_observed(tmp_path, engine, model):
    records = run(tmp_path, engine, "*-partner-c8", model=model)
    assert {mode: record.reason for mode, record in records.items() if record.outcome is not Outcome.CONFORMS} == {}
    for record in records.values():
        assert all(request.edit_distance == 0 for request in record.requests)
        assert all(request.attention_step is None for request in record.requests)
        assert all(request.attention_shift is not None for request in record.requests)
        assert all(request.prompt_tokens == 128 for request in record.requests)
    assert records["shared"].cached_tokens > 0
