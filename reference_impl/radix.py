"""The prefix tree: which blocks hold the K/V of which tokens, compared token by token and never by a hash.

A radix tree whose edges are the tokens of one block. What a block holds depends on all tokens before it, so its place
in the tree, under a namespace, is its key. Siblings are kept in order: of all of them the one that has most in common
with a query is a neighbour of where the query would stand.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.pool import SCRATCH

Tokens = tuple[int, ...]


@dataclass(slots=True)
class Node:
    """A published block and the tokens it holds: a full block of them, or fewer at the end of a sequence."""

    tokens: Tokens
    block: int
    parent: "Node | None"
    edges: list[Tokens] = field(default_factory=list)  # of the children, ascending
    children: list["Node"] = field(default_factory=list)


class PrefixTree:
    """Published blocks of all namespaces."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._roots: dict[Namespace, Node] = {}
        self._nodes: dict[int, Node] = {}

    def match(self, namespace: Namespace, tokens: Sequence[int]) -> tuple[list[int], int]:
        """Blocks that hold the longest published prefix of `tokens`, and its length; the last may be used in part."""
        node, size = self._roots.get(namespace), self.block_size
        blocks: list[int] = []
        while node is not None:
            edge = tuple(tokens[len(blocks) * size : (len(blocks) + 1) * size])
            child, common = self._nearest(node, edge)
            if child is None:
                break
            blocks.append(child.block)
            if common < size:
                return blocks, (len(blocks) - 1) * size + common
            node = child
        return blocks, len(blocks) * size

    def insert(self, namespace: Namespace, tokens: Sequence[int], blocks: Sequence[int]) -> list[int]:
        """Make `tokens` findable in `blocks`, a table's first ones. Returns the blocks that are published by it.

        Where the same tokens are published already, in other blocks, those stay. A hole in the table ends it.
        """
        node = self._roots.setdefault(namespace, Node((), -1, None))
        added, size = [], self.block_size
        for start in range(0, len(tokens), size):
            edge = tuple(tokens[start : start + size])
            child, common = self._nearest(node, edge)
            if child is None or common < len(edge):
                if (block := blocks[start // size]) == SCRATCH:
                    break
                child = Node(edge, block, node)
                at = bisect_left(node.edges, edge)
                node.edges.insert(at, edge)
                node.children.insert(at, child)
                self._nodes[child.block] = child
                added.append(child.block)
            node = child
        return added

    def remove(self, block: int) -> list[int]:
        """Take a block out, with all that continue it: they could not be found without. Returns the blocks."""
        node = self._nodes[block]
        assert node.parent is not None
        at = bisect_left(node.parent.edges, node.tokens)
        del node.parent.edges[at], node.parent.children[at]
        removed = [below.block for below in subtree(node)]
        for gone in removed:
            del self._nodes[gone]
        return removed

    def clear(self) -> list[int]:
        """Forget everything; returns the blocks that were published."""
        removed = list(self._nodes)
        self._roots.clear()
        self._nodes.clear()
        return removed

    def entries(self) -> Iterator[tuple[Namespace, Tokens, int]]:
        """Namespace, tokens from the first one on, and block of every entry."""
        for namespace, root in self._roots.items():
            stack: list[tuple[Node, Tokens]] = [(child, ()) for child in root.children]
            while stack:
                node, before = stack.pop()
                tokens = before + node.tokens
                yield namespace, tokens, node.block
                stack += [(child, tokens) for child in node.children]

    def _nearest(self, node: Node, edge: Tokens) -> tuple[Node | None, int]:
        """The child that has most leading tokens in common with `edge`, at least one, and how many."""
        best, most = None, 0
        at = bisect_left(node.edges, edge)
        for i in (at, at - 1):
            if 0 <= i < len(node.edges) and (common := common_prefix(node.edges[i], edge)) > most:
                best, most = node.children[i], common
        return best, most


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two token sequences."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def subtree(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack += node.children
