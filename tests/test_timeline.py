"""Timeline and map of K/V in the report: who had which slot when, and which cells are off, exactly."""

import re
from dataclasses import replace
from typing import Any

import samples
import watched
from page import page

from kvfence.reports.finding import LogLine, Telltale
from kvfence.reports.kv_map import kv_map
from kvfence.reports.outcome import Outcome
from kvfence.reports.timeline import ROWS, timeline

CASE = samples.case(edge="block-plus-1")
FOUND = replace(samples.finding("A0", "B0", 6, 5, case=CASE.case), block=None)
HOLD = re.compile(r'<rect class="hold (\w*)"[^>]*><title>([^<]*)</title>')


def use(step: int, request: str, action: str, slot: int = 0) -> LogLine:
    return LogLine(step, request, action, slot, 0, 1, 0, "")


def drawn(*lines: LogLine, **changes: Any) -> str:
    record = samples.line(replace(CASE, outcome=Outcome.VIOLATES, findings=(FOUND,), log=lines, **changes))
    figure = timeline(record, record["findings"][0], "card")
    return "" if figure is None else str(figure.drawing)


def test_a_bar_is_from_the_hand_out_to_the_release() -> None:
    text = drawn(
        use(1, "B0", "allocate"), use(1, "B0", "write"), use(2, "B0", "publish"), use(4, "B0", "free"),
        use(6, "A0", "reuse"), use(7, "A0", "write"), use(9, "A0", "free"), use(9, "B0", "evict"),
        use(12, "A0", "allocate"), use(13, "A0", "write"),
    )  # fmt: skip
    assert HOLD.findall(text) == [
        ("source", "B0, source in slot 0, steps 1 to 4"),
        ("victim", "A0, victim in slot 0, steps 6 to 9"),
        ("victim", "A0, victim in slot 0, steps 12 to 13"),
    ]
    kinds = re.findall(r'<path class="(writes|takes|shows) (\w+)" d="([^"]+)"', text)
    assert [(kind, role, path.count("M")) for kind, role, path in kinds] == [
        ("writes", "source", 1), ("shows", "source", 2), ("takes", "victim", 1), ("writes", "victim", 2),
    ]  # fmt: skip


def test_columns_are_the_steps_of_the_log() -> None:
    text = drawn(use(3, "A0", "write"), use(70, "A0", "write"), use(71, "A0", "free"))
    (x, width) = re.findall(r'class="hold victim" x="([\d.]+)" y="\d+" width="([\d.]+)"', text)[0]
    assert (float(x), float(width)) == (250.0, 3 * 30 - 1)
    assert re.findall(r'class="step"[^>]*>(\d+)<', text) == ["3", "70", "71"]


def test_slots_of_the_victim_alone_and_those_others_used_first() -> None:
    lines = (use(0, "A0", "write", 5), use(0, "C0", "write", 6), use(1, "A0", "write", 7), use(2, "C0", "write", 7))
    assert re.findall(r">slot (\d+)<", drawn(*lines)) == ["7", "5"]
    assert drawn(use(0, "C0", "write")) == ""
    assert drawn() == ""


def test_the_fatal_use_is_framed_and_its_slot_is_first() -> None:
    lines = (use(0, "B0", "write", 4), use(1, "A0", "write", 3), use(1, "B0", "write", 3), use(2, "A0", "write", 4))
    tales = (
        Telltale("overlap", "A0", "B0", None, "A0 is <b>overwritten</b>", 2, 4),
        Telltale("overlap", "B0", "A0", None, "of another", 1, 3),
        Telltale("lock", "", None, None, "of no use"),
    )
    text = drawn(*lines, telltales=tales)
    assert re.findall(r">slot (\d+)<", text) == ["4", "3"]
    ((x, y, width, height, told),) = re.findall(
        r'class="fatal" d="M([\d.]+) (\d+)h([\d.]+)v(\d+)h-[\d.]+z"><title>([^<]*)<', text
    )
    assert (float(x), int(y), float(width), int(height)) == (250 + 2 * 30 - 1, 16, 31, 2 * 17)
    assert told == "A0 is &lt;b&gt;overwritten&lt;/b&gt;"


def test_what_has_no_room_is_counted() -> None:
    lines = [use(step, "A0", "write", step) for step in range(ROWS + 3)]
    record = samples.line(replace(CASE, findings=(FOUND,), log=tuple(lines)))
    figure = timeline(record, record["findings"][0], "card")
    assert figure is not None
    assert figure.caption == "Slots of the cache that A0 used, over the steps of the engine; 3 slots left out"
    assert str(figure.drawing).count(">slot ") == ROWS
    crowd = [use(step, f"C{step}", "write") for step in range(ROWS + 3)]
    assert drawn(use(0, "A0", "write"), *crowd).count('class="hold') == ROWS


def test_cells_that_are_off_are_drawn_where_they_are() -> None:
    record = samples.line(replace(CASE, findings=(replace(FOUND, kv=watched.kv(case=CASE.case)),)))
    seen = kv_map(record, record["findings"][0], "card")
    assert seen is not None
    assert seen.told == "The first that can be recognised are request B0's, of position 64."
    assert seen.rows == (("K", 1, 0, "64 to 79, 100", "812.5"), ("V", 2, 3, "64 to 79", "4.2"))
    assert seen.figure.caption.startswith("K/V by layer, KV head and position: 33 of 2,880 cells are not")
    # 7 px a position; 9 px a head; a layer is two times four heads and 5 px: K at its top, V a pixel below K's end.
    places = re.findall(r'<path class="cell" d="([^"]+)"><title>([^<]+)</title>', str(seen.figure.drawing))
    band = 2 * 4 * 9 + 5
    assert [told for _, told in places] == ["layer 1, KV head 0, K: 64 to 79, 100", "layer 2, KV head 3, V: 64 to 79"]
    corners = [[(float(x), int(y)) for x, y in re.findall(r"M([\d.]+) (\d+)", path)] for path, _ in places]
    assert corners == [
        [(52 + 64 * 7, 8 + band), (52 + 100 * 7, 8 + band)],
        [(52 + 64 * 7, 8 + 2 * band + 4 * 9 + 1 + 3 * 9)],
    ]
    assert f'class="epsilon" d="M{52 + 7 * len(FOUND.prompt):.1f} ' in str(seen.figure.drawing)


def test_whose_the_kv_are() -> None:
    told = []
    for owner, case in ((None, None), ("A0", CASE.case), ("B0", "earlier")):
        record = samples.line(replace(CASE, findings=(replace(FOUND, kv=watched.kv(owner, case)),)))
        seen = kv_map(record, record["findings"][0], "card")
        assert seen is not None
        told.append(seen.told)
    assert told == [
        "What position 64 holds is nobody's that is known.",
        "The first that can be recognised are its own, of position 64.",
        "The first that can be recognised are request B0's in case earlier, of position 64.",
    ]
    line = samples.line(replace(CASE, findings=(FOUND,)))
    assert kv_map(line, line["findings"][0], "card") is None
    line["findings"][0].pop("kv")
    assert kv_map(line, line["findings"][0], "card") is None


def test_both_stand_in_the_card_with_their_names() -> None:
    found = replace(FOUND, kv=watched.kv(case=CASE.case))
    case = replace(CASE, outcome=Outcome.VIOLATES, findings=(found,), log=watched.log("B0", "A0"))
    seen = page([samples.header(), case])
    for name in ("lanes", "heat"):
        (drawing,) = seen.of_class(name)
        assert drawing["role"] == "img"
        assert drawing["aria-labelledby"] in {attrs.get("id") for tag, attrs in seen.elements if tag == "title"}
    assert "K/V The first that can be recognised are request B0's, of position 64." in seen.text
