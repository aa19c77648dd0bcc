"""Size of the divergence report, and how long a browser takes to open it, at 0, 50 and 1,000 violations.

    python benchmarks/report_page.py FOLDER

FOLDER is a report folder whose newest run has a violation: its violating cases are taken again and again, under other
names, beside two hundred that conform. Opened in Chromium (`KVFENCE_CHROMIUM`, else the one on the path) nine times.
"""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, sync_playwright

from kvfence.reports.html import render
from kvfence.reports.records import Run, read

CONFORMING, TIMES = 200, 9
FLAGS = ["--no-sandbox", "--disable-gpu"]


def of_size(run: Run, violations: int) -> Run:
    """A run with so many violations, one finding each."""
    bad = [case for case in run.cases if case["findings"]]
    good = [{**case, "outcome": "conforms", "findings": [], "log": [], "telltales": [], "schedule": []} for case in bad]
    cases = [
        {**case, "case": f"{case['case']}-{i}", "findings": case["findings"][:1]}
        for i, case in enumerate([*islice(cycle(good), CONFORMING), *islice(cycle(bad), violations)])
    ]
    return replace(run, header={**run.header, "cases": len(cases)}, cases=cases)


def opened(page: Page, file: Path) -> float:
    """Seconds from asking for the page to its load event."""
    page.goto("about:blank")
    begun = time.monotonic()
    page.goto(file.as_uri(), wait_until="load")
    return time.monotonic() - begun


def main(folder: Path) -> None:
    """Print a line for each number of violations."""
    run = read(folder)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as place:
        chromium = os.environ.get("KVFENCE_CHROMIUM") or shutil.which("chromium")
        page = playwright.chromium.launch(executable_path=chromium, args=FLAGS).new_page()
        for violations in (0, 50, 1_000):
            file = Path(place) / f"{violations}.html"
            begun = time.monotonic()
            text = render(of_size(run, violations))
            made = time.monotonic() - begun
            file.write_text(text, encoding="utf-8")
            seconds = median(opened(page, file) for _ in range(TIMES))
            size = file.stat().st_size
            print(f"{violations:>5} violations: {size:>9,} bytes, made in {made:.2f} s, open in {seconds:.2f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
