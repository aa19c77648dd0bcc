"""Attention: where and when a victim's attention moved, laid out for reading."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvfence.reports import svg
from kvfence.reports.text import count, number


@dataclass(frozen=True)
class Moved:
    """``rows`` is the map in words, layers by heads; ``keys`` pairs the engine's and golden's top keys, best first."""

    told: str
    strip: svg.Figure
    map: svg.Figure | None  # None = there is none
    heads: range
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[tuple[dict[str, Any] | None, dict[str, Any] | None], ...]
    sums: tuple[tuple[str, str, str], ...]  # label, engine's and golden's figure


def moved(case: dict[str, Any], finding: dict[str, Any], id: str) -> Moved | None:
    """What a finding says of attention, or None where it says nothing; ``id`` is that of its card."""
    record = finding["attention"]
    if record is None:
        return None
    rows = [tuple(map(number, row)) for row in record["map"]]
    names = (("Largest probability", "maximum"), ("Entropy, nats", "entropy"))
    return Moved(
        told=told(record, changed(case, finding)),
        strip=_strip(record["excess"]),
        map=_map(record, f"{id}~map") if any(rows) else None,
        heads=range(max(map(len, rows), default=0)),
        rows=tuple(rows),
        keys=tuple(zip_longest(record["engine_top"], record["golden_top"])),
        sums=tuple(
            (label, number(record[f"engine_{name}"]), number(record[f"golden_{name}"])) for label, name in names
        ),
    )


def changed(case: dict[str, Any], finding: dict[str, Any]) -> int | None:
    """First 0-based output position whose token is another one by more than rounding, or None."""
    margins, epsilon = finding["trace"]["margins"], finding["epsilon"]
    if margins:
        return next((step for step, margin in enumerate(margins) if not margin <= epsilon), None)
    known = (each["first_changed"] for each in case["requests"] if each["request"] == finding["victim"])
    return next(known, None)


def told(record: dict[str, Any], token: int | None) -> str:
    """The first step at which attention moved, against the first token that changed, in one sentence."""
    step = record["first_step"]
    if token is None:
        when = "and no token changed by more than rounding"
    elif token == step:
        when = "at the first changed token"
    else:
        side = "before" if step < token else "after"
        when = f"{count(abs(token - step), 'token')} {side} the first changed token (step {token})"
    where = f"layer {record['layer']}, head {record['head']}, shift {number(record['shift'])}"
    did = "moved" if any(not value <= 1 for value in record["excess"]) else "met others' keys"
    return f"Attention {did} at step {step}, {when}: {where}." + _met(record.get("foreign", ()))


def _met(foreign: Sequence[tuple[str, float]]) -> str:
    """Whose keys were met, in one sentence; none where the engine has no owner tags or met no other's."""
    if not foreign:
        return ""
    parts = [f"{number(most)} to keys of {f'request {owner}' if owner else 'nobody'}" for owner, most in foreign]
    return f" By owner tags a head gave up to {', '.join(parts)}."


def _strip(excess: Sequence[float]) -> svg.Figure:
    over = sum(not value <= 1 for value in excess)
    largest = max(excess, key=lambda value: (value != value, value), default=0.0)
    told = number(largest) if not 1000 <= largest < math.inf else f"{largest:,.0f}"
    caption = f"Attention shift, times its noise: {over} of {count(len(excess), 'step')} above 1; largest {told}"
    return svg.Figure(svg.strip(excess, 1.0, caption, "times its noise", sign="1"), caption)


def _map(record: dict[str, Any], id: str) -> svg.Figure:
    values = record["map"]
    largest = max((value for row in values for value in row), key=lambda value: (value != value, value))
    marked = (record["layer"], record["head"])
    title = f"Attention shift by layer and head at step {record['first_step']}"
    told = f"{count(len(values), 'layer')} of {count(len(values[0]), 'head')}, the darkest {number(largest)}; "
    told += f"outlined: layer {marked[0]}, head {marked[1]}"
    return svg.Figure(svg.heat(values, marked, id, title, told), f"{title}: {told}")
