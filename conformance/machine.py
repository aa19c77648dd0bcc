"""The machine: a Hypothesis state machine whose rules write a schedule, an operation or a few at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, precondition, rule

from kvfence.adapters.wire import EngineInfo
from kvfence.conformance.scenarios.scenario import BLOCK
from kvfence.conformance.shrink import ROUNDS

if TYPE_CHECKING:
    from kvfence.conformance.scenarios.scenario import Setup
    from kvfence.conformance.search import Search

MOST = 8  # requests
OUTPUTS = (1, 4, 12, 30, 44)
TURN = 16  # new tokens of a turn
TURNS = 3


class Machine(RuleBasedStateMachine):
    """One schedule in the making. What cannot come any more is not waited for."""

    prefixes: Bundle[Any] = Bundle("prefixes")
    requests: Bundle[Any] = Bundle("requests")

    def __init__(self, search: Search, setup: Setup, info: EngineInfo | None) -> None:
        super().__init__()
        self._search, self._setup, self._info = search, setup, info
        self._cast = search.cast()
        self._reach: dict[str, int] = {}  # tokens that a request will have emitted at most
        self._cut: set[str] = set()
        self._turns: dict[str, list[str]] = {}

    def teardown(self) -> None:
        if self._cast.prompts:
            self._search.examine(self._search.scenario(self._cast, self._setup))

    @rule(target=prefixes, blocks=st.integers(0, 4), more=st.integers(-1, 1))
    def begin(self, blocks: int, more: int) -> tuple[int, ...]:
        """A prefix of whole blocks, or one token less or more."""
        return self._cast.prefix(blocks, more)

    @rule(target=prefixes, prefix=prefixes, place=st.sampled_from((0, BLOCK - 1, BLOCK, -1)))
    def change(self, prefix: tuple[int, ...], place: int) -> tuple[int, ...]:
        """A prefix that differs from another one in a token."""
        return self._cast.changed(prefix, min(place, len(prefix) - 1)) if prefix else prefix

    @precondition(lambda self: len(self._reach) < MOST)
    @rule(
        target=requests,
        prefix=prefixes,
        n=st.sampled_from(OUTPUTS),
        share=st.sampled_from((0.0, 0.9)),
        salt=st.sampled_from((None, None, "x", "y")),
    )
    def ask(self, prefix: tuple[int, ...], n: int, share: float, salt: str | None) -> str:
        """A request, at once."""
        return self._ask(prefix, n, share, salt)

    @precondition(lambda self: 0 < len(self._reach) < MOST)
    @rule(
        target=requests,
        prefix=prefixes,
        other=requests,
        n=st.sampled_from(OUTPUTS),
        share=st.sampled_from((0.0, 0.9)),
        ended=st.booleans(),
        tokens=st.integers(0, 20),
    )
    def ask_later(self, prefix: tuple[int, ...], other: str, n: int, share: float, ended: bool, tokens: int) -> str:
        """A request, once another has ended or has emitted so many tokens."""
        if ended and other not in self._cut:
            return self._ask(prefix, n, share, None, after=other)
        if not self._can("session"):
            return self._ask(prefix, n, share, None)
        return self._ask(prefix, n, share, None, at=(other, min(tokens, self._reach[other])))

    @precondition(lambda self: self._can("session"))
    @rule(request=requests, tokens=st.integers(0, 20))
    def cancel(self, request: str, tokens: int) -> None:
        """Withdraw a request, at the latest one token before its end."""
        if request not in self._cut and self._reach[request] > 1:
            self._reach[request] = min(tokens, self._reach[request] - 1)
            self._cut.add(request)
            self._cast.cancel(request, at=(request, self._reach[request]))

    @precondition(lambda self: self._can("preempt"))
    @rule(request=requests, tokens=st.integers(0, 20))
    def preempt(self, request: str, tokens: int) -> None:
        """Take a request out of the batch."""
        if request not in self._cut and self._reach[request] > 1:
            self._cast.preempt(request, at=(request, min(tokens, self._reach[request] - 1)))

    @precondition(lambda self: self._can("fork"))
    @rule(request=requests, tokens=st.integers(1, 12), children=st.integers(1, 3))
    def fork(self, request: str, tokens: int, children: int) -> None:
        """Fork a request that still has enough to say."""
        words = len(self._cast.prompts[request].words)
        if request not in self._cut and self._reach[request] > tokens and tokens + children + 2 < words:
            self._cast.fork(request, children, at=(request, tokens))

    @precondition(lambda self: self._can("session"))
    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        """Run forward passes."""
        self._cast.step(times)

    @precondition(lambda self: self._can("reset_cache") and self._can("session"))
    @rule(request=requests)
    def reset(self, request: str) -> None:
        """Forget everything cached, once a request has ended."""
        if request not in self._cut:
            self._cast.reset(after=request)

    @precondition(lambda self: self._can("conversations") and self._setup.sharing and len(self._reach) < MOST)
    @rule(target=requests, talk=st.sampled_from(("one", "two")), prefix=prefixes)
    def turn(self, talk: str, prefix: tuple[int, ...]) -> str:
        """The next turn of a conversation, once the one before has ended."""
        turns = self._turns.setdefault(talk, [])
        if len(turns) == TURNS:
            return turns[-1]
        name = f"{talk}{len(turns)}"
        self._cast.ask(name, prefix[: 2 * BLOCK], n=TURN, talk=talk, after=turns[-1] if turns else None)
        # A turn that is withdrawn would leave those behind it waiting.
        self._cut.add(name)
        self._reach[name] = TURN
        turns.append(name)
        return name

    def _ask(
        self,
        prefix: tuple[int, ...],
        n: int,
        share: float,
        salt: str | None,
        after: str | None = None,
        at: tuple[str, int] | None = None,
    ) -> str:
        name = f"R{len(self._reach)}"
        prompt = self._cast.write(name, prefix, share)
        n = self._reach[name] = min(n, ROUNDS * len(prompt.words))
        return self._cast.ask(name, prompt, n=n, salt=salt if self._can("salt") else None, after=after, at=at)

    def _can(self, capability: str) -> bool:
        return self._info is not None and self._info.can(capability)
