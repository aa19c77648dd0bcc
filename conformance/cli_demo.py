"""`kvfence demo`."""

import sys
from pathlib import Path

import click

from kvfence.conformance.one_line import PATH, or_one_line
from kvfence.conformance.settings import spare_threads


@click.command()
@click.option(
    "--report",
    "folder",
    default="kvfence-demo",
    show_default=True,
    type=PATH,
    help="Folder for the reports of its three parts.",
)
def demo(folder: Path) -> None:
    """A leak, shown in a minute or two: requests one at a time, with a shared prefix, with a slot shared by mistake.

    Runs on the reference engine and a model that kvfence builds; nothing is downloaded.

    Exit code: 0 the engine conformed and the planted fault was seen, 1 otherwise, 2 bad usage.
    """
    spare_threads("canary")
    from kvfence.conformance.demo import ACTS, play, told
    from kvfence.reports.text import shown

    as_expected = True
    for i, act in enumerate(ACTS, 1):
        click.echo(f"{i}. {act.title}")
        click.echo(click.wrap_text(act.about, 100, "   ", "   "))
        record = or_one_line(lambda act=act: play(act, folder / act.folder))  # type: ignore[misc]
        as_expected = as_expected and record.outcome is act.expected
        for line in told(record):
            click.echo(f"   {shown(line)}")
        click.echo()
    click.echo(f"The leak as a report: {folder / ACTS[-1].folder / 'report.html'}")
    sys.exit(0 if as_expected else 1)
