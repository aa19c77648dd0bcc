"""Inline SVG drawings; they are styled by classes because the report's policy forbids style attributes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 92, 52, 12, 20, 20


@dataclass(frozen=True)
class Figure:
    """A drawing with what to say about it."""

    drawing: Markup
    caption: str


def strip(values: Sequence[float], threshold: float | None, label: str, unit: str, sign: str = "ε") -> Markup:
    """Bars of one value per output position on a log scale, the threshold as a line, what exceeds it marked.

    Values are not negative; infinite ones reach the top, and ones too small for the scale have no bar. ``sign`` stands
    at the threshold's line.
    """
    low, high = _scale(values, threshold)
    step = max(3.0, min(26.0, 960 / max(1, len(values))))
    width = _LEFT + max(240.0, step * len(values)) + _RIGHT
    parts = [
        *_axis(low, high, width),
        *_steps(len(values), step),
        *(bar for i, value in enumerate(values) if (bar := _bar(i, value, threshold, step, low, high, unit))),
        *(_line(threshold, low, high, width, sign) if threshold else ()),
    ]
    whole = _TOP + _HEIGHT + _BOTTOM
    return Markup(
        '<svg class="strip" role="img" aria-label="{}" width="{w:.0f}" height="{h}" viewBox="0 0 {w:.0f} {h}">{}</svg>'
    ).format(label, Markup("").join(parts), w=width, h=whole)


def heat(values: Sequence[Sequence[float]], marked: tuple[int, int], id: str, title: str, told: str) -> Markup:
    """Cells of layers (down) by heads (across), the darker the nearer to the largest value, one of them outlined.

    ``title`` and ``told`` are its name and description, under ids that begin with ``id``.
    """
    across = max(map(len, values), default=0)
    size = max(12, min(26, 720 // max(1, across), 480 // max(1, len(values))))
    known = [value for row in values for value in row if 0 < value < math.inf]
    full = max(known, default=1.0)
    cells = [
        _cell(layer, head, value, full, size) for layer, row in enumerate(values) for head, value in enumerate(row)
    ]
    layer, head = marked
    place = f'x="{_LEFT + head * size - 1}" y="{_TOP + 5 + layer * size - 1}"'
    parts = [*cells, f'<rect class="marked" {place} width="{size}" height="{size}"/>', *_heads(across, size)]
    parts += _layers(len(values), size)
    width, height = _LEFT + across * size + 8, _TOP + 5 + len(values) * size + 4
    frame = f'class="heat" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return Markup(
        '<svg role="img" aria-labelledby="{id}-title" aria-describedby="{id}-desc" {frame}>'
        '<title id="{id}-title">{title}</title><desc id="{id}-desc">{told}</desc>{parts}</svg>'
    ).format(id=id, frame=Markup(frame), title=title, told=told, parts=Markup("".join(parts)))


def shares(counts: Sequence[tuple[str, int]]) -> Markup:
    """One bar cut by outcome, in 1,000 units of width; decoration beside the same figures in words."""
    total = sum(count for _, count in counts) or 1
    start, parts = 0.0, []
    for outcome, count in counts:
        width = 1000 * count / total
        parts.append(f'<rect class="share {escape(outcome)}" x="{start:.1f}" width="{width:.1f}" height="8"/>')
        start += width
    frame = 'class="shares" viewBox="0 0 1000 8" preserveAspectRatio="none" aria-hidden="true"'
    return Markup(f"<svg {frame}>{''.join(parts)}</svg>")


def _scale(values: Sequence[float], threshold: float | None) -> tuple[float, float]:
    """Decades (log10) of the bottom and the top of the drawing."""
    seen = [value for value in values if 0 < value < math.inf]
    threshold = threshold if threshold is not None and math.isfinite(threshold) else None
    high = max([*seen, (threshold or 0) * 3, 1e-6])
    low = threshold / 10 if threshold else max(min(seen, default=high / 100), high / 1e6)
    top = math.log10(high)
    return min(math.log10(low), top - 1), top


def _y(value: float, low: float, high: float) -> float:
    """Distance from the top edge, px."""
    share = 0.0 if value <= 0 else 1.0 if value == math.inf else (math.log10(value) - low) / (high - low)
    return _TOP + _HEIGHT * (1 - min(1.0, max(0.0, share)))


def _bar(
    i: int, value: float, threshold: float | None, step: float, low: float, high: float, unit: str
) -> Markup | None:
    y = _y(value, low, high) if value == value else float(_TOP)
    over = threshold is not None and not value <= threshold
    if y >= _TOP + _HEIGHT - 0.5 and not over:
        return None
    x, gap = _LEFT + i * step, min(2.0, step / 4)
    bar = f'<rect class="bar{" over" if over else ""}" x="{x:.1f}" y="{y:.1f}" width="{step - gap:.1f}" '
    bar += f'height="{max(1.0, _TOP + _HEIGHT - y):.1f}">'
    bar += f"<title>step {i}: {value:.4g} {escape(unit)}</title></rect>"
    if over:
        middle = x + (step - gap) / 2
        bar += f'<path class="over" d="M{middle - 3:.1f} 2h6l-3 5z"/>'
    return Markup(bar)


def _axis(low: float, high: float, width: float) -> list[Markup]:
    first, last = math.ceil(low), math.floor(high)
    every = max(1, math.ceil((last - first + 1) / 4))
    lines = []
    for decade in range(last, first - 1, -every):
        y = _y(10.0**decade, low, high)
        lines.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{width - _RIGHT:.0f}"/>')
        lines.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}">{10.0**decade:g}</text>')
    return [Markup(line) for line in lines]


def _steps(n: int, step: float) -> list[Markup]:
    every = next(size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if size * step >= 24)
    y = _TOP + _HEIGHT + 14
    return [
        Markup(f'<text class="step" x="{_LEFT + (i + 0.5) * step - 1:.1f}" y="{y}">{i}</text>')
        for i in range(0, n, every)
    ]


def _line(threshold: float, low: float, high: float, width: float, sign: str) -> list[Markup]:
    y = _y(threshold, low, high)
    return [
        Markup(f'<path class="epsilon" d="M{_LEFT} {y:.1f}H{width - _RIGHT:.0f}"/>'),
        Markup(f'<text class="epsilon" x="{width - 6:.0f}" y="{y + 4:.1f}">{escape(sign)}</text>'),
    ]


def _cell(layer: int, head: int, value: float, full: float, size: int) -> str:
    # Written so that NaN, from an engine that overflowed, is as dark as can be.
    share = 0.0 if value <= 0 else value / full if value < math.inf else 1.0
    place = f'x="{_LEFT + head * size}" y="{_TOP + 5 + layer * size}" width="{size - 2}" height="{size - 2}"'
    return (
        f'<rect class="cell" {place} fill-opacity="{share:.3g}">'
        f"<title>layer {layer}, head {head}: {value:.4g}</title></rect>"
    )


def _heads(n: int, size: int) -> list[str]:
    every = 1 if size >= 20 else 4
    labels = [
        f'<text class="step" x="{_LEFT + (i + 0.5) * size - 1:.0f}" y="{_TOP}">{i}</text>' for i in range(0, n, every)
    ]
    return [f'<text class="tick" x="{_LEFT - 8}" y="{_TOP}">head</text>', *labels]


def _layers(n: int, size: int) -> list[str]:
    every = 1 if size >= 14 else 2
    labels = [
        f'<text class="tick" x="{_LEFT - 8}" y="{_TOP + 5 + (i + 0.5) * size + 3:.0f}">{i}</text>'
        for i in range(0, n, every)
    ]
    middle = _TOP + 5 + n * size / 2
    return [f'<text class="step" transform="rotate(-90 16 {middle:.0f})" x="16" y="{middle:.0f}">layer</text>', *labels]
