"""JUnit XML of a run, with what CI systems cannot show otherwise as properties."""

import re
from typing import Any
from xml.etree import ElementTree as ET

from kvfence.reports.outcome import Outcome
from kvfence.reports.records import Run

# XML 1.0 has no way to write these, not even escaped.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENT = {
    Outcome.VIOLATES: "failure",
    Outcome.INCONCLUSIVE: "error",
    Outcome.SUITE_ERROR: "error",
    Outcome.NOT_OBSERVABLE: "skipped",
    Outcome.NOT_APPLICABLE: "skipped",
}


def properties(case: dict[str, Any]) -> dict[str, str]:
    """The properties a case's test carries: requirement, outcome and where they stand."""
    names = ("requirement", "outcome", "mode", "layout", "edge", "company", "concurrency", "dtype", "reproduce")
    return {f"kvfence.{name}": str(case[name]) for name in names}


def render(run: Run) -> str:
    """A run as JUnit XML: violations fail, undecided cases are errors, unobservable ones are skipped."""
    elements = list(map(_element, run.cases))
    suite = ET.Element(
        "testsuite",
        name="kvfence",
        tests=str(len(run.cases)),
        failures=str(elements.count("failure")),
        errors=str(elements.count("error")),
        skipped=str(elements.count("skipped")),
        time=f"{sum(case['engine_seconds'] + case['suite_seconds'] for case in run.cases):.3f}",
    )
    for case in run.cases:
        suite.append(_test(case, run.header["engine"]))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _element(case: dict[str, Any]) -> str | None:
    return "skipped" if case["known"] else _ELEMENT.get(Outcome(case["outcome"]))


def _test(case: dict[str, Any], engine: str) -> ET.Element:
    seconds = case["engine_seconds"] + case["suite_seconds"]
    test = ET.Element("testcase", classname=f"kvfence.{_text(engine)}", name=_text(case["case"]), time=f"{seconds:.3f}")
    listed = ET.SubElement(test, "properties")
    for name, value in properties(case).items():
        ET.SubElement(listed, "property", name=name, value=_text(value))
    if element := _element(case):
        known = f"known: {case['known']}: " if case["known"] else ""
        detail = ET.SubElement(test, element, message=_text(known + case["reason"]))
        lines = [finding["summary"] + "; " + finding["source_how"] for finding in case["findings"]]
        detail.text = _text("\n".join([*lines, case["reproduce"]]))
    return test


def _text(value: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", value)
