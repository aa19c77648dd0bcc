"""`kvfence baseline`."""

from pathlib import Path

import click

from kvfence.conformance.one_line import PATH, or_one_line
from kvfence.conformance.settings import UsageError


@click.group()
def baseline() -> None:
    """The violations that are known of engines."""


@baseline.command("update")
@click.argument("file", type=PATH)
@click.argument("folder", type=PATH, default=Path("kvfence-report"))
@click.option("--run", "run_id", help="Id of the run, if not the newest.")
def baseline_update(file: Path, folder: Path, run_id: str | None) -> None:
    """Add to FILE what the run recorded in FOLDER violates, and take out what it keeps.

    New entries say that nobody has looked into them: write down why instead, and where that is tracked.

    \b
    Example: kvfence baseline update known.toml kvfence-report
    """
    from kvfence.conformance.baseline import Baseline
    from kvfence.reports.file import write
    from kvfence.reports.records import read
    from kvfence.reports.text import count

    def update() -> tuple[int, int]:
        old, recorded = Baseline.load(file) if file.exists() else Baseline(), read(folder, run_id)
        if recorded.torn_lines:
            told = f"{count(recorded.torn_lines, 'record line')} of {folder} could not be read; run it again"
            raise UsageError(f"{file} is left as it is: {told}")
        new = old.updated(recorded)
        write(new.dumps(), file)
        return len(set(new.known) - set(old.known)), len(set(old.known) - set(new.known))

    added, removed = or_one_line(update)
    click.echo(f"{file}: {added} added, {removed} taken out")
