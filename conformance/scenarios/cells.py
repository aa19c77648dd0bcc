"""Cells, played: what becomes of the values of all factors as requests and operations."""

from collections.abc import Callable
from pathlib import Path

from kvfence.conformance.scenarios.cast import WORDS, Cast, Mirror
from kvfence.conformance.scenarios.factors import MAXIMUM, Cell
from kvfence.conformance.scenarios.scenario import BLOCK, Scenario, Setup
from kvfence.prompts import alphabet
from kvfence.prompts.groups import Layout, Tokens

REQUIREMENT = "cover.combinations"
OUTPUT = 12  # tokens
MOMENT = 3  # tokens that a request has emitted when something is done to it


def write(cell: Cell, layout: Layout, model: Path, mirror: Mirror) -> Scenario:
    """The scenario of a cell."""
    configuration = cell.configuration
    setup = Setup(configuration.sharing, MAXIMUM, None, configuration.chunk, configuration.block)
    cast = Cast(f"{cell.name}-{configuration.dtype}", layout, model, mirror, configuration.block)
    _Play(cast, cell).direct()
    return cast.scenario(cell.name, REQUIREMENT, setup, configuration.dtype, cell)


class _Play:
    """Directs a cast through a cell."""

    def __init__(self, cast: Cast, cell: Cell) -> None:
        self._cast, self._cell = cast, cell
        # Two blocks, and one where there would be more words than the canary has.
        self._blocks = max(1, 2 * BLOCK // cell.configuration.block)
        self._first = cast.prefix(self._blocks, cell.edge)
        self._subject = "R1" if cell.requests > 1 else "R0"

    def direct(self) -> None:
        """All requests, what is done to one of them, and at last one that asks for the first prefix again."""
        before = None  # the last one that will end by itself
        for i in range(self._cell.requests):
            name = f"R{i}"
            self._ask(name, self._prefix(i), before)
            if name == self._subject and self._cell.arrival != "at-once":
                self._operate()
            if name != self._subject or not self._cell.operation.startswith("cancel"):
                before = name
        if self._cell.arrival == "at-once":
            self._operate()
        # Whole blocks of a prefix are cached by now, where anything is.
        whole = (1 + len(self._first)) >= self._cell.configuration.block
        ended = before is not None
        again = self._cast.write("again", self._first, share=1.0)
        hit = self._cell.configuration.sharing and whole and ended
        self._cast.ask("again", again, after=before, n=OUTPUT, hit=hit)

    def _ask(self, name: str, prefix: Tokens, before: str | None) -> None:
        cast, cell = self._cast, self._cell
        operated = name == self._subject
        if operated and cell.operation == "cancel-prefilling":
            # So long that it is being computed for some steps, whatever is found of it.
            prefix = (*prefix, *cast.prefix(1, 2 * (cell.configuration.chunk or 0), beside=(*prefix, *self._first)))
        talk = "talk" if operated and cell.operation in ("continue", "edit") else None
        after = before if cell.arrival == "serial" else None
        at = (before, MOMENT) if before and cell.arrival == "staggered" else None
        cast.ask(name, cast.write(name, prefix, share=1.0), after=after, at=at, n=OUTPUT, talk=talk)

    def _prefix(self, i: int) -> Tokens:
        """The prefix of a request, as it is related to the first."""
        relation, first = self._cell.relation, self._first
        if i == 0 or relation == "equal":
            return first
        if relation == "none":
            return self._cast.prefix(self._blocks, self._cell.edge)
        if relation == "contains":
            return (*first, *self._cast.prefix(1, i % 3, beside=first))
        place = {"differ-first": 0, "differ-middle": len(first) // 2, "differ-last": -1}[relation]
        return self._cast.changed(first, place)

    def _operate(self) -> None:
        """Do what is done to one request."""
        moment = (self._subject, MOMENT)
        does: dict[str, Callable[[], None]] = {
            "nothing": lambda: None,
            "cancel-waiting": lambda: self._cast.cancel(self._subject),
            "cancel-prefilling": self._cancel_prefilling,
            "cancel-decoding": lambda: self._cast.cancel(self._subject, at=moment),
            "fork": lambda: self._cast.fork(self._subject, 2, at=moment),
            "preempt": lambda: self._cast.preempt(self._subject, at=moment),
            "continue": self._go_on,
            "edit": self._edit,
        }
        does[self._cell.operation]()

    def _cancel_prefilling(self) -> None:
        self._cast.step()
        self._cast.cancel(self._subject)

    def _go_on(self) -> None:
        turn = self._cast.write("turn", self._cast.prefix(1))
        self._cast.ask("turn", turn, after=self._subject, n=OUTPUT, talk="talk")

    def _edit(self) -> None:
        opening = self._cast.prompts[self._subject].tokens
        # The canary's answer; for another model it is one more edit.
        history = [*opening, *alphabet.answer(opening, OUTPUT)]
        history[len(self._first) // 2] = self._cast.prefix(1, beside=opening)[0]
        self._cast.edit("talk", history, after=self._subject)
        # Behind its last word an answer is anybody's.
        self._cast.ask("turn", self._cast.write("turn"), n=WORDS, talk="talk")
