"""No requirement without a planted fault that it trips over, in its own cases; and none of these trips without one."""

import pytest
from click.testing import CliRunner

from kvfence.conformance.catalogue import requirements
from kvfence.conformance.cli import main
from kvfence.conformance.faults import Bench
from kvfence.conformance.plan import Plan
from kvfence.conformance.scenarios import REPERTOIRE
from kvfence.conformance.settings import Settings
from kvfence.reference_impl.defects import DEFECTS

# Profile and cases of what no scenario is written for.
OTHERS = {
    "modes.serial": ("quick", ("serial-canary-block+1-alone-c1-float32",)),
    "modes.independent": ("quick", ("independent-canary-block+1-mixed-c8-float32",)),
    "modes.shared": ("quick", ("shared-canary-block+1-mixed-c8-float32",)),
    "side.first-token": ("times", ("side.*",)),
    "cover.combinations": ("pairs", ("cover.*-fork-shared-b16-c32-float32",)),
}
DRAWN = "search.any-schedule"


def cases(requirement):
    if requirement in OTHERS:
        return OTHERS[requirement]
    names = [name for name in REPERTOIRE.names() if REPERTOIRE.requirement(name) == requirement]
    return "scenarios", tuple(f"{name}-float32" for name in names)


@pytest.mark.parametrize("id", requirements().keys() - {DRAWN})
def test_a_requirement_trips_over_a_planted_fault(id):
    profile, patterns = cases(id)
    settings = Settings("reference", "canary", profile, cases=patterns, in_process=True)
    bench = Bench(settings, Plan(settings))
    try:
        record = bench.score(DEFECTS[requirements()[id].tripped_by])
    finally:
        bench.close()
    assert record.detected, record.failed
    assert record.requirement == id


def test_a_search_trips_over_one(tmp_path):
    engine = ["--engine", "kvfence.conformance.faults:open_faulty"]
    fault = ["--engine-arg", f"defect={requirements()[DRAWN].tripped_by}"]
    limits = ["--minutes", "2", "--in-process", "--report", str(tmp_path / "r"), "--corpus", str(tmp_path / "c")]
    result = CliRunner().invoke(main, ["search", *engine, *fault, *limits])
    assert result.exit_code == 1, result.output
