"""Each planted fault on its least trigger: the faulty line runs, it makes a difference, and without it all is well."""

import pytest
from defect_cases import CASES
from defect_runs import clean, run, seen

from kvfence.reference_impl.defects import DEFECTS, Sentinel

TOKENS = {"output", "logprobs"}


@pytest.mark.parametrize("name", DEFECTS)
def test_it_runs_and_makes_a_difference(name):
    """And `clean` asserts that without it nothing is broken and every output is golden's."""
    defect, case, ran = DEFECTS[name], CASES[name], Sentinel()
    faulty = run(case, defect.build(ran), defect.needs, defect.window)
    assert ran.count
    found = seen(faulty, clean(defect, case))
    assert set(case.shows.split()) <= found
    if not TOKENS & set(case.shows.split()):
        assert not TOKENS & found


def test_every_defect_has_a_trigger_and_shows_something():
    assert CASES.keys() == DEFECTS.keys()
    assert all(case.shows for case in CASES.values())
