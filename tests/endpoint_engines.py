"""What the tests of the adapter `openai` on servers share: engines that are closed, and a run as a user starts it."""

import subprocess
import sys
from contextlib import contextmanager

from kvfence.adapters import openai
from kvfence.adapters.api import EngineConfig, Support
from kvfence.reports.records import read

KVFENCE = [sys.executable, "-m", "kvfence.conformance"]
CASES = ("shared-*-c2-*", "serial-*-c8-*", "batch.*", "cancel.*", "conversation.*")  # of the profile quick


@contextmanager
def opener(folder, url, **given):
    """A function that opens engines at an endpoint; they are closed at the end."""
    engines = []

    def open_engine(sharing=True, **args):
        config = EngineConfig(sharing=sharing, max_concurrency=4, engine_args={"url": url, **given, **args})
        engines.append(openai.open_engine(str(folder.path), config))
        return engines[-1]

    try:
        yield open_engine
    finally:
        for engine in engines:
            engine.close()


def supported(engine):
    """What it has; all that it has not, or does not know of, has a reason."""
    states = engine.capabilities
    assert all(c.reason for c in states.values() if c.state is not Support.SUPPORTED)
    return {name for name, c in states.items() if c.state is Support.SUPPORTED}


def run(folder, url, report, **args):
    """A run of some cases of the profile quick in a process of its own: exit code, and outcomes by case."""
    words = [word for name, value in {"url": url, **args}.items() for word in ("--engine-arg", f"{name}={value}")]
    words += [word for case in CASES for word in ("--case", case)]
    common = ("--engine", "openai", "--model", folder.path, "--profile", "quick", "--dtype", "float32")
    done = subprocess.run([*KVFENCE, "run", *common, *words, "--report", report], capture_output=True, text=True)
    assert (report / "report.html").is_file(), done.stdout + done.stderr
    return done.returncode, {case["case"]: (case["outcome"], case["reason"]) for case in read(report).cases}
