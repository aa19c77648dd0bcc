"""Topic: scenarios. Whatever happens to requests and their neighbours, each must get golden's answer."""

import pytest

from kvfence.conformance.test_modes import assert_conforms
from kvfence.reports.records import CaseRecord


@pytest.mark.mode("scenario")
def test_scenario(verdict: CaseRecord) -> None:
    """One schedule of keys, forks, cancels, preemption, conversations or what else a profile has."""
    assert_conforms(verdict)
