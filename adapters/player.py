"""The player of schedules: drives an opened engine through one, and says what came of it."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter

from kvfence.adapters.api import Completion, Engine, EngineFaultError, RefusedError, Session, Support
from kvfence.adapters.check import check_answer
from kvfence.adapters.observation import Observed
from kvfence.adapters.schedule import Moment, Operation, Schedule, Verb, waves


@dataclass(frozen=True)
class Played:
    """What an engine did with a schedule."""

    completions: tuple[Completion, ...] = ()  # of requests that ended by themselves, forks among them
    emitted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of every request, also of one cut short
    failed: Mapping[str, str] = field(default_factory=dict)  # requests that the engine refused or gave up, and why
    parents: Mapping[str, str] = field(default_factory=dict)  # of forks
    missed: str = ""  # the operation whose moment never came, or was refused: the schedule ended with it; one line
    observed: Observed = field(default_factory=Observed)
    first_token: Mapping[str, float] = field(default_factory=dict)  # seconds from handing over to the first token


def play(engine: Engine, schedule: Schedule) -> Played:
    """Run a schedule, in batches where the engine has no sessions. Raises EngineFaultError if it cannot be run so."""
    known = engine.capabilities.get("session")
    if known is not None and known.state is Support.SUPPORTED:
        return _Performance(engine).run(schedule)
    batches = waves(schedule)
    if batches is None:
        raise EngineFaultError("the engine has no sessions, and this schedule is more than batches")
    completions = [completion for batch in batches for completion in check_answer(engine.generate(batch))]
    emitted = {completion.id: tuple(completion.tokens) for completion in completions}
    return Played(tuple(completions), emitted, observed=engine.observe())


class _Performance:
    """One schedule on one session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session: Session = engine.session()
        self._emitted: defaultdict[str, list[int]] = defaultdict(list)
        self._done: dict[str, Completion] = {}
        self._failed: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        self._handed: dict[str, float] = {}  # over, at what time
        self._first: dict[str, float] = {}
        # Names of forks by the engine's: "A.0" and "A.1" of A, however often it is played.
        self._ours: dict[str, str] = {}

    def run(self, schedule: Schedule) -> Played:
        missed = ""
        try:
            for operation in schedule:
                if operation.when and not self._wait(operation.when):
                    missed = _missed(operation)
                    break
                try:
                    self._do(operation)
                except RefusedError as error:
                    if operation.verb is not Verb.SUBMIT:
                        missed = f"{operation.verb} {operation.target} was refused: {error}"
                        break
                    self._failed[operation.target] = str(error)
            while self._step():
                pass
        finally:
            self._session.close()
        emitted = {id: tuple(tokens) for id, tokens in self._emitted.items()}
        done = tuple(self._done.values())
        observed = _named(self._engine.observe(), self._ours)
        return Played(done, emitted, self._failed, self._parents, missed, observed, self._first)

    def _wait(self, moment: Moment) -> bool:
        """Step until a moment has come; False if it never does."""
        while not self._come(moment):
            if not self._step():
                return self._come(moment)
        return True

    def _come(self, moment: Moment) -> bool:
        if moment.tokens is None:
            return moment.request in self._done
        return len(self._emitted[moment.request]) >= moment.tokens

    def _step(self) -> bool:
        """Run one forward pass; False if there is nothing left to do."""
        emitted = {self._name(id): tokens for id, tokens in self._session.step().items()}
        now = perf_counter()
        self._first |= {
            id: now - self._handed.pop(id) for id, tokens in emitted.items() if tokens and id in self._handed
        }
        for id, tokens in emitted.items():
            self._emitted[id] += tokens
        for completion in self._session.completions():
            name = self._name(completion.id)
            self._done[name] = completion if name == completion.id else replace(completion, id=name)
        self._failed |= {self._name(id): why for id, why in self._session.failures().items()}
        return bool(emitted)

    def _name(self, id: str) -> str:
        return self._ours.get(id, id)

    def _do(self, operation: Operation) -> None:
        session, engine, target = self._session, self._engine, operation.target
        theirs = next((id for id, name in self._ours.items() if name == target), target)
        match operation.verb:
            case Verb.SUBMIT:
                assert operation.request is not None
                self._handed[operation.request.id] = perf_counter()
                session.submit(operation.request)
            case Verb.CANCEL:
                session.cancel(theirs)
            case Verb.FORK:
                for child in session.fork(theirs, operation.tokens):
                    name = f"{target}.{sum(of == target for of in self._parents.values())}"
                    self._ours[child] = name
                    self._parents[name] = target
            case Verb.PREEMPT:
                session.preempt(theirs)
            case Verb.EDIT:
                session.edit(target, operation.tokens)
            case Verb.RESET:
                engine.reset_cache()
            case Verb.ADAPTER:
                engine.load_adapter(target, operation.folder)
            case Verb.WEIGHTS:
                engine.load_weights(operation.folder)
            case Verb.STEP:
                self._step()


def _named(observed: Observed, ours: Mapping[str, str]) -> Observed:
    """What was observed, with our names of forks."""
    if not ours:
        return observed
    events = (replace(e, request=ours[e.request]) if e.request in ours else e for e in observed.events)
    attention = {ours.get(id, id): seen for id, seen in observed.attention.items()}
    return Observed(attention, tuple(events), {ours.get(id, id): seen for id, seen in observed.kv.items()})


def _missed(operation: Operation) -> str:
    assert operation.when is not None
    moment = operation.when
    what = "ended" if moment.tokens is None else f"emitted {moment.tokens} tokens"
    return f"{operation.verb} {operation.target} waited until {moment.request} had {what}, which it never has"
