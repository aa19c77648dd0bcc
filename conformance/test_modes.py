"""Topic: the three modes. Serial, independent and shared runs of the same groups must all be golden's."""

import pytest

from kvfence.reports.outcome import Outcome
from kvfence.reports.records import CaseRecord


@pytest.mark.mode("serial")
@pytest.mark.requirement("modes.serial")
def test_serial(verdict: CaseRecord) -> None:
    """One request after another, sharing off."""
    _assert_conforms(verdict)


@pytest.mark.mode("independent")
@pytest.mark.requirement("modes.independent")
def test_independent(verdict: CaseRecord) -> None:
    """Requests side by side, sharing off."""
    _assert_conforms(verdict)


@pytest.mark.mode("shared")
@pytest.mark.requirement("modes.shared")
def test_shared(verdict: CaseRecord) -> None:
    """Requests side by side, prefixes shared."""
    _assert_conforms(verdict)


def _assert_conforms(record: CaseRecord) -> None:
    __tracebackhide__ = True
    if record.outcome is not Outcome.CONFORMS:
        lines = [f"{finding.summary}; {finding.source_how}" for finding in record.findings]
        pytest.fail("\n".join([record.reason, *lines, f"reproduce: {record.reproduce}"]), pytrace=False)
