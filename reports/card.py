"""Card: one finding laid out for reading."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvfence.reports import svg
from kvfence.reports.attention import Moved, changed, moved
from kvfence.reports.diff import Owner, Owners, Segment, at, segments
from kvfence.reports.kv_map import KVMap, kv_map
from kvfence.reports.log import Log, log
from kvfence.reports.records import Run
from kvfence.reports.text import anchor, count, number
from kvfence.reports.timeline import timeline

FULL = 50  # findings told with all their evidence; a page with more of them opens too slowly


@dataclass(frozen=True)
class Numbers:
    """One row of the table behind the drawings; figures are already words, "" where there is none."""

    step: int
    expected: str
    got: str
    margin: str
    over: bool
    golden: str
    engine: str
    difference: str


@dataclass(frozen=True)
class Card:
    """``case`` and ``finding`` are the records themselves; ``requests`` are (record, role) pairs."""

    id: str
    row: str
    headline: str
    case: dict[str, Any]
    finding: dict[str, Any]
    source: str
    owners: tuple[Owner, ...]
    segments: tuple[Segment, ...]
    strips: tuple[svg.Figure, ...]
    numbers: tuple[Numbers, ...]
    requests: tuple[tuple[dict[str, Any], str], ...]
    attention: Moved | None
    kv: KVMap | None
    log: Log | None
    slots: svg.Figure | None  # who had them when


@dataclass(frozen=True)
class Brief:
    """A finding of which only the sentence is told."""

    id: str
    row: str
    headline: str
    case: dict[str, Any]
    finding: dict[str, Any]


def cards(run: Run) -> tuple[list[Card], list[Brief]]:
    """The findings, worst first: the first ``FULL`` in full, the others in a sentence each."""
    found = [(case, finding) for case in run.cases for finding in case["findings"]]
    found.sort(key=lambda pair: badness(*pair))
    owners, ids = Owners(run.cases), _ids(found)
    full = [_card(*pair, id, owners) for pair, id in zip(found[:FULL], ids, strict=False)]
    rest = [
        Brief(id, anchor(case["case"]), headline(case, finding), case, finding)
        for (case, finding), id in zip(found[FULL:], ids[FULL:], strict=True)
    ]
    return full, rest


def headline(case: dict[str, Any], finding: dict[str, Any]) -> str:
    """The finding in one sentence."""
    start = f"Request {finding['victim']}"
    source = finding["source"]
    if source is None:
        return f"{start} {_deed(case, finding)}; no source found"
    of = f"request {source}" + _elsewhere(case, finding["source_case"])
    words = sum(
        spelling["length"]
        for spelling in finding["spellings"]
        if spelling["request"] == source and spelling["case"] == (finding["source_case"] or case["case"])
    )
    if words:
        return f"{start} answered with {count(words, 'word')} of {of}"
    if source == finding["victim"] and not _elsewhere(case, finding["source_case"]):
        return f"{start} {_deed(case, finding)}; the source is itself, by K/V of another place"
    return f"{start} {_deed(case, finding)}; the source is {of}"


def _deed(case: dict[str, Any], finding: dict[str, Any]) -> str:
    """What the victim did, in the strongest terms that the oracles allow."""
    seen = set(finding["oracles"])
    if not seen & {"golden", "canary"}:
        if "attention" in seen:
            return f"attended otherwise than golden from step {finding['first_step']} on"
        if seen & {"blocks", "kv"}:
            return "met K/V in the cache that were not its own"
        if "side" in seen:
            return "was told of more cached tokens than its own domain can have had"
        if "twin" in seen:
            return "answered otherwise when only its neighbours' secrets were others"
    step = changed(case, finding)
    return f"answered otherwise than golden from step {finding['first_step'] if step is None else step} on"


def _elsewhere(case: dict[str, Any], of: str | None) -> str:
    return "" if of in (None, case["case"]) else " of another case"


def badness(case: dict[str, Any], finding: dict[str, Any]) -> tuple[Any, ...]:
    """Words of somebody else first, then how far above the noise, then how early."""
    foreign = sum(owner is not None for owner in finding["trace"]["owners"])
    margins = [margin for margin in finding["trace"]["margins"] if not math.isnan(margin)]
    return (
        finding["source"] is None, -foreign, -max(margins, default=0.0), finding["first_step"], case["case"],
        finding["victim"],
    )  # fmt: skip


def _ids(found: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    seen: dict[str, int] = {}
    ids = []
    for case, finding in found:
        id = anchor(case["case"], finding["victim"])
        seen[id] = seen.get(id, 0) + 1
        ids.append(id if seen[id] == 1 else f"{id}~{seen[id]}")
    return ids


def _card(case: dict[str, Any], finding: dict[str, Any], id: str, owners: Owners) -> Card:
    foreign = owners.of(case, finding)
    source = finding["source"]
    return Card(
        id=id,
        row=anchor(case["case"]),
        headline=headline(case, finding),
        case=case,
        finding=finding,
        source="not attributed" if source is None else f"request {source}" + _of(case, finding["source_case"]),
        owners=tuple(foreign.values()),
        segments=tuple(segments(case, finding, foreign)),
        strips=tuple(_strips(finding)),
        numbers=tuple(_numbers(finding)),
        requests=tuple((request, _role(case, finding, request)) for request in case["requests"]),
        attention=moved(case, finding, id),
        kv=kv_map(case, finding, id),
        log=log(case, finding),
        slots=timeline(case, finding, id),
    )


def _of(case: dict[str, Any], of: str | None) -> str:
    return " of the same batch" if of in (None, case["case"]) else f" of case {of}"


def _role(case: dict[str, Any], finding: dict[str, Any], request: dict[str, Any]) -> str:
    if request["request"] == finding["victim"]:
        return "victim"
    here = finding["source_case"] in (None, case["case"])
    return "source" if here and request["request"] == finding["source"] else ""


def _strips(finding: dict[str, Any]) -> Iterable[svg.Figure]:
    trace, epsilon = finding["trace"], finding["epsilon"]
    if trace["margins"]:
        over = sum(not margin <= epsilon for margin in trace["margins"])
        largest = number(max(trace["margins"]))
        caption = f"{over} of {count(len(trace['margins']), 'step')} above ε = {number(epsilon)}; largest {largest}"
        drawing = svg.strip(trace["margins"], epsilon, f"Margins: {caption}", "logits")
        yield svg.Figure(drawing, f"Margin, logits: {caption}")
    differences = [
        abs(engine - golden) for engine, golden in zip(trace["logprobs"], trace["golden_logprobs"], strict=False)
    ]
    if differences:
        caption = f"largest {number(max(differences))}"
        drawing = svg.strip(differences, None, f"Logprob differences: {caption}", "nats")
        yield svg.Figure(drawing, f"|engine logprob - golden logprob|, nats: {caption}")


def _numbers(finding: dict[str, Any]) -> Iterable[Numbers]:
    trace = finding["trace"]
    for step, got in enumerate(trace["texts"]):
        margin, golden, engine = (at(trace[key], step) for key in ("margins", "golden_logprobs", "logprobs"))
        yield Numbers(
            step=step,
            expected=at(trace["expected_texts"], step) or "",
            got=got,
            margin=_figure(margin),
            over=margin is not None and not margin <= finding["epsilon"],
            golden=_figure(golden),
            engine=_figure(engine),
            difference="" if golden is None or engine is None else _figure(abs(engine - golden)),
        )


def _figure(value: float | None) -> str:
    return "" if value is None else number(value)
