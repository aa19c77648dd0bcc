"""Evidence: what was observed of one request, and what every oracle says of it."""

from dataclasses import dataclass

from kvfence.adapters.api import Completion
from kvfence.conformance.oracles.attention import AttentionEvidence, Comparison, Thresholds
from kvfence.conformance.oracles.canary import Owner, Owners, Run, Splice, spellings, splices
from kvfence.conformance.oracles.golden import GoldenEvidence, Tolerance, examine
from kvfence.conformance.oracles.kv import KVEvidence
from kvfence.conformance.oracles.side import SideEvidence, TimeEvidence
from kvfence.conformance.oracles.slots import Breach
from kvfence.conformance.oracles.twin import TwinEvidence, Verdict
from kvfence.prompts.groups import Layout
from kvfence.prompts.prompt import Prompt
from kvfence.reference_impl.golden import Verification
from kvfence.reports.score import TAGS


@dataclass(frozen=True)
class Observation:
    """One request of a case: what was sent, what came back, what was seen of it, and golden beside it."""

    prompt: Prompt
    completion: Completion
    verification: Verification
    attention: Comparison | None = None  # None = not observed
    breaches: tuple[Breach, ...] = ()  # that hit this request
    kv: KVEvidence | None = None
    side: SideEvidence | None = None
    kv_judged: bool = False
    media: bool = False  # whether the prompt holds any
    adapted: bool = False  # whether an adapter was to be used
    twin: TwinEvidence | None = None
    times: TimeEvidence | None = None


@dataclass(frozen=True)
class Evidence:
    """What the oracles say of one request."""

    golden: GoldenEvidence
    runs: tuple[Run, ...]
    splices: tuple[Splice, ...]  # readings of the first word that diverged
    attention: AttentionEvidence | None
    breaches: tuple[Breach, ...]
    kv: KVEvidence | None = None
    side: SideEvidence | None = None
    twin: TwinEvidence | None = None
    times: TimeEvidence | None = None

    @property
    def oracles(self) -> tuple[str, ...]:
        """Names of the oracles that found something; a request is a victim if any did."""
        found = {
            "golden": self.golden.divergence is not None,
            "canary": bool(self.runs),
            "attention": self.attention is not None,
            "blocks": bool(self.breaches),
            "kv": self.kv is not None,
            "side": self.side is not None or self.times is not None,
            "twin": self.twin is not None and self.twin.verdict is Verdict.DEPENDS,
        }
        return tuple(name for name, fired in found.items() if fired)

    @property
    def changed_step(self) -> int | None:
        """First output position that is wrong; None where the output itself shows nothing."""
        steps = [run.steps[0] for run in self.runs]
        steps += [self.golden.divergence.step] if self.golden.divergence else []
        return min(steps, default=None)

    @property
    def first_step(self) -> int:
        """First output position that is wrong, else the step at which attention moved, else 0; for a victim."""
        if self.changed_step is not None:
            return self.changed_step
        return self.attention.step if self.attention else 0

    @property
    def source(self) -> Owner | None:
        """The request that leaked, by the first of: owner tags, the log, equal K/V, words, hits, exchanged secrets."""
        return next((owner for owner, _ in self._attributions if owner), None)

    @property
    def how(self) -> str:
        """How the source was found, or why it was not."""
        return next((how for owner, how in self._attributions if owner), self._spelled_how)

    @property
    def _attributions(self) -> list[tuple[Owner | None, str]]:
        """Sources with how they were found, the surest first."""
        found: list[tuple[Owner | None, str]] = []
        for tag, probability in self.attention.foreign if self.attention else ():
            if tag:
                whose = f"keys of request {_owner(tag).request}"
                met = f"up to {100 * probability:.3g} % of a head's attention went to {whose}"
                found.append((_owner(tag), f"{TAGS}: {met}"))
        if self._logged:
            found.append((_owner(self._logged.source), f"the log of the cache: it {self._logged.told}"))
        if self.kv and self.kv.source:
            at = f"position {self.kv.positions[0]} holds the K/V of position {self.kv.source_position}"
            found.append((self.kv.source, f"its cache: {at} of request {self.kv.source.request}"))
        found.append((self._spelled, self._spelled_how))
        if self.side and self.side.source:
            whose = f"request {self.side.source.request}, whose {self.side.differs} is another"
            found.append((self.side.source, f"{self.side.cached} tokens were cached, which only {whose}, had sent"))
        if self.twin and len(self.twin.sources) == 1:
            name = self.twin.sources[0]
            found.append((_owner(name), f"only request {_owner(name).request}'s secret, exchanged, changes its answer"))
        return found

    @property
    def _logged(self) -> Breach | None:
        """The breach that names the source: one whose K/V or words are met too, else the last that names any."""
        named = [breach for breach in self.breaches if breach.source]
        met = {self.kv.source if self.kv else None, self._spelled}
        # Of several that wrote to one place the last one's K/V are there.
        return next((b for b in named if _owner(b.source) in met), named[-1] if named else None)

    @property
    def _spelled(self) -> Owner | None:
        """Owner of the longest run, else of a splice that can be read in one way only."""
        if self.runs:
            return max(self.runs, key=lambda run: len(run.words)).owner
        owners = {splice.owner for splice in self.splices}
        return owners.pop() if len(owners) == 1 else None

    @property
    def _spelled_how(self) -> str:
        if self.runs:
            best = max(self.runs, key=lambda run: len(run.words))
            return f"{len(best.words)} consecutive words in the order of request {best.owner.request}'s prompt"
        if not self.splices:
            return "not attributed: the output spells no other request's words"
        names = sorted({splice.owner.request for splice in self.splices})
        first = self.splices[0]
        reading = f"{first.word} is {first.due}, which was due, spliced with {first.foreign}"
        if len({splice.owner for splice in self.splices}) > 1:
            return f"not attributed: {reading} or others, of requests {', '.join(names)}"
        return f"{reading}, which follows {first.after} in request {names[0]}'s prompt"


def ask(
    case: str,
    observation: Observation,
    tolerance: Tolerance,
    thresholds: Thresholds | None,
    owners: Owners,
    layout: Layout,
) -> Evidence:
    """Ask the oracles about one request; without `thresholds` attention is judged by owner tags only."""
    prompt, completion = observation.prompt, observation.completion
    golden = examine(completion.tokens, completion.logprobs, observation.verification, tolerance)
    words = layout.words(completion.tokens)
    step = golden.divergence.step if golden.divergence else -1
    moved = observation.attention.examine(thresholds or Thresholds.boundless()) if observation.attention else None
    return Evidence(
        golden,
        tuple(spellings(words, prompt.words, owners, case)),
        tuple(splices(words, prompt.words, owners, step)),
        moved,
        observation.breaches,
        observation.kv,
        observation.side,
        observation.twin,
        observation.times,
    )


def _owner(request: str | None) -> Owner:
    case, _, name = (request or "").rpartition("/")
    return Owner(case, name)
