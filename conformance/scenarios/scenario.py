"""A scenario: a schedule with the prompts it is made of, the engine it needs and what must happen for it to count."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvfence.adapters.api import Request
from kvfence.adapters.schedule import Schedule, Verb
from kvfence.conformance.scenarios.factors import Cell
from kvfence.prompts.edges import Edge
from kvfence.prompts.prompt import Prompt

BLOCK = 16  # tokens; what engines are asked for


@dataclass(frozen=True)
class Setup:
    """How an engine is opened for a scenario. Sizes are tokens; None leaves the choice to the engine."""

    sharing: bool = True
    concurrency: int = 8
    pool: int | None = None
    chunk: int | None = None
    block: int = BLOCK


ROOMY = Setup()
PRIVATE = Setup(sharing=False)
CHUNKED = Setup(chunk=32)
TIGHT = Setup(pool=208, chunk=48, concurrency=4)
SMALL = Setup(pool=112, chunk=48, concurrency=3)
TIGHT_PRIVATE = Setup(sharing=False, pool=208, chunk=48, concurrency=4)


@dataclass(frozen=True)
class Scenario:
    """One scenario in one dtype. Its id is the same in every run."""

    name: str  # family and what happens, such as "cancel.decoding"
    requirement: str
    setup: Setup
    dtype: str
    layout: str
    schedule: Schedule
    prompts: Mapping[str, Prompt]  # as they were sent, by name of the request
    hits: tuple[str, ...]  # names of requests that must have been served from the cache
    model: Path  # the folder of the model that it is for
    arms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names of requests whose times are compared
    refused: tuple[str, ...] = ()  # names of requests that the engine must not take
    cell: Cell | None = None  # the values of factors that it was made of, if it was
    edge: Edge = Edge("-", None)  # noqa: RUF009 - frozen
    company: str = "-"

    @property
    def id(self) -> str:
        return f"{self.name}-{self.dtype}"

    def short(self, id: str) -> str:
        """The short name of a request or conversation of this scenario."""
        return id.removeprefix(f"{self.id}/")

    @property
    def unprovided(self) -> Request | None:
        """The first request for an adapter that nothing before it loads: it would meet one that others have left."""
        loaded: set[str | None] = {None}
        for operation in self.schedule:
            request = operation.request
            if operation.verb is Verb.ADAPTER:
                loaded.add(operation.target)
            if request and request.adapter not in loaded and self.short(request.id) not in self.refused:
                return request
        return None

    @property
    def topic(self) -> str:
        """The pytest topic it belongs to."""
        return "scenario"

    @property
    def mode(self) -> str:
        apart = self.cell is not None and self.cell.arrival == "serial"
        return "shared" if self.setup.sharing else "serial" if apart else "independent"

    @property
    def concurrency(self) -> int:
        return self.cell.requests if self.cell else self.setup.concurrency

    @property
    def length(self) -> int:
        """Tokens of the longest sequence; turns of all conversations count as one."""
        requests = [operation.request for operation in self.schedule if operation.request]
        sizes = {request.id: len(request.prompt) + request.max_tokens for request in requests}
        turns = sum(sizes[request.id] for request in requests if request.conversation)
        return max(turns, *sizes.values())

    def __hash__(self) -> int:
        return hash(self.id)
