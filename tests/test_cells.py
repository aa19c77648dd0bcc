"""Cells: all combinations that are possible and no others; each can be played, and what is missing is told."""

from dataclasses import replace
from itertools import combinations, product

import pytest

from kvfence.conformance.plan import Plan
from kvfence.conformance.scenarios import factors
from kvfence.conformance.scenarios.factors import CONFIGURATIONS, FACTORS, Cell, cells, combinable, possible, values
from kvfence.conformance.settings import Settings
from kvfence.conformance.suite import Suite, new_run
from kvfence.reports import html
from kvfence.reports.coverage import coverage
from kvfence.reports.records import read


def by_hand(strength):
    """Every combination of values that some cell can have, counted without `combinable`."""
    found = set()
    for chosen in product(*FACTORS.values()):
        arrival, requests, _, relation, operation, configuration = chosen
        if requests == 1 and (relation != "none" or arrival != "serial"):
            continue
        if operation == "cancel-prefilling" and configuration.chunk is None:
            continue
        found |= set(combinations(zip(FACTORS, chosen, strict=True), strength))
    return found


@pytest.mark.parametrize(("strength", "combined"), [(2, 407), (3, 2_636)])
def test_all_possible_combinations_come_together(strength, combined):
    wanted = by_hand(strength)
    assert len(wanted) == combined
    assert wanted == combinable(strength)
    assert {found for cell in cells(strength) for found in values(cell, strength)} == wanted
    assert all(map(possible, cells(strength)))


def test_a_cell_less_covers_less():
    short = [found for cell in cells(2)[1:] for found in values(cell, 2)]
    assert set(short) < combinable(2)


def test_any_two_values_of_what_reopens_an_engine_come_together_in_at_most_six_configurations():
    assert len(CONFIGURATIONS) <= 6
    told = [vars(configuration) for configuration in CONFIGURATIONS]
    for one, other in combinations(told[0], 2):
        pairs = {(each[one], each[other]) for each in told}
        assert pairs == set(product({each[one] for each in told}, {each[other] for each in told})), (one, other)


def test_names_are_those_of_one_cell_each():
    names = [f"{cell.name}-{cell.configuration.dtype}" for cell in cells(3)]
    assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The reference engine on three cells of each operation: the cells, their records, and what was written down."""
    folder = tmp_path_factory.mktemp("cells")
    chosen = tuple(
        cell
        for operation in FACTORS["operation"]
        for cell in (
            Cell("staggered", 3, 1, "equal", operation, CONFIGURATIONS[0]),
            Cell("serial", 1, 0, "none", operation, CONFIGURATIONS[0]),
            Cell("at-once", 3, -1, "contains", operation, CONFIGURATIONS[0]),
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factors, "cells", lambda strength: chosen)
        settings = Settings("reference", "canary", "pairs", report=folder, in_process=True)
        with Suite(settings, Plan(settings), new_run()) as suite:
            records = list(suite.run_all(suite.plan.cases))
            suite.finish(0)
    return chosen, records, read(folder)


def test_every_operation_has_its_moment(run):
    cells, records, _ = run
    assert [record.outcome for record in records] == ["conforms"] * len(cells), [r.reason for r in records]
    assert {record.mode for record in records} == {"shared"}
    assert [record.concurrency for record in records] == [cell.requests for cell in cells]
    hit = {record.cached_tokens > 0 for record, cell in zip(records, cells, strict=True) if cell.requests > 1}
    assert hit == {True}


def test_what_was_covered_and_what_was_not_is_counted(run):
    cells, _, written = run
    covered = coverage(written)
    assert (covered.strength, covered.possible) == (2, 407)
    assert covered.covered == len({v for cell in cells for v in values(cell, 2)})
    assert [(gap.reason, gap.combinations) for gap in covered.gaps] == [("not run", 407 - covered.covered)]
    told = f"{covered.covered} of 407 pairs of factor values came together in cases that reached a verdict"
    assert covered.told == told
    assert told in html.render(written)


def test_what_an_engine_cannot_express_is_told_with_the_reason(run):
    _, _, written = run
    cases = [
        {**case, "outcome": "not-applicable", "reason": "the engine has no fork"}
        if case["factors"]["operation"] == "fork"
        else case
        for case in written.cases
    ]
    fewer = coverage(replace(written, cases=cases))
    forks = {v for cell in run[0] if cell.operation == "fork" for v in values(cell, 2)}
    others = {v for cell in run[0] if cell.operation != "fork" for v in values(cell, 2)}
    gap = fewer.gaps[0]
    assert (gap.reason, gap.combinations) == ("not-applicable: the engine has no fork", len(forks - others))
    assert "operation fork" in gap.example
    assert fewer.covered == len(others)


def test_a_run_without_cells_tells_no_coverage(run):
    _, _, written = run
    assert coverage(replace(written, header={**written.header, "strength": 0})) is None
    old = {name: value for name, value in written.header.items() if name != "strength"}
    assert coverage(replace(written, header=old)) is None
