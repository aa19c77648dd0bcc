"""The auditor: whether an engine's books are right, recomputed from its tables, its index and its owner tags.

It believes no counter and no flag of the parts it checks: who holds a block is counted anew, and what a slot should
hold follows from the tokens of whoever names it.
"""

from collections import Counter, abc, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.footprint import Footprint
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.sequence import Sequence
from kvfence.reference_impl.tags import Indices, Owner, OwnerTags


class Rule(StrEnum):
    """What must hold of an engine at any time."""

    STATE = "state"  # a block is in exactly one of free, idle, used, reserved
    COUNT = "count"  # its references are the table entries that name it
    FLAG = "flag"  # it is marked as published if and only if the index names it
    ENTRY = "entry"  # an index entry names a block of its own that holds exactly its tokens
    TABLE = "table"  # a table names a block once
    HELD = "held"  # a table's blocks hold what its request counts as written
    WRITE = "write"  # a row writes to blocks that nobody else names and nobody can find, padding to scratch
    READ = "read"  # a row reads K/V of its own tokens


@dataclass(frozen=True)
class Breach:
    """A rule broken at one block."""

    rule: Rule
    block: int
    requests: tuple[str, ...]  # who holds it, or reads or writes it and whose K/V it holds
    told: str
    owners: tuple[Owner, ...] = ()  # of what the slots in question hold, where that is another's; one for each request

    def __str__(self) -> str:
        return f"{self.rule}: block {self.block} {self.told}"


class AuditError(Exception):
    """An engine broke a rule; the message has a line for each breach."""

    def __init__(self, breaches: list[Breach]) -> None:
        super().__init__("\n".join(map(str, breaches)))
        self.breaches = breaches


class Auditor:
    """Checks the state of a cache and its sequences when asked, and each forward pass as it runs."""

    def __init__(
        self, cache: KVCache, sequences: Mapping[str, Sequence], tags: OwnerTags, window: int | None = None
    ) -> None:
        self._cache, self._sequences, self._tags, self._window = cache, sequences, tags, window
        self._seen: list[Breach] = []  # of forward passes

    def take(self) -> list[Breach]:
        """The breaches of forward passes since the last call, and those of the present state."""
        seen, self._seen = self._seen, []
        return seen + list(self.state())

    # Forward passes.

    def writes(self, prints: list[Footprint], padding: Indices) -> None:
        """Check what a forward pass is about to write to."""
        size = self._cache.block_size
        holders, index = self._holders(), self._index()
        written = [(one.row.sequence.id, block) for one in prints for block in _unique(one.writes // size)]
        for id, block in written:
            others = tuple(holders[block])
            if others != (id,):
                told = f"is written to by {id} and held by {_names(others)}"
                self._seen.append(Breach(Rule.WRITE, block, (id, *others), told))
            elif block in index:
                self._seen.append(Breach(Rule.WRITE, block, (id,), f"is written to by {id} and published"))
        for block in _unique(padding // size):
            if block != SCRATCH:
                told = f"is written to by padding and held by {_names(holders[block])}"
                self._seen.append(Breach(Rule.WRITE, block, tuple(holders[block]), told))

    def reads(self, prints: list[Footprint]) -> None:
        """Check what a forward pass has read. Owner tags must tell by then what it wrote."""
        for one in prints:
            id = one.row.sequence.id
            last = min(int(one.positions.max()), len(one.reads) - 1)
            visible = np.arange(self._first(int(one.positions.min())), last + 1)
            foreign = visible[~one.own(self._tags)[visible]]
            self._seen += self._others(Rule.READ, id, f"is read by {id}", foreign, one.reads[foreign])

    # State.

    def state(self) -> Iterator[Breach]:
        """Breaches of the present state."""
        index = self._index()
        yield from self._pool(index)
        for request, blocks in self._tables():
            for block, times in Counter(blocks).items():
                if times > 1 and block != SCRATCH:
                    yield Breach(Rule.TABLE, block, (request,), f"stands {times} times in the table of {request}")
        for let_go in self._cache.draining:
            if all(operation.landed for operation in let_go.operations):
                told = "is reserved and no work in flight touches it"
                yield from (Breach(Rule.STATE, block, (let_go.request,), told) for block in let_go.blocks)
        for sequence in self._sequences.values():
            yield from self._held(sequence)
        yield from self._entries(index)

    def _pool(self, index: Counter[int]) -> Iterator[Breach]:
        """What the pool says of each block, beside who holds it and who can find it."""
        pool, states, holders = self._cache.pool, self._states(), self._holders()
        for block in range(pool.size):
            requests = tuple(holders[block])
            if len(states[block]) != 1:
                yield Breach(Rule.STATE, block, requests, f"is {' and '.join(states[block]) or 'in no state'}")
            if pool.references[block] != len(requests):
                told = f"counts {pool.references[block]} references and is held by {_names(requests)}"
                yield Breach(Rule.COUNT, block, requests, told)
            if bool(pool.published[block]) != (block in index):
                told = f"is {'in' if block in index else 'not in'} the index and marked otherwise"
                yield Breach(Rule.FLAG, block, requests, told)
            if ("free" in states[block] and block in index) or ("idle" in states[block] and block not in index):
                told = f"is {states[block][0]} and can{'' if block in index else 'not'} be found"
                yield Breach(Rule.STATE, block, requests, told)

    def _states(self) -> defaultdict[int, list[str]]:
        states: defaultdict[int, list[str]] = defaultdict(list, {SCRATCH: ["reserved"]})
        used = {block for _, blocks in self._tables() for block in blocks} - {SCRATCH}
        draining = {block for let_go in self._cache.draining for block in let_go.blocks} - {SCRATCH}
        pool = self._cache.pool
        named = {"free": pool.free, "idle": pool.idle, "used": used, "reserved": draining - used}
        for state, blocks in named.items():
            for block in blocks:
                states[block].append(state)
        return states

    def _held(self, sequence: Sequence) -> Iterator[Breach]:
        """Whether a table's blocks hold what a sequence counts as written, as far as it can still read it."""
        if any(not operation.landed and operation.stream is not Stream.STEPS for operation in sequence.operations):
            return  # it is on its way there
        tags, n, blocks = self._tags, sequence.written, sequence.table.blocks
        slots = tags.slots(blocks)[:n]
        slots = np.pad(slots, (0, n - len(slots)), constant_values=SCRATCH)
        lineage = np.array(tags.lineages.after(sequence.namespace, sequence.tokens[:n]), np.int64)
        positions = np.arange(self._first(n), n)
        foreign = positions[(tags.lineage(slots) != lineage)[positions]]
        use = f"stands in the table of {sequence.id}"
        yield from self._others(Rule.HELD, sequence.id, use, foreign, slots[foreign])

    def _entries(self, index: Counter[int]) -> Iterator[Breach]:
        tags, size = self._tags, self._cache.block_size
        for block, times in index.items():
            if times > 1:
                yield Breach(Rule.ENTRY, block, (), f"has {times} entries in the index")
        for namespace, tokens, block in self._cache.tree.entries():
            positions = np.arange((len(tokens) - 1) // size * size, len(tokens))
            slots = tags.slots([block])[: len(positions)]
            lineage = np.array(tags.lineages.after(namespace, tokens), np.int64)[positions]
            foreign = tags.lineage(slots) != lineage
            yield from self._others(Rule.ENTRY, None, "is in the index", positions[foreign], slots[foreign])

    def _others(
        self, rule: Rule, request: str | None, use: str, positions: Indices, slots: Indices
    ) -> Iterator[Breach]:
        """A breach for each block among `slots`, which hold others' K/V where `positions` are looked for."""
        blocks = slots // self._cache.block_size
        for block in _unique(blocks):
            there = np.flatnonzero(blocks == block)
            at = int(there[0])
            owner = self._tags.owner(int(slots[at]))
            every = [self._tags.owner(int(slots[i])) for i in there]
            owners = {one.request: one for one in reversed(every) if one}
            holds = f"token {owner.token} at position {owner.position} of {owner.request}" if owner else "nobody's K/V"
            requests = (request, owner.request if owner else None)
            told = f"{use} for position {positions[at]} and holds {holds}"
            named = tuple(one for one in requests if one is not None)
            yield Breach(rule, block, named, told, tuple(owners.values()))

    # Recounted.

    def _tables(self) -> list[tuple[str, list[int]]]:
        """Request and blocks of every table that is in use or retained."""
        live = [(sequence.id, sequence.table.blocks) for sequence in self._sequences.values()]
        return live + [(kept.request, kept.blocks) for kept in self._cache.retained]

    def _holders(self) -> defaultdict[int, list[str]]:
        """For each block the requests that hold it, once for each entry."""
        holders: defaultdict[int, list[str]] = defaultdict(list)
        for request, blocks in [*self._tables(), *((one.request, one.blocks) for one in self._cache.draining)]:
            for block in blocks:
                if block != SCRATCH:
                    holders[block].append(request)
        return holders

    def _index(self) -> Counter[int]:
        """For each block the number of index entries that name it."""
        return Counter(block for _, _, block in self._cache.tree.entries())

    def _first(self, query: int) -> int:
        """The first position that a query sees."""
        return 0 if self._window is None else max(0, query - self._window + 1)


def _unique(blocks: Indices) -> list[int]:
    return list(dict.fromkeys(blocks.tolist()))


def _names(requests: abc.Sequence[str]) -> str:
    return ", ".join(requests) or "nobody"
