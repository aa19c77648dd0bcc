"""False alarms: engines that are right, where rounding differs most, and how many of their answers are flagged.

    python benchmarks/controls.py [--report FOLDER] [ENGINE/MODEL]...

Each engine, model and dtype answers the same prompts alone, in batches of 2, 8 and 16 of several compositions, cold
and from its cache; beside it, attention is computed eagerly where golden's is fused, and by eight threads. Each answer
is held against golden. Without names all are run, which takes long without a GPU; what was recorded is counted again.
"""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import click

from kvfence.reports.records import RecordError, Run, read

SMALL = ("*-block+1-*-c[128]-*",)  # a real model takes seconds a prompt, on a CPU


@dataclass(frozen=True)
class Control:
    """One engine with one model."""

    engine: str
    model: str
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    cases: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    threads: int = 1
    seed: int = 0

    @property
    def name(self) -> str:
        extra = [*self.arguments, *([f"{self.threads} threads"] if self.threads > 1 else [])]
        extra += [f"seed {self.seed}"] if self.seed else []
        return "/".join([self.engine, self.model, *self.dtypes[: len(self.dtypes) == 1], *extra])


ENGINES = ("reference", "hf", "hf-continuous")
CONTROLS = [
    *(Control(engine, model, seed=seed) for seed in (0, 1) for model in ("canary", "random") for engine in ENGINES),
    *(Control(engine, "random", ("float32",), arguments=("attn_implementation=eager",)) for engine in ENGINES[1:]),
    *(Control(engine, "random", ("float32",), threads=8) for engine in ENGINES),
    *(Control(engine, "smollm2", cases=SMALL) for engine in ENGINES),
]


def recorded(folder: Path) -> Run | None:
    """What has been recorded of one, if anything."""
    try:
        return read(folder)
    except RecordError:
        return None


def run(control: Control, folder: Path) -> None:
    """Have the suite run on one of them, unless that has been recorded to its end."""
    if (record := recorded(folder)) and record.end is not None:
        return
    words = ["run", "--engine", control.engine, "--model", control.model, "--profile", "controls"]
    for option, values in (("dtype", control.dtypes), ("case", control.cases), ("engine-arg", control.arguments)):
        words += [word for value in values for word in (f"--{option}", value)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(control.threads)}
    words += ["--seed", str(control.seed), "--report", str(folder)]
    command = [sys.executable, "-m", "kvfence.conformance", *words]
    subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)


def counted(control: Control, folder: Path) -> Counter[str]:
    """What came of it: cases by outcome, requests held against golden, numeric ties among their tokens, findings."""
    found: Counter[str] = Counter()
    record = recorded(folder)
    for case in record.cases if record else ():
        found[case["outcome"]] += 1
        found["requests"] += len(case["requests"])
        found["positions"] += case["positions"]
        found["ties"] += case["ties"]
        found["flagged"] += len(case["findings"])
    return found


@click.command()
@click.argument("names", nargs=-1)
@click.option("--report", default="kvfence-controls", type=click.Path(path_type=Path))
def main(names: tuple[str, ...], report: Path) -> None:
    """Run them and print what came of it."""
    total: Counter[str] = Counter()
    missing = []
    report.mkdir(parents=True, exist_ok=True)
    lines = [
        "| engine/model | requests | positions | ties | flagged | cases |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines))
    for control in CONTROLS:
        if names and not any(fnmatchcase(control.name, f"{name}*") for name in names):
            continue
        folder = report / control.name.replace("/", "-").replace(" ", "-").replace("=", "-")
        run(control, folder)
        found = counted(control, folder)
        total += found
        missing += [] if found["requests"] else [control.name]
        outcomes = [key for key in found if key not in ("requests", "positions", "ties", "flagged")]
        cases = ", ".join(f"{found[outcome]} {outcome}" for outcome in outcomes)
        figures = " | ".join(f"{found[key]:,}" for key in ("requests", "positions", "ties", "flagged"))
        lines.append(f"| {control.name} | {figures} | {cases} |")
        print(lines[-1], flush=True)
    lines += ["", f"{total['flagged']} of {total['requests']:,} requests flagged; {total['ties']} numeric ties"]
    print(lines[-1])
    (report / "controls.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in missing:
        print(f"no answer of {name} was held against golden")
    sys.exit(1 if total["flagged"] or missing or not total["requests"] else 0)


if __name__ == "__main__":
    main()
