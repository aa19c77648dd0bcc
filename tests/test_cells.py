"""Cells: all combinations that are possible and no others; each can be played, and what is missing is told."""

from itertools import combinations, product

import pytest

from kvfence.conformance.plan import Plan
from kvfence.conformance.scenarios import factors
from kvfence.conformance.scenarios.factors import CONFIGURATIONS, FACTORS, Cell, cells, combinable, possible, values
from kvfence.conformance.settings import Settings
from kvfence.conformance.suite import Suite, new_run
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


@pytest.mark.parametrize("operation", FACTORS["operation"])
def test_every_operation_has_its_moment(operation, tmp_path, monkeypatch):
    cell = Cell("staggered", 3, 1, "equal", operation, CONFIGURATIONS[0])
    alone = Cell("serial", 1, 0, "none", operation, CONFIGURATIONS[0])
    together = Cell("at-once", 3, -1, "contains", operation, CONFIGURATIONS[0])
    monkeypatch.setattr(factors, "cells", lambda strength: (cell, alone, together))
    settings = Settings("reference", "canary", "pairs", report=tmp_path, in_process=True)
    with Suite(settings, Plan(settings), new_run()) as suite:
        records = list(suite.run_all(suite.plan.cases))
        suite.finish(0)
    assert [record.outcome for record in records] == ["conforms"] * 3, [record.reason for record in records]
    assert [record.mode for record in records] == ["shared"] * 3
    assert [record.concurrency for record in records] == [3, 1, 3]
    covered = coverage(read(tmp_path))
    assert covered.possible == 407
    assert covered.covered == len({v for each in (cell, alone, together) for v in values(each, 2)})
    assert [(gap.reason, gap.combinations) for gap in covered.gaps] == [("not run", 407 - covered.covered)]
