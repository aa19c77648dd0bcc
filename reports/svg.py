"""Inline SVG drawings; they are styled by classes because the report's policy forbids style attributes."""

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

_HEIGHT, _LEFT, _TOP, _BOTTOM = 92, 52, 12, 20


def strip(values: Sequence[float], threshold: float | None, label: str, unit: str) -> Markup:
    """Bars of one value per output position on a log scale, the threshold as a line, what exceeds it marked.

    Values are not negative; infinite ones reach the top, and ones too small for the scale have no bar.
    """
    low, high = _scale(values, threshold)
    step = max(3.0, min(26.0, 960 / max(1, len(values))))
    width = _LEFT + max(240.0, step * len(values)) + 8
    parts = [
        *_axis(low, high, width),
        *_steps(len(values), step),
        *(bar for i, value in enumerate(values) if (bar := _bar(i, value, threshold, step, low, high, unit))),
        *(_line(threshold, low, high, width) if threshold else ()),
    ]
    whole = _TOP + _HEIGHT + _BOTTOM
    return Markup(
        '<svg class="strip" role="img" aria-label="{}" width="{w:.0f}" height="{h}" viewBox="0 0 {w:.0f} {h}">{}</svg>'
    ).format(label, Markup("").join(parts), w=width, h=whole)


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
        lines.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{width:.0f}"/>')
        lines.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}">{10.0**decade:g}</text>')
    return [Markup(line) for line in lines]


def _steps(n: int, step: float) -> list[Markup]:
    every = next(size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if size * step >= 24)
    y = _TOP + _HEIGHT + 14
    return [
        Markup(f'<text class="step" x="{_LEFT + (i + 0.5) * step - 1:.1f}" y="{y}">{i}</text>')
        for i in range(0, n, every)
    ]


def _line(threshold: float, low: float, high: float, width: float) -> list[Markup]:
    y = _y(threshold, low, high)
    return [
        Markup(f'<path class="epsilon" d="M{_LEFT} {y:.1f}H{width:.0f}"/>'),
        Markup(f'<text class="epsilon" x="{width - 8:.0f}" y="{y - 4:.1f}">ε</text>'),
    ]
