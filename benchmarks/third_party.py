"""A third party's engine, right and with a fault, through all that kvfence offers, from a wheel in an empty folder.

    python benchmarks/third_party.py FOLDER

builds the wheel of this checkout, installs it into an environment of its own in FOLDER, which must not exist, copies
tests/inhouse beside it, and runs there what a user would. Each command must end with the exit code it is to have and
say what it is to say; it ends at the first that does not.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parents[1]
FILES = [HERE / "tests" / "inhouse" / name for name in ("adapter.py", "server.py", "test_isolation.py")]
ENGINE = "--engine adapter:open_engine"
CARELESS = f"{ENGINE} --engine-arg careless=yes"
PYTEST = "pytest -q --kvfence-engine adapter:open_engine --kvfence-profile scenarios"
ADRIFT = f"{PYTEST} --kvfence-engine-arg careless=yes"


class Step(NamedTuple):
    """A command, the exit code it must have and a text that it must print."""

    command: str
    code: int
    says: str


INSTALL = [
    Step(f"python -m pip wheel -q --no-deps -w wheel {HERE}", 0, ""),
    Step(f"python -m pip install -q -c {HERE}/constraints.txt torch", 0, ""),
    Step(f"python -m pip install -q -c {HERE}/constraints.txt wheel/kvfence.whl pytest pytest-xdist", 0, ""),
]
RUNS = [
    Step(f"{PYTEST} --kvfence-report right --junit-xml right.xml", 0, "passed"),
    Step(f"{PYTEST} --kvfence-report spread --junit-xml spread.xml -n 2", 0, "passed"),
    Step(f"{ADRIFT} --kvfence-report careless --junit-xml careless.xml", 1, "failed"),
    Step(f"{ADRIFT} --kvfence-report careless-spread --junit-xml careless-spread.xml -n 2", 1, "failed"),
    Step("pytest -q --pyargs kvfence.conformance --kvfence-engine adapter:open_engine -k key.salt --co", 0, "key.salt"),
    Step("kvfence report careless", 0, "careless/report.html"),
    Step(f"kvfence replay careless/schedules/SCHEDULE {CARELESS}", 1, "STILL FAILS"),
    Step(f"kvfence replay careless/schedules/SCHEDULE {ENGINE}", 0, "FIXED"),
    Step(f"kvfence diagnose careless/schedules/SCHEDULE {CARELESS}", 1, "KEY-HASH"),
    Step("kvfence baseline update known.toml careless", 0, "known.toml"),
    Step(f"{ADRIFT} --kvfence-report known --kvfence-baseline known.toml", 0, "xfailed"),
    Step(f"{PYTEST} --kvfence-report repaired --kvfence-baseline known.toml", 1, "is kept now"),
    Step("kvfence compare right careless", 1, "Newly broken"),
]


def main(folder: Path) -> None:
    """Run it all in a folder; what each command took is printed."""
    if folder.exists():
        sys.exit(f"{folder} is there already; name a folder that is not")
    folder.mkdir(parents=True)
    for file in FILES:
        (folder / file.name).write_bytes(file.read_bytes())
    subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
    for step in INSTALL:
        run(folder, step)
    schedule = ""
    for step in RUNS:
        if "SCHEDULE" in step.command:
            schedule = schedule or min(path.name for path in (folder / "careless" / "schedules").iterdir())
        run(folder, step._replace(command=step.command.replace("SCHEDULE", schedule)))
    for one, other in (("right", "spread"), ("careless", "careless-spread")):
        alone, spread = (outcomes(folder / f"{name}.xml") for name in (one, other))
        assert alone == spread, f"{one}: -n 2 differs in {sorted(set(alone.items()) ^ set(spread.items()))}"
        print(f"{one}: the same {len(alone)} outcomes with -n 0 and -n 2", flush=True)


def run(folder: Path, step: Step) -> None:
    """Run one step in a folder. Raises SystemExit if it does not end as it must."""
    program, *arguments = step.command.replace("wheel/kvfence.whl", wheel(folder)).split()
    begun = time.monotonic()
    command = [str(folder / "environment" / "bin" / program), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    print(f"{time.monotonic() - begun:6.1f} s  exit code {done.returncode}  {step.command}", flush=True)
    if done.returncode != step.code or step.says not in said:
        sys.exit(f"it was to end with {step.code} and to say {step.says!r}:\n{said[-4000:]}")


def wheel(folder: Path) -> str:
    """The wheel that was built."""
    return next((str(path) for path in (folder / "wheel").glob("*.whl")), "")


def outcomes(file: Path) -> dict[str, str]:
    """What became of each test of a JUnit file."""
    tests = ElementTree.parse(file).iter("testcase")
    return {
        f"{test.get('classname')}::{test.get('name')}": next((c.tag for c in test if c.tag != "properties"), "passed")
        for test in tests
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
