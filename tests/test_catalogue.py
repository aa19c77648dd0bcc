"""The catalogue: whole, told as it is, and true of the tests."""

from pathlib import Path

import pytest

from kvfence.adapters.schedule import capabilities
from kvfence.conformance import catalogue_page
from kvfence.conformance.catalogue import requirements, untestable
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings

LEVELS = {"tokens", "logprobs", "blocks", "kv", "attention"}
PAGE = Path(__file__).parent.parent / "docs" / "requirements.md"


@pytest.fixture(scope="module")
def scenarios():
    plans = [Plan(Settings("reference", "canary", profile)) for profile in ("scenarios", "times", "pairs")]
    return [case for plan in plans for case in plan.cases]


def test_the_page_is_made_from_it():
    assert PAGE.read_text(encoding="utf-8") == catalogue_page.page(), "make requirements"


@pytest.mark.parametrize("requirement", requirements().values(), ids=lambda requirement: requirement.id)
def test_a_requirement_is_whole(requirement):
    assert " MUST " in requirement.must
    assert requirement.level in LEVELS
    assert all(text.endswith(".") for text in (requirement.must, requirement.why, requirement.control))


@pytest.mark.parametrize("one", untestable(), ids=lambda one: one.id)
def test_what_cannot_be_tested_has_a_reason(one):
    assert " MUST " in one.must
    assert one.reason.endswith(".")
    assert one.id not in requirements()


def test_a_requirement_needs_what_all_its_scenarios_need(scenarios):
    needed, modes = {}, {}
    for case in scenarios:
        wanted = capabilities(case.schedule) | ({"sharing"} if case.setup.sharing else set())
        wanted |= ({"session"} if case.refused else set()) | ({requirements()[case.requirement].level} & {"attention"})
        needed[case.requirement] = needed.get(case.requirement, wanted) & wanted
        modes.setdefault(case.requirement, set()).add(case.mode)
    told = {id: set(requirement.capabilities) for id, requirement in requirements().items() if id in needed}
    assert told == needed
    assert {id: set(requirements()[id].modes) for id in modes} == modes


def test_what_has_no_scenario_is_a_mode_by_itself_or_drawn():
    others = {"modes.serial", "modes.independent", "modes.shared", "search.any-schedule", "cover.combinations"}
    assert set(requirements()) - set(catalogue_page.tested_by()) == others
