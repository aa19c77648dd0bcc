"""A sequence: one request as the engine runs it, its tokens, its blocks, and how far it has come."""

from collections import abc
from dataclasses import dataclass, field
from enum import StrEnum
from math import nan

from kvfence.reference_impl.attention import Attended
from kvfence.reference_impl.clock import Operation
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.storage import Pages


class Status(StrEnum):
    """Where a sequence is."""

    WAITING = "waiting"  # for a place in the batch; a fork, a fetched prefix and a next turn hold blocks already
    FETCHING = "fetching"  # its prefix is on its way from the remote store
    RUNNING = "running"  # in prefill or decoding
    SWAPPED = "swapped"  # preempted; its K/V are on the host
    FINISHED = "finished"


class Finish(StrEnum):
    """Why a sequence ended."""

    LENGTH = "length"
    STOP = "stop"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    FAILED = "failed"


class BlockTable:
    """Which block holds which of a sequence's positions: position p is in entry p // block_size."""

    def __init__(self, block_size: int, blocks: abc.Sequence[int] = ()) -> None:
        self.block_size = block_size
        self.blocks = list(blocks)

    @property
    def capacity(self) -> int:
        """Positions that the table has room for."""
        return len(self.blocks) * self.block_size


@dataclass
class Swapped:
    """K/V of a preempted sequence on the host; `pages` once they have arrived there."""

    written: int
    holes: int  # blocks at the beginning that it had let go of
    pages: Pages | None = None


@dataclass(eq=False)
class Sequence:
    """One request as it runs. Positions are counted in tokens from the first of its prompt."""

    id: str
    tokens: list[int]  # prompt and output
    prompt: int  # tokens of the prompt
    max_tokens: int  # of output
    namespace: Namespace
    table: BlockTable
    stop: frozenset[int] = frozenset()
    deadline: int | None = None  # the step at which it times out
    status: Status = Status.WAITING
    finish: Finish | None = None
    error: str = ""
    computed: int = 0  # positions whose K/V are in the table or on their way there
    written: int = 0  # of these, those that have landed
    published: int = 0  # of these, those that others can find
    pending: int = 0  # tokens that launched steps will emit
    cached: int = 0  # prompt tokens taken from the prefix pool
    emitted: int = 0  # output tokens handed out
    operations: list[Operation] = field(default_factory=list)  # in flight, that touch its blocks
    swapped: Swapped | None = None
    logprobs: list[float] = field(default_factory=list)  # nats, of each output token
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)  # best first
    attention: list[Attended] = field(default_factory=list)  # of each output token, where it is observed
    submitted: int = 0  # step
    admitted: int | None = None  # step of the first forward pass
    preemptions: int = 0
    pause: int | None = None  # output tokens after which it waits, to be forked
    origin: str = ""  # the request whose fork, or fork's fork, it is
    forced: int | None = None  # of a fork, the output position of the token it was given

    @property
    def length(self) -> int:
        """Tokens that there are or that a launched step will emit."""
        return len(self.tokens) + self.pending

    @property
    def output(self) -> list[int]:
        """Tokens emitted so far. One withdrawn with a step in flight may have got more, which are nobody's."""
        return self.tokens[self.prompt : self.prompt + self.emitted]

    @property
    def left(self) -> int:
        """Output tokens that it may go on for and that no launched step will emit."""
        most = self.max_tokens if self.pause is None else min(self.pause, self.max_tokens)
        return self.prompt + most - self.length

    @property
    def decoding(self) -> bool:
        """Whether all but the last token have been computed."""
        return self.computed >= self.length - 1 and self.length > self.prompt

    def fork(self, id: str, token: int, now: int) -> "Sequence":
        """A child without blocks, submitted at step `now`: the same tokens, but `token` in place of the last one."""
        child = Sequence(
            id,
            [*self.tokens[:-1], token],
            self.prompt,
            self.max_tokens,
            self.namespace,
            BlockTable(self.table.block_size),
            self.stop,
            self.deadline,
            emitted=len(self.tokens) - self.prompt - 1,
            submitted=now,
            origin=self.origin or self.id,
            forced=len(self.tokens) - self.prompt - 1,
        )
        if self.top_logprobs:
            # Of a forced token that is not among the best nothing is known.
            forced = dict(self.top_logprobs[-1]).get(token, nan)
            child.logprobs = [*self.logprobs[:-1], forced]
            child.top_logprobs = list(self.top_logprobs)
        # The query that the forced token comes from is that of the token in its place.
        child.attention = list(self.attention)
        return child

    def in_flight(self) -> list[Operation]:
        """Operations that have not landed; others are forgotten."""
        self.operations = [operation for operation in self.operations if not operation.landed]
        return self.operations


@dataclass(frozen=True)
class Row:
    """A sequence's part of one forward pass: positions from `start` on, in the blocks it had when it was planned."""

    sequence: Sequence
    start: int
    stop: int
    blocks: tuple[int, ...]
    samples: int  # of its last positions, those whose logits are wanted
    draft: tuple[int, ...] = ()  # tokens guessed, at the end of the row
