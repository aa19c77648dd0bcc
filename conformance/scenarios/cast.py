"""The cast of a scenario: writes its prompts and notes its operations, in the order in which it is told them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from kvfence.adapters.api import Media, Request
from kvfence.adapters.schedule import Moment, Operation, Verb
from kvfence.conformance.scenarios.factors import Cell
from kvfence.conformance.scenarios.order import ORDER
from kvfence.conformance.scenarios.scenario import BLOCK, ROOMY, Scenario, Setup
from kvfence.prompts import alphabet
from kvfence.prompts.groups import Layout, Tokens
from kvfence.prompts.mirror import Part
from kvfence.prompts.prompt import Prompt
from kvfence.prompts.word_layout import DECK

WORDS = 8  # of a prompt beside its prefix that are private or asked for
OUTPUT = 28  # tokens

Mirror = Callable[[Part, str], Path]  # the folder of a mirror of the run's model: as an "adapter" or as a "model"


class Cast:
    """Prompts and operations of one scenario. Requests are called by short names, such as "A"."""

    def __init__(self, id: str, layout: Layout, model: Path, mirror: Mirror, block: int = BLOCK) -> None:
        self._id, self._layout, self._model, self._mirror, self._block = id, layout, model, mirror, block
        self.operations: list[Operation] = []
        self.prompts: dict[str, Prompt] = {}
        self.hits: list[str] = []
        self.refused: list[str] = []
        self.arms: dict[str, tuple[str, ...]] = {}

    def scenario(self, name: str, requirement: str, setup: Setup, dtype: str, cell: Cell | None = None) -> Scenario:
        """All that was noted, as a scenario."""
        return Scenario(
            name,
            requirement,
            setup,
            dtype,
            self._layout.name,
            tuple(self.operations),
            self.prompts,
            tuple(self.hits),
            self._model,
            self.arms,
            tuple(self.refused),
            cell,
        )

    # Prompts.

    def prefix(self, blocks: int, more: int = 0, beside: Tokens = ()) -> Tokens:
        """A fresh prefix that fills so many blocks, BOS included, and `more` tokens (or fewer); none is in `beside`."""
        return self._layout.prefix("assistant", max(0, blocks * self._block - self._before + more), beside)

    def changed(self, prefix: Tokens, at: int) -> Tokens:
        """A prefix with another token at one place."""
        at %= len(prefix)
        return (*prefix[:at], self._layout.another(prefix), *prefix[at + 1 :])

    def twin(self, prefix: Tokens) -> Tokens:
        """A prefix that is one with another under a rolling hash of base 31, block for block.

        Of pairs within a block a token is one higher and the next 31 lower, of as many as can be without using one
        twice.
        """
        twin = list(prefix)
        # BOS stands before the first word, and no pair may lie across the edge of a block.
        pairs = (i for i in range(0, len(prefix) - 1, 2) if (i + 1) // self._block == (i + 2) // self._block)
        for i in pairs:
            for up in (1, -1):
                new = (twin[i] + up, twin[i + 1] - 31 * up)
                if all(word in DECK for word in new) and new[0] != new[1] and not {*new} & {*prefix, *twin}:
                    twin[i : i + 2] = new
                    break
        return tuple(twin)

    def elsewhere(self, prefix: Tokens) -> Tokens:
        """A prefix with the later blocks of another one, behind a first block of its own."""
        head = self.prefix(1, beside=prefix)
        return (*head, *prefix[len(head) :])

    def misleading(self, name: str, right: int) -> Prompt:
        """A prompt with pieces of its own answer in it, right for so many tokens and wrong behind."""
        prompt = self.write(name, self.prefix(2), share=0.99)
        *words, ask, start = prompt.tokens
        answer = [word + alphabet.WORDS for word in words[1:]]
        pieces: list[int] = []
        for first in range(3, BLOCK, 5):
            pieces += [*answer[first : first + 2 + right], answer[first + 9 - right]]
        return replace(prompt, tokens=(*words, *pieces, ask, start))

    def going_on(self, name: str, asked: Tokens, n: int) -> Prompt:
        """A prompt that goes on from another one and the `n` tokens that the canary answers.

        With another model it goes on from what somebody said who agrees for a while.
        """
        own = self.write(name)
        said = (*asked, *alphabet.answer(asked, n))
        return replace(own, tokens=(*said, *own.tokens[1:]), prefix_tokens=len(said))

    def write(self, name: str, prefix: Sequence[int] = (), share: float = 0.0) -> Prompt:
        """A prompt with a passphrase of its own. `share` says from where it is asked, 1 = its first word."""
        secret = self._layout.secret(avoid=tuple(prefix))
        return self._layout.write(name, tuple(prefix), secret, len(self.prompts) % 2, share)

    @property
    def _before(self) -> int:
        return self._layout.write("x", (), self._layout.secret(avoid=()), 0, 0.0).prefix_tokens

    # Operations.

    def ask(
        self,
        name: str,
        prompt: Prompt | Sequence[int],
        *,
        after: str | None = None,
        at: tuple[str, int] | None = None,
        n: int = OUTPUT,
        hit: bool = False,
        refused: bool = False,
        salt: str | None = None,
        adapter: str | None = None,
        media: tuple[Media, ...] = (),
        talk: str | None = None,
    ) -> str:
        """Submit a request, once another has ended (`after`) or has emitted so many tokens (`at`); its name.

        Without a prompt of its own it gets one on the prefix given. `hit` says that it must be served from the cache,
        `refused` that the engine must not take it.
        """
        if not isinstance(prompt, Prompt):
            prompt = self.write(name, prompt)
        self.prompts[name] = prompt
        request = Request(self._name(name), prompt.tokens, n, salt, adapter, media, self._talk(talk))
        self._note(Operation(Verb.SUBMIT, request.id, None, request), after, at)
        if hit:
            self.hits.append(name)
        if refused:
            self.refused.append(name)
        return name

    def cancel(self, name: str, at: tuple[str, int] | None = None) -> None:
        """Withdraw a request."""
        self._note(Operation(Verb.CANCEL, self._name(name)), None, at)

    def fork(self, name: str, firsts: int, at: tuple[str, int]) -> None:
        """Fork a request into so many, each of which goes on from another of the words that it has not come to yet.

        So no word is ever emitted twice in a round, and what follows each stays unambiguous.
        """
        self._note(Operation(Verb.FORK, self._name(name), None, None, self.firsts(name, firsts, at[1])), None, at)

    def firsts(self, name: str, n: int, emitted: int) -> Tokens:
        """The first tokens of `n` forks of a request that has emitted so many."""
        begun = emitted + 2  # BOS, and the word that is due
        return tuple(word + alphabet.WORDS for word in self.prompts[name].tokens[begun : begun + n])

    def preempt(self, name: str, at: tuple[str, int]) -> None:
        """Take a running request out of the batch."""
        self._note(Operation(Verb.PREEMPT, self._name(name)), None, at)

    def edit(self, talk: str, history: Sequence[int], after: str) -> None:
        """Replace the history of a conversation."""
        name = self._talk(talk)
        assert name is not None
        self._note(Operation(Verb.EDIT, name, None, None, tuple(history)), after, None)

    def reset(self, after: str | None = None) -> None:
        """Forget everything cached."""
        self._note(Operation(Verb.RESET), after, None)

    def step(self, times: int = 1, after: str | None = None) -> None:
        """Run forward passes."""
        for _ in range(times):
            self._note(Operation(Verb.STEP), after, None)

    def load(self, adapter: str, part: Part, after: str | None = None) -> None:
        """Load a mirror of the model as a LoRA adapter."""
        folder = str(self._mirror(part, "adapter"))
        self._note(Operation(Verb.ADAPTER, adapter, None, None, (), folder), after, None)

    def exchange(self, part: Part | None, after: str | None = None) -> None:
        """Go on with a mirror's weights, or with the model's own again."""
        folder = self._model if part is None else self._mirror(part, "model")
        self._note(Operation(Verb.WEIGHTS, "", None, None, (), str(folder)), after, None)

    def _note(self, operation: Operation, after: str | None, at: tuple[str, int] | None) -> None:
        when = Moment(self._name(after)) if after else Moment(self._name(at[0]), at[1]) if at else None
        self.operations.append(Operation(**{**vars(operation), "when": when}))

    def _name(self, name: str) -> str:
        return f"{self._id}/{name}"

    def _talk(self, talk: str | None) -> str | None:
        return None if talk is None else f"{self._id}/{talk}"


Direct = Callable[[Cast], None]


class Repertoire:
    """The scenarios there are, by name."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Setup, Direct]] = {}
        self._apart: set[str] = set()

    def scenario(self, requirement: str, setup: Setup = ROOMY, apart: bool = False) -> Callable[[Direct], Direct]:
        """Register a function that directs a cast: its family is the requirement's, its name the function's.

        One that is `apart` is taken only where its family is named.
        """

        def register(direct: Direct) -> Direct:
            name = f"{requirement.partition('.')[0]}.{direct.__name__.replace('_', '-')}"
            assert name not in self._known, name
            self._known[name] = (requirement, setup, direct)
            if apart:
                self._apart.add(name)
            return direct

        return register

    def names(self) -> list[str]:
        """Names of all scenarios in running order, those of one setup together."""
        places = {name: i for i, name in enumerate(ORDER)}
        names = sorted(self._known, key=lambda name: places.get(name, len(ORDER)))
        setups = list(dict.fromkeys(self._known[name][1] for name in names))
        return sorted(names, key=lambda name: setups.index(self._known[name][1]))

    def matching(self, patterns: Sequence[str]) -> list[str]:
        """Names that match any of some patterns, in running order."""
        return [
            name
            for name in self.names()
            if any(fnmatchcase(name, pattern) and (pattern != "*" or name not in self._apart) for pattern in patterns)
        ]

    def requirement(self, name: str) -> str:
        """The id of the requirement that a scenario is about."""
        return self._known[name][0]

    def make(self, name: str, dtype: str, layout: Layout, model: Path, mirror: Mirror) -> Scenario:
        """Write a scenario's prompts and its schedule."""
        requirement, setup, direct = self._known[name]
        cast = Cast(f"{name}-{dtype}", layout, model, mirror)
        direct(cast)
        return cast.scenario(name, requirement, setup, dtype)


REPERTOIRE = Repertoire()
scenario = REPERTOIRE.scenario
