"""`kvfence compare`."""

import sys
from pathlib import Path

import click

from kvfence.conformance.one_line import PATH, OneLine, or_one_line


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER[@RUN]...")
@click.option("--output", type=PATH, help="Write it there, too; as HTML where the name ends so.")
def compare(folders: tuple[str, ...], output: Path | None) -> None:
    """Requirements by runs, and what changed: the newest run of each report FOLDER, or the last two of a single one.

    Of two runs it is told which cases are newly broken, newly fixed, or not known any more.

    Exit code, of two runs: 0 nothing newly broken, 1 something is, 3 something is not known any more; of more
    runs 0; 2 bad usage.

    \b
    Examples: kvfence compare kvfence-report
              kvfence compare before after
              kvfence compare out/hf out/vllm out/llama-cpp --output engines.md
    """
    from kvfence.reports import comparison, html
    from kvfence.reports.file import write
    from kvfence.reports.records import Run, read, runs

    def chosen() -> list[Run]:
        parts = [(Path(name), run or None) for name, _, run in (folder.rpartition("@") for folder in named)]
        if len(parts) == 1 and parts[0][1] is None:
            folder = parts[0][0]
            if len(known := runs(folder)) < 2:
                raise OneLine(f"there is no second run in {folder} to compare with; name another report folder")
            return [read(folder, run) for run in known[-2:]]
        return [read(folder, run) for folder, run in parts]

    # A folder may have an @ in its name.
    named = [folder if "@" in folder and not Path(folder).exists() else f"{folder}@" for folder in folders]
    found = or_one_line(chosen)
    columns = [comparison.column(run) for run in found]
    changed = comparison.changes(*found) if len(found) == 2 else None
    text = comparison.table(columns) + (f"\n{comparison.told(changed)}" if changed else "")
    click.echo(text, nl=False)
    if output:
        page = html.render_comparison(columns, changed) if output.suffix == ".html" else text
        or_one_line(lambda: write(page, output))
    sys.exit(changed.exit_code if changed else 0)
