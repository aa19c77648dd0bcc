"""The table of the experiment: groups and modes, in Python, in Markdown and in the report."""

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from itertools import pairwise
from typing import Any

import pytest
import samples
from markdown_it import MarkdownIt
from page import Page, page

from kvfence.reports import groups, html
from kvfence.reports.groups import COLUMNS, Row, markdown, rows
from kvfence.reports.matrix import MARKS, MODES
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import CaseRecord, NoiseRecord, Record, RequestRecord, Run
from kvfence.reports.text import literal, shown

CELL = ("float32", "canary", "block", "mixed", 3, "shared")


def request(name: str, **changes: Any) -> RequestRecord:
    return replace(samples.request(name, "x-float32"), **changes)


def run(requests: Sequence[RequestRecord], noise: Sequence[NoiseRecord] = (samples.noise(),), **changes: Any) -> Run:
    return samples.as_run([samples.header(), *noise, samples.case(requests=tuple(requests), **changes)])


def only(made: Run) -> Row:
    (row,) = rows(made)
    return row


def test_a_row_sums_up_the_requests_of_its_group() -> None:
    changed = {"first_changed": 6, "attention_step": 5, "attention_shift": 0.5}
    requests = [
        request("A0", edit_distance=0, largest_margin=0.25, attention_shift=0.125),
        request("A1", edit_distance=7, largest_margin=19.5, **changed),
        request("A2", edit_distance=4, largest_margin=2.0, **changed | {"first_changed": 3, "attention_step": 9}),
        request("B0", edit_distance=1, first_changed=0, largest_margin=30.0, attention_shift=0.75),
    ]
    found = (samples.finding("A1", "B0", 6, 3, case="x"), samples.finding("A2", None, 3, 3, case="x"))
    first, second = rows(run(requests, ties=2, outcome=Outcome.VIOLATES, findings=found))
    assert astuple(first) == (*CELL, "A", 3, 3, 4.0, 7, 3, 19.5, 3, True, 5, 0.5, 2, 2, "violates")
    assert astuple(second) == (*CELL, "B", 1, 1, 1.0, 1, 0, 30.0, 1, True, None, 0.75, 2, 0, "violates")
    assert first.figures == ("3", "4", "7", "3", "19.5", "5", "0.5", "2", "2")
    assert second.figures == ("1", "1", "1", "0", "30", "not moved", "0.75", "2", "0")


def test_what_is_not_known_of_every_request_says_of_how_many() -> None:
    blind = {"edit_distance": None, "attention_shift": None}
    row = only(run([request("A0", edit_distance=2), request("A1", edit_distance=3), request("A2", **blind)]))
    assert (row.requests, row.computed, row.observed, row.edits_median, row.edits_maximum) == (3, 2, 2, 2.5, 3)
    assert row.figures[1:3] == ("2.5 (2 of 3)", "3")
    assert row.figures[5] == "not moved (2 of 3)"


def test_what_is_known_of_no_request_is_said() -> None:
    row = only(run([request("A0", edit_distance=None, attention_shift=None)]))
    assert (row.computed, row.observed) == (0, 0)
    assert (row.edits_median, row.edits_maximum, row.first_changed, row.attention_step, row.attention_shift) == (
        (None,) * 5
    )
    assert row.figures == ("1", "not computed", "—", "none", "2e-05", "not observed", "—", "0", "0")


@pytest.mark.parametrize(
    ("noise", "told"),
    [
        ([samples.noise()], "not moved"),
        ([], "not judged"),
        ([samples.noise("bfloat16")], "not judged"),
        ([replace(samples.noise(), attention_judged=False)], "not judged"),
        # The longest sequence is of 97 + 32 tokens: it is the second that speaks for it.
        ([replace(samples.noise(), bucket=128, attention_judged=False), samples.noise()], "not moved"),
        ([replace(samples.noise(), bucket=128), replace(samples.noise(), attention_judged=False)], "not judged"),
        ([replace(samples.noise(), bucket=64)], "not moved"),
        # Two workers measured it.
        ([samples.noise(), replace(samples.noise(), attention_judged=False)], "not judged"),
    ],
)
def test_attention_stands_still_only_where_it_was_judged(noise: list[NoiseRecord], told: str) -> None:
    assert only(run([request("A0")], noise)).figures[5] == told


@pytest.mark.parametrize("margins", [(1.0, math.nan, 2.0), (math.nan, 1.0, 2.0), (2.0, 1.0, math.nan)])
def test_a_margin_that_is_no_number_is_the_largest(margins: tuple[float, ...]) -> None:
    row = only(run([request(f"A{i}", largest_margin=margin) for i, margin in enumerate(margins)]))
    assert math.isnan(row.largest_margin)


def test_rows_are_ordered_and_complete() -> None:
    made = samples.as_run(samples.violating())
    found = rows(made)
    assert [(row.dtype, row.edge, row.concurrency, row.mode, row.group) for row in found] == [
        (dtype, edge, concurrency, mode, group)
        for dtype in ("float32", "bfloat16")
        for edge, concurrency in (("block", 1), ("block", 3), ("block-plus-1", 1), ("block-plus-1", 3))
        for mode in ("serial", "independent", "shared")
        for group in ("ABC" if concurrency == 3 else "A")
    ]
    assert sum(row.requests for row in found) == sum(len(case["requests"]) for case in made.cases)
    assert sum(row.violations for row in found) == 3
    assert {row.outcome for row in found} == {"conforms", "violates", "inconclusive"}


def test_cases_of_one_cell_are_one_row_with_the_worst_outcome() -> None:
    again = samples.case(case="again", ties=1, outcome=Outcome.INCONCLUSIVE, requests=(request("A0"),))
    made = samples.as_run([samples.header(), samples.case(ties=2, requests=(request("A0"),)), again])
    row = only(made)
    assert (row.requests, row.ties, row.outcome) == (2, 3, "inconclusive")


def test_markdown() -> None:
    made = run([request("A0", edit_distance=3, first_changed=4, largest_margin=0.5)], ties=1)
    head = ["---"] * 7 + ["---:"] * 9 + ["---"]
    assert markdown(made) == "\n".join(
        [
            "Engine vllm (not opened), model canary, profile default, seed 7, run 20261129T031204-7f3a: every mode is "
            "compared with the no-cache baseline.",
            "",
            "| " + " | ".join(COLUMNS) + " |",
            "| " + " | ".join(head) + " |",
            "| float32 | canary | block | mixed | 3 | shared | A | 1 | 3 | 3 | 4 | 0.5 | not moved | 3e-06 | 1 | 0 "
            "| conforms |",
            "",
        ]
    )
    opened = samples.as_run([samples.header(), samples.engine(), samples.engine("bfloat16")])
    assert markdown(opened).startswith("Engine vllm 0.32.0, model canary")


def read(text: str) -> tuple[str, list[list[str]]]:
    """Title and table as a Markdown parser sees them; anything but plain text in either fails."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    kinds = {token.type.removesuffix("_open").removesuffix("_close") for token in tokens}
    assert kinds <= {"paragraph", "inline", "table", "thead", "tbody", "tr", "th", "td"}
    table: list[list[str]] = []
    title = ""
    for token, content in pairwise(tokens):
        if token.type == "tr_open":
            table.append([])
        if token.type in ("th_open", "td_open", "paragraph_open"):
            assert {child.type for child in content.children or ()} <= {"text", "text_special"}
            words = "".join(child.content for child in content.children or ())
            title = words if token.type == "paragraph_open" else title
            if token.type != "paragraph_open":
                table[-1].append(words)
    return title, table


@pytest.mark.parametrize("lines", [samples.violating(), samples.hostile()], ids=["violating", "hostile"])
def test_markdown_reads_back_as_the_rows(lines: list[Record]) -> None:
    made = samples.as_run(lines)
    title, table = read(markdown(made))
    expected = [[*map(str, row.setup), row.mode, row.group, *row.figures, row.outcome] for row in rows(made)]
    assert table == [list(COLUMNS), *([shown(text) for text in row] for row in expected)]
    assert shown(groups.engine_name(made)) in title
    assert shown(made.header["run"]) in title


@pytest.mark.parametrize(
    "text",
    [
        "a|b", "a\\|b", "\\", "ends in \\", "`code`", "``|``", "*x* _y_ **z**", "[a](b) ![c](d)", "<b>x</b>", "<!--",
        "&amp; &#124;", "a\nb\r\n- c", "# x", "~~x~~", "http://x.example/?a=b", "www.x.example", "$x$", "\u202eabc",
    ],
)  # fmt: skip
def test_text_stays_text_in_a_cell(text: str) -> None:
    _, table = read(f"x\n\n| h | i |\n| --- | --- |\n| {literal(text)} | z |\n")
    assert table == [["h", "i"], [shown(text), "z"]]


@pytest.mark.parametrize("text", ["*x*", "`x`", "<b>", "[a](b)", "&amp;", "a | b"])
def test_what_is_not_escaped_does_not_stay_text(text: str) -> None:
    try:
        _, table = read(f"x\n\n| h | i |\n| --- | --- |\n| {text} | z |\n")
    except AssertionError:
        return
    assert table != [["h", "i"], [shown(text), "z"]]


@pytest.mark.parametrize("text", ["http://x.example", "HTTPS://x.example", "see www.x.example", "WWW.x.example"])
def test_an_address_is_broken_where_it_would_become_a_link(text: str) -> None:
    assert not any(mark in literal(text).lower() for mark in ("://", "www."))


def test_the_report_has_the_same_rows() -> None:
    made = samples.as_run(samples.violating())
    seen = Page(html.render(made)).rows
    expected = [[row.mode, row.group, *row.figures, f"{MARKS[row.outcome]} {row.outcome}"] for row in rows(made)]
    assert [row for row in seen if len(row) == 12 and row[0] in MODES] == expected
    setups = [row[0] for row in seen if row and row[0].endswith(" at once")]
    assert setups[:2] == ["float32, canary, block, alone, 1 at once", "float32, canary, block, mixed, 3 at once"]
    assert len(setups) == 8


def section(cases: Sequence[CaseRecord]) -> tuple[bool, bool]:
    """Whether the report has the table, and whether it starts folded."""
    document = html.render(samples.as_run([samples.header(), *cases]))
    _, there, rest = document.partition('<section id="groups"')
    return bool(there), "<details>" in rest.partition("</section>")[0]


def test_the_table_is_folded_where_it_is_long_and_absent_where_it_is_empty() -> None:
    full = [samples.case(edge=f"e{i}") for i in range(8)]
    assert section(full) == (True, False)
    assert section([*full, samples.case("serial", concurrency=1)]) == (True, True)
    assert section([replace(each, requests=()) for each in full]) == (False, False)
    assert "Groups" not in page([samples.header()]).text


def test_a_run_without_requests_has_no_rows() -> None:
    made = samples.as_run([samples.header(), samples.case(requests=())])
    assert rows(made) == []
    assert read(markdown(made))[1] == [list(COLUMNS)]
