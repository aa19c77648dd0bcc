"""The suite's own cost against the engine's: `quick` on `hf` with the canary, CPU seconds and wall seconds.

    python benchmarks/overhead.py

The engine's cost is that of its child process, start and all; the suite's is everything else.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = 3
RUN = """
import resource, sys
from pathlib import Path
from kvfence.conformance.settings import Settings
from kvfence.conformance.terminal import follow
code = follow(Settings(engine="hf", model="canary", profile="quick", report=Path(sys.argv[1])))
cost = [sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(code, *cost)
"""


def main() -> None:
    """Measure and print."""
    walls, ratios = [], []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", RUN, folder], capture_output=True, text=True, check=True)
            walls.append(time.perf_counter() - begun)
        code, own, engine = done.stdout.splitlines()[-1].split()
        ratios.append(float(own) / float(engine))
        print(f"exit code {code}: suite {float(own):.1f} s, engine {float(engine):.1f} s CPU, {walls[-1]:.1f} s wall")
    print(f"suite / engine: median {statistics.median(ratios):.2f}; wall: median {statistics.median(walls):.1f} s")
    print(f"peak memory of one process: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
