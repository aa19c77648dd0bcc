"""`kvfence doctor`."""

import json
import sys
from dataclasses import asdict

import click

from kvfence.conformance.one_line import or_one_line
from kvfence.conformance.settings import engine_arguments


@click.command()
@click.argument("engines", nargs=-1, metavar="[ENGINE]...")
@click.option("--engine-arg", "pairs", multiple=True, metavar="KEY=VALUE", help="Passed to each (repeatable).")
@click.option("--deadline", default=120.0, show_default=True, help="Seconds that an engine may take to open.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(engines: tuple[str, ...], pairs: tuple[str, ...], deadline: float, as_json: bool) -> None:
    """What this machine has, and what each engine found on it would let itself be observed in.

    Each is opened once on the canary. Without names those that are installed are.

    Exit code: 0 all that were named opened, or without names any did; 1 otherwise; 2 bad usage.

    \b
    Example: kvfence doctor hf vllm
    """
    from kvfence.adapters.registry import names
    from kvfence.conformance.doctor import DEPTH, checkup, machine
    from kvfence.reports.text import shown

    arguments = or_one_line(lambda: engine_arguments(pairs))
    about = machine()
    if not as_json:
        for name, value in about.items():
            click.echo(f"{name:<14} {value}")
        click.echo()
    found = []
    for name in engines or names():
        found.append(check := or_one_line(lambda name=name: checkup(name, arguments, deadline)))  # type: ignore[misc]
        if as_json:
            continue
        if check.reason:
            click.echo(f"{name:<14} not opened: {shown(check.reason)}")
        else:
            click.echo(f"{name:<14} {shown(check.version)}: shows tokens, {', '.join(check.shows)}".rstrip(", "))
            missing = [
                f"{part} ({check.capabilities.get(part, 'unknown')})" for part in DEPTH if part not in check.shows
            ]
            if missing:
                click.echo(f"{'':<14} not {shown('; '.join(missing))}")
    if as_json:
        click.echo(json.dumps({"machine": about, "engines": [asdict(each) for each in found]}, indent=2))
    opened = [not each.reason for each in found]
    sys.exit(0 if (all(opened) if engines else any(opened)) else 1)
