"""A case: one cell of modes × layouts × edges × company × concurrency × dtypes, and the profiles made of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvfence.prompts.edges import EDGES, Edge, window_edges
from kvfence.prompts.folder import ModelFolder

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


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "quick",
            "two prefix lengths, three dtypes, concurrency to 16: under a minute on the canary",
            edges=("system-prompt", "block+1"),
            other_edges=("block+1",),
            concurrencies=(1, 2, 8, 16),
            dtypes=("float32", "bfloat16", "float16"),
            max_tokens=32,
            solo_positions=256,
        ),
        Profile(
            "default",
            "every prefix length and relation, noise measured on the engine itself",
            edges=tuple(EDGES),
            other_edges=tuple(EDGES),
            concurrencies=(1, 2, 8, 16),
            dtypes=("float32", "bfloat16", "float16"),
            max_tokens=48,
            solo_positions=10_000,
        ),
    )
}


def layouts(model: ModelFolder) -> tuple[str, ...]:
    """Layouts in which prompts for a model are written."""
    return ("zh", "en") if model.has_text else ("canary",)


def companies(concurrency: int) -> tuple[str, ...]:
    """Companies a concurrency allows."""
    return {1: ("alone",), 2: ("partner", "stranger")}.get(concurrency, ("mixed",))


def edges(profile: Profile, model: ModelFolder, layout: str, overhead: int, dtype: str) -> list[Edge]:
    """Edges of a profile that fit the model's context and, for canary words, its vocabulary."""
    chosen = [EDGES[name] for name in (profile.edges if dtype == "float32" else profile.other_edges)]
    if model.window and profile.name != "quick":
        chosen += window_edges(model.window, overhead)
    room = (model.context or 1 << 30) - overhead - profile.max_tokens
    # No canary word comes twice in a prompt, so its prompts end at about a thousand words.
    limit = min(room, 1000) if layout == "canary" else room
    return [edge for edge in chosen if (edge.prefix or 0) <= limit]


def cases(profile: Profile, model: ModelFolder, overheads: dict[str, int], dtypes: tuple[str, ...]) -> Iterator[Case]:
    """The cases of a profile, those of one engine configuration together: dtype, then sharing off, then on."""
    for dtype in dtypes:
        for mode in MODES:
            for layout in layouts(model):
                for edge in edges(profile, model, layout, overheads[layout], dtype):
                    for concurrency in profile.concurrencies:
                        for company in companies(concurrency):
                            yield Case(mode, layout, edge, company, concurrency, dtype)
