"""What a report keeps packed, and the comparison, in a browser."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import samples
from browsing import Opened, needs_browser, sync_api

from kvfence.reports import html
from kvfence.reports.comparison import changes, column
from kvfence.reports.html import UNPACKED
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import Record

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser


def many(n: int) -> list[Record]:
    """A run in which A0 of each of so many cases has B0's words, and all that was observed of it."""
    bases = [samples.case(edge=f"e{i}") for i in range(n)]
    cases = [replace(each, findings=(samples.finding("A0", "B0", 6, 5, case=each.case),)) for each in bases]
    violating = [samples.observed(replace(each, outcome=Outcome.VIOLATES)) for each in cases]
    return [samples.header(cases=n), samples.engine(), samples.noise(), *violating]


def test_cards_are_unpacked_when_they_are_opened_and_by_and_by(page: "Page", tmp_path: Path) -> None:
    lines = many(4)
    packed = html.render(samples.as_run(lines)).count("data-body=")
    page.add_init_script("window.setTimeout = () => {}")  # nothing by and by but the first
    opened = Opened(page, lines, tmp_path)
    last = page.locator("details.card").last
    assert packed == 4 - UNPACKED
    assert last.locator(".packed").count() == 1
    last.locator("summary").first.click()
    sync_api.expect(last.locator(".diff").first).to_be_visible()
    assert last.locator(".packed").count() == 0
    last.locator("button.copy").first.click()
    sync_api.expect(last.locator("button.copy").first).to_have_text("Copied")
    assert opened.complaints == []


def test_all_cards_are_there_in_the_end(page: "Page", tmp_path: Path) -> None:
    opened = Opened(page, many(4), tmp_path)
    sync_api.expect(page.locator(".packed")).to_have_count(0)
    bodies = page.locator("details.card .body .lanes")
    assert bodies.count() == 4
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))
    assert opened.complaints == []


def test_without_script_a_packed_card_says_so(browser: "Browser", tmp_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    Opened(page, many(4), tmp_path)
    last = page.locator("details.card").last
    last.locator("summary").first.click()
    assert "unpacked by a script" in last.inner_text()
    context.close()


@pytest.mark.parametrize("lines", [samples.violating(), samples.hostile()], ids=["violating", "hostile"])
@pytest.mark.parametrize("width", [400, 1280])
def test_a_comparison_opens_quietly(page: "Page", tmp_path: Path, lines: list[Record], width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    old, new = samples.as_run(samples.conforming()), samples.as_run(lines)
    opened = Opened(page, html.render_comparison([column(old), column(new)], changes(old, new)), tmp_path)
    assert page.locator("h1").inner_text() == "✗ Newly broken"
    assert page.locator("table.matrix tbody tr").count() >= 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []
    assert len(opened.requests) == 1


def test_hostile_text_that_was_packed_creates_nothing(
    page: "Page", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "UNPACKED", 0)
    opened = Opened(page, samples.hostile(), tmp_path)
    sync_api.expect(page.locator(".card .diff").first).to_be_attached()
    assert page.locator(".packed").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("img, iframe, object").count() == 0
    assert opened.complaints == []
