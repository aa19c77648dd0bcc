"""HTML: the divergence report and the comparison, files that need nothing else and ask nobody for anything."""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from kvfence.reports.comparison import Changes, Column, requirements_of
from kvfence.reports.matrix import MARKS
from kvfence.reports.records import Run
from kvfence.reports.text import anchor, count, duration, number, shown, token
from kvfence.reports.view import view

UNPACKED = 1  # cards that need no script to be read


def render(run: Run) -> str:
    """The report as one HTML document."""
    script, environment, seen = _own("report.js"), _environment(), view(run)
    body = environment.get_template("card.html.jinja")
    packed = {card.id: _packed(body.render(card=card)) for card in seen.cards[UNPACKED:]}
    template = environment.get_template("report.html.jinja")
    return template.render(
        **_style(f"'{_hash(script)}'"), view=seen, script=script, packed=packed, records=_packed(_records(run))
    )


def render_comparison(columns: Sequence[Column], changed: Changes | None) -> str:
    """Runs side by side as one HTML document; `changed` is what changed where there are two of them."""
    template = _environment().get_template("comparison.html.jinja")
    rows = [(name, [each.cell(name) for each in columns]) for name in requirements_of(columns)]
    return template.render(**_style("'none'"), columns=columns, rows=rows, changed=changed)


def _style(scripts: str) -> dict[str, str]:
    """The style sheet, and the policy by which nothing but it and some scripts is taken."""
    style = _own("report.css")
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src {scripts}; "
    return {"style": style, "policy": f"{policy}base-uri 'none'; form-action 'none'"}


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_own),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        anchor=anchor, block=_block, counted=count, duration=duration, figure=number, ids=_ids, token=token
    )
    environment.globals["marks"] = MARKS
    return environment


def _finalize(value: Any) -> Any:
    """Every expression of the template comes by here: text is made visible before it is escaped."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return "—"
    return shown(value) if isinstance(value, str) else value


def _block(text: str) -> Markup:
    """Text of several lines."""
    return escape(shown(text, keep="\n\t"))


def _ids(tokens: list[int], limit: int = 4_000) -> str:
    return " ".join(map(str, tokens[:limit])) + (" …" if len(tokens) > limit else "")


def _own(name: str) -> Markup:
    return Markup(resources.files("kvfence.reports").joinpath(name).read_text("utf-8"))


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _packed(text: str) -> Markup:
    """Text as gzip in base64, a sixth of its size: a page of fifty cards as they are opens too slowly."""
    return Markup(base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode())


def _records(run: Run) -> str:
    """All records as a JSON array, without the logs of the cache: they are nine tenths of the bytes."""
    cases = [{**case, "log": [], "log_left_out": len(case["log"]) + case["log_left_out"]} for case in run.cases]
    lines = [run.header, *run.engines, *run.noise, *cases, *([run.end] if run.end else [])]
    try:
        return json.dumps(lines, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(lines), separators=(",", ":"))


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
