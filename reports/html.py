"""HTML: the divergence report, one file that needs nothing else and asks nobody for anything."""

import base64
import hashlib
import json
import math
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from kvfence.reports.matrix import MARKS
from kvfence.reports.records import Run
from kvfence.reports.text import anchor, count, duration, number, shown, token
from kvfence.reports.view import view


def render(run: Run) -> str:
    """The report as one HTML document."""
    style, script = _own("report.css"), _own("report.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    template = _environment().get_template("report.html.jinja")
    return template.render(view=view(run), style=style, script=script, policy=policy, records=_records(run))


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


def _records(run: Run) -> Markup:
    """All records as a JSON array that is inert inside a script element."""
    lines = [run.header, *run.engines, *run.noise, *run.cases, *([run.end] if run.end else [])]
    try:
        text = json.dumps(lines, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(lines), separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
