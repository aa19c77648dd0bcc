"""Pool and tree that check nothing: where a fault has upset their books, a run goes on as it does without checks."""

from bisect import bisect_left

from kvfence.reference_impl.pool import BlockPool
from kvfence.reference_impl.radix import PrefixTree, subtree


class TrustingPool(BlockPool):
    """Takes a block from wherever it is, and ignores who gives back what he does not hold."""

    def share(self, block: int) -> None:
        """One more table names a block, a free one too."""
        if not self.references[block]:
            self._idle.pop(block, None)
            if block in self._free:
                self._free.remove(block)
        self.references[block] += 1

    def release(self, block: int) -> None:
        """One table fewer names a block, if any does."""
        if self.references[block]:
            super().release(block)

    def withdraw(self, block: int) -> None:
        """A block can be found no more; if idle it is free."""
        if self.references[block] or block in self._idle:
            super().withdraw(block)
        self.published[block] = 0

    def seize(self, block: int) -> None:
        """A block is somebody's alone, whatever was counted."""
        if not self.references[block]:
            self.share(block)
        self.references[block] = 1


class TrustingTree(PrefixTree):
    """Forgets what it knows of a block, though a block may stand in several places."""

    def remove(self, block: int) -> list[int]:
        """Take a block out, with all that continue it. Returns the blocks."""
        node = self._nodes.get(block)
        if node is None:
            return [block]
        assert node.parent is not None
        at = bisect_left(node.parent.edges, node.tokens)
        if at < len(node.parent.children) and node.parent.children[at] is node:
            del node.parent.edges[at], node.parent.children[at]
        removed = [below.block for below in subtree(node)]
        for gone in removed:
            self._nodes.pop(gone, None)
        return removed
