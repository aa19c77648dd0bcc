"""View: everything the report says, computed from the records; the template only lays it out."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from kvfence.reports import svg
from kvfence.reports.card import Brief, Card, cards
from kvfence.reports.coverage import Coverage, coverage
from kvfence.reports.groups import Row, engine_name, rows
from kvfence.reports.kinds import Kind, kinds
from kvfence.reports.matrix import Matrix, badness, dtype_order, matrix, mode_order
from kvfence.reports.outcome import UNDECIDED, exit_code
from kvfence.reports.records import Run
from kvfence.reports.silence import silence
from kvfence.reports.text import count, duration


@dataclass(frozen=True)
class Verdict:
    """The run in a few words. ``kind`` is the outcome it is coloured like."""

    kind: str
    words: str
    told: str


@dataclass(frozen=True)
class Group:
    """Cases that were not decided for one and the same reason."""

    outcome: str
    reason: str
    cases: tuple[dict[str, Any], ...]

    @property
    def size(self) -> int:
        return len(self.cases)


@dataclass(frozen=True)
class Opening:
    """A configuration that an engine was opened in, once or again and again."""

    config: dict[str, Any]
    block_size: int | None  # tokens
    times: int
    seconds: float  # the longest


@dataclass(frozen=True)
class EngineGroup:
    """Every configuration of one engine that was opened, and its capabilities as (name, state, reason)."""

    name: str
    version: str
    capabilities: tuple[tuple[str, str, str], ...]
    opened: tuple[Opening, ...]


@dataclass(frozen=True)
class Choice:
    """One filter of the case table."""

    name: str
    label: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """What the template is given: ``facts`` are label and text, ``links`` (id, victim) by case.

    ``modes`` are the rows of the experiment's table by what is the same in every mode.
    """

    run: Run
    verdict: Verdict
    facts: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]
    shares: str
    proof: tuple[str, ...]
    coverage: Coverage | None
    silence: tuple[tuple[str, str, str], ...]  # of each oracle: name, how often it was asked, what it does not show
    matrix: Matrix
    modes: tuple[tuple[str, tuple[Row, ...]], ...]
    cards: list[Card]
    briefs: list[Brief]
    kinds: tuple[Kind, ...]  # of both
    groups: tuple[Group, ...]
    choices: tuple[Choice, ...]
    links: dict[str, list[tuple[str, str]]]
    engines: tuple[EngineGroup, ...]


def view(run: Run) -> View:
    """Compute it."""
    full, briefs = cards(run)
    counted = Counter(str(case["outcome"]) for case in run.cases)
    counts = tuple((name, counted[name]) for name in sorted(counted, key=badness))
    links: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    told: list[Card | Brief] = [*full, *briefs]
    for each in told:
        links[each.case["case"]].append((each.id, each.finding["victim"]))
    return View(
        run=run,
        verdict=verdict(run),
        facts=tuple(_facts(run)),
        counts=counts,
        shares=svg.shares(counts),
        proof=tuple(_proof(run)),
        coverage=coverage(run),
        silence=tuple(silence(run)),
        matrix=matrix(run.cases),
        modes=tuple(_modes(run)),
        cards=full,
        briefs=briefs,
        kinds=kinds(told),
        groups=_groups(run),
        choices=tuple(_choices(run)),
        links=dict(links),
        engines=_engines(run),
    )


def verdict(run: Run) -> Verdict:
    """A violation stands however the run ended; a run that is not whole never conforms."""
    recorded, planned = len(run.cases), run.header["cases"]
    whole = run.end is not None and recorded >= planned
    progress = f"{recorded:,} of {count(planned, 'planned case')} recorded"
    ending = "" if whole else f" Incomplete run: {progress}."
    code = exit_code(run.outcomes)
    if code == 1:
        bad = sum(case["outcome"] == "violates" for case in run.cases)
        known = sum(case["outcome"] == "violates" and bool(case["known"]) for case in run.cases)
        of_them = f", {known:,} of them known" if known else ""
        return Verdict(
            "violates",
            "Violates isolation",
            f"{bad:,} of {count(recorded, 'case')} did not stay isolated{of_them}.{ending}",
        )
    if not whole:
        return Verdict("inconclusive", "Incomplete run", f"{progress}. No violation among them.")
    open_cases = sum(outcome in UNDECIDED for outcome in run.outcomes)
    if code == 3:
        told = f"{open_cases:,} of {count(recorded, 'case')} came to no verdict; nothing violated."
        return Verdict("inconclusive", "Undecided", told if recorded else "No case was run.")
    passed = sum(case["outcome"] == "conforms" for case in run.cases)
    if not passed:
        return Verdict("inconclusive", "Undecided", "No case could be observed, so nothing was shown.")
    return Verdict("conforms", "Conforms", f"{passed:,} of {count(recorded, 'case')} conform; none violated.")


def _facts(run: Run) -> list[tuple[str, str]]:
    header, end = run.header, run.end
    dtypes = sorted({case["dtype"] for case in run.cases}, key=dtype_order)
    model = (
        header["model"] if header["model"] == header["model_kind"] else f"{header['model']} ({header['model_kind']})"
    )
    return [
        ("Engine", engine_name(run)),
        (
            "Engine arguments",
            ", ".join(f"{key}={value}" for key, value in header["engine_args"].items()) or "none",
        ),
        ("Model", model),
        ("Dtypes", ", ".join(dtypes) or "none"),
        ("Profile", header["profile"]),
        ("Seed", str(header["seed"])),
        ("Started", _when(header["started"])),
        ("Duration", duration(end["seconds"]) if end else "unknown: the run did not end"),
        ("Exit code", str(end["exit_code"]) if end else "none: the run did not end"),
        ("Cases", f"{len(run.cases):,} of {header['cases']:,} planned"),
        ("kvfence", header["kvfence"]),
        ("Run", header["run"]),
    ]


def _when(started: str) -> str:
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        return started
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if moment.tzinfo else started


def _proof(run: Run) -> list[str]:
    """What the run has shown, what it has not, and whether sharing happened at all."""
    passed = [case for case in run.cases if case["outcome"] == "conforms"]
    positions, ties = (sum(case[key] for case in passed) for key in ("positions", "ties"))
    said = ["No case conforms, so this run shows no isolation."]
    if passed:
        verb = "conforms" if len(passed) == 1 else "conform"
        said = [
            f"{count(len(passed), 'case')} {verb}: at {count(positions, 'output position')} the engine's tokens, "
            f"and its logprobs where it tells them, equal golden's up to numeric ties ({ties:,} here).",
            "This holds for these prompts in these schedules. KV that no output read, other schedules and other "
            "configurations stay unknown.",
        ]
    said.append(_sharing(run))
    # Records written before there were reasons have none.
    unjudged = {(n["dtype"], n["bucket"], n.get("attention_reason", "")) for n in run.noise}
    for dtype, bucket, reason in sorted(unjudged, key=lambda each: (dtype_order(each[0]), *each[1:])):
        said.append(reason and f"Attention in {dtype}, to {bucket:,} tokens, was not judged: {reason}.")
    if run.torn_lines:
        said.append(f"{count(run.torn_lines, 'record line')} could not be read, such as one cut short by a kill.")
    return [each for each in said if each]


def _sharing(run: Run) -> str:
    shared = [case for case in run.cases if case["mode"] == "shared"]
    if not shared:
        return "No case of mode shared was recorded: nothing here speaks of prefix sharing."
    if any((case["cached_tokens"] or 0) > 0 for case in shared):
        return ""
    told = any(case["cached_tokens"] is not None for case in shared)
    why = "every count was zero" if told else "the engine does not tell them"
    return f"No case of mode shared had cached tokens ({why}): nothing here shows that sharing happened."


def _modes(run: Run) -> Iterator[tuple[str, tuple[Row, ...]]]:
    for setup, same in groupby(rows(run), key=lambda row: row.setup):
        *names, concurrency = setup
        yield f"{', '.join(name for name in names if name != '-')}, {concurrency} at once", tuple(same)


def _groups(run: Run) -> tuple[Group, ...]:
    found: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for case in run.cases:
        if case["outcome"] not in ("conforms", "violates"):
            found[case["outcome"], case["reason"]].append(case)
    ranked = sorted(found.items(), key=lambda item: (badness(item[0][0]), -len(item[1]), item[0][1]))
    return tuple(Group(outcome, reason, tuple(cases)) for (outcome, reason), cases in ranked)


def _choices(run: Run) -> list[Choice]:
    labels = {
        "outcome": "Outcome", "requirement": "Requirement", "mode": "Mode", "dtype": "Dtype",
        "concurrency": "Concurrency", "layout": "Layout",
    }  # fmt: skip
    order: dict[str, Any] = {"outcome": badness, "mode": mode_order, "dtype": dtype_order}
    return [
        Choice(
            name,
            label,
            tuple(str(value) for value in sorted({case[name] for case in run.cases}, key=order.get(name))),
        )
        for name, label in labels.items()
    ]


def _engines(run: Run) -> tuple[EngineGroup, ...]:
    found: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for engine in run.engines:
        found[engine["name"], engine["version"]].append(engine)
    return tuple(EngineGroup(*key, _capabilities(opened), _openings(opened)) for key, opened in sorted(found.items()))


def _openings(opened: list[dict[str, Any]]) -> tuple[Opening, ...]:
    alike: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for engine in opened:
        alike[json.dumps([engine["config"], engine["block_size"]])].append(engine)
    return tuple(
        Opening(each[0]["config"], each[0]["block_size"], len(each), max(engine["seconds"] for engine in each))
        for each in alike.values()
    )


def _capabilities(opened: list[dict[str, Any]]) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        sorted(
            {
                (name, state["state"], state["reason"])
                for engine in opened
                for name, state in engine["capabilities"].items()
            }
        )
    )
