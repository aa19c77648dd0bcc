"""The headline of a divergence: who got whose K/V, and no more than was seen."""

from dataclasses import replace

import pytest
import samples

from kvfence.reports.card import headline
from kvfence.reports.finding import Finding
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import CaseRecord

CASE = samples.case()
FOUND = samples.finding("A0", "B0", 6, 5, case=CASE.case)


def case(found: Finding) -> CaseRecord:
    return replace(CASE, outcome=Outcome.VIOLATES, findings=(found,))


@pytest.mark.parametrize(
    ("oracles", "words"),
    [
        (("golden", "attention"), "answered otherwise than golden from step 6 on"),
        (("attention",), "attended otherwise than golden from step 4 on"),
        (("attention", "blocks"), "attended otherwise than golden from step 4 on"),
        (("attention", "kv"), "attended otherwise than golden from step 4 on"),
        (("golden", "kv", "side"), "answered otherwise than golden from step 6 on"),
        (("blocks",), "met K/V in the cache that were not its own"),
        (("kv", "side"), "met K/V in the cache that were not its own"),
        (("side",), "was told of more cached tokens than its own domain can have had"),
        (("twin",), "answered otherwise when only its neighbours' secrets were others"),
    ],
)
def test_the_headline_claims_no_more_than_was_seen(oracles: tuple[str, ...], words: str) -> None:
    found = replace(FOUND, first_step=4, oracles=oracles, spellings=(), source=None, source_case=None)
    line = samples.line(case(found))
    assert headline(line, line["findings"][0]) == f"Request A0 {words}; no source found"


@pytest.mark.parametrize(
    ("source", "of", "told"),
    [
        ("A0", None, "itself, by K/V of another place"),
        ("A0", "another", "request A0 of another case"),
        ("B0", None, "request B0"),
    ],
)
def test_the_headline_names_the_source(source: str, of: str | None, told: str) -> None:
    found = replace(FOUND, first_step=6, oracles=("golden",), spellings=(), source=source, source_case=of)
    line = samples.line(case(found))
    words = "Request A0 answered otherwise than golden from step 6 on; the source is"
    assert headline(line, line["findings"][0]) == f"{words} {told}"
