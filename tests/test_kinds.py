"""Kinds of divergences: what looks alike is counted together, and links to the first of its kind."""

from typing import Any

import samples
from page import page

from kvfence.reports import view
from kvfence.reports.card import Brief
from kvfence.reports.kinds import Kind, kinds


def brief(number: int, case: str, requirement: str, fault_class: str | None) -> Brief:
    explained: dict[str, Any] = {"explanation": {"fault_class": fault_class}} if fault_class is not None else {}
    return Brief(f"d{number}", f"case-{case}", "", {"case": case, "requirement": requirement}, explained)


def test_findings_of_a_case_are_of_the_class_that_one_of_them_is_explained_by() -> None:
    told = [
        brief(0, "p", "key.salt", ""),
        brief(1, "q", "fork.tail", "COW"),
        brief(2, "q", "fork.tail", None),
        brief(3, "r", "fork.tail", "COW"),
        brief(4, "s", "batch.any", "COW"),
        brief(5, "t", "key.salt", None),
    ]
    assert kinds(told) == (
        Kind("COW", "fork.tail", 3, 2, "d1"),
        Kind("", "key.salt", 2, 2, "d0"),
        Kind("COW", "batch.any", 1, 1, "d4"),
    )
    assert kinds([]) == ()


def test_each_kind_links_to_a_card() -> None:
    opened = page(samples.violating())
    cards = {attrs["id"] for _, attrs in opened.elements if attrs.get("class") == "card"}
    firsts = {kind.first for kind in view.view(samples.as_run(samples.violating())).kinds}
    assert len(firsts) == 1
    assert firsts <= cards
    assert {f"#{first}" for first in firsts} <= {attrs.get("href") for tag, attrs in opened.elements if tag == "a"}
    assert not [attrs for _, attrs in page(samples.conforming()).elements if attrs.get("class") == "kinds"]
