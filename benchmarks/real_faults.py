"""Known faults of released engines: whether the suite, which is told engine and model and no more, sees each.

    python benchmarks/real_faults.py FOLDER docs/real-faults.md [PATTERN]...

real_faults.toml beside this file says which. Each runs twice, in the release that has the fault and in one that has
not. A release is installed without its dependencies into a folder that goes before the environment of this script.
What FOLDER has the results of is not run again; a `machine.md` there says what it ran on.
"""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kvfence.prompts.models import NAMES, create, resolve
from kvfence.reports.file import write
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import RecordError, Run, read
from kvfence.reports.text import literal

HEAD = """# Known faults of released engines, and whether they are seen

`make real-faults` makes this page. Each fault is publicly known, and is in a release that still installs. The suite is
told the engine and a model, of the kind that the fault needs, and no more: `kvfence run --engine E --model M --profile
quick --dtype float32`, and of vLLM that it is to take adapters, with profile default. Then the same in a release that
has the fault repaired.

*Seen* means that a requirement is violated which is not violated in the repaired release. *Engine failed* means that
the engine broke off in cases in which the repaired one does not: the run says so, and ends with exit code 3. *Class* is
what the suite takes the fault for, *source* whether it names the request that the content came from. Seconds are those
to the first violation and to the end of the run, from the start of the command.
"""
TABLE = (
    "| fault | report | release | model | | violated (cases) | first in | class | source | s | s in all | repaired |",
    "| --- " * 12 + "|",
)
LIST = Path(__file__).with_suffix(".toml")
SIDES = ("bad", "good")
POLL = 0.2  # seconds between two looks at what a run has recorded


@dataclass(frozen=True)
class Fault:
    """A fault that is publicly known, and releases that have it and have not."""

    name: str
    about: str
    report: str  # owner/repository#number
    engine: str
    model: str
    bad: tuple[str, ...]  # as pip takes them; the first is what is told
    good: tuple[str, ...]  # none where no release has it repaired
    profile: str = "quick"
    arguments: Mapping[str, str] = field(default_factory=dict)  # of the engine
    missed: str = ""  # why, where the suite does not see it


@dataclass(frozen=True)
class Result:
    """What came of one run."""

    fault: str
    side: str
    release: str  # as the engine told it
    outcomes: dict[str, int] = field(default_factory=dict)
    violated: dict[str, int] = field(default_factory=dict)  # cases by requirement
    first: str = ""  # the case that violated first, and why
    reason: str = ""
    classes: tuple[str, ...] = ()  # that were suggested, the most frequent first
    sourced: bool = False  # whether a request was named that the content came from
    found: float | None = None  # seconds to the first violation, from the start of the command
    seconds: float = 0.0  # of the whole command
    failed: str = ""  # the last words, where nothing was recorded


def faults(file: Path = LIST) -> tuple[list[Fault], Mapping[str, Any], Mapping[str, str]]:
    """The faults, the models that are built for some, and what was not attempted and why."""
    told = tomllib.loads(file.read_text(encoding="utf-8"))
    lists = ("bad", "good")
    known = [Fault(**{k: tuple(v) if k in lists else v for k, v in each.items()}) for each in told["fault"]]
    return known, told["models"], told["left_out"]


def site(folder: Path, packages: Sequence[str]) -> Path:
    """The folder that holds these packages alone, installed when it is not there."""
    target = folder / "+".join(packages)
    if not target.exists():
        scratch = target.with_name(f".{target.name}")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--upgrade"]
        subprocess.run([*pip, "--target", scratch, *packages], check=True)
        scratch.rename(target)
    return target


def model(folder: Path, name: str, models: Mapping[str, Any]) -> str:
    """A model's name if it is kvfence's own, else its folder; built by this environment when it is not there."""
    if name in NAMES:
        resolve(name)
        return name
    if not (folder / name).exists():
        create(name, folder / name, lambda scratch: _build(scratch, **models[name]))
    return str(folder / name)


def _build(folder: Path, type: str, config: dict[str, Any], also: Mapping[str, Any] | None = None) -> None:
    """A small model with random weights; `also` goes into its config.json as other writers of such models have it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    from kvfence.prompts import alphabet, tokenizer

    ids = {"bos_token_id": alphabet.BOS, "eos_token_id": alphabet.EOS, "pad_token_id": alphabet.PAD}
    sizes = {"vocab_size": alphabet.VOCAB_SIZE, "hidden_size": 64, "max_position_embeddings": 4096}
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(type, **{**sizes, **ids, "kvfence_model": "random", **config})
    )
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.15)  # at the usual 0.02 an output hardly depends on what came before
    made.generation_config = GenerationConfig(pad_token_id=alphabet.PAD)
    made.save_pretrained(folder)
    tokenizer.write(folder)
    file = folder / "config.json"
    told = json.loads(file.read_text(encoding="utf-8")) | dict(also or {})
    file.write_text(json.dumps(told, indent=2), encoding="utf-8")


def run(fault: Fault, side: str, folder: Path, models: Mapping[str, Any]) -> Result:
    """Run the suite on one release."""
    packages = getattr(fault, side)
    path = site(folder / "sites", packages)
    report = folder / "reports" / f"{fault.name}-{side}-{time.time():.0f}"
    report.mkdir(parents=True)
    options = {"engine": fault.engine, "model": model(folder / "models", fault.model, models), "profile": fault.profile}
    options |= {"dtype": "float32", "report": str(report)}
    told = [f"--{name}={value}" for name, value in options.items()]
    told += [f"--engine-arg={name}={value}" for name, value in fault.arguments.items()]
    first, found, begun = "", None, time.monotonic()
    with (report / "log.txt").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvfence.conformance", "run", *told, "--json"],
            env={**os.environ, "PYTHONPATH": str(path)},
            stdout=log,
            stderr=log,
        )
        ended = False
        while not ended:
            ended = process.poll() is not None
            if not first and (first := violation(report)):
                found = time.monotonic() - begun
            time.sleep(0 if ended else POLL)
    seconds = time.monotonic() - begun
    try:
        recorded = read(report)
    except RecordError:
        recorded = None
    if recorded and recorded.cases:
        return result(fault, side, recorded, first, found, seconds)
    last = (report / "log.txt").read_text(encoding="utf-8").strip().splitlines() or ["no word"]
    return Result(fault.name, side, packages[0].split("==")[1], failed=last[-1], seconds=seconds)


def violation(report: Path) -> str:
    """The case that was the first to violate, as far as there is one up to now."""
    for file in (report / "records").glob("*.ndjson"):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                # The last line may be there in part.
                if f'"outcome": "{Outcome.VIOLATES}"' in line and line.endswith("\n"):
                    return str(json.loads(line)["case"])
    return ""


def result(fault: Fault, side: str, recorded: Run, first: str, found: float | None, seconds: float) -> Result:
    """What the records of a run come to."""
    wrong = [case for case in recorded.cases if case["outcome"] == Outcome.VIOLATES]
    findings = [finding for case in wrong for finding in case["findings"]]
    named = Counter(each["explanation"]["fault_class"] for each in findings if each["explanation"])
    return Result(
        fault.name,
        side,
        recorded.engines[0]["version"],
        outcomes=dict(Counter(case["outcome"] for case in recorded.cases)),
        violated=dict(Counter(case["requirement"] for case in wrong)),
        first=first,
        reason=next((case["reason"] for case in wrong if case["case"] == first), ""),
        classes=tuple(name for name, _ in named.most_common() if name),
        sourced=any(finding["source"] for finding in findings),
        found=found,
        seconds=seconds,
    )


def verdict(bad: Result, good: Result | None) -> str:
    """What the suite makes of a fault: whether it violates, and does not where the fault is repaired."""
    new = set(bad.violated) - set(good.violated if good else ())
    if bad.failed:
        return "not run"
    if new:
        return "seen"
    failing = [result.outcomes.get(Outcome.SUITE_ERROR, 0) for result in (bad, good) if result]
    return "engine failed" if failing[0] > sum(failing[1:]) else "missed"


def row(fault: Fault, bad: Result, good: Result | None) -> str:
    """One line of the table."""
    told = verdict(bad, good)
    violated = ", ".join(f"{requirement} ({n})" for requirement, n in sorted(bad.violated.items()))
    cells = (
        f"`{fault.name}`",
        fault.report,
        f"{fault.engine} {bad.release}",
        fault.model,
        told,
        violated or bad.failed,
        bad.first,
        (", ".join(bad.classes) or "none") if bad.violated else "",
        {True: "yes", False: "no"}[bad.sourced] if bad.violated else "",
        "" if bad.found is None else f"{bad.found:.0f}",
        f"{bad.seconds:.0f}",
        "no release" if good is None else f"{good.release}: {', '.join(sorted(good.violated)) or 'nothing violated'}",
    )
    return "| " + " | ".join(literal(cell) if cell and cell[0] != "`" else cell for cell in cells) + " |"


def written(
    known: Sequence[Fault], results: Mapping[tuple[str, str], Result], left_out: Mapping[str, str], machine: str
) -> str:
    """The page."""
    ran = [
        (each, results[each.name, "bad"], results.get((each.name, "good")))
        for each in known
        if (each.name, "bad") in results
    ]
    told = Counter(verdict(bad, good) for _, bad, good in ran)
    parts = [HEAD, machine, f"Of {len(ran)} faults: {', '.join(f'{n} {what}' for what, n in told.most_common())}.\n"]
    parts.append("\n".join([*TABLE, *(row(*each) for each in ran)]) + "\n")
    parts.append("## The faults\n\n" + "\n".join(f"- `{each.name}`: {each.about}." for each in known) + "\n")
    unseen = [f"- `{each.name}`: {each.missed}" for each, bad, good in ran if verdict(bad, good) != "seen"]
    parts.append("## Not seen, and why\n\n" + "\n".join(unseen) + "\n" if unseen else "")
    listed = [f"- {what}: {why}" for what, why in left_out.items()]
    parts.append("## Not attempted\n\n" + "\n".join(listed) + "\n" if listed else "")
    return "\n".join(part for part in parts if part)


def main(folder: Path, page: Path, *patterns: str) -> None:
    """Run what has not been run, a line of JSON each, and write the page."""
    known, models, left_out = faults()
    file = folder / "real-faults.ndjson"
    folder.mkdir(parents=True, exist_ok=True)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    results = {(each["fault"], each["side"]): Result(**each) for each in map(json.loads, lines)}
    wanted = [fault for fault in known if any(fnmatchcase(fault.name, pattern) for pattern in patterns or ("*",))]
    for fault in wanted:
        for side in SIDES:
            if (fault.name, side) in results or not getattr(fault, side):
                continue
            came = run(fault, side, folder, models)
            results[fault.name, side] = came
            with file.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(asdict(came)) + "\n")
            print(f"{fault.name}, {side}: {came.failed or came.outcomes}, {came.seconds:.0f} s", flush=True)
    machine = folder / "machine.md"
    write(written(known, results, left_out, machine.read_text(encoding="utf-8") if machine.exists() else ""), page)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
