"""A scenario as it was played: what each request really had before it, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvfence.adapters.api import Completion, EngineFaultError, Request
from kvfence.adapters.check import check_completion
from kvfence.adapters.player import Played
from kvfence.adapters.schedule import Operation, Verb
from kvfence.conformance.oracles.side import Domain
from kvfence.conformance.oracles.slots import Mark
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.prompts.groups import Layout, Tokens
from kvfence.prompts.prompt import Prompt

PLAIN = Domain()


@dataclass(frozen=True)
class Part:
    """One request of a scenario: its whole prompt, what it must not share, and its answer as far as there is one."""

    request: Request
    prompt: Prompt  # history and, of a fork, what its parent had emitted, included
    domain: Domain
    completion: Completion | None  # what was emitted behind `prompt`
    cut: bool = False  # whether it was withdrawn
    era: int = 0  # resets of the cache before it
    over: int | None = None  # resets before it was known to have ended; None = it may go on behind all of them

    @property
    def tokens(self) -> Tokens:
        """Prompt and output."""
        return (*self.prompt.tokens, *(self.completion.tokens if self.completion else ()))


def check_played(scenario: Scenario, played: object, vocabulary: int) -> Played:
    """What was played, or EngineFaultError saying how it cannot be of this scenario."""
    if not isinstance(played, Played):
        raise EngineFaultError(f"the player must return a Played, got {type(played).__name__}")
    requests = {op.request.id: op.request for op in scenario.schedule if op.request}
    for completion in played.completions:
        if not isinstance(completion, Completion):
            raise EngineFaultError(f"a session must give each Completion as such, got {type(completion).__name__}")
        request = requests.get(played.parents.get(completion.id, completion.id))
        if request is None:
            raise EngineFaultError(f"a completion came for {completion.id}, which was not asked for")
        forced = -1
        if completion.id in played.parents and completion.forced is not None:
            forced = completion.forced
        if rest := _behind(completion, forced + 1):
            # What a fork has from its parent is judged there; of the token it was given there may be no logprob.
            left = replace(request, id=completion.id, max_tokens=request.max_tokens - forced - 1)
            check_completion(left, rest, vocabulary)
    if not played.missed and (lost := _lost(scenario, played)):
        raise EngineFaultError(f"request {lost} was neither answered nor withdrawn")
    return played


def _lost(scenario: Scenario, played: Played) -> str | None:
    """A request, or a fork of one, of which nothing has come, though nobody withdrew it and it did not fail."""
    submitted = [operation.request.id for operation in scenario.schedule if operation.request]
    withdrawn = {operation.target for operation in scenario.schedule if operation.verb is Verb.CANCEL}
    accounted = withdrawn.union(played.failed, (completion.id for completion in played.completions))
    return next((id for id in (*submitted, *played.parents) if id not in accounted), None)


def parts(scenario: Scenario, played: Played, layout: Layout) -> list[Part]:
    """The requests of a scenario in the order in which they were handed over, each followed by its forks."""
    stage = _Stage(scenario, played, layout)
    for operation in scenario.schedule:
        stage.follow(operation)
    return [replace(part, over=stage.over.get(part.request.id)) for part in stage.parts]


class _Stage:
    """What an engine has been told so far."""

    def __init__(self, scenario: Scenario, played: Played, layout: Layout) -> None:
        self._scenario, self._layout = scenario, layout
        self._done = {completion.id: completion for completion in played.completions}
        self._played = played
        self._histories: dict[str, Tokens] = {}
        self._turns: dict[str, Part] = {}  # the last one of each conversation
        self._adapters: dict[str, str] = {}
        self._weights = ""
        self._era = 0
        self.over: dict[str, int] = {}  # resets before requests had ended, of those that were waited for or withdrawn
        self.parts: list[Part] = []

    def follow(self, operation: Operation) -> None:
        if operation.when and operation.when.tokens is None:
            self.over.setdefault(operation.when.request, self._era)
        match operation.verb:
            case Verb.CANCEL:
                self.over.setdefault(operation.target, self._era)
            case Verb.SUBMIT:
                assert operation.request is not None
                self._submit(operation.request)
            case Verb.EDIT:
                self._history(operation.target)
                self._histories[operation.target] = operation.tokens
            case Verb.ADAPTER:
                self._adapters[operation.target] = operation.folder
            case Verb.RESET:
                self._era += 1
            case Verb.WEIGHTS:
                own = _original(self._scenario, operation.folder)
                self._weights = "" if own else operation.folder

    def _submit(self, request: Request) -> None:
        name = request.id.rpartition("/")[2]
        if name in self._scenario.refused and request.id in self._played.failed:
            return  # the engine has taken nothing of it
        written = self._scenario.prompts[name]
        history = self._history(request.conversation) if request.conversation else ()
        prompt = self._prompt(written, name, (*history, *request.prompt))
        adapter = (request.adapter, self._adapters.get(request.adapter, "")) if request.adapter else None
        media = tuple((item.position, item.content) for item in request.media)
        domain = Domain(request.salt, adapter, media, self._weights)
        completion = self._done.get(request.id)
        cut = completion is None
        if completion is None and (emitted := self._played.emitted.get(request.id)):
            completion = Completion(request.id, emitted)
        part = Part(request, prompt, domain, completion, cut, self._era)
        self.parts.append(part)
        if request.conversation:
            self._turns[request.conversation] = part
        self._forks(part)

    def _forks(self, parent: Part) -> None:
        for child, of in self._played.parents.items():
            completion = self._done.get(child)
            if of != parent.request.id or completion is None or parent.completion is None:
                continue
            forced = completion.forced
            if forced is None:
                forced = _first_difference(parent.completion.tokens, completion.tokens)
            begun = completion.tokens[: forced + 1]
            prompt = self._prompt(parent.prompt, child.rpartition("/")[2], (*parent.prompt.tokens, *begun))
            if rest := _behind(completion, forced + 1):
                self.parts.append(Part(replace(parent.request, id=child), prompt, parent.domain, rest, era=self._era))

    def _history(self, talk: str) -> Tokens:
        """The tokens of a conversation up to now; a turn that was withdrawn leaves nothing."""
        last = self._turns.pop(talk, None)
        if last is not None and not last.cut:
            self._histories[talk] = last.tokens
        return self._histories.get(talk, ())

    def _prompt(self, written: Prompt, name: str, tokens: Tokens) -> Prompt:
        words = written.words if tokens == written.tokens else tuple(word for word, _ in self._layout.words(tokens))
        return replace(written, name=name, tokens=tokens, words=words)


def marked(part: Part) -> list[Mark]:
    """Prompt and output of a part, and what their K/V depend on beside."""
    return marks(part.tokens, part.domain)


def marks(tokens: Sequence[int], domain: Domain = PLAIN) -> list[Mark]:
    """Tokens with what their K/V depend on beside: equal as far as K/V may be shared."""
    media = dict(domain.media)
    shown: tuple[tuple[int, str], ...] = ()
    row: list[Mark] = []
    for position, token in enumerate(tokens):
        if position in media:
            shown = (*shown, (position, media[position]))
        row.append(Mark(token, domain.salt, domain.adapter, domain.weights, shown))
    return row


def _original(scenario: Scenario, folder: str) -> bool:
    return Path(folder) == scenario.model


def _behind(completion: Completion, n: int) -> Completion | None:
    """A completion without its first tokens; None if nothing is left."""
    if not n or len(completion.tokens) <= n:
        return None if n else completion
    return replace(
        completion,
        tokens=completion.tokens[n:],
        logprobs=completion.logprobs[n:] if completion.logprobs else None,
        top_logprobs=completion.top_logprobs[n:] if completion.top_logprobs else None,
        cached_tokens=None,
    )


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)) - 1)
