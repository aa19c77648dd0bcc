"""A case: one cell of modes × layouts × edges × company × concurrency × dtypes, and the profiles made of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvfence.conformance.scenarios.order import QUICK
from kvfence.prompts.edges import EDGES, Edge, prompt_edge, window_edges
from kvfence.prompts.folder import ModelFolder
from kvfence.prompts.word_layout import LIMIT

MODES = ("serial", "independent", "shared")


@dataclass(frozen=True)
class Case:
    """One batch of requests in one mode. Its id is the same in every run of a profile."""

    mode: str
    layout: str
    edge: Edge
    company: str
    concurrency: int
    dtype: str

    @property
    def id(self) -> str:
        return f"{self.mode}-{self.layout}-{self.edge.name}-{self.company}-c{self.concurrency}-{self.dtype}"

    @property
    def topic(self) -> str:
        """The pytest topic it belongs to."""
        return self.mode

    @property
    def requirement(self) -> str:
        return f"modes.{self.mode}"

    @property
    def requests(self) -> int:
        """Number of requests: alone stands for one of each group, one after another."""
        return 3 if self.company == "alone" else self.concurrency


@dataclass(frozen=True)
class Profile:
    """What a run covers and how long its outputs are."""

    name: str
    about: str
    edges: tuple[str, ...]  # in float32
    other_edges: tuple[str, ...]  # in other dtypes
    concurrencies: tuple[int, ...]
    dtypes: tuple[str, ...]
    max_tokens: int
    solo_positions: int  # output positions of solo runs that the margin rule is calibrated on, beside golden's own
    batches: tuple[str, ...] = ("mixed",)  # companies above two at once
    prompt_tokens: int | None = None  # of a whole prompt, where that is the edge
    languages: tuple[str, ...] = ("zh", "en")
    observe: tuple[str, ...] = ()  # of what engines let be observed
    serialise: bool = False  # whether a violation under concurrency is tried again one request at a time
    scenarios: tuple[str, ...] = ()  # patterns of the names of scenarios
    strength: int = 0  # how many values of factors come together in its cells, in all combinations; 0 = no cells
    twins: int = 0  # requests of each scenario whose neighbours' secrets are exchanged
    baselines: int = 12  # golden outputs decoded token by token, to be shown or counted against


def _played(
    name: str,
    about: str,
    solo_positions: int,
    scenarios: tuple[str, ...],
    observe: tuple[str, ...] = (),
    twins: int = 0,
) -> Profile:
    """A profile of scenarios alone."""
    played = Profile(name, about, (), (), (), ("float32",), max_tokens=32, solo_positions=solo_positions)
    return replace(played, scenarios=scenarios, observe=observe, twins=twins)


DTYPES = ("float32", "bfloat16", "float16")
OBSERVE = ("attention", "events", "kv")  # all that an engine may show
NEARLY_EQUAL = ("differ-first", "differ-middle", "differ-last")
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "quick",
            "the modes in three dtypes, and the scenarios that planted faults show in first",
            edges=("system-prompt", "block+1"),
            other_edges=("block+1",),
            concurrencies=(1, 2, 8, 16),
            dtypes=DTYPES,
            max_tokens=32,
            solo_positions=256,
            observe=("events", "kv"),
            scenarios=QUICK,
        ),
        Profile(
            "default",
            "the modes on more prefixes, all scenarios, and all pairs of factor values",
            edges=("system-prompt", "block+1", "differ-last", "whole-prompt"),
            other_edges=("block+1",),
            concurrencies=(1, 2, 8, 16),
            dtypes=DTYPES,
            max_tokens=32,
            solo_positions=256,
            observe=OBSERVE,
            scenarios=("*",),
            strength=2,
        ),
        Profile(
            "full",
            "every prefix length and relation, all scenarios, all triples, noise measured on the engine itself: long",
            edges=tuple(EDGES),
            other_edges=tuple(EDGES),
            concurrencies=(1, 2, 3, 8, 16, 64),
            dtypes=DTYPES,
            max_tokens=48,
            solo_positions=10_000,
            observe=OBSERVE,
            scenarios=("*",),
            strength=3,
        ),
        Profile(
            "article",
            "the experiment kvfence grew out of: 128 + 32 tokens, one and eight at once, attention observed",
            edges=(),
            other_edges=(),
            concurrencies=(1, 8),
            dtypes=("float32", "float16"),
            max_tokens=32,
            solo_positions=512,
            batches=("partner", "partner-c", "stranger", "stranger-b"),
            prompt_tokens=128,
            languages=("zh",),
            observe=("attention", "events"),
            serialise=True,
            baselines=200,
        ),
        Profile(
            "matrix",
            "the experiment's regression test: empty, very long, equal and nearly equal prefixes, 1 to 32 at once",
            edges=("empty", "system-prompt", "whole-prompt", *NEARLY_EQUAL, "thousand", "long"),
            other_edges=("system-prompt", "whole-prompt", *NEARLY_EQUAL),
            concurrencies=(1, 2, 3, 4, 8, 16, 32),
            dtypes=("float32",),
            max_tokens=24,
            solo_positions=256,
        ),
        Profile(
            "controls",
            "many short answers where rounding differs most: what a right engine is held against, thousands at a time",
            edges=("one-token", "block", "block+1", "differ-last"),
            other_edges=("one-token", "block", "block+1", "differ-last"),
            concurrencies=(1, 2, 8, 16),
            dtypes=DTYPES,
            max_tokens=8,
            solo_positions=256,
            languages=("en",),
        ),
        _played(
            "scenarios",
            "keys, forks, cancels, preemption, conversations: every scenario, all that the engine shows observed",
            solo_positions=128,
            observe=OBSERVE,
            scenarios=("*",),
        ),
        replace(
            _played(
                "pairs",
                "all pairs of factor values",
                solo_positions=128,
                scenarios=(),
                observe=OBSERVE,
            ),
            strength=2,
            dtypes=DTYPES,
        ),
        _played(
            "times",
            "seconds to the first token: whether they tell what another tenant has sent; 100 samples an arm",
            solo_positions=128,
            scenarios=("side.*",),
        ),
        _played(
            "twins",
            "every scenario again with the neighbours' secrets exchanged: answers must be the same to the last bit",
            solo_positions=256,
            scenarios=("*",),
            twins=3,
        ),
    )
}


def layouts(model: ModelFolder, profile: Profile) -> tuple[str, ...]:
    """Layouts in which a profile's prompts for a model are written."""
    return profile.languages if model.has_text else ("canary",)


def companies(profile: Profile, concurrency: int) -> tuple[str, ...]:
    """Companies a concurrency allows."""
    return {1: ("alone",), 2: ("partner", "stranger")}.get(concurrency, profile.batches)


def edges(profile: Profile, model: ModelFolder, layout: str, overhead: int, dtype: str) -> list[Edge]:
    """Edges of a profile that fit the model's context and, for canary words, its vocabulary."""
    chosen = [EDGES[name] for name in (profile.edges if dtype == "float32" else profile.other_edges)]
    if profile.prompt_tokens and profile.prompt_tokens >= overhead:
        chosen.append(prompt_edge(profile.prompt_tokens, overhead))
    if model.window and profile.strength:
        chosen += window_edges(model.window, overhead)
    room = (model.context or 1 << 30) - overhead - profile.max_tokens
    # No word comes twice in the canary's prompts, so they end at about a thousand words.
    limit = min(room, LIMIT) if model.kind == "canary" else room
    return [edge for edge in chosen if (edge.prefix or 0) <= limit]


def cases(profile: Profile, model: ModelFolder, overheads: dict[str, int], dtypes: tuple[str, ...]) -> Iterator[Case]:
    """The cases of a profile, those of one engine configuration together: dtype, then sharing off, then on."""
    for dtype in dtypes:
        for mode in MODES:
            for layout in layouts(model, profile):
                for edge in edges(profile, model, layout, overheads[layout], dtype):
                    for concurrency in profile.concurrencies:
                        for company in companies(profile, concurrency):
                            yield Case(mode, layout, edge, company, concurrency, dtype)
