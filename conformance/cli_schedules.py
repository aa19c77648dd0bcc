"""`kvfence replay`, `diagnose` and `search`: schedules in files, and such as nobody has thought of."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvfence.conformance.one_line import PATH, or_one_line
from kvfence.conformance.settings import DEADLINE, Settings, engine_arguments, spare_threads


def _engine(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which engine, and how it is opened."""
    options = (
        click.option("--engine", default="hf", show_default=True, help="Installed adapter, or module:factory."),
        click.option("--model", default="canary", show_default=True, help="Model folder, or canary, random."),
        click.option("--engine-arg", "pairs", multiple=True, metavar="KEY=VALUE", help="Passed to the engine."),
        click.option("--device", default="cpu", show_default=True, help="cpu or cuda."),
        click.option(
            "--deadline",
            default=DEADLINE,
            show_default=True,
            help="Seconds a call to the engine, or its start, may take.",
        ),
        click.option("--in-process", is_flag=True, help="Engine in this process, for a debugger."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("file", type=PATH)
@click.option("--report", "folder", default="kvfence-replay", show_default=True, type=PATH)
@_engine
def replay(file: Path, folder: Path, pairs: tuple[str, ...], **options: Any) -> None:
    """Run a schedule FILE again, such as a violation has left: FIXED, STILL FAILS, or ERROR where nothing is known.

    Exit code: 0 fixed, 1 still fails, 2 bad usage or the engine did not start, 3 error.

    \b
    Example: kvfence replay kvfence-report/schedules/cancel.decoding-float32.json --engine reference
    """
    from kvfence.conformance.replay import replayed
    from kvfence.conformance.schedule_file import lines
    from kvfence.conformance.terminal import follow

    def run_it() -> int:
        spare_threads(options["model"])
        arguments = engine_arguments(pairs)
        settings = Settings(profile="scenarios", report=folder, engine_args=arguments, schedule=file, **options)
        plan = replayed(settings)
        for scenario in plan.scenarios:
            for line in lines(scenario):
                click.echo(line)
        return follow(settings, plan)

    code = or_one_line(run_it)
    click.echo({0: "FIXED", 1: "STILL FAILS"}.get(code, "ERROR"))
    sys.exit(code)


@click.command()
@click.argument("file", type=PATH)
@click.option("--report", "folder", default="kvfence-diagnosis", show_default=True, type=PATH)
@_engine
def diagnose(file: Path, folder: Path, pairs: tuple[str, ...], **options: Any) -> None:
    """Say what a schedule FILE that violates takes, rung by rung, and which class of faults it looks like.

    Prompts equal, sharing off, one at a time, steps serialised; then the log of the cache, and the smallest schedule.
    Exit code: 0 it conforms, 1 it violates, 2 bad usage or the engine did not start, 3 nothing is known.

    \b
    Example: kvfence diagnose kvfence-report/schedules/cancel.decoding-float32.json --engine reference
    """
    from kvfence.conformance.terminal import diagnosis

    def run_it() -> int:
        spare_threads(options["model"])
        arguments = engine_arguments(pairs)
        return diagnosis(Settings(profile="scenarios", report=folder, engine_args=arguments, schedule=file, **options))

    sys.exit(or_one_line(run_it))


@click.command()
@click.option("--minutes", default=5.0, show_default=True, type=click.FloatRange(0.05), help="How long.")
@click.option("--corpus", default="kvfence-corpus", show_default=True, type=PATH, help="Finds.")
@click.option("--seed", default=0, show_default=True, help="Where the drawing of schedules begins.")
@click.option("--dtype", default="float32", show_default=True, help="What the engine computes in.")
@_engine
def search(minutes: float, corpus: Path, seed: int, dtype: str, pairs: tuple[str, ...], **options: Any) -> None:
    """Draw schedules that nobody has thought of until one violates; make it small and keep it in the corpus.

    What the corpus holds already is tried first. Exit code: 0 nothing found, 1 found, 2 bad usage or no verdict.

    \b
    Example: kvfence search --engine reference --minutes 2
    """
    from kvfence.conformance.schedule_file import lines
    from kvfence.conformance.search import hunt
    from kvfence.reports.outcome import Outcome
    from kvfence.reports.text import count

    def run_it() -> int:
        spare_threads(options["model"])
        arguments = engine_arguments(pairs)
        settings = Settings(profile="scenarios", seed=seed, dtypes=(dtype,), engine_args=arguments, **options)
        found, outcomes = 0, Counter[Outcome]()
        for find, file in hunt(settings, corpus, 60 * minutes, outcomes):
            found += 1
            click.echo(f"VIOLATES after {find.schedules} drawn schedules, {find.seconds:.0f} s")
            click.echo(f"    {find.judged.ruling.reason}")
            if not find.alone:
                click.echo("    by itself it conforms: it takes what came before")
            for line in lines(find.small):
                click.echo(f"    {line}")
            click.echo(f"    {settings.replay(file)}")
        if not found:
            told = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common())
            click.echo(f"nothing found in {minutes:g} minutes, {count(outcomes.total(), 'schedule')}: {told}")
        return int(found > 0)

    sys.exit(or_one_line(run_it))
