"""HTML report: it tells what the records say, and nothing in them can act on the reader."""

import json
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import samples
from page import Page, embedded, page

from kvfence.reports import html, view
from kvfence.reports.card import FULL
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import CaseRecord, EndRecord, Record
from kvfence.reports.text import anchor, shown, token


@pytest.fixture(autouse=True)
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cards as they are: what is packed is looked at in the browser."""
    monkeypatch.setattr(html, "UNPACKED", FULL)


def test_hostile_text_opens_no_element() -> None:
    clean, attacked = page(samples.violating()), page(samples.hostile())
    allowed = {tag for tag, _ in clean.elements} | {"ol"}
    assert {tag for tag, _ in attacked.elements} <= allowed
    assert "img" not in allowed
    assert [attrs for tag, attrs in attacked.elements if tag == "script"] == [
        {"type": "text/plain", "id": "records"},
        {},
    ]
    assert not [name for _, attrs in attacked.elements for name in attrs if name.startswith("on")]


def test_hostile_text_is_shown_as_text() -> None:
    text = page(samples.hostile()).text
    assert text.count("</script><script>alert(1)</script>") > 40
    assert "{{ 7*7 }}" in text
    assert "&amp;" in text


def test_nothing_invisible_is_in_the_document() -> None:
    document = html.render(samples.as_run(samples.hostile()))
    document.encode("utf-8", "strict")
    assert {char for char in document if not char.isprintable()} == {"\n"}
    assert "\\x1b[31m" in document
    assert "U+202E" in document
    assert "U+D800" in document


def test_a_megabyte_token_is_cut_in_the_page_but_not_in_the_records() -> None:
    document = html.render(samples.as_run(samples.hostile()))
    assert "⟨999,952 more characters⟩" in document
    assert len(document) < 200_000
    assert embedded(document)[3]["findings"][0]["trace"]["expected_texts"][0] == "x" * 1_000_000


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("plain 中文 é 👍", "plain 中文 é 👍"),
        ("\x1b[0m\x00\x7f\x9b", "\\x1b[0m\\x00\\x7f\\x9b"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202e\u2066\u200b\ufeff\u2028", "⟨U+202E⟩⟨U+2066⟩⟨U+200B⟩⟨U+FEFF⟩⟨U+2028⟩"),
        ("\ud83d \udc00", "⟨U+D83D⟩ ⟨U+DC00⟩"),
        ("\U000e0041", "⟨U+E0041⟩"),
    ],
)
def test_shown(raw: str, seen: str) -> None:
    assert shown(raw) == seen


def test_shown_keeps_and_cuts() -> None:
    assert shown("a\nb\x00", keep="\n") == "a\nb\\x00"
    assert shown("abcdef", limit=4) == "abcd… ⟨2 more characters⟩"


def test_tokens_show_their_spaces() -> None:
    assert [token(text) for text in ("", " the", "a b ", "  ")] == ["⟨empty⟩", "␣the", "a b␣", "␣␣"]


def test_anchors_are_stable_distinct_and_plain() -> None:
    assert anchor("isolation.shared.en-3", "A1") == "case-isolation.shared.en-3~A1"
    names = ["a b", "a-b", "a/b", "a\ud800b", "x" * 300, "x" * 301]
    anchors = [anchor(name) for name in names]
    assert len(set(anchors)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._~-]{1,130}", each) for each in anchors)


@pytest.mark.parametrize("lines", [samples.violating(), samples.hostile()], ids=["violating", "hostile"])
def test_ids_are_unique_and_every_link_has_a_target(lines: list[Record]) -> None:
    elements = page(lines).elements
    ids = Counter(attrs["id"] for _, attrs in elements if "id" in attrs)
    assert [id for id, n in ids.items() if n > 1] == []
    links = {attrs["href"] for tag, attrs in elements if tag == "a"}
    assert links <= {f"#{id}" for id in ids}
    if lines[0] == samples.header():
        assert "#case-isolation.shared.canary-block-plus-1-mixed-3-float32~A0" in links


def test_two_findings_with_one_victim_have_two_ids() -> None:
    case = samples.case()
    finding = samples.finding("A0", "B0", 2, 3, case=case.case)
    ids = [each.get("id") for each in page([samples.header(), replace(case, findings=(finding,) * 2)]).of_class("card")]
    assert len(set(ids)) == 2


def test_foreign_cells_are_marked_with_their_owner() -> None:
    case = samples.case()
    found = samples.finding("A0", "B0", 6, 5, case=case.case)
    document = html.render(samples.as_run([samples.header(), replace(case, findings=(found,))]))
    cells = re.findall(r'<td class="got owned (o\d) (u\d)"><b>(\w+)</b><small>(\w+)</small>', document)
    assert [cell[2:] for cell in cells] == [(text, "B0") for text in found.trace.texts[6:11]]
    assert len({cell[:2] for cell in cells}) == 1
    assert "5 words of request B0 of the same batch" in Page(document).text
    assert len(re.findall('class="ne"', document)) == 5


def test_owners_of_one_batch_differ_in_colour_and_pattern() -> None:
    case = samples.case()
    found = samples.finding("A0", "B0", 6, 4, case=case.case)
    trace = replace(found.trace, owners=tuple("B0" if i % 2 else "C0" for i in range(samples.STEPS)))
    legend = page([samples.header(), replace(case, findings=(replace(found, trace=trace),))]).of_class("owned")[:2]
    colours, patterns = ({(each["class"] or "").split()[i] for each in legend} for i in (-2, -1))
    assert len(colours) == len(patterns) == 2


def test_words_of_an_earlier_case_are_told_apart() -> None:
    text = page(samples.violating()).text
    assert "Request C0 answered with 4 words of request B0 of another case" in text
    assert "B0* 4 words of request B0 of case isolation.shared.canary-block-plus-1-mixed-3-float32" in text


def test_a_change_that_is_nobodys_is_marked() -> None:
    document = html.render(samples.as_run(samples.violating()))
    assert document.count('class="got changed"') == 2
    assert "Request B0 answered otherwise than golden from step 3 on; no source found" in Page(document).text


def test_worst_comes_first() -> None:
    headlines = [card.headline for card in view.view(samples.as_run(samples.violating())).cards]
    assert [headline.split(" answered")[0] for headline in headlines] == [
        "Request A0",
        "Request C0",
        "Request B0",
    ]


def test_margins_above_epsilon_are_marked_and_tabled() -> None:
    document = html.render(samples.as_run(samples.violating()))
    assert document.count('class="bar over"') == (5 + 4 + 2) + 28  # margins, and steps at which attention moved
    assert document.count('<tr class="over">') == 5 + 4 + 2
    assert "5 of 32 steps above ε = 0.000124; largest 19.4" in Page(document).text


@pytest.mark.parametrize("values", [(float("inf"), 0.0), (float("nan"), 1.0), (0.0, 0.0), ()])
def test_margins_out_of_the_ordinary_still_draw(values: tuple[float, ...]) -> None:
    case = samples.case()
    found = samples.finding("A0", None, 0, 1, case=case.case)
    odd = replace(found, trace=replace(found.trace, margins=values), epsilon=0.0)
    document = html.render(samples.as_run([samples.header(), replace(case, findings=(odd,))]))
    assert "NaN" not in json.dumps(embedded(document))
    assert 'height="nan"' not in document


@pytest.mark.parametrize(
    ("lines", "words", "told"),
    [
        (samples.conforming(), "Conforms", "24 of 24 cases conform; none violated."),
        (samples.violating(), "Violates isolation", "2 of 24 cases did not stay isolated."),
        (samples.incomplete(), "Incomplete run", "9 of 24 planned cases recorded."),
        (samples.violating()[:-1], "Violates isolation", "Incomplete run: 24 of 24 planned cases recorded."),
        ([*samples.incomplete(), EndRecord(3.0, 0)], "Incomplete run", "9 of 24 planned cases recorded."),
        ([samples.header(cases=0), EndRecord(3.0, 3)], "Undecided", "No case was run."),
    ],
)
def test_verdict(lines: list[Record], words: str, told: str) -> None:
    text = page(lines).text
    assert f"{words} {told.split()[0]}" in text or f"{words} 2 of 24" in text
    assert told in text


def test_what_is_known_of_violations_is_told_first():
    lines = samples.violating()
    first = next(i for i, line in enumerate(lines) if getattr(line, "findings", ()))
    lines[first] = replace(lines[first], known="tracked")
    assert "2 of 24 cases did not stay isolated, 1 of them known." in page(lines).text


@pytest.mark.parametrize(
    ("outcome", "words"),
    [("inconclusive", "Undecided"), ("suite-error", "Undecided"), ("not-observable", "Undecided")],
)
def test_a_run_that_showed_nothing_does_not_conform(outcome: str, words: str) -> None:
    case = samples.case(outcome=Outcome(outcome), reason="no way to look")
    run = samples.as_run([samples.header(cases=1), case, EndRecord(1.0, 0)])
    assert view.verdict(run).words == words
    assert "no way to look 1 case" in Page(html.render(run)).text


def test_limits_of_a_pass_are_said() -> None:
    text = page(samples.conforming()).text
    assert "24 cases conform: at 1,536 output positions" in text
    assert "KV that no output read, other schedules and other configurations stay unknown." in text
    assert "No case of mode shared" not in text


@pytest.mark.parametrize(
    ("cases", "told"),
    [
        ([samples.case("serial")], "No case of mode shared was recorded"),
        ([samples.case(cached_tokens=0)], "No case of mode shared had cached tokens (every count was zero)"),
        ([samples.case(cached_tokens=None)], "had cached tokens (the engine does not tell them)"),
    ],
)
def test_sharing_that_did_not_happen_is_said(cases: list[CaseRecord], told: str) -> None:
    assert told in page([samples.header(cases=1), *cases, EndRecord(1.0, 0)]).text


def test_attention_that_was_not_judged_is_said() -> None:
    loud = replace(samples.noise("bfloat16"), attention_judged=False, attention_reason="it shifts by 0.3")
    opened = [samples.header(cases=1), samples.noise(), loud, loud]
    told = "Attention in bfloat16, to 512 tokens, was not judged: it shifts by 0.3."
    text = page([*opened, samples.case(), EndRecord(1.0, 0)]).text
    assert (text.count(told), text.count("was not judged")) == (1, 1)


def test_an_engine_opened_again_is_one_line() -> None:
    again = [samples.engine(), samples.engine("bfloat16"), replace(samples.engine(), seconds=6.0)]
    rows = page([samples.header(), *again, samples.case()]).rows
    lines = [cells[1:] for cells in rows if cells[0].startswith("dtype=")]
    assert lines == [["32", "2", "6.0 s"], ["32", "1", "4.2 s"]]


def test_torn_lines_are_said() -> None:
    assert (
        "1 record line could not be read"
        in Page(html.render(replace(samples.as_run(samples.incomplete()), torn_lines=1))).text
    )


def test_matrix_cells_filter_the_cases_they_count() -> None:
    run = samples.as_run(samples.violating())
    cells = [attrs for _, attrs in Page(html.render(run)).elements if "data-filter" in attrs and "title" in attrs]
    assert len(cells) == 12
    for cell in cells:
        keys = ("requirement", "mode", "dtype", "concurrency")
        counted = Counter(
            case["outcome"] for case in run.cases if all(str(case[key]) == cell[f"data-{key}"] for key in keys)
        )
        assert {part.split()[1]: int(part.split()[0]) for part in str(cell["title"]).split(", ")} == counted


def test_findings_past_the_limit_are_told_in_a_sentence() -> None:
    cases = [
        replace(samples.case(edge=f"e{i}"), outcome=Outcome.VIOLATES, findings=(found(f"e{i}"),))
        for i in range(FULL + 3)
    ]
    seen = page([samples.header(), *cases])
    assert len(seen.of_class("card")) == FULL
    assert "3 further findings" in seen.text
    ids = {attrs.get("id") for _, attrs in seen.elements}
    assert {anchor(case.case, "A0") for case in cases} <= ids


def found(edge: str) -> Any:
    return samples.finding("A0", "B0", 3, 3, case=samples.case(edge=edge).case)
