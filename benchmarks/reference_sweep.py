"""Throughput and memory of the reference engine over concurrency, on the canary, and where more stops to pay.

    python benchmarks/reference_sweep.py [--quick] [--threads N] [FIGURE.svg]

c requests at once, 96 shared and 66 own prompt tokens, 150 new, prefill included, in float32; rounds in which all
concurrencies take turns, medians. The knee is the first concurrency whose doubling adds less than 20 %.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from reference_requests import answers, canary_prompts, run
from reference_sharing import Gauge

from kvfence.prompts import models
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import load_model
from kvfence.reference_impl.settings import Parts, Settings

BLOCK = 16
SHARED, OWN, NEW = 96, 66, 150
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
ENOUGH = 1.2  # times the throughput for which doubling the concurrency still pays


@dataclass(frozen=True)
class Point:
    """What one concurrency gives and takes."""

    concurrency: int
    rate: float  # tokens a second
    memory: float  # MiB of K/V, at most


def measure(model: Any, concurrency: int, new: int, seed: int) -> Point:
    """One run; outputs must be right."""
    requests = [(prompt, new) for prompt in canary_prompts(concurrency, SHARED, OWN, random.Random(seed))]
    blocks = 2 + concurrency * (ceil((SHARED + OWN + new) / BLOCK) + 1)
    engine = ReferenceEngine(model, Settings(blocks, BLOCK, concurrency, 1024), Parts(pool=Gauge))
    begun = time.perf_counter()
    outputs = run(engine, requests)
    seconds = time.perf_counter() - begun
    assert outputs == answers(requests)
    block = engine.storage.shape.bytes(BLOCK, engine.storage.kv.element_size())
    return Point(concurrency, concurrency * new / seconds, engine.pool.peak * block / 1024**2)


def knee(points: Sequence[Point]) -> Point:
    """The first point after which doubling the concurrency does not pay; the last one if it always does."""
    rates = {point.concurrency: point.rate for point in points}
    ends = (p for p in points if (twice := rates.get(2 * p.concurrency)) is not None and twice < ENOUGH * p.rate)
    return next(ends, points[-1])


def figure(points: Sequence[Point]) -> str:
    """An SVG with two panels over concurrency: tokens a second, and memory."""
    bend = knee(points)
    panels = [
        _panel(points, [point.rate for point in points], "tokens/s", 20, bend),
        _panel(points, [point.memory for point in points], "KV cache, MiB", 220, bend),
    ]
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 430" font-family="sans-serif" font-size="12">',
        "<title>Throughput and KV memory of the reference engine over concurrency</title>",
        '<rect width="520" height="430" fill="#fff"/>',
        *panels,
        '<text x="280" y="422" text-anchor="middle">concurrent requests</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _panel(points: Sequence[Point], values: Sequence[float], title: str, top: int, bend: Point) -> str:
    left, width, height = 70, 420, 150
    most = max(values) * 1.1
    steps = max(1.0, log2(points[-1].concurrency))
    xs = [left + width * log2(point.concurrency) / steps for point in points]
    ys = [top + height * (1 - value / most) for value in values]
    parts = [f'<path d="M{left} {top}v{height}h{width}" fill="none" stroke="#555"/>']
    parts.append(f'<text x="{left + 8}" y="{top + 10}" font-weight="bold">{title}</text>')
    parts.append(f'<polyline points="{" ".join(f"{x:.0f},{y:.0f}" for x, y in zip(xs, ys, strict=True))}" ')
    parts[-1] += 'fill="none" stroke="#0b62a4" stroke-width="2"/>'
    for point, value, x, y in zip(points, values, xs, ys, strict=True):
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="#0b62a4"/>')
        parts.append(f'<text x="{x:.0f}" y="{y - 8:.0f}" text-anchor="middle" font-size="10">{value:,.4g}</text>')
        parts.append(f'<text x="{x:.0f}" y="{top + height + 16}" text-anchor="middle">{point.concurrency}</text>')
        if point == bend:
            parts.append(f'<path d="M{x:.0f} {top + 16}v{height - 16}" stroke="#c33" stroke-dasharray="4 3"/>')
            parts.append(f'<text x="{x + 4:.0f}" y="{top + height - 6}" fill="#c33">knee</text>')
    return "\n".join(parts)


def main(argv: list[str]) -> None:
    """Measure, print, and draw if a file is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("figure", type=Path, nargs="?", help="SVG to write")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv[1:])
    torch.set_num_threads(options.threads)
    model = load_model(models.resolve("canary").path)
    new, rounds, counts = (4, 1, CONCURRENCIES[:3]) if options.quick else (NEW, 3, CONCURRENCIES)
    runs = [[measure(model, count, new, seed) for count in counts] for seed in range(rounds + 1)]
    points = []
    for same in zip(*runs[1:], strict=True):  # the first round is to warm up
        points.append(Point(same[0].concurrency, statistics.median(point.rate for point in same), same[0].memory))
        print(f"concurrency {points[-1].concurrency}: {points[-1].rate:,.0f} tokens/s, {points[-1].memory:.2f} MiB")
    print(f"knee at {knee(points).concurrency}")
    if options.figure:
        options.figure.write_text(figure(points), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv)
