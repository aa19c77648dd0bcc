"""Frames: the records of a run as flat pandas tables."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas

from kvfence.reports.groups import judged
from kvfence.reports.records import Run

_RUN = ("run", "engine", "model", "profile", "seed")
_CASE = ("case", "requirement", "mode", "layout", "edge", "company", "concurrency", "dtype")
_VERDICT = (
    "outcome", "reason", "engine_seconds", "suite_seconds", "shareable_tokens", "cached_tokens", "positions",
    "ties", "reproduce",
)  # fmt: skip
_POSITION = {
    "victim": "str", "source": "str", "step": "int64", "token": "Int64", "text": "str", "expected": "str",
    "changed": "bool", "margin": "float64", "epsilon": "float64", "golden_logprob": "float64",
    "logprob": "float64", "logprob_difference": "float64", "owner": "str",
}  # fmt: skip
_REQUEST = ("request", "group", "prompt_tokens", "prefix_tokens", "cached_tokens", "secret")
_COMPARED = ("edit_distance", "first_changed", "largest_margin", "attention_step", "attention_shift")
_WHOLE = ("shareable_tokens", "cached_tokens", "edit_distance", "first_changed", "attention_step")


def cases(run: Run) -> pandas.DataFrame:
    """One row per case: what was run, the verdict, and how many requests and findings it has.

    Times are seconds; token counts that the engine did not tell are missing.
    """
    header = {name: run.header[name] for name in _RUN}
    rows = [
        {
            **header,
            **{name: case[name] for name in (*_CASE, *_VERDICT)},
            "requests": len(case["requests"]),
            "findings": len(case["findings"]),
        }
        for case in run.cases
    ]
    return _frame(rows, (*_RUN, *_CASE, *_VERDICT, "requests", "findings"))


def positions(run: Run) -> pandas.DataFrame:
    """One row per output position of each finding; margins in logits, logprobs in nats.

    What the engine did not report is missing; ``changed`` compares texts with golden's.
    """
    rows = [
        {**{name: case[name] for name in _CASE}, **row}
        for case in run.cases
        for finding in case["findings"]
        for row in _positions(finding)
    ]
    return _frame(rows, (*_CASE, *_POSITION)).astype(_POSITION)


def requests(run: Run) -> pandas.DataFrame:
    """One row per request of each case; ``output`` is its token ids separated by spaces.

    Margins are logits, steps 0-based output positions, shifts total variation; what was not computed, did not change or
    was not observed is missing. Only where ``attention_judged`` does a missing ``attention_step`` say that it did not
    move.
    """
    rows = [
        {
            **{name: case[name] for name in _CASE},
            "outcome": case["outcome"],
            **{name: request[name] for name in (*_REQUEST, *_COMPARED)},
            "attention_judged": request["attention_shift"] is not None and judged(run.noise, case),
            "output_tokens": len(request["output"]),
            "output": " ".join(map(str, request["output"])),
        }
        for case in run.cases
        for request in case["requests"]
    ]
    frame = _frame(rows, (*_CASE, "outcome", *_REQUEST, *_COMPARED, "attention_judged", "output_tokens", "output"))
    return frame.astype({"largest_margin": "float64", "attention_shift": "float64", "attention_judged": "bool"})


def _positions(finding: dict[str, Any]) -> Iterable[dict[str, Any]]:
    trace = finding["trace"]
    for step in range(max(len(trace["tokens"]), len(trace["texts"]))):
        golden, engine = _at(trace["golden_logprobs"], step), _at(trace["logprobs"], step)
        text, expected = _at(trace["texts"], step), _at(trace["expected_texts"], step)
        yield {
            "victim": finding["victim"],
            "source": finding["source"],
            "step": step,
            "token": _at(trace["tokens"], step),
            "text": text,
            "expected": expected,
            "changed": expected is not None and text != expected,
            "margin": _at(trace["margins"], step),
            "epsilon": finding["epsilon"],
            "golden_logprob": golden,
            "logprob": engine,
            "logprob_difference": abs(engine - golden) if None not in (engine, golden) else None,
            "owner": _at(trace["owners"], step),
        }


def _at(values: Sequence[Any], step: int) -> Any:
    return values[step] if step < len(values) else None


def _frame(rows: list[dict[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    clean = [{name: _encodable(value) for name, value in row.items()} for row in rows]
    frame = pandas.DataFrame(clean, columns=list(columns))
    return frame.astype({name: "Int64" for name in _WHOLE if name in columns})


def _encodable(value: Any) -> Any:
    # Arrow strings and every file format refuse lone surrogates.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
