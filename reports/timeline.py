"""Timeline: who had which slots of the cache when, as far as one victim is concerned."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from kvfence.reports.log import role
from kvfence.reports.svg import Figure
from kvfence.reports.text import count, shown

ROWS = 24  # drawn; more of them open too slowly
_LEFT, _TOP, _ROW, _NAME = 250, 16, 17, 26
_WRITES, _TAKES = ("write", "copy", "restore", "fetch"), ("reuse", "fork")


@dataclass
class Lane:
    """One request's use of one slot; columns are the steps of the log, in their order."""

    slot: int
    request: str
    role: str  # victim, source or ""
    holds: list[tuple[int, int]] = field(default_factory=list)  # first and last column of each
    marks: dict[str, list[int]] = field(default_factory=dict)  # columns by kind: writes, takes or shows
    open: bool = False


def timeline(case: dict[str, Any], finding: dict[str, Any], id: str) -> Figure | None:
    """The slots that a victim used, over the steps of the engine; None where no log tells of any.

    A slot in which a rule broke comes first, then those that others used too.
    """
    fatal = [
        (each["slot"], each["step"], each["told"])
        for each in case["telltales"]
        # Records written before there were steps have none.
        if each["victim"] == finding["victim"] and each.get("step") is not None
    ]
    steps = sorted({line["step"] for line in case["log"]} | {step for _, step, _ in fatal})
    column = {step: i for i, step in enumerate(steps)}
    lanes = _lanes(case, finding, column)
    rows, left = _chosen(lanes, {slot for slot, _, _ in fatal} | {finding["block"]})
    if not rows:
        return None
    caption = f"Slots of the cache that {shown(finding['victim'])} used, over the steps of the engine"
    caption += f"; {count(left, 'slot')} left out" if left else ""
    marked = [(slot, column[step], told) for slot, step, told in fatal]
    return Figure(_drawing(rows, steps, marked, f"{id}~slots", caption), caption)


def _lanes(case: dict[str, Any], finding: dict[str, Any], column: dict[int, int]) -> dict[int, list[Lane]]:
    lanes: dict[int, dict[str, Lane]] = {}
    for line in case["log"]:
        slot, request = line["slot"], line["request"]
        lane = lanes.setdefault(slot, {}).setdefault(request, Lane(slot, request, role(case, finding, request)))
        _use(lane, line["action"], column[line["step"]])
    return {slot: list(each.values()) for slot, each in lanes.items()}


def _use(lane: Lane, action: str, at: int) -> None:
    kind = "writes" if action in _WRITES else "takes" if action in _TAKES else "shows"
    if action not in ("allocate", "free"):
        lane.marks.setdefault(kind, []).append(at)
    if lane.open:
        lane.holds[-1] = (lane.holds[-1][0], at)
    elif kind != "shows" or action == "allocate":
        lane.holds.append((at, at))
    lane.open = action != "free" and (lane.open or kind != "shows" or action == "allocate")


def _chosen(lanes: dict[int, list[Lane]], first: set[int | None]) -> tuple[list[Lane], int]:
    """The lanes of the slots that there is room for, with the number of slots left out."""
    mine = [each for each in lanes.values() if any(lane.role == "victim" for lane in each) or each[0].slot in first]
    mine.sort(key=lambda each: (each[0].slot not in first, len(each) == 1))
    rows: list[Lane] = []
    for done, each in enumerate(mine):
        if rows and len(rows) + len(each) > ROWS:
            return rows, len(mine) - done
        rows += each[:ROWS]
    return rows, 0


def _drawing(
    rows: Sequence[Lane], steps: Sequence[int], marked: Sequence[tuple[int, int, str]], id: str, caption: str
) -> Markup:
    wide = max(5.0, min(30.0, 700 / len(steps)))
    width, height = _LEFT + wide * len(steps) + 16, _TOP + _ROW * len(rows) + 22
    parts = [*_steps(steps, wide, height - 6)]
    for i, lane in enumerate(rows):
        parts += _lane(lane, i, wide, steps, named=i == 0 or rows[i - 1].slot != lane.slot, width=width)
    parts += _marked(rows, marked, wide)
    frame = f'class="lanes" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    return Markup(
        '<svg role="img" aria-labelledby="{id}" {frame}><title id="{id}">{caption}</title>{parts}</svg>'
    ).format(id=id, frame=Markup(frame), caption=caption, parts=Markup("").join(parts))


def _lane(lane: Lane, row: int, wide: float, steps: Sequence[int], named: bool, width: float) -> Iterator[Markup]:
    top, middle = _TOP + _ROW * row, _TOP + _ROW * row + _ROW / 2
    if named:
        yield Markup('<path class="grid" d="M0 {y}H{x:.0f}"/><text x="0" y="{t:.0f}">slot {slot}</text>').format(
            y=top, x=width, t=middle + 4, slot=lane.slot
        )
    request = lane.request if len(lane.request) <= _NAME else f"…{lane.request[1 - _NAME :]}"
    who = f"{request or 'nobody'}{f', {lane.role}' if lane.role else ''}"
    yield Markup('<text class="who {role}" x="{x}" y="{y:.0f}">{who}</text>').format(
        role=lane.role, x=_LEFT - 8, y=middle + 4, who=shown(who)
    )
    for first, last in lane.holds:
        yield Markup(
            '<rect class="hold {role}" x="{x:.1f}" y="{y}" width="{w:.1f}" height="{h}"><title>{told}</title></rect>'
        ).format(
            role=lane.role,
            x=_LEFT + first * wide,
            y=top + 3,
            w=(last - first + 1) * wide - 1,
            h=_ROW - 6,
            told=f"{shown(who)} in slot {lane.slot}, steps {steps[first]} to {steps[last]}",
        )
    for kind, columns in lane.marks.items():
        path = "".join(_mark(kind, _LEFT + (at + 0.5) * wide - 0.5, middle, wide) for at in dict.fromkeys(columns))
        yield Markup('<path class="{kind} {role}" d="{path}"/>').format(kind=kind, role=lane.role, path=path)


def _mark(kind: str, x: float, y: float, wide: float) -> str:
    size = min(3.0, wide / 2 - 0.5)
    if kind == "writes":
        return f"M{x - size:.1f} {y - 3:.1f}h{2 * size:.1f}v6h{-2 * size:.1f}z"
    if kind == "takes":
        return f"M{x - size:.1f} {y:.1f}l{size:.1f} -4 {size:.1f} 4 {-size:.1f} 4z"
    return f"M{x:.1f} {y - 4:.1f}v8"


def _marked(rows: Sequence[Lane], marked: Iterable[tuple[int, int, str]], wide: float) -> Iterator[Markup]:
    """The uses by which rules broke: a frame around the rows of the slot, with the sentence as its title."""
    for (slot, at), told in {(slot, at): told for slot, at, told in reversed(list(marked))}.items():
        lanes = [i for i, lane in enumerate(rows) if lane.slot == slot]
        if lanes:
            yield Markup(
                '<path class="fatal" d="M{x:.1f} {t}h{w:.1f}v{h}h-{w:.1f}z"><title>{told}</title></path>'
                '<path class="fatal-sign" d="M{m:.1f} {s}h8l-4 6z"/>'
            ).format(
                x=_LEFT + at * wide - 1,
                t=_TOP + _ROW * lanes[0],
                w=wide + 1,
                h=_ROW * len(lanes),
                told=shown(told),
                m=_LEFT + (at + 0.5) * wide - 4.5,
                s=_TOP + _ROW * lanes[0] - 7,
            )


def _steps(steps: Sequence[int], wide: float, y: float) -> Iterator[Markup]:
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 10**9) if n * wide >= 26)
    for i in range(0, len(steps), every):
        yield Markup(f'<text class="step" x="{_LEFT + (i + 0.5) * wide:.1f}" y="{y:.0f}">{steps[i]}</text>')
    yield Markup(f'<text class="who" x="{_LEFT - 8}" y="{y:.0f}">step</text>')
