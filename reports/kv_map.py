"""The map of a victim's K/V: which cells of its cache do not hold what they should."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kvfence.reports.svg import Figure
from kvfence.reports.text import count, number, shown

_LEFT, _TOP = 52, 8


@dataclass(frozen=True)
class KVMap:
    """``rows`` is the map in words: part, layer, head, positions and how far off."""

    told: str
    figure: Figure
    rows: tuple[tuple[str, int, int, str, str], ...]


def kv_map(case: dict[str, Any], finding: dict[str, Any], id: str) -> KVMap | None:
    """What a finding says of K/V, or None where it says nothing; ``id`` is that of its card."""
    record = finding.get("kv")  # records written before there was one have none
    if record is None:
        return None
    off = sum(last - first + 1 for row in record["rows"] for first, last in row["stretches"])
    cells = 2 * record["layers"] * record["heads"] * record["positions"]
    caption = f"K/V by layer, KV head and position: {off:,} of {count(cells, 'cell')} are not what its tokens give"
    rows = tuple(
        (row["part"], row["layer"], row["head"], _listed(row["stretches"]), number(row["excess"]))
        for row in record["rows"]
    )
    drawing = _drawing(record, len(finding["prompt"]), f"{id}~kv", caption)
    return KVMap(_told(case, finding, record), Figure(drawing, caption), rows)


def _told(case: dict[str, Any], finding: dict[str, Any], record: dict[str, Any]) -> str:
    """Whose they are, in one sentence."""
    first = min((stretch[0] for row in record["rows"] for stretch in row["stretches"]), default=0)
    if record["source"] is None:
        return f"What position {first} holds is nobody's that is known."
    of = record["source_case"]
    whose = (
        "its own" if (record["source"], of) == (finding["victim"], case["case"]) else f"request {record['source']}'s"
    )
    where = "" if of in (None, case["case"]) else f" in case {of}"
    return f"The first that can be recognised are {whose}{where}, of position {record['source_position']}."


def _listed(stretches: list[list[int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in stretches)


def _drawing(record: dict[str, Any], prompt: int, id: str, caption: str) -> Markup:
    """Layers (down), K above V and heads in each, by positions (across); the answer begins at the dashed line."""
    wide = max(1.0, min(8.0, 840 / max(1, record["positions"])))
    tall = max(3, min(9, 480 // max(1, 2 * record["layers"] * record["heads"])))
    band = 2 * record["heads"] * tall + 5
    width, height = _LEFT + wide * record["positions"] + 16, _TOP + band * record["layers"] + 18
    parts = [*_bands(record, wide, tall, band), *_cells(record, wide, tall, band)]
    if prompt <= record["positions"]:
        parts.append(Markup(f'<path class="epsilon" d="M{_LEFT + wide * prompt:.1f} {_TOP - 6}V{height - 16}"/>'))
    parts += _positions(record["positions"], wide, height)
    frame = f'class="heat" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    return Markup(
        '<svg role="img" aria-labelledby="{id}" {frame}><title id="{id}">{caption}</title>{parts}</svg>'
    ).format(id=id, frame=Markup(frame), caption=shown(caption), parts=Markup("").join(parts))


def _bands(record: dict[str, Any], wide: float, tall: int, band: int) -> Iterator[Markup]:
    half = record["heads"] * tall
    for layer in range(record["layers"]):
        top = _TOP + layer * band
        for part, y in (("K", top), ("V", top + half + 1)):
            frame = f'x="{_LEFT}" y="{y}" width="{wide * record["positions"]:.1f}" height="{half}"'
            yield Markup(f'<rect class="ground" {frame}/>')
            if half >= 9:
                yield Markup(f'<text class="tick" x="{_LEFT - 6}" y="{y + half / 2 + 4:.0f}">{layer} {part}</text>')


def _cells(record: dict[str, Any], wide: float, tall: int, band: int) -> Iterator[Markup]:
    for row in record["rows"]:
        part = record["heads"] * tall + 1 if row["part"] == "V" else 0
        y = _TOP + row["layer"] * band + part + row["head"] * tall
        path = "".join(
            f"M{_LEFT + first * wide:.1f} {y}h{(last - first + 1) * wide:.1f}v{tall - 1}H{_LEFT + first * wide:.1f}z"
            for first, last in row["stretches"]
        )
        told = f"layer {row['layer']}, KV head {row['head']}, {row['part']}: {_listed(row['stretches'])}"
        yield Markup('<path class="cell" d="{}"><title>{}</title></path>').format(path, shown(told))


def _positions(positions: int, wide: float, height: float) -> Iterator[Markup]:
    every = next(n for n in (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 10**9) if n * wide >= 30)
    for at in range(0, positions, every):
        yield Markup(f'<text class="step" x="{_LEFT + at * wide:.1f}" y="{height - 4:.0f}">{at}</text>')
