"""`kvfence baseline`."""

from pathlib import Path

import click

from kvfence.conformance.one_line import or_one_line


@click.group()
def baseline() -> None:
    """The violations that are known of engines."""


@baseline.command("update")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path), default=Path("kvfence-report"))
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

    def update() -> tuple[int, int]:
        old = Baseline.load(file) if file.exists() else Baseline()
        new = old.updated(read(folder, run_id))
        write(new.dumps(), file)
        return len(set(new.known) - set(old.known)), len(set(old.known) - set(new.known))

    added, removed = or_one_line(update)
    click.echo(f"{file}: {added} added, {removed} taken out")
