"""Faults of the key's hash: other tokens, or the same ones elsewhere, are found as if they were what was asked for."""

from collections.abc import Callable, Sequence

from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.trusting import TrustingTree
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.radix import Node, Tokens
from kvfence.reference_impl.remote import Key, RemoteStore
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Pages

BASE = 31


def rolling(tokens: Tokens) -> int:
    """A polynomial hash: one token lowered by one and the next one raised by the base leave it as it was."""
    value = 0
    for token in tokens:
        value = (value * BASE + token) % 2**64
    return value


def hashed(ran: Sentinel, digest: Callable[[Tokens], int]) -> Parts:
    """Parts with a tree of such keys."""

    class Hashed(TrustingTree):
        """Whole blocks are found by their hash and not compared."""

        def _nearest(self, node: Node, edge: Tokens) -> tuple[Node | None, int]:
            found, common = super()._nearest(node, edge)
            if common < len(edge) == self.block_size:
                wanted = digest(edge)
                for child in node.children:
                    if len(child.tokens) == self.block_size and digest(child.tokens) == wanted:
                        ran()
                        return child, len(edge)
            return found, common

    return Parts(tree=Hashed)


@defect(
    "key-hash.rolling",
    "KEY-HASH",
    "NVIDIA/Megatron-LM#4158",
    "Blocks are found by a rolling hash with base 31, and their tokens are not compared.",
)
def _rolling(ran: Sentinel) -> Parts:
    return hashed(ran, rolling)


@defect(
    "key-hash.byte",
    "KEY-HASH",
    "openvinotoolkit/openvino.genai#3722",
    "Blocks are found by eight bits of a hash, and their tokens are not compared.",
    subtle="one pair of blocks in 256 collides",
)
def _byte(ran: Sentinel) -> Parts:
    return hashed(ran, lambda tokens: hash(tokens) & 0xFF)


@defect(
    "key-hash.unchained",
    "KEY-HASH",
    "vllm-project/vllm#54727",
    "A block's key is its own tokens, without those before it.",
)
def _unchained(ran: Sentinel) -> Parts:
    class Unchained(TrustingTree):
        def _nearest(self, node: Node, edge: Tokens) -> tuple[Node | None, int]:
            found, common = super()._nearest(node, edge)
            if common < len(edge) == self.block_size:
                root = _root(node)
                for other in self._nodes.values():
                    if other.tokens == edge and _root(other) is root:
                        ran()
                        return other, len(edge)
            return found, common

    return Parts(tree=Unchained)


def _root(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node


@defect(
    "key-hash.store-unchained",
    "KEY-HASH",
    "LMCache/LMCache#4463",
    "In the remote store a block's key is its own tokens, without those before it.",
    needs={"remote": 64},
)
def _store_unchained(ran: Sentinel) -> Parts:
    class Unchained(RemoteStore):
        def __init__(self, capacity: int) -> None:
            super().__init__(capacity)
            self._before: dict[Key, Tokens] = {}

        def match(self, namespace: Namespace, tokens: Sequence[int], first: int, size: int) -> list[Key]:
            keys: list[Key] = []
            for stop in range((first + 1) * size, len(tokens) + 1, size):
                if (key := (namespace, tuple(tokens[stop - size : stop]))) not in self._slots:
                    break
                if self._before[key] != tuple(tokens[:stop]):
                    ran()
                keys.append(key)
            return keys

        def put(self, namespace: Namespace, tokens: Sequence[int], pages: Pages) -> None:
            own = tuple(tokens[-pages.kv.shape[3] :])
            if (namespace, own) not in self._slots:
                self._before[namespace, own] = tuple(tokens)
            super().put(namespace, own, pages)

    return Parts(remote=Unchained)
