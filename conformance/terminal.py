"""A run as seen in a terminal: progress while it goes, a summary that fits a screen when it ends."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from kvfence.conformance.baseline import stale
from kvfence.conformance.plan import Plan
from kvfence.conformance.replay import replayed
from kvfence.conformance.settings import Settings, UsageError
from kvfence.conformance.suite import Suite, new_run
from kvfence.reports import digest, groups, html, junit
from kvfence.reports.coverage import coverage
from kvfence.reports.file import write
from kvfence.reports.outcome import Outcome, exit_code
from kvfence.reports.records import CaseRecord, Run, read
from kvfence.reports.score import kept, markdown, summary, write_line
from kvfence.reports.text import count, shown

STYLES = {Outcome.CONFORMS: "green", Outcome.VIOLATES: "bold red"}
SHOWN = 10  # cases named in the summary


def follow(settings: Settings, plan: Plan | None = None, as_json: bool = False) -> int:
    """Run the suite with progress on stderr and a summary on stdout; returns the exit code. Raises UsageError."""
    plan = plan or Plan(settings)
    with Suite(settings, plan, new_run()) as suite:
        records: list[CaseRecord] = []
        try:
            with _progress() as progress:
                task = progress.add_task(f"{settings.engine} · {settings.model}", total=len(plan.cases), case="")
                for record in suite.run_all(plan.cases):
                    records.append(record)
                    progress.update(task, advance=1, case=record.case)
            outdated = stale(settings, suite.run)
            code = 1 if outdated else exit_code(suite.outcomes, suite.known)
            suite.finish(code)
        finally:
            # Also after an interrupt, and by what lies on the disk: it may come before a record is handed on.
            if read(settings.report, suite.run).cases:
                write_reports(settings.report, suite.run)
    recorded = read(settings.report, suite.run)
    if as_json:
        click.echo(digest.as_json(recorded, code, outdated))
        return code
    for line in outdated:
        click.echo(f"baseline: {line}")
    _summarise(records, settings, code)
    for reason, n in plan.left_out.items():
        click.echo(f"{count(n, 'scenario')} left out: {shown(reason)}")
    if covered := coverage(recorded):
        click.echo(covered.told)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        _tell_github(recorded)
    return code


def _tell_github(run: Run) -> None:
    """Annotations, and the summary of the job where there is a file for it."""
    for line in digest.annotations(run):
        click.echo(line)
    if file := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(file).open("a", encoding="utf-8") as handle:
            handle.write(digest.markdown(run))


def diagnosis(settings: Settings) -> int:
    """Diagnose the schedule of a run: a line for each rung, and the class; returns the exit code. Raises UsageError."""
    plan = replayed(settings, probes=True)
    with Suite(settings, plan, new_run()) as suite:
        record = suite.diagnose(plan.scenarios[0])
        code = exit_code(suite.outcomes)
        suite.finish(code)
    write_reports(settings.report, suite.run)
    click.echo(f"{record.outcome}: {shown(record.reason)}")
    for rung in record.ladder:
        click.echo(f"  {rung.name:<18} {rung.state:<8} {shown(rung.told)}")
    if record.findings and (why := record.findings[0].explanation):
        click.echo(f"looks like {why.fault_class or 'no known class of faults'}: {shown(why.class_how)}")
        if why.trigger_how:
            click.echo(f"trigger: {shown(why.trigger_how)}")
    click.echo(f"report: {settings.report / 'report.html'}")
    return code


def score(
    settings: Settings, names: Sequence[str], folder: Path, tokens_only: bool = False, resume: bool = False
) -> int:
    """Score planted faults, a line for each as it comes, and leave the table; returns the exit code.

    With `resume` what the folder has of them is kept. Raises UsageError for names of none, for a folder that cannot be
    written, and for one whose records cannot be gone on with.
    """
    from kvfence.conformance.faults import against

    try:
        folder.mkdir(parents=True, exist_ok=True)
        records = kept(folder / "faults.ndjson") if resume else []
        if not resume:
            (folder / "faults.ndjson").write_text("", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; name another with --report") from error
    except ValueError as error:
        raise UsageError(f"{folder / 'faults.ndjson'} cannot be gone on with: {error}") from error
    done = {(record.fault, "" if record.fault else record.about) for record in records}
    try:
        for record in against(settings, names, tokens_only, done):
            records.append(record)
            write_line(record, folder / "faults.ndjson")
            seen = f"{', '.join(record.oracles)} in {record.case}" if record.detected else "not seen"
            exercised = "" if record.exercised or not record.fault else ", never exercised"
            name = record.fault or f"no fault, {record.about or 'as it is'}"
            click.echo(f"{name:<28} {seen}{exercised} ({record.seconds:.1f} s)")
    finally:
        write(markdown(records), folder / "faults.md")
    for line in summary(records):
        click.echo(line)
    click.echo(f"table: {folder / 'faults.md'}")
    return int(
        any(record.detected != bool(record.fault) or bool(record.fault) > record.exercised for record in records)
    )


def write_reports(folder: Path, run: str | None = None) -> list[Path]:
    """Make every report of a run from its records. Raises RecordError."""
    recorded = read(folder, run)
    renders = {
        "report.html": html.render,
        "junit.xml": junit.render,
        "summary.md": digest.markdown,
        "groups.md": groups.markdown,
    }
    for name, render in renders.items():
        write(render(recorded), folder / name)
    return [folder / name for name in renders]


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[case]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _summarise(records: list[CaseRecord], settings: Settings, code: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    counts = Counter(record.outcome for record in records)
    red = [record for record in records if record.outcome is Outcome.VIOLATES and not record.known]
    # Text objects, since reasons quote what an engine said and must not be read as markup.
    for record in red[:SHOWN]:
        console.print(Text(f"{record.outcome}", STYLES[record.outcome]), Text(record.case))
        console.print(Text(f"    {shown(record.reason)}"))
        console.print(Text(f"    {record.reproduce}", "dim"))
    if len(red) > SHOWN:
        console.print(f"… and {len(red) - SHOWN} more violations in the report")
    others = Counter((r.outcome, r.reason) for r in records if r.outcome not in (Outcome.CONFORMS, Outcome.VIOLATES))
    for (outcome, reason), n in others.most_common(SHOWN):
        console.print(Text(outcome, "yellow"), Text(f"{count(n, 'case')}: {shown(reason)}"))
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    if known := sum(bool(record.known) for record in records):
        told += f" ({known} known)"
    engine = sum(record.engine_seconds for record in records)
    suite = sum(record.suite_seconds for record in records)
    style = STYLES[Outcome.VIOLATES if code == 1 else Outcome.CONFORMS]
    console.print(Text(f"{count(len(records), 'case')}: {told}", style))
    oracles = dict.fromkeys(oracle for record in records for oracle in record.asked)
    if code != 1 and oracles:
        console.print(f"oracles asked: {', '.join(oracles)}; what their silence does not show stands in the report")
    console.print(f"engine {engine:.1f} s, suite {suite:.1f} s, exit code {code}")
    console.print(Text(f"report: {settings.report / 'report.html'}"))
