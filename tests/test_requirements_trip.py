"""No requirement without a planted fault that it trips over, in its own cases."""

import pytest
from click.testing import CliRunner

from kvfence.conformance.catalogue import requirements
from kvfence.conformance.cli import main
from kvfence.conformance.faults import Bench
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.reference_impl.defects import DEFECTS

ELSEWHERE = {"search.any-schedule", "side.first-token"}  # drawn; of a profile of its own
ENOUGH = 12  # cases of one requirement


@pytest.fixture(scope="module")
def bench():
    settings = Settings("reference", "canary", "default", in_process=True)
    bench = Bench(settings, Plan(settings))
    yield bench
    bench.close()


@pytest.mark.parametrize("id", sorted(requirements().keys() - ELSEWHERE))
def test_a_requirement_trips_over_a_planted_fault(bench, id):
    plan = bench.plan
    own = [case for case in plan.cases if case.requirement == id and case.dtype == "float32"]
    record = bench.score(DEFECTS[requirements()[id].tripped_by], cases=own[:ENOUGH])
    assert record.detected, record.failed
    assert record.requirement == id


def test_times_trip_over_one():
    settings = Settings("reference", "canary", "times", in_process=True)
    bench = Bench(settings, Plan(settings))
    record = bench.score(DEFECTS[requirements()["side.first-token"].tripped_by])
    bench.close()
    assert (record.detected, record.requirement) == (True, "side.first-token")


def test_a_search_trips_over_one(tmp_path):
    engine = ["--engine", "kvfence.conformance.faults:open_faulty"]
    fault = ["--engine-arg", f"defect={requirements()['search.any-schedule'].tripped_by}"]
    limits = ["--minutes", "2", "--in-process", "--corpus", str(tmp_path)]
    result = CliRunner().invoke(main, ["search", *engine, *fault, *limits])
    assert result.exit_code == 1, result.output
