"""The machine: a Hypothesis state machine whose rules write a schedule, an operation or a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, precondition, rule

from kvfence.adapters.wire import EngineInfo
from kvfence.conformance.answerable import forkable
from kvfence.conformance.beside import DOMAINS, NOBODY, TENANTS, Beside
from kvfence.conformance.scenarios.cast import Cast
from kvfence.conformance.scenarios.scenario import BLOCK, Setup
from kvfence.prompts import alphabet
from kvfence.prompts.mirror import Part
from kvfence.prompts.prompt import Prompt

MOST = 10  # requests
LONGEST = 384  # tokens of a sequence, so that noise is measured once for all schedules
OUTPUTS = (1, 4, 12, 30, 44)
TURN = 16  # new tokens of a turn
TURNS = 3


ADAPTERS = {"a": Part.KEYS, "b": Part.VALUES}


class Machine(RuleBasedStateMachine):
    """One schedule in the making, which `end` is given. What cannot come any more is not waited for."""

    prefixes: Bundle[Any] = Bundle("prefixes")
    requests: Bundle[Any] = Bundle("requests")

    def __init__(self, cast: Cast, setup: Setup, info: EngineInfo | None, end: Callable[[Cast], None]) -> None:
        super().__init__()
        self._cast, self._setup, self._info, self._end = cast, setup, info, end
        self._room = LONGEST if setup.pool is None else setup.pool - BLOCK
        self._reach: dict[str, int] = {}  # tokens that a request will have emitted at most
        self._withdrawn: set[str] = set()
        self._over: set[str] = set()  # those that have been waited for
        self._of: dict[str, Beside] = {}
        self._turns: dict[str, list[str]] = {}
        self._said: dict[str, tuple[int, ...]] = {}  # the history of each conversation
        self._forked = False
        self._weights = False  # whether they have been exchanged
        self._loaded: set[str] = set()

    def teardown(self) -> None:
        if self._cast.prompts:
            self._end(self._cast)

    # Prefixes.

    @rule(target=prefixes, blocks=st.integers(0, 4), more=st.integers(-1, 1))
    def begin(self, blocks: int, more: int) -> tuple[int, ...]:
        """A prefix of whole blocks, or one token less or more."""
        return self._cast.prefix(blocks, more)

    @rule(target=prefixes, prefix=prefixes, place=st.sampled_from((0, BLOCK - 1, BLOCK, -1)))
    def change(self, prefix: tuple[int, ...], place: int) -> tuple[int, ...]:
        """A prefix that differs from another one in a token."""
        return self._cast.changed(prefix, min(place, len(prefix) - 1)) if prefix else prefix

    @rule(target=prefixes, prefix=prefixes, hashed=st.booleans())
    def resemble(self, prefix: tuple[int, ...], hashed: bool) -> tuple[int, ...]:
        """A prefix with another one's later blocks, or with its rolling hash."""
        return self._cast.twin(prefix) if hashed else self._cast.elsewhere(prefix)

    # Requests.

    @precondition(lambda self: len(self._reach) < MOST)
    @rule(
        target=requests,
        prefix=prefixes,
        n=st.sampled_from(OUTPUTS),
        share=st.sampled_from((0.0, 0.9)),
        beside=st.sampled_from(TENANTS),
    )
    def ask(self, prefix: tuple[int, ...], n: int, share: float, beside: Beside) -> str:
        """A request, at once."""
        return self._ask(self._write(prefix, share), n, beside)

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
        prompt = self._write(prefix, share)
        if ended and other not in self._withdrawn:
            return self._ask(prompt, n, NOBODY, after=other)
        if not self._can("session"):
            return self._ask(prompt, n, NOBODY)
        return self._ask(prompt, n, NOBODY, at=(other, min(tokens, self._reach[other])))

    @precondition(lambda self: 0 < len(self._reach) < MOST)
    @rule(
        target=requests,
        other=requests,
        n=st.sampled_from(OUTPUTS),
        beside=st.sampled_from(DOMAINS),
        ended=st.booleans(),
    )
    def ask_again(self, other: str, n: int, beside: Beside, ended: bool) -> str:
        """What another has asked, by the same tenant or by somebody else; at once, or once it has ended."""
        after = other if ended and other not in self._withdrawn else None
        return self._ask(self._cast.prompts[other], n, beside, after=after)

    @precondition(lambda self: 0 < len(self._reach) < MOST)
    @rule(target=requests, other=requests)
    def go_on(self, other: str) -> str:
        """A request that goes on from what another has said, once it has ended."""
        asked, n = self._cast.prompts[other].tokens, self._reach[other]
        if other in self._withdrawn or self._is_turn(other) or len(asked) + n + 4 * BLOCK > self._room:
            return other
        prompt = self._cast.going_on(self._next, asked, n)
        return self._ask(prompt, BLOCK, self._of[other], after=other)

    @precondition(lambda self: len(self._reach) < MOST)
    @rule(target=requests, right=st.integers(1, 4))
    def mislead(self, right: int) -> str:
        """A request that misleads who guesses from its prompt."""
        return self._ask(self._cast.misleading(self._next, right), 30, NOBODY)

    @precondition(lambda self: self._setup.pool and self._can("session") and 0 < len(self._reach) < MOST)
    @rule(target=requests)
    def crowd_out(self) -> str:
        """Once all have ended, one that takes nearly the whole pool."""
        self._rest()
        return self._ask(self._write(self._cast.prefix(self._room // BLOCK - 1), 0.0), 4, NOBODY)

    # Operations.

    @precondition(lambda self: self._can("session"))
    @rule(request=requests, tokens=st.integers(0, 20))
    def cancel(self, request: str, tokens: int) -> None:
        """Withdraw a request, at the latest one token before its end."""
        if self._touchable(request):
            self._reach[request] = min(tokens, self._reach[request] - 1)
            self._withdrawn.add(request)
            self._cast.cancel(request, at=(request, self._reach[request]))

    @precondition(lambda self: self._can("preempt"))
    @rule(request=requests, tokens=st.integers(0, 20))
    def preempt(self, request: str, tokens: int) -> None:
        """Take a request out of the batch."""
        if self._touchable(request):
            self._cast.preempt(request, at=(request, max(1, min(tokens, self._reach[request] - 1))))

    @precondition(lambda self: self._can("fork"))
    @rule(request=requests, tokens=st.integers(1, 12), children=st.integers(1, 3))
    def fork(self, request: str, tokens: int, children: int) -> None:
        """Fork a request that still has enough to say."""
        prompt, n = self._cast.prompts[request].tokens, self._reach[request]
        if (
            not self._touchable(request)
            or n <= tokens
            or tokens + children + 2 >= len(self._cast.prompts[request].words)
        ):
            return
        if forkable(prompt, n, tokens, self._cast.firsts(request, children, tokens)):
            self._forked = True
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
        if request not in self._withdrawn:
            self._over.add(request)
            self._cast.reset(after=request)

    @precondition(lambda self: self._can("weights") and self._quiet and not self._loaded)
    @rule(part=st.sampled_from((Part.KEYS, Part.VALUES, None)))
    def exchange(self, part: Part | None) -> None:
        """Go on with other weights, or with the first ones again, once all have ended."""
        self._rest()
        self._weights = True
        self._cast.exchange(part)

    @precondition(lambda self: self._loaded and self._quiet)
    @rule(part=st.sampled_from(list(ADAPTERS.values())))
    def load_anew(self, part: Part) -> None:
        """Load another adapter under a name that has been used, once all have ended."""
        self._rest()
        self._cast.load(min(self._loaded), part)

    @precondition(lambda self: self._can("conversations") and self._setup.sharing and len(self._reach) < MOST)
    @rule(target=requests, talk=st.sampled_from(("one", "two")), prefix=prefixes)
    def turn(self, talk: str, prefix: tuple[int, ...]) -> str:
        """The next turn of a conversation, once the one before has ended."""
        turns = self._turns.setdefault(talk, [])
        if len(turns) == min(TURNS, self._room // (3 * BLOCK + TURN)):
            return turns[-1]
        name = f"{talk}{len(turns)}"
        self._over.update(turns)
        prompt = self._cast.write(name, prefix[: 2 * BLOCK] if not turns else self._cast.prefix(1))
        whole = (*self._said.get(talk, ()), *prompt.tokens)
        n = alphabet.unambiguous(whole, TURN)
        self._cast.ask(name, prompt, n=n, talk=talk, after=turns[-1] if turns else None)
        self._reach[name], self._of[name] = n, NOBODY
        self._said[talk] = (*whole, *alphabet.answer(whole, n))
        turns.append(name)
        return name

    @precondition(lambda self: self._turns)
    @rule(at=st.integers(1, 20), end=st.sampled_from((20, 24, None)))
    def edit(self, at: int, end: int | None) -> None:
        """Another history for a conversation: its opening with another token in it, or less of it."""
        talk, turns = next(reversed(self._turns.items()))
        opening = self._cast.prompts[turns[0]].tokens
        self._said[talk] = self._cast.changed(opening, min(at, len(opening) - 3))[:end]
        self._cast.edit(talk, self._said[talk], after=turns[-1])

    @property
    def _next(self) -> str:
        return f"R{len(self._reach)}"

    @property
    def _quiet(self) -> bool:
        """Whether it can be waited for that nobody runs: the ends of forks cannot."""
        return bool(self._reach) and not self._forked and self._can("session")

    def _is_turn(self, request: str) -> bool:
        return any(request in turns for turns in self._turns.values())

    def _touchable(self, request: str) -> bool:
        """Whether a request may run, to be cancelled and the like; a turn withdrawn would leave others waiting."""
        gone = self._withdrawn | self._over
        return request not in gone and self._reach[request] > 1 and not self._is_turn(request)

    def _rest(self) -> None:
        """Wait until all have ended."""
        for request in self._reach:
            if request not in self._withdrawn:
                self._over.add(request)
                self._cast.step(after=request)

    def _write(self, prefix: tuple[int, ...], share: float) -> Prompt:
        prompt = self._cast.write(self._next, prefix, share)
        return prompt if len(prompt.tokens) < self._room else self._cast.write(self._next, (), share)

    def _ask(
        self, prompt: Prompt, n: int, beside: Beside, after: str | None = None, at: tuple[str, int] | None = None
    ) -> str:
        name, of = self._next, self._possible(beside)
        n = min(n, self._room - len(prompt.tokens))
        n = alphabet.unambiguous(prompt.tokens, n)
        self._over |= {after} if after else set()
        self._reach[name], self._of[name] = n, of
        return self._cast.ask(name, prompt, n=n, after=after, at=at, **of._asdict())

    def _possible(self, beside: Beside) -> Beside:
        """As much of it as the engine has; adapters are made for the first weights."""
        able = beside._replace(salt=beside.salt if self._can("salt") else None)
        able = able._replace(media=able.media if self._can("media") else ())
        if not able.adapter or not self._can("adapters") or self._weights:
            return able._replace(adapter=None)
        if able.adapter not in self._loaded:
            self._loaded.add(able.adapter)
            self._cast.load(able.adapter, ADAPTERS[able.adapter])
        return able

    def _can(self, capability: str) -> bool:
        return self._info is not None and self._info.can(capability)
