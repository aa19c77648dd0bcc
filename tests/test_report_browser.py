"""The report in a browser: it works with the keyboard and the mouse, offline, and hostile text stays text."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
import samples
from browsing import Opened, needs_browser, sync_api
from page import records

from kvfence.reports.records import Record
from kvfence.reports.text import anchor

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
LAST = anchor("isolation.shared.canary-block-mixed-3-bfloat16", "B0")
CASE_COMMAND = samples.case(edge="block-plus-1").reproduce
ROWS = "#case-table tbody tr:visible"


@pytest.mark.parametrize("lines", [samples.conforming(), samples.violating(), samples.incomplete(), samples.hostile()])
def test_opens_quietly_and_asks_for_nothing(page: "Page", tmp_path: Path, lines: list[Record]) -> None:
    opened = Opened(page, lines, tmp_path)
    assert opened.complaints == []
    assert len(opened.requests) == 1
    assert opened.requests[0].startswith("file:")
    assert page.evaluate("getComputedStyle(document.body).margin") == "0px"


def test_filters_change_rows_and_the_count(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.violating(), tmp_path)
    count = page.locator("#shown")
    assert count.get_attribute("aria-live") == "polite"
    assert count.inner_text() == "24 of 24 cases"
    page.get_by_label("Outcome", exact=True).select_option("violates")
    assert count.inner_text() == "2 of 24 cases"
    assert page.locator(ROWS).count() == 2
    page.get_by_label("Dtype", exact=True).select_option("float32")
    assert count.inner_text() == "1 of 24 cases"
    assert "diverge" in page.locator(ROWS).inner_text()
    page.get_by_role("button", name="Clear").click()
    assert count.inner_text() == "24 of 24 cases"
    assert page.locator(ROWS).count() == 24
    page.get_by_label("Text").fill("NEVER hit")
    assert count.inner_text() == "1 of 24 cases"
    assert "inconclusive" in page.locator(ROWS).inner_text()


def test_what_is_filtered_can_be_sent_as_an_address(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.violating(), tmp_path)
    page.get_by_label("Outcome", exact=True).select_option("violates")
    page.get_by_label("Text").fill("float32 <&")
    address = page.evaluate("location.hash")
    assert address == "#?outcome=violates&text=float32+%3C%26"
    page.get_by_role("button", name="Clear").click()
    assert page.evaluate("location.hash") == "#cases"
    Opened(page, samples.violating(), tmp_path, "#?outcome=violates&text=FLOAT32")
    assert page.locator("#shown").inner_text() == "1 of 24 cases"
    assert page.get_by_label("Text").input_value() == "FLOAT32"
    assert page.get_by_label("Outcome", exact=True).input_value() == "violates"


def test_a_slash_goes_to_the_text_filter(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.violating(), tmp_path)
    page.keyboard.press("/")
    page.keyboard.type("a/b")
    assert page.get_by_label("Text").input_value() == "a/b"


def test_columns_sort_both_ways(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.violating(), tmp_path)
    column = page.locator("#case-table tbody td:nth-child(5)")
    before = column.all_inner_texts()
    head = page.get_by_role("columnheader", name="At once")
    for order, names in (("ascending", sorted(before, key=int)), ("descending", sorted(before, key=int)[::-1])):
        head.get_by_role("button").press("Enter")
        assert head.get_attribute("aria-sort") == order
        assert column.all_inner_texts() == names != before
    page.get_by_role("columnheader", name="Outcome").get_by_role("button").click()
    assert head.get_attribute("aria-sort") is None
    outcomes = page.locator("#case-table tbody td:first-child").all_inner_texts()
    assert outcomes == sorted(outcomes)
    # Rows are the same ones, so filters still hold.
    page.get_by_label("Outcome", exact=True).select_option("violates")
    assert page.locator(ROWS).count() == 2


def test_matrix_cells_filter(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.violating(), tmp_path)
    page.locator(".cell a.violates").first.press("Enter")
    assert page.locator("#shown").inner_text() == "2 of 24 cases"
    assert page.get_by_label("Mode", exact=True).input_value() == "shared"
    assert page.get_by_label("Concurrency").input_value() == "3"


def test_matrix_cells_filter_hostile_names(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.hostile(), tmp_path)
    page.locator(".cell a.violates").first.click()
    assert page.locator("#shown").inner_text() == "2 of 2 cases"
    assert "alert(1)" in page.get_by_label("Requirement").input_value()


def test_deep_link_opens_its_card(page: "Page", tmp_path: Path) -> None:
    lines = [*samples.violating()]
    opened = Opened(page, lines, tmp_path, f"#{LAST}")
    card = page.locator(f"[id='{LAST}']")
    assert card.evaluate("card => card.open")
    card.evaluate("card => { card.open = false; }")
    page.locator(f"#case-table a[href='#{LAST}']").click()
    sync_api.expect(card).to_have_attribute("open", "")
    sync_api.expect(card.locator("summary").first).to_be_in_viewport()
    assert opened.complaints == []


def test_link_to_a_row_that_is_filtered_out_shows_it(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.violating(), tmp_path)
    page.get_by_label("Outcome", exact=True).select_option("conforms")
    page.get_by_role("link", name="Its row in all cases").first.click()
    sync_api.expect(page.locator("#shown")).to_have_text("24 of 24 cases")


def test_copy_button_copies_the_command(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.violating(), tmp_path)
    button = page.locator(".card button.copy").first
    button.press("Enter")
    sync_api.expect(button).to_have_text("Copied")
    sync_api.expect(page.locator("#said")).to_have_text("Command copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == CASE_COMMAND


@pytest.mark.parametrize(("allowed", "label"), [("true", "Copied"), ("false", "Selected")])
def test_copy_without_a_clipboard(page: "Page", tmp_path: Path, allowed: str, label: str) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.add_init_script(
        f"document.execCommand = () => {{ window.taken = String(document.activeElement.value); return {allowed}; }}"
    )
    opened = Opened(page, samples.violating(), tmp_path)
    button = page.locator(".card button.copy").first
    button.click()
    sync_api.expect(button).to_have_text(label)
    assert page.evaluate("taken") == CASE_COMMAND
    assert page.evaluate("String(getSelection())") == (CASE_COMMAND if label == "Selected" else "")
    assert page.locator("textarea").count() == 0
    assert opened.complaints == []


def test_download_gives_the_records(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.violating(), tmp_path)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "kvfence-20261129T031204-7f3a.json"
    run = samples.as_run(samples.violating())
    loaded = json.loads(Path(download.value.path()).read_text())
    assert loaded == records(run)


def test_open_all(page: "Page", tmp_path: Path) -> None:
    Opened(page, samples.violating(), tmp_path)
    button = page.get_by_role("button", name="Open all")
    button.click()
    assert page.locator("details.card:not([open])").count() == 0
    page.get_by_role("button", name="Close all").click()
    assert page.locator("details.card[open]").count() == 0


def test_evidence_of_a_card_opens_with_the_keyboard(page: "Page", tmp_path: Path) -> None:
    opened = Opened(page, samples.violating(), tmp_path)
    card = page.locator("details.card").first
    for summary, shown in (("Figures of the map", "table.dense"), ("Log of the cache", "table.log")):
        table = card.locator(shown)
        assert table.is_hidden()
        card.locator("summary", has_text=summary).press("Enter")
        sync_api.expect(table).to_be_visible()
    assert card.locator("table.log tbody tr.victim").count() == 2
    drawing = card.get_by_role("img", name="Attention shift by layer and head at step 4", exact=True)
    sync_api.expect(drawing).to_have_accessible_description(
        "6 layers of 8 heads, the darkest 0.66; outlined: layer 2, head 5"
    )
    assert opened.complaints == []


def test_groups_and_modes_open_with_the_keyboard(page: "Page", tmp_path: Path) -> None:
    opened = Opened(page, samples.violating(), tmp_path)
    page.locator("nav a", has_text="Groups").press("Enter")
    rows = page.locator("table.modes tbody tr:visible")
    assert rows.count() == 0
    page.locator("#groups summary").press("Enter")
    sync_api.expect(rows).to_have_count(48 + 8)
    assert opened.complaints == []


def test_hostile_text_creates_nothing(page: "Page", tmp_path: Path) -> None:
    opened = Opened(page, samples.hostile(), tmp_path)
    page.get_by_role("button", name="Copy").first.click()
    page.get_by_label("Text").fill("<img src=x onerror=alert(3)>")
    assert page.locator("script").count() == 2
    assert page.locator("img, iframe, object").count() == 0
    assert page.locator("h3").first.inner_text().startswith("Request </script><script>alert(1)")
    assert opened.complaints == []


def test_readable_without_script(browser: "Browser", tmp_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    Opened(page, samples.violating(), tmp_path)
    assert page.locator("#filters").is_hidden()
    assert page.locator("#download").is_hidden()
    assert page.locator(ROWS).count() == 24
    page.locator("details.card summary").last.click()
    assert page.locator(".diff").first.is_visible()
    context.close()


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("lines", [samples.violating(), samples.hostile()], ids=["violating", "hostile"])
def test_nothing_sticks_out(page: "Page", tmp_path: Path, lines: list[Record], width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    Opened(page, lines, tmp_path)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: "Browser", tmp_path: Path, scheme: Literal["light", "dark"]) -> None:
    page = browser.new_page(color_scheme=scheme)
    Opened(page, samples.violating(), tmp_path)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) > 20
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
    page.close()


CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const worst = {};
  const probe = document.querySelector("td.owned");
  const nodes = [...document.querySelectorAll("h1, p, dt, dd, th, td, small, b, code, a, button, summary, .state")];
  for (let i = 0; i < 8; i += 1) {
    const cell = probe.cloneNode(true);
    cell.className = `got owned o${i} u0`;
    probe.after(cell);
    nodes.push(cell, ...cell.querySelectorAll("*"));
  }
  for (const node of nodes) {
    if (!node.checkVisibility()) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color).slice(0, 3)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = `${node.localName}.${node.className} in ${node.parentElement.className}`;
    worst[name] = Math.min(worst[name] ?? 99, ratio);
  }
  return worst;
}"""
