"""Facts: what is known of one victim beside that it is one, as short names that the class-naming table goes by.

A name is "group:what". Groups: first (the rule of ownership that broke first in the case), case (rules that broke
there), kv (what was wrong in the cache), got (how those K/V came there), read (how the cache was read), out (how the
answer is wrong), side (what two domains differ in that met), with (what the victim was put through, and the model) and
solo (what becomes of one request at a time).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvfence.adapters.observation import Action, CacheEvent
from kvfence.adapters.schedule import Operation, Verb
from kvfence.conformance.driven import Answer, Driven
from kvfence.conformance.evidence import Evidence, Observation
from kvfence.conformance.oracles.canary import Owner
from kvfence.conformance.oracles.kv import KVEvidence
from kvfence.conformance.scenarios.scenario import Scenario

IMPRECISE = 0.25  # of the largest element: what is off by less was rounded, and not exchanged
MOST = 0.75  # of the positions of a line: a few K/V are alike for many tokens
BEYOND = 0.01  # of a query's attention
LAID = (Action.WRITE, Action.COPY, Action.RESTORE, Action.FETCH)
BROUGHT = (*LAID, Action.REUSE, Action.FORK)


def facts(driven: Driven, observation: Observation, evidence: Evidence) -> frozenset[str]:
    """All that is known of a victim."""
    request = f"{driven.case.id}/{observation.prompt.name}"
    found = set(_with(driven, observation))
    found |= set(_rules(driven))
    found |= set(_out(observation, evidence))
    if evidence.side:
        found.add(f"side:{evidence.side.differs or 'nobody'}")
        if evidence.side.possible and evidence.side.cached == evidence.side.possible + 1:
            found.add("side:one-more")
    if evidence.kv:
        found |= set(_kv(evidence.kv, Owner(driven.case.id, observation.prompt.name)))
        found |= set(_got(request, evidence.kv, driven.events))
        if _adapted(evidence.kv, observation.prompt.name, driven.answers):
            found.add("kv:adapter")
    harmed = evidence.kv or evidence.attention or evidence.golden.divergence
    if any(event.action is Action.RESTORE for event in driven.events):
        found.add("case:restored")
    if observation.kv_judged and harmed and not (evidence.kv and _stored(evidence.kv)):
        found.add("read:wrong")
    if evidence.attention:
        found.add("read:beyond" if evidence.attention.beyond > BEYOND else "read:attention")
    return frozenset(found)


def _rules(driven: Driven) -> Iterator[str]:
    """Which rules broke for anybody, and which did first: what came later may come of that."""
    places = {id(event): i for i, event in enumerate(driven.events)}
    breaches = [breach for answer in driven.answers for breach in answer.breaches]
    yield from {f"case:{breach.kind}" for breach in breaches}
    if breaches:
        first = min(breaches, key=lambda breach: places.get(id(breach.event), -1))
        yield f"first:{first.kind}"
        yield f"first:{first.kind}:{first.cause}"
        since = driven.events[places.get(id(first.event), -1) + 1 :]
        if first.kind == "free" and any(e.request == first.event.request and e.action is Action.WRITE for e in since):
            yield "first:free:parked"


def _with(driven: Driven, observation: Observation) -> Iterator[str]:
    """What the victim was put through."""
    case, name = driven.case, observation.prompt.name
    yield "with:sharing" if case.mode == "shared" else "with:no-sharing"
    if observation.completion.cached_tokens:
        yield "with:hit"
    if not isinstance(case, Scenario):
        return
    schedule, request = case.schedule, f"{case.id}/{name}"
    parent = _parent(schedule, request)
    own = next((op.request for op in schedule if op.request and op.request.id in (request, parent)), None)
    if parent:
        yield "with:fork"
    touched = {op.verb for op in schedule if op.target in (request, parent)}
    yield from (f"with:{verb}" for verb in touched if verb in (Verb.PREEMPT, Verb.FORK))
    if own and own.conversation:
        yield "with:turn"
        if any(op.verb is Verb.EDIT and op.target == own.conversation for op in schedule):
            yield "with:edit"
    if case.setup.chunk:
        yield "with:chunks"
    if case.setup.pool:
        yield "with:tight"
    yield from _lived([event for event in driven.events if event.request == request])


def _lived(events: Sequence[CacheEvent]) -> Iterator[str]:
    """What the log says the victim went through."""
    yield from {f"with:{event.action}" for event in events if event.action in BROUGHT[1:]}
    held: set[int] = set()
    written: set[int] = set()
    ended = False
    for event in events:
        if event.action is Action.FREE:
            held.discard(event.slot)
            ended = ended or (not held and bool(written))
        elif event.action in (Action.ALLOCATE, Action.REUSE, Action.FORK):
            held.add(event.slot)
        elif event.action is Action.WRITE:
            span = range(event.position, event.position + event.length)
            if ended:
                yield "with:again"  # it had let go of everything, and was taken up again
            elif not written.isdisjoint(span):
                yield "with:rewrites"
            written.update(span)


def _parent(schedule: Sequence[Operation], request: str) -> str | None:
    """The request that this one is a fork of."""
    stem, _, number = request.rpartition(".")
    forked = {op.target for op in schedule if op.verb is Verb.FORK}
    return stem if number.isdecimal() and stem in forked else None


def _out(observation: Observation, evidence: Evidence) -> Iterator[str]:
    """How the answer is wrong."""
    golden = evidence.golden
    if any(math.isnan(logprob) for logprob in observation.completion.logprobs or ()):
        yield "out:no-number"
    if golden.divergence is None:
        return
    step, tokens = golden.divergence.step, observation.completion.tokens
    yield "out:first" if step == 0 else "out:later"
    yield f"out:{golden.divergence.by}"
    if evidence.runs or evidence.splices:
        yield "out:foreign"
    if evidence.source and evidence.source.request == observation.prompt.name:
        yield "out:own"
    if step > 0 and tokens[step] == tokens[step - 1]:
        yield "out:doubled"
    wrong = sum(a != b for a, b in zip(tokens, observation.verification.choices, strict=True))
    if wrong == 1:
        yield "out:once"


def _kv(wrong: KVEvidence, own: Owner) -> Iterator[str]:
    """What is wrong in the cache."""
    if wrong.relative < IMPRECISE:
        yield "kv:imprecise"
    yield "kv:whole" if wrong.whole else "kv:cells"
    if wrong.scaled:
        yield "kv:scaled"
    yield "kv:stored" if _stored(wrong) else "kv:derived"
    if wrong.first_layer == ("K",):
        yield "kv:turned"  # V does not depend on the position, K does
    if wrong.source is None:
        yield "kv:nobody"
    else:
        yield "kv:own" if wrong.source == own else "kv:foreign"
        if wrong.source.case != own.case:
            yield "kv:earlier"
    yield "kv:one-position" if len(wrong.positions) == 1 else "kv:positions"
    if np.diff(wrong.positions).max(initial=1) > 1:
        yield "kv:scattered"


def _adapted(wrong: KVEvidence, name: str, answers: Sequence[Answer]) -> bool:
    """Whether the K/V are what the request's own tokens give by another one's adapter."""
    known = {answer.prompt.name: answer for answer in answers}
    own, other, n = known[name], known.get(wrong.source.request if wrong.source else ""), wrong.positions[0] + 1
    if other is None or wrong.source_position != wrong.positions[0] or other.domain.adapter == own.domain.adapter:
        return False
    mine, theirs = ((*answer.prompt.tokens, *answer.completion.tokens)[:n] for answer in (own, other))
    return mine == theirs and replace(other.domain, adapter=own.domain.adapter) == own.domain


def _stored(wrong: KVEvidence) -> bool:
    """Whether K/V are wrong by themselves, and were not computed from wrong reads.

    K/V of layer 0 are made of one token only, and what is read wrongly moves the residual that all heads are made of.
    """
    return bool(wrong.first_layer) or wrong.one_head


def block_of(request: str, evidence: Evidence, events: Sequence[CacheEvent]) -> int | None:
    """The block that a victim was hit through, as far as it is seen."""
    if evidence.breaches:
        return evidence.breaches[0].event.slot
    taken = _taken(request, evidence.kv.positions[0], events) if evidence.kv else None
    return taken.slot if taken else None


def _taken(request: str, position: int, events: Sequence[CacheEvent]) -> CacheEvent | None:
    """The line by which a request came to the K/V of a position, last."""
    return _last(events, lambda e: e.request == request and e.action in BROUGHT and _holds(e, position))


def _got(request: str, wrong: KVEvidence, events: Sequence[CacheEvent]) -> Iterator[str]:
    """How the K/V of the first wrong position came to be the request's, and there."""
    position = wrong.positions[0]
    taken = _taken(request, position, events)
    if taken is None:
        if events:
            yield "got:nothing"
        return
    place = taken.start + position - taken.position
    before = _last(events[: events.index(taken)], lambda e: _lays(e, taken.slot, place) and e.request != request)
    if before and wrong.source and before.request == f"{wrong.source.case}/{wrong.source.request}":
        yield "kv:left"  # by who had the slot before
    yield f"got:{taken.action}"
    yield _spread(request, taken.action, wrong, events)
    if _written_meanwhile(wrong, taken, events):
        yield "got:meanwhile"
    since = [e for e in events[events.index(taken) + 1 :] if e.request == request]
    freed = next((i for i, e in enumerate(since) if e.action is Action.FREE and e.slot == taken.slot), len(since))
    if any(e.action is Action.WRITE for e in since[freed:]):
        yield "got:lost"  # it let go of them, and went on without
    if taken.action in (Action.REUSE, Action.FORK):
        laid = _last(events[: events.index(taken) + 1], lambda e: _lays(e, taken.slot, place))
        if laid:
            yield f"got:{taken.action}:{laid.action}"


def _spread(request: str, action: Action, wrong: KVEvidence, events: Sequence[CacheEvent]) -> str:
    """How much is wrong of what came to a request in one way: all lines of the log, some of them, or parts of lines."""
    off = set(wrong.positions)
    lines = [e for e in events if e.request == request and e.action is action]
    spans = [range(e.position, e.position + max(e.length, 1)) for e in lines]
    shares = [sum(position in off for position in span) / len(span) for span in spans]
    if all(share >= MOST for share in shares):
        return "got:all"
    return "got:lines" if all(share >= MOST or share == 0 for share in shares) else "got:some"


def _written_meanwhile(wrong: KVEvidence, taken: CacheEvent, events: Sequence[CacheEvent]) -> bool:
    """Whether the K/V found were computed while what they stand for was on its way."""
    source, position = wrong.source, wrong.source_position
    if source is None or position is None:
        return False
    name = f"{source.case}/{source.request}"
    asked = next((i for i, e in enumerate(events) if e.request == taken.request), 0)
    between = events[asked : events.index(taken)]
    return any(e.request == name and e.action is Action.WRITE and _holds(e, position) for e in between)


def _lays(event: CacheEvent, slot: int, offset: int) -> bool:
    """Whether K/V came to an offset of a slot with this line."""
    return event.slot == slot and event.action in LAID and 0 <= offset - event.start < max(event.length, 1)


def _holds(event: CacheEvent, position: int) -> bool:
    return 0 <= position - event.position < max(event.length, 1)


def _last(events: Sequence[CacheEvent], wanted: Callable[[CacheEvent], bool]) -> CacheEvent | None:
    return next((event for event in reversed(events) if wanted(event)), None)
