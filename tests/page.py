"""A report as its elements and its text."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any

import samples

from kvfence.reports import html
from kvfence.reports.records import Record, Run


class Page(HTMLParser):
    """Elements of a document as (tag, attributes), the text outside style and script, and the cells of every row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self._cell = False
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = [tag] if tag in ("script", "style") else self._open
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._open = [] if [tag] == self._open else self._open
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if not self._open and data.strip():
            self.texts.append(data.strip())
        if self._cell:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.elements if name in (attrs.get("class") or "").split()]


def page(lines: list[Record]) -> Page:
    return Page(html.render(samples.as_run(lines)))


def unpacked(text: str) -> str:
    return gzip.decompress(base64.b64decode(text, validate=True)).decode()


def records(run: Run) -> list[Any]:
    """What a page holds of a run's records: all but the logs of the cache."""
    cases = [each | {"log": [], "log_left_out": each["log_left_out"] + len(each["log"])} for each in run.cases]
    return [run.header, *run.engines, *run.noise, *cases, run.end]


def embedded(document: str) -> Any:
    found = re.search(r'<script type="text/plain" id="records">(.*?)</script>', document, re.DOTALL)
    assert found
    return json.loads(unpacked(found[1]))
