"""The judge: from what was observed of a case to its outcome, its reason and its findings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kvfence.adapters.api import Completion
from kvfence.conformance.case import Case
from kvfence.conformance.oracles.canary import Owner, Owners, Run, Splice, spellings, splices
from kvfence.conformance.oracles.golden import GoldenEvidence, Tolerance, examine
from kvfence.prompts.groups import Layout
from kvfence.prompts.prompt import Prompt
from kvfence.reference_impl.golden import Verification
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import Finding, Spelling, Trace


@dataclass(frozen=True)
class Observation:
    """One request of a case: what was sent, what came back, and what golden says of it."""

    prompt: Prompt
    completion: Completion
    verification: Verification


@dataclass(frozen=True)
class Control:
    """Whether the cache was hit: the positive control of sharing."""

    shareable: int  # prompt tokens that earlier requests of the case had in common with later ones
    longest: int  # the longest such prefix, tokens
    cached: int | None  # as the engine reported; None = it does not

    @classmethod
    def of(cls, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Self:
        """What a case could share, and what the engine says it did."""
        shared = [
            max((_common(prompt.tokens, other.tokens) for other in prompts[:i]), default=0)
            for i, prompt in enumerate(prompts)
        ]
        told = [completion.cached_tokens for completion in completions]
        cached = None if None in told else sum(n for n in told if n is not None)
        return cls(shareable=sum(shared), longest=max(shared), cached=cached)


@dataclass(frozen=True)
class Ruling:
    """Outcome of a case, why, and the victims found."""

    outcome: Outcome
    reason: str
    findings: tuple[Finding, ...] = ()
    ties: int = 0


@dataclass(frozen=True)
class Evidence:
    """What the oracles say of one request."""

    golden: GoldenEvidence
    runs: tuple[Run, ...]
    splices: tuple[Splice, ...]  # readings of the first word that diverged

    @property
    def harmed(self) -> bool:
        """Whether the request is a victim."""
        return self.golden.divergence is not None or bool(self.runs)

    @property
    def first_step(self) -> int:
        """First output position that is wrong, for a victim."""
        steps = [run.steps[0] for run in self.runs]
        return min(steps + ([self.golden.divergence.step] if self.golden.divergence else []))

    @property
    def source(self) -> Owner | None:
        """The request that leaked: the owner of the longest run, else of a splice that can be read in one way only."""
        if self.runs:
            return max(self.runs, key=lambda run: len(run.words)).owner
        owners = {splice.owner for splice in self.splices}
        return owners.pop() if len(owners) == 1 else None

    @property
    def how(self) -> str:
        """How the source was found, or why it was not."""
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


def ask(case: Case, observation: Observation, tolerance: Tolerance, owners: Owners, layout: Layout) -> Evidence:
    """Ask the oracles about one request."""
    prompt, completion = observation.prompt, observation.completion
    golden = examine(completion.tokens, completion.logprobs, observation.verification, tolerance)
    words = layout.words(completion.tokens)
    step = golden.divergence.step if golden.divergence else -1
    return Evidence(
        golden,
        tuple(spellings(words, prompt.words, owners, case.id)),
        tuple(splices(words, prompt.words, owners, step)),
    )


def rule(case: Case, control: Control, block_size: int | None, findings: tuple[Finding, ...], ties: int) -> Ruling:
    """The outcome of a case from its findings and its positive control."""
    if findings:
        first = min(findings, key=lambda finding: (finding.source is None, finding.first_step))
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        return Ruling(Outcome.VIOLATES, first.summary + more, findings, ties)
    if case.mode != "shared":
        if control.cached:
            return Ruling(
                Outcome.INCONCLUSIVE, f"{control.cached} prompt tokens came from the cache with sharing off", (), ties
            )
        return Ruling(Outcome.CONFORMS, "all outputs are golden's" + _tied(ties), (), ties)
    if control.longest < (block_size or 1):
        return Ruling(Outcome.CONFORMS, "all outputs are golden's; nothing could be shared" + _tied(ties), (), ties)
    if control.cached is None:
        return Ruling(Outcome.NOT_OBSERVABLE, "the engine does not tell whether its cache was hit", (), ties)
    if control.cached == 0:
        return Ruling(
            Outcome.INCONCLUSIVE,
            f"the cache was never hit, though prompts had {control.longest} tokens in common",
            (),
            ties,
        )
    return Ruling(
        Outcome.CONFORMS, f"all outputs are golden's; {control.cached} prompt tokens were shared{_tied(ties)}", (), ties
    )


def finding(
    case: Case,
    observation: Observation,
    evidence: Evidence,
    expected: Sequence[int],
    secrets: dict[str, str],
    layout: Layout,
    epsilon: float,
) -> Finding:
    """Write down one victim. `secrets` names the request of this case that a private word belongs to."""
    prompt, completion, verification = observation.prompt, observation.completion, observation.verification
    source = evidence.source
    return Finding(
        victim=prompt.name,
        first_step=evidence.first_step,
        oracles=(*["golden"] * (evidence.golden.divergence is not None), *["canary"] * bool(evidence.runs)),
        summary=_summary(prompt.name, evidence, case.id),
        source=source.request if source else None,
        source_case=source.case if source else None,
        source_how=evidence.how,
        epsilon=epsilon,
        spellings=tuple(
            Spelling(run.owner.request, run.owner.case, run.steps[0], len(run.words), run.words)
            for run in evidence.runs
        ),
        prompt=prompt.tokens,
        prompt_text=layout.text(prompt.tokens),
        trace=Trace(
            tokens=completion.tokens,
            texts=tuple(layout.texts(completion.tokens)),
            expected_texts=tuple(layout.texts(expected)),
            margins=verification.margins,
            golden_logprobs=verification.logprobs,
            logprobs=completion.logprobs or (),
            owners=_owners(completion.tokens, prompt, evidence, secrets, layout),
        ),
    )


def _owners(
    tokens: Sequence[int], prompt: Prompt, evidence: Evidence, secrets: dict[str, str], layout: Layout
) -> tuple[str | None, ...]:
    """The request each output token belongs to: that of a spelling, else of this case whose private word it is."""
    owners: list[str | None] = [None] * len(tokens)
    for word, step in layout.words(tokens):
        if word not in prompt.words:
            owners[step] = secrets.get(word)
    if evidence.source and not evidence.runs:
        owners[evidence.first_step] = evidence.source.request
    for run in evidence.runs:
        for step in run.steps:
            owners[step] = run.owner.request
    return tuple(owners)


def _summary(victim: str, evidence: Evidence, case: str) -> str:
    source, divergence = evidence.source, evidence.golden.divergence
    where = f" of {source.case}" if source and source.case != case else ""
    if evidence.runs:
        best = max(evidence.runs, key=lambda run: len(run.words))
        words = " ".join(best.words[:6]) + (" …" if len(best.words) > 6 else "")
        return f"request {victim} answered with {len(best.words)} words of request {best.owner.request}{where}: {words}"
    assert divergence is not None
    if source:
        first = evidence.splices[0]
        return f"request {victim} answered {first.word}, part {first.foreign} of request {source.request}{where}"
    size = f"{divergence.size:.3g} {'logits' if divergence.by == 'margin' else 'nats'}"
    return f"request {victim} left golden at output token {divergence.step} ({divergence.by} off by {size})"


def _tied(ties: int) -> str:
    return f" up to {ties} numeric tie{'s' if ties > 1 else ''}" if ties else ""


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Common prefix of two prompts that a cache could serve: the last token is always computed."""
    limit = min(len(a), len(b)) - 1
    return next((i for i in range(limit) if a[i] != b[i]), limit)
