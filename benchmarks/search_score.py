"""What the search alone finds: each planted fault gets so many minutes of drawn schedules, and no other.

    python benchmarks/search_score.py [--minutes N] [--report FOLDER] [PATTERN]...

Of a find it tells how long it took, how small it was made, and which class of faults the small schedule looks like.
One line of JSON a fault; faults that have one are not searched for again. Without one (`none`) nothing may be found.
"""

import json
import time
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

import click

from kvfence.conformance.faults import ARGUMENT, SPEC, held_out
from kvfence.conformance.judge import foremost
from kvfence.conformance.lab import Lab
from kvfence.conformance.plan import Plan
from kvfence.conformance.search import Search, planned
from kvfence.conformance.settings import Settings
from kvfence.conformance.shrink import Size
from kvfence.reference_impl.defects import DEFECTS
from kvfence.reports.finding import Explanation

NONE = "none"


def settings(fault: str) -> Settings:
    """The reference engine with a fault, everything observed."""
    arguments = {} if fault == NONE else {ARGUMENT: fault}
    return Settings(SPEC, "canary", "scenarios", engine_args=arguments, in_process=True)


def searched(plan: Plan, fault: str, seconds: float, corpus: Path) -> dict[str, Any]:
    """What came of the search for one fault."""
    number = list(DEFECTS).index(fault) if fault in DEFECTS else len(DEFECTS)
    begun = time.monotonic()
    with Lab(settings(fault), plan) as lab:
        search = Search(lab, plan, corpus, lambda: time.monotonic() - begun > seconds, 1000 * number)
        find = search.drawn()
        of = DEFECTS[fault].fault_class if fault in DEFECTS else ""
        told = {"fault": fault, "class": of, "held_out": fault in DEFECTS and held_out(fault), "found": bool(find)}
        if find is None:
            return {**told, "schedules": sum(lab.outcomes.values()), "seconds": time.monotonic() - begun}
        named: Explanation | None = None
        if find.judged.ruling.findings:
            named = foremost(lab.explain(find.judged).ruling.findings).explanation
    size = Size.of(find.small)
    return {
        **told,
        "schedules": find.schedules,
        "seconds": find.drawn_seconds,
        "shrunk_seconds": find.seconds - find.drawn_seconds,
        "alone": find.alone,
        "requests": size.requests,
        "operations": size.operations,
        "tokens": size.tokens,
        "named": named.fault_class if named else None,
        "family": named.family if named else None,
        "how": named.class_how if named else "",
        "reason": find.judged.ruling.reason,
    }


def summary(lines: list[dict[str, Any]]) -> str:
    """The figures in a few lines."""
    faults = [line for line in lines if line["fault"] != NONE]
    finds = [line for line in faults if line["found"]]
    told = [f"{len(finds)} of {len(faults)} faults found"]
    if finds:
        names = ("seconds", "schedules", "requests", "operations", "tokens")
        told.append("median: " + ", ".join(f"{median(line[name] for line in finds):.4g} {name}" for name in names))
    for held in (False, True):
        some = [line for line in finds if line["held_out"] is held]
        right = sum(line["named"] == line["class"] for line in some)
        told.append(f"class named right: {right} of {len(some)} {'held out' if held else 'the table was made with'}")
    told += [
        f"without a fault: {line['schedules']} schedules, found {line['found']}" for line in lines if line not in faults
    ]
    return "\n".join(told)


@click.command()
@click.argument("patterns", nargs=-1)
@click.option("--minutes", default=2.0, show_default=True)
@click.option("--report", default="kvfence-search", type=click.Path(path_type=Path))
def main(patterns: tuple[str, ...], minutes: float, report: Path) -> None:
    """Search for each fault, and print what came of it."""
    report.mkdir(parents=True, exist_ok=True)
    file = report / "search.ndjson"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {line["fault"] for line in lines}
    plan = planned(settings(NONE))
    names = [NONE, *(name for name, defect in DEFECTS.items() if not defect.window)]
    for name in names:
        if name in done or not any(fnmatchcase(name, pattern) for pattern in patterns or ("*",)):
            continue
        line = searched(plan, name, 60 * minutes, report / name)
        with file.open("a") as to:
            to.write(json.dumps(line) + "\n")
        lines.append(line)
        click.echo(f"{name:<28} {line['seconds']:6.1f} s  {line.get('requests', '-')} requests  {line.get('named')}")
    click.echo(summary(lines))


if __name__ == "__main__":
    main()
