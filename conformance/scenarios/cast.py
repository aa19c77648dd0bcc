"""The cast of a scenario: writes its prompts and notes its operations, in the order in which it is told them."""

from collections.abc import Callable, Sequence
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
        begun = at[1] + 2  # BOS, and the word that is due
        words = self.prompts[name].tokens[begun : begun + firsts]
        forced = tuple(word + alphabet.WORDS for word in words)
        self._note(Operation(Verb.FORK, self._name(name), None, None, forced), None, at)

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

    def step(self, times: int = 1) -> None:
        """Run forward passes."""
        self.operations += [Operation(Verb.STEP)] * times

    def load(self, adapter: str, part: Part, after: str | None = None) -> None:
        """Load a mirror of the model as a LoRA adapter."""
        folder = str(self._mirror(part, "adapter"))
        self._note(Operation(Verb.ADAPTER, adapter, None, None, (), folder), after, None)

    def exchange(self, part: Part | None, after: str) -> None:
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
