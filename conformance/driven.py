"""What an engine did with a case, before anybody judges it."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvfence.adapters.api import Completion
from kvfence.adapters.observation import KV, Attention, CacheEvent
from kvfence.adapters.wire import EngineInfo
from kvfence.conformance.control import Control
from kvfence.conformance.oracles.side import Domain, SideEvidence, TimeEvidence
from kvfence.conformance.oracles.slots import Breach
from kvfence.conformance.oracles.twin import TwinEvidence
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.subject import Subject
from kvfence.prompts.prompt import Prompt
from kvfence.reports.outcome import Outcome

PRIMER = "primer"  # name of requests that only bring a prefix into the cache, with a number behind


@dataclass(frozen=True)
class Answer:
    """One request as it was sent, what came back, and what was seen of it."""

    prompt: Prompt
    completion: Completion
    attention: Attention | None = None
    breaches: tuple[Breach, ...] = ()  # of the rules of ownership, that hit it
    kv: KV | None = None
    domain: Domain = Domain()  # noqa: RUF009 - frozen
    side: SideEvidence | None = None
    cut: bool = False  # whether it was withdrawn
    twin: TwinEvidence | None = None
    times: TimeEvidence | None = None


@dataclass(frozen=True)
class Driven:
    """What an engine did with a case: answers in the order its requests were sent, or why there are none."""

    case: Subject
    info: EngineInfo | None = None
    answers: tuple[Answer, ...] = ()
    control: Control | None = None
    events: tuple[CacheEvent, ...] = ()
    seconds: float = 0.0  # that the engine's calls took
    outcome: Outcome | None = None  # decided already, without an oracle
    reason: str = ""  # of that, or why silence shows nothing

    @property
    def words(self) -> Mapping[str, tuple[str, ...]]:
        """The words that each request has brought along, by name."""
        if isinstance(self.case, Scenario):
            return {name: prompt.words for name, prompt in self.case.prompts.items()}
        return {answer.prompt.name: answer.prompt.words for answer in self.answers}
