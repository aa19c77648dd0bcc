"""Length edges: the prefix lengths and prefix relations at which KV-cache boundaries are known to break."""

from dataclasses import dataclass

BLOCK = 16  # tokens; the most usual block size, and a divisor of most others
LONG = 4_000  # tokens


@dataclass(frozen=True)
class Edge:
    """A prefix of `prefix` tokens after BOS (None = as long as the system prompt is by itself), and C's against A's.

    `differs` names the one place where C's prefix differs from A's ("first", "middle", "last"); None = everywhere.
    `repeated` means that all members of a group send the very same prompt, so that it can be cached as a whole.
    """

    name: str
    prefix: int | None
    differs: str | None = None
    repeated: bool = False


EDGES = {
    edge.name: edge
    for edge in (
        Edge("empty", 0),
        Edge("system-prompt", None),
        Edge("one-token", 1),
        Edge("block-1", BLOCK - 1),
        Edge("block", BLOCK),
        Edge("block+1", BLOCK + 1),
        Edge("3-blocks", 3 * BLOCK),
        Edge("differ-first", 2 * BLOCK + 1, differs="first"),
        Edge("differ-middle", 2 * BLOCK + 1, differs="middle"),
        Edge("differ-last", 2 * BLOCK + 1, differs="last"),
        Edge("whole-prompt", 2 * BLOCK + 1, repeated=True),
        Edge("thousand", 960),
        Edge("long", LONG),
    )
}


def prompt_edge(tokens: int, overhead: int) -> Edge:
    """The edge at which a whole prompt has so many tokens; `overhead` = prompt tokens beside the prefix."""
    return Edge(f"prompt-{tokens}", tokens - overhead)


def window_edges(window: int, overhead: int) -> list[Edge]:
    """Edges at which prompt length passes an attention window; `overhead` = prompt tokens beside the prefix."""
    lengths = {"window-1": window - 1, "window": window, "window+1": window + 1}
    return [Edge(name, n - overhead) for name, n in lengths.items() if n > overhead]


def place(edge: Edge) -> int | None:
    """Index within the prefix at which C differs from A, or None if not in one place only."""
    n = edge.prefix or 0
    return {"first": 0, "middle": n // 2, "last": n - 1}.get(edge.differs or "")
