"""Diff: an engine's tokens against golden's, ten a line, with the owners of foreign words."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 10
COLOURS, PATTERNS = 8, 5


@dataclass(frozen=True)
class Owner:
    """A request whose words turned up elsewhere. ``colour`` and ``pattern`` together tell 40 owners apart."""

    label: str
    colour: int
    pattern: int
    words: int
    told: str  # which request this is
    secret: str


@dataclass(frozen=True)
class Token:
    """One output position; texts are None where a side has no token there."""

    step: int
    expected: str | None
    got: str | None
    owner: Owner | None

    @property
    def changed(self) -> bool:
        return self.expected != self.got


@dataclass(frozen=True)
class Segment:
    """Neighbouring lines of tokens; ``equal`` ones hold nothing of interest and start folded."""

    equal: bool
    lines: tuple[tuple[Token, ...], ...]

    @property
    def first(self) -> int:
        return self.lines[0][0].step

    @property
    def last(self) -> int:
        return self.lines[-1][-1].step


class Owners:
    """Every request name of a run with a colour and an underline pattern of its own, neighbours far apart."""

    def __init__(self, cases: Iterable[dict[str, Any]]) -> None:
        names = {owner for case in cases for owner in _names(case)}
        self._index = {name: i for i, name in enumerate(sorted(names, key=_natural))}

    def of(self, case: dict[str, Any], finding: dict[str, Any]) -> dict[tuple[str, str], Owner]:
        """The foreign owners in one finding, by request and case, most words first."""
        counts: dict[tuple[str, str], int] = {}
        for step, name in enumerate(finding["trace"]["owners"]):
            if name is not None:
                key = (name, spelled_case(case, finding, step, name))
                counts[key] = counts.get(key, 0) + 1
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        return {key: self._owner(case, key, words) for key, words in ranked}

    def _owner(self, case: dict[str, Any], key: tuple[str, str], words: int) -> Owner:
        name, of = key
        here = of == case["case"]
        index = self._index[name] + (0 if here else COLOURS // 2)
        secrets = [request["secret"] for request in case["requests"] if here and request["request"] == name]
        return Owner(
            label=name if here else f"{name}*",
            colour=index % COLOURS,
            pattern=index % PATTERNS,
            words=words,
            told=f"request {name} of the same batch" if here else f"request {name} of case {of}",
            secret=secrets[0] if secrets else "",
        )


def spelled_case(case: dict[str, Any], finding: dict[str, Any], step: int, name: str) -> str:
    """The case an owner belongs to: by the spelling at the step, else the finding's source, else this."""
    for spelling in finding["spellings"]:
        if spelling["request"] == name and spelling["start"] <= step < spelling["start"] + spelling["length"]:
            return str(spelling["case"])
    if finding["source"] == name and finding["source_case"]:
        return str(finding["source_case"])
    return str(case["case"])


def segments(case: dict[str, Any], finding: dict[str, Any], owners: dict[tuple[str, str], Owner]) -> list[Segment]:
    """The whole output; stretches of at least two lines that equal golden are one folded segment."""
    tokens = list(_tokens(case, finding, owners))
    lines = [tuple(tokens[i : i + WIDTH]) for i in range(0, len(tokens), WIDTH)]
    found: list[Segment] = []
    for line in lines:
        equal = not any(token.changed or token.owner for token in line)
        if found and found[-1].equal == equal:
            found[-1] = Segment(equal, (*found[-1].lines, line))
        else:
            found.append(Segment(equal, (line,)))
    return [each if len(each.lines) > 1 else Segment(False, each.lines) for each in found]


def _tokens(case: dict[str, Any], finding: dict[str, Any], owners: dict[tuple[str, str], Owner]) -> Iterable[Token]:
    trace = finding["trace"]
    for step in range(max(len(trace["texts"]), len(trace["expected_texts"]))):
        name = at(trace["owners"], step)
        owner = None if name is None else owners[name, spelled_case(case, finding, step, name)]
        yield Token(step, at(trace["expected_texts"], step), at(trace["texts"], step), owner)


def at(values: Sequence[Any], step: int) -> Any:
    """The value at a step, or None where there is none."""
    return values[step] if step < len(values) else None


def _names(case: dict[str, Any]) -> Iterable[str]:
    yield from (request["request"] for request in case["requests"])
    for finding in case["findings"]:
        yield from (owner for owner in finding["trace"]["owners"] if owner is not None)


def _natural(name: str) -> tuple[int, str]:
    # A0, B0, C0, A1 ...: requests of one batch follow each other and so differ in colour and pattern.
    digits = re.search(r"\d{1,9}$", name)
    return (int(digits[0]) if digits else -1, name)
