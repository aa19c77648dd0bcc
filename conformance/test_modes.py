"""Topic: the three modes. Serial, independent and shared runs of the same groups must all be golden's."""

import pytest

from kvfence.reports.outcome import Outcome
from kvfence.reports.records import CaseRecord


@pytest.mark.mode("serial")
@pytest.mark.requirement("modes.serial")
def test_serial(verdict: CaseRecord) -> None:
    """One request after another, sharing off."""
    assert_conforms(verdict)


@pytest.mark.mode("independent")
@pytest.mark.requirement("modes.independent")
def test_independent(verdict: CaseRecord) -> None:
    """Requests side by side, sharing off."""
    assert_conforms(verdict)


@pytest.mark.mode("shared")
@pytest.mark.requirement("modes.shared")
def test_shared(verdict: CaseRecord) -> None:
    """Requests side by side, prefixes shared."""
    assert_conforms(verdict)


def assert_conforms(record: CaseRecord) -> None:
    """Fail, telling what was found and how to repeat it, unless a case conforms."""
    __tracebackhide__ = True
    if record.outcome is not Outcome.CONFORMS:
        lines = [f"{finding.summary}; {finding.source_how}" for finding in record.findings]
        pytest.fail("\n".join([record.reason, *lines, f"reproduce: {record.reproduce}"]), pytrace=False)
