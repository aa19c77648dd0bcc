"""A report opened in a real browser."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import samples

from kvfence.reports import html
from kvfence.reports.file import write
from kvfence.reports.records import Record

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("KVFENCE_CHROMIUM") or shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: install it or set KVFENCE_CHROMIUM")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


class Opened:
    """A page with a report, or a document, what it said on the console and what it asked for."""

    def __init__(self, page: "Page", lines: list[Record] | str, folder: Path, fragment: str = "") -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.requests.append(request.url))
        file = folder / "report.html"
        write(lines if isinstance(lines, str) else html.render(samples.as_run(lines)), file)
        page.goto(file.as_uri() + fragment)

    def _dismiss(self, dialog: "Dialog") -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()
