"""The reference engine on a card: `pytest -m gpu`."""

import pytest
import torch
from hypothesis import Phase
from ref_judge import Tally
from ref_machine import Schedules
from ref_subjects import NAMES
from test_ref_machine import run

from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.suite import Suite
from kvfence.reports.outcome import Outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
KERNEL = pytest.mark.parametrize("kernel", [False, True], ids=["gather", "kernel"])


@KERNEL
@pytest.mark.parametrize("name", NAMES)
def test_every_output_is_golden_in_random_schedules(name, kernel):
    tally = Tally()
    attributes = {"names": (name,), "tally": tally, "device": "cuda", "fixed": Schedules.fixed | {"kernel": kernel}}
    run(type(name, (Schedules,), attributes), 25, (Phase.generate, Phase.shrink))
    assert tally.schedules["schedules"] >= 25


@KERNEL
def test_the_suite_finds_it_to_conform(tmp_path, kernel):
    arguments = {"kernel": str(int(kernel))}
    settings = Settings(engine="reference", model="canary", device="cuda", report=tmp_path, engine_args=arguments)
    plan = Plan(settings)
    with Suite(settings, plan, "run") as suite:
        records = list(suite.run_all(plan.cases))
    assert {record.outcome for record in records} == {Outcome.CONFORMS}
    assert len(records) == 60
