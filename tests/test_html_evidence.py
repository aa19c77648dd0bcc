"""Attention, tell-tales, log and noise in the report: what the records say, exactly, and only where they say it."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import samples
import watched
from page import Page, page

from kvfence.reports import html
from kvfence.reports.attention import changed, told
from kvfence.reports.finding import AttentionRecord, Finding, Key, LogLine, Telltale
from kvfence.reports.log import LINES, log
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import CaseRecord, Record
from kvfence.reports.text import number, shown

CASE = samples.case(edge="block-plus-1")
FOUND = samples.finding("A0", "B0", 6, 5, case=CASE.case)


def case(found: Finding = FOUND, **changes: Any) -> CaseRecord:
    return replace(CASE, outcome=Outcome.VIOLATES, findings=(found,), **changes)


def document(record: AttentionRecord | None, **changes: Any) -> str:
    return html.render(samples.as_run([samples.header(), case(replace(FOUND, attention=record), **changes)]))


def test_the_map_has_every_number_once_in_a_cell_and_once_in_a_row() -> None:
    record = watched.attention()
    text = document(record)
    cells = re.findall(r"<title>layer (\d+), head (\d+): ([^<]+)</title>", text)
    expected = [
        (str(layer), str(head), number(value)) for layer, row in enumerate(record.map) for head, value in enumerate(row)
    ]
    assert cells == expected
    table = text.partition('<table class="plain dense">')[2].partition("</table>")[0]
    assert Page(table).rows[1:] == [[str(layer), *map(number, row)] for layer, row in enumerate(record.map)]
    assert f"{watched.LAYERS} layers of {watched.HEADS} heads, the darkest 0.66; outlined: layer 2, head 5" in text


def test_cells_are_as_dark_as_their_share_of_the_largest() -> None:
    text = document(replace(watched.attention(), map=((0.0, 0.1), (0.4, 0.05)), layer=1, head=0))
    assert re.findall(r'class="cell"[^>]*fill-opacity="([^"]*)"', text) == ["0", "0.25", "1", "0.125"]


def test_the_outline_is_around_the_cell_that_moved_most() -> None:
    text = document(watched.attention(layer=3, head=6))
    places = [(float(x), float(y)) for x, y in re.findall(r'class="cell" x="(\d+)" y="(\d+)"', text)]
    ((x, y),) = re.findall(r'class="marked" x="(\d+)" y="(\d+)"', text)
    assert (float(x) + 1, float(y) + 1) == places[3 * watched.HEADS + 6]


def test_the_map_has_a_name_and_a_description() -> None:
    seen = page([samples.header(), case(replace(FOUND, attention=watched.attention()))])
    ((tag, drawing),) = [(tag, attrs) for tag, attrs in seen.elements if attrs.get("class") == "heat"]
    ids = {attrs.get("id"): tag for tag, attrs in seen.elements}
    assert (tag, drawing["role"]) == ("svg", "img")
    assert (ids[drawing["aria-labelledby"]], ids[drawing["aria-describedby"]]) == ("title", "desc")


def test_the_strip_of_attention_marks_what_exceeds_one() -> None:
    excess = (0.5, 1.0, 1.5, math.inf, math.nan)
    quiet = document(None).count('class="bar over"')
    text = document(replace(watched.attention(), excess=excess))
    assert text.count('class="bar over"') - quiet == 3
    assert "Attention shift, times its noise: 3 of 5 steps above 1; largest nan" in text
    assert "28 of 32 steps above 1; largest 41,333" in document(watched.attention())
    assert text.count('class="epsilon"') == 4
    assert re.findall(r'<text class="epsilon"[^>]*>(.)</text>', text) == ["ε", "1"]


@pytest.mark.parametrize("odd", [((math.nan, math.inf), (0.0, 0.5)), ((0.5,), (0.1, 0.2)), ((0.0,),), ((),), ()])
def test_maps_out_of_the_ordinary_still_draw(odd: tuple[tuple[float, ...], ...]) -> None:
    text = document(replace(watched.attention(), map=odd, excess=()))
    cells = re.findall(r'class="cell" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)" fill-opacity="([\d.]+)"', text)
    assert len(cells) == sum(map(len, odd))
    assert all(0 <= float(cell[-1]) <= 1 for cell in cells)


@pytest.mark.parametrize(
    ("step", "token", "words"),
    [
        (4, 6, "Attention moved at step 4, 2 tokens before the first changed token (step 6): layer 2, head 5"),
        (5, 6, "Attention moved at step 5, 1 token before the first changed token (step 6): layer 2, head 5"),
        (6, 6, "Attention moved at step 6, at the first changed token: layer 2, head 5"),
        (9, 6, "Attention moved at step 9, 3 tokens after the first changed token (step 6): layer 2, head 5"),
        (0, None, "Attention moved at step 0, and no token changed by more than rounding: layer 2, head 5"),
    ],
)
def test_when_attention_moved(step: int, token: int | None, words: str) -> None:
    record = samples.line(case(replace(FOUND, attention=watched.attention(step))))["findings"][0]["attention"]
    met = "By owner tags a head gave up to 0.58 to keys of request B0, 0.03 to keys of nobody."
    assert told(record, token) == f"{words}, shift 0.66. {met}"
    assert told({**record, "foreign": []}, token) == f"{words}, shift 0.66."
    traces = told({**record, "excess": [0.5, 1.0]}, token)
    assert traces == f"{words.replace('moved', 'met others' + chr(39) + ' keys')}, shift 0.66. {met}"


def test_the_first_changed_token_is_beyond_rounding() -> None:
    hit = replace(CASE.requests[0], first_changed=2)
    tie = replace(FOUND, epsilon=0.5, trace=replace(FOUND.trace, margins=(0.0, 0.0, 0.5, 0.6)))
    silent, odd = (replace(tie, trace=replace(tie.trace, margins=margins)) for margins in ((), (0.0, math.nan)))
    within = replace(tie, epsilon=0.6)
    seen = []
    for found in (tie, within, silent, odd):
        line = samples.line(case(found, requests=(hit, *CASE.requests[1:])))
        seen.append(changed(line, line["findings"][0]))
    assert seen == [3, None, 2, 1]


def test_keys_of_engine_and_golden_stand_side_by_side() -> None:
    rows = page([samples.header(), case(replace(FOUND, attention=watched.attention()))]).rows
    start = next(i for i, row in enumerate(rows) if row[0] == "Rank")
    assert rows[start + 1 : start + 6] == [
        ["1", "-33", "not its own", "0.58", "63", "␣assistant", "0.41"],
        ["2", "63", "␣assistant", "0.41", "64", "⟨empty⟩", "0.17"],
        ["3", "64", "⟨empty⟩", "0.17", "12", "\\n", "not kept"],
        ["Largest probability", "0.58", "0.41"],
        ["Entropy, nats", "1.37", "2.25"],
    ]


def test_a_side_with_fewer_keys_has_none() -> None:
    record = replace(watched.attention(), engine_top=())
    assert ["1", "—", "63", "␣assistant", "0.41"] in page(
        [samples.header(), case(replace(FOUND, attention=record))]
    ).rows


def test_a_card_without_attention_or_log_says_nothing_of_them() -> None:
    bare, full = document(None), document(watched.attention(), log=watched.log("B0", "A0"))
    for heading in ("<h4>Attention</h4>", "<h4>Tell-tales</h4>", "Log of the cache"):
        assert heading not in bare
        assert heading in full


def test_tell_tales_are_of_the_victim_or_of_the_case() -> None:
    mine = page([samples.header(), case(telltales=watched.telltales("B0", "A0"))]).text
    told = "Slot length: A0 begins at offset 97 of slot 0 with its token 64: what is before it was left by B0."
    assert told in mine
    assert "Source: request B0." in mine
    assert "Global lock: One request at a time, on a fresh engine, A0 still left golden." in mine
    assert "Prefix key" not in mine
    theirs = page([samples.header(), case(telltales=watched.telltales("A0", "B0"))]).text
    assert "Prefix key: A0 takes 64 tokens of K/V by key 9f3c01d2 from slot 0." in theirs
    assert "Slot length" not in theirs


def test_a_source_elsewhere_is_named_with_its_case() -> None:
    foreign = Telltale("key", "A0", "B0", "another-case", "A0 takes what is not its own")
    assert "Source: request B0 of case another-case." in page([samples.header(), case(telltales=(foreign,))]).text


def test_a_log_that_tells_nothing_of_the_victim_says_so() -> None:
    assert (
        "The log of the cache tells nothing of A0." in page([samples.header(), case(log=watched.log("B0", "A0"))]).text
    )


def test_log_rows_are_exact_and_marked() -> None:
    text = document(None, log=watched.log("B0", "A0", n=6))
    table = text.partition('<table class="plain log">')[2].partition("</table>")[0]
    assert Page(table).rows[1:] == [
        ["0", "B0", "source", "write", "0", "0", "97", "0", ""],
        ["0", "B0", "source", "publish", "0", "0", "64", "0", "9f3c01d2"],
        ["1", "A0", "victim", "reuse", "0", "0", "64", "0", "9f3c01d2"],
        ["1", "A0", "victim", "write", "0", "97", "33", "64", ""],
        ["2", "B0", "source", "free", "0", "0", "0", "0", ""],
        ["2", "C0", "", "write", "1", "97", "1", "97", ""],
    ]
    assert re.findall(r"<tr(?: class=\"(\w+)\")?><td", table) == ["source", "source", "victim", "victim", "source", ""]
    assert "Log of the cache (6 lines)" in Page(text).text


def test_lines_of_another_cases_request_are_the_sources_under_its_full_name() -> None:
    found = replace(FOUND, source_case="earlier")
    lines = tuple(LogLine(0, name, "write", 0, 0, 1, 0, "") for name in ("B0", "earlier/B0", "other/B0", "A0"))
    line = samples.line(case(found, log=lines))
    made = log(line, line["findings"][0])
    assert made is not None
    assert [role for _, role in made.lines] == ["", "source", "", "victim"]


def test_a_long_log_is_cut_but_never_of_victim_and_source() -> None:
    others = tuple(LogLine(i, "C0", "write", 1, i, 1, i, "") for i in range(LINES + 2))
    last = (LogLine(999, "A0", "write", 0, 0, 1, 0, ""), LogLine(1000, "B0", "free", 0, 0, 1, 0, ""))
    line = samples.line(case(log=(*others, *last)))
    made = log(line, line["findings"][0])
    assert made is not None
    assert [each["step"] for each, _ in made.lines] == [*range(LINES - 2), 999, 1000]
    assert made.left == 4
    text = page([samples.header(), case(log=(*others, *last))]).text
    assert f"Log of the cache ({LINES} lines, 4 left out)" in text
    assert "4 lines left out: those of the victim and the source are shown first" in text
    full = page([samples.header(), case(log=others[:LINES])]).text
    assert f"Log of the cache ({LINES} lines)" in full
    assert "left out" not in full


def noise_rows(*lines: Record) -> list[list[str]]:
    seen = html.render(samples.as_run([samples.header(), *lines])).partition('<section id="noise"')[2]
    return Page(seen.partition("</section>")[0]).rows


def test_noise_of_attention_has_columns_where_it_was_measured() -> None:
    bare = replace(samples.noise(), attention_positions=0)
    plain, both = noise_rows(bare), noise_rows(samples.noise(), samples.noise("bfloat16"))
    assert "Attention of solo runs" not in plain[0]
    assert both[0][-1] == "Attention of solo runs"
    assert (len(plain[1]), len(both[1])) == (11, 15)
    assert both[2] == [*plain[2], "512", "3.7e-06", "0.31", "within 1"]
    assert both[3][-1] == "not observed"


@pytest.mark.parametrize(("excess", "told"), [(1.0, "within 1"), (1.01, "above 1"), (math.nan, "above 1")])
def test_noise_of_attention_that_is_not_bounded_is_marked(excess: float, told: str) -> None:
    assert noise_rows(replace(samples.noise(), attention_held_out=excess))[2][-1] == told


def strings(value: Any) -> set[str]:
    if isinstance(value, dict | list):
        each = value.values() if isinstance(value, dict) else value
        return {text for part in each for text in strings(part)}
    return {value} if isinstance(value, str) else set()


def test_every_text_of_a_hostile_case_is_hostile() -> None:
    line = samples.line(samples.hostile()[3])
    assert strings(line) == {samples.HOSTILE, "case", "violates", "shared", "cache", "", "x" * 1_000_000}
    assert line["findings"][0]["attention"]
    assert line["log"]
    assert line["telltales"]


MARKER = "<i onclick=x>field</i>\u202e|{{ 1 }}"
LINE, TALE, KEY = (
    LogLine(0, "A0", "write", 0, 0, 1, 0, "k"),
    Telltale("length", "A0", "B0", "c", "t"),
    Key(1, 1, "", 0.5),
)


@pytest.mark.parametrize(
    "changes",
    [
        *({"log": (replace(LINE, **{name: MARKER}),)} for name in ("request", "action", "key")),
        *({"telltales": (replace(TALE, **{name: MARKER}),)} for name in ("kind", "source", "source_case", "told")),
        *(
            {
                "findings": (
                    replace(FOUND, attention=replace(watched.attention(), **{name: (replace(KEY, text=MARKER),)})),
                )
            }
            for name in ("engine_top", "golden_top")
        ),
        {"requests": (replace(CASE.requests[0], group=MARKER),)},
    ],
)
def test_markup_in_a_text_is_shown_and_makes_no_element(changes: dict[str, Any]) -> None:
    seen = page([samples.header(), replace(case(), **changes)])
    assert shown(MARKER) in seen.text
    assert not [tag for tag, _ in seen.elements if tag == "i"]
