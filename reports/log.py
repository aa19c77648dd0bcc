"""Log: the uses of the cache in one case and what they tell of one victim."""

from dataclasses import dataclass
from typing import Any

LINES = 64  # shown; more of them take too much room in a page of many
KINDS = {
    "length": "Slot length",
    "key": "Prefix key",
    "overlap": "Two writers",
    "owner": "Two owners",
    "free": "Released wrongly",
    "table": "Stray write",
    "fork": "Fork or next turn",
    "lock": "Global lock",
}


@dataclass(frozen=True)
class Told:
    """One tell-tale: which procedure, what it says, and the request it points to, "" for none."""

    kind: str
    sentence: str
    source: str


@dataclass(frozen=True)
class Log:
    """``lines`` are (record, role) in their order; ``left`` lines are not shown."""

    told: tuple[Told, ...]
    lines: tuple[tuple[dict[str, Any], str], ...]
    left: int


def log(case: dict[str, Any], finding: dict[str, Any]) -> Log | None:
    """The tell-tales that are about a finding's victim, and the case's log; None where there is neither.

    Of a log that is too long the victim's and the source's lines are kept first, then the earliest.
    """
    told = tuple(_told(case, each) for each in case["telltales"] if each["victim"] in ("", finding["victim"]))
    if not told and not case["log"]:
        return None
    lines = [(line, role(case, finding, line["request"])) for line in case["log"]]
    kept = sorted(sorted(range(len(lines)), key=lambda i: (not lines[i][1], i))[:LINES])
    return Log(told, tuple(lines[i] for i in kept), len(lines) - len(kept) + case["log_left_out"])


def _told(case: dict[str, Any], telltale: dict[str, Any]) -> Told:
    source, of = telltale["source"], telltale["source_case"]
    where = "" if of in (None, case["case"]) else f" of case {of}"
    sentence = telltale["told"]
    return Told(
        KINDS.get(telltale["kind"], telltale["kind"]),
        sentence[:1].upper() + sentence[1:],
        "" if source is None else f"request {source}{where}",
    )


def role(case: dict[str, Any], finding: dict[str, Any], request: str) -> str:
    """What a request of the log is to a finding: "victim", "source" or nothing."""
    source, of = finding["source"], finding["source_case"]
    if request == finding["victim"]:
        return "victim"
    if source is None:
        return ""
    # The log names requests of other cases in full.
    return "source" if request == (source if of in (None, case["case"]) else f"{of}/{source}") else ""
