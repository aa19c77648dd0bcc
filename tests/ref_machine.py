"""Random schedules on the reference engine: a state machine whose invariants are golden's outputs and a clean audit."""

import sys
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ref_judge import Judge, Tally
from ref_subjects import NAMES, STEMS, subject

from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.settings import PARTS, Parts, Settings
from kvfence.reference_impl.trace import Kind

POOL = 48  # tokens of K/V; prompts take up to 7/8 of it
IDLE, DRAINED = 20, 3000  # steps that may go by without progress, and until all is done

SALTS = (None, "a", "b")
SALT_OF = {"x": None, "y": "a", "z": "b"}  # of each conversation

pick = st.integers(0, 15)  # of a list, modulo its length
requests = st.fixed_dictionaries(
    {
        "stem": st.integers(0, 1),
        "eighths": st.sampled_from((5, 3, 7, 4, 6, 2, 1, 0)),  # of the pool, in whole blocks
        "more": st.sampled_from((0, 0, 1, -1)),  # tokens
        "change": st.sampled_from((None, None, None, 0.0, 0.5, 1.0)),
        "max_tokens": st.sampled_from((8, 12, 5, 3, 2, 1)),
        "salt": st.sampled_from((*SALTS, None, None)),
        "stop": st.sampled_from((None, None, None, 0, 1)),
        "timeout": st.sampled_from((None, None, None, None, None, 4, 12)),
    }
)


@st.composite
def setups(draw: st.DrawFn) -> Settings:
    """Settings in which a few requests fill the pool."""
    size = draw(st.sampled_from((2, 4, 16)))
    depth = draw(st.integers(0, 1))
    return Settings(
        blocks=POOL // size + 2 + draw(st.integers(0, 1)),
        block_size=size,
        max_concurrency=draw(st.sampled_from((8, 3, 8, 3, 8, 3, 1))),
        token_budget=draw(st.sampled_from((32, 7, 512))),
        sharing=draw(st.sampled_from((True, True, True, True, True, False))),
        preemption=draw(st.sampled_from(Preemption)),
        depth=depth,
        remote=draw(st.sampled_from((0, 0, 8))),
        transfer_steps=draw(st.integers(1, 3)),
        draft=0 if depth else draw(st.sampled_from((0, 3))),
        buckets=draw(st.sampled_from(((), (2, 4, 8)))),
        trace=True,
        tags=True,
    )


class Schedules(RuleBasedStateMachine):
    """One engine on one model, and its judge."""

    parts: ClassVar[Parts] = PARTS
    fixed: ClassVar[dict[str, Any]] = {"audit": True}  # settings
    names: ClassVar[tuple[str, ...]] = NAMES
    tally: ClassVar[Tally] = Tally()
    device: ClassVar[str] = "cpu"

    @initialize(data=st.data(), settings=setups(), first=st.lists(requests, min_size=4, max_size=8))
    def open(self, data: st.DataObject, settings: Settings, first: list[dict[str, Any]]) -> None:
        self.subject = subject(data.draw(st.sampled_from(self.names), label="model"), self.device)
        self.subject.use(0)
        self.engine = ReferenceEngine(self.subject.model, replace(settings, **self.fixed), self.parts)
        self.judge = Judge(self.engine, self.subject)
        self.counts = self.judge.counts
        self.counts["schedules"] += 1
        self.submit(first, 2)

    # Requests.

    @rule(batch=st.lists(requests, min_size=1, max_size=4), steps=st.integers(0, 4))
    def submit(self, batch: list[dict[str, Any]], steps: int) -> None:
        size, engine = self.engine.settings.block_size, self.engine
        for asked in batch:
            n, stop = asked["max_tokens"], asked["stop"]
            length = asked["eighths"] * POOL // 8 // size * size + asked["more"]
            prompt = self.subject.prompt(asked["stem"], max(1, min(length, POOL - n + 1)), asked["change"])
            ends = () if stop is None else range(stop, self.subject.vocabulary, 8)
            sequence = engine.submit(self._id(), prompt, n, salt=asked["salt"], stop=ends, timeout=asked["timeout"])
            self.judge.begin(sequence)
        self.step(steps)

    @rule(
        name=st.sampled_from(sorted(SALT_OF)),
        stem=st.integers(2, STEMS - 1),
        length=st.integers(1, 9),
        n=st.integers(1, 6),
        steps=st.integers(0, 9),
    )
    def turn(self, name: str, stem: int, length: int, n: int, steps: int) -> None:
        """The next turn of a conversation, from the start where it grew too long; nothing if one runs."""
        talk = self.engine.conversations.get(name)
        if not (talk and talk.turn):
            prompt = self.subject.prompt(stem, length, None)
            if talk and len(talk.history) + len(prompt) + n > POOL:
                self.engine.edit_history(name, [])
            sequence = self.engine.submit(self._id(), prompt, n, salt=SALT_OF[name], conversation=name)
            self.judge.begin(sequence, name)
        self.step(steps)

    @precondition(lambda self: self.engine.sequences)
    @rule(which=pick)
    def cancel(self, which: int) -> None:
        ids = list(self.engine.sequences)
        id = ids[which % len(ids)]
        self.judge.known[id].cancelled = True
        self.engine.cancel(id)
        self.judge.collect()

    @precondition(lambda self: self.engine.sequences)
    @rule(which=pick, tokens=st.lists(pick, min_size=1, max_size=3, unique=True))
    def fork(self, which: int, tokens: list[int]) -> None:
        self._settle()
        ready = [sequence for sequence in self.engine.sequences.values() if sequence.output]
        if ready:
            parent = ready[which % len(ready)]
            for child in self.engine.fork(parent.id, [self.subject.forced(parent.tokens, i) for i in tokens]):
                self.judge.fork(parent, child)

    @precondition(lambda self: self.engine.scheduler.running)
    @rule(which=pick, how=st.sampled_from(Preemption))
    def preempt(self, which: int, how: Preemption) -> None:
        self._settle()
        if running := self.engine.scheduler.running:
            self.engine.preempt(running[which % len(running)].id, how)
            self.counts["preempted"] += 1

    # The cache and the clock.

    @rule(n=st.integers(1, 5))
    def step(self, n: int) -> None:
        for _ in range(n):
            self._step()

    @precondition(lambda self: any(talk.history and not talk.turn for talk in self.engine.conversations.values()))
    @rule(which=pick, kind=st.sampled_from(("truncate", "insert", "reorder")), at=pick)
    def edit(self, which: int, kind: str, at: int) -> None:
        idle = [talk for talk in self.engine.conversations.values() if talk.history and not talk.turn]
        talk = idle[which % len(idle)]
        history, at = list(talk.history), at % len(talk.history)
        if kind == "truncate":
            del history[at:]
        elif kind == "insert":
            history.insert(at, history[at // 2])
        else:
            history[: at + 1] = history[at::-1]
        self.engine.edit_history(talk.id, history)
        self.counts["edits"] += 1

    @precondition(lambda self: any(self.engine.pool.published))
    @rule(which=pick)
    def evict(self, which: int) -> None:
        """Idle blocks as well as used ones."""
        published = [block for block in range(self.engine.pool.size) if self.engine.pool.published[block]]
        self.engine.cache.evict(published[which % len(published)])

    @precondition(lambda self: self.engine.sequences)
    @rule(weights=st.booleans())
    def forget(self, weights: bool) -> None:
        """Reset the cache, or change the weights."""
        if not weights:
            self.engine.reset_cache()
            return
        self._settle()
        self.judge.new_weights()
        self.subject.use(self.subject.weights + 1)
        self.engine.new_weights()
        self.counts["new weights"] += 1

    # What must hold.

    @invariant()
    def audited(self) -> None:
        self.judge.collect()
        breaches = self.engine.audit() if self.engine.settings.audit else []
        assert not breaches, "\n".join(map(str, breaches))

    def teardown(self) -> None:
        if sys.exc_info()[0]:  # a rule has failed
            return
        engine = self.engine
        self._drain()
        self._settle()
        self._step()
        self.judge.close()
        engine.reset_cache()
        assert sorted(engine.pool.free) == list(range(1, engine.pool.size)), "blocks are missing from the pool"
        left = [*engine.cache.tree.entries(), *engine.cache.draining, *engine.cache.retained]
        left += [*engine.scheduler.waiting, *engine.scheduler.running]
        assert not left
        metrics = engine.metrics
        self.counts.update(steps=len(metrics.steps), hits=metrics.hits, accepted=metrics.accepted)
        self.counts.update({"rejected": metrics.rejected, "preempted for room": metrics.preemptions})
        self.tally.close(self.counts, self.judge.worst)

    def _drain(self) -> None:
        idle = 0
        for _ in range(DRAINED):
            if not self.engine.sequences:
                return
            self._step()
            busy = self.engine.metrics.steps[-1].computed or self.engine.clock.in_flight(Stream.STEPS)
            idle = 0 if busy else idle + 1
            assert idle < IDLE, f"nobody goes on, {len(self.engine.sequences)} wait"
        raise AssertionError(f"{len(self.engine.sequences)} requests never end")

    def _step(self) -> None:
        self._count(Kind.COPY, Kind.FETCH)
        self.judge.hear(self.engine.step())
        self._count(Kind.COPY, Kind.FETCH, Kind.SWAP_IN, Kind.EVICT)
        self.judge.collect()

    def _count(self, *kinds: Kind) -> None:
        seen = Counter(event.kind for event in self.engine.trace.take())
        self.counts.update({f"{kind} events": seen[kind] for kind in kinds})

    def _settle(self) -> None:
        self.engine.settle()
        self.judge.collect()

    def _id(self) -> str:
        return f"r{len(self.judge.known)}"
