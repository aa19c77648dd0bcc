"""How the engine is set up, and the parts it is made of."""

from dataclasses import dataclass

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.clock import Clock
from kvfence.reference_impl.conversation import Conversation
from kvfence.reference_impl.pool import BlockPool
from kvfence.reference_impl.radix import PrefixTree
from kvfence.reference_impl.remote import RemoteStore
from kvfence.reference_impl.runner import Runner
from kvfence.reference_impl.scheduler import Preemption, Scheduler
from kvfence.reference_impl.steps import Steps
from kvfence.reference_impl.storage import Storage
from kvfence.reference_impl.tags import OwnerTags
from kvfence.reference_impl.transfers import Transfers
from kvfence.reference_impl.worker import Worker


@dataclass(frozen=True)
class Settings:
    """Sizes and switches of an engine."""

    blocks: int = 1024  # of the pool, the scratch block included
    block_size: int = 16  # tokens
    max_concurrency: int = 16  # sequences in one step
    token_budget: int = 512  # tokens in one step; longer prompts are prefilled in chunks
    sharing: bool = True
    preemption: Preemption = Preemption.RECOMPUTE
    depth: int = 0  # steps launched before the one before them has landed: 1 = asynchronous scheduling
    remote: int = 0  # blocks that the remote store holds; 0 = there is none
    transfer_steps: int = 2  # that a transfer from it takes
    draft: int = 0  # tokens guessed ahead of each decoding sequence
    buckets: tuple[int, ...] = ()  # sizes that decoding rows are padded to
    kernel: bool = False  # whether Triton's kernel attends, where attention is not observed
    logprobs: int = 0  # best tokens whose logprobs are told at each position; 0 = none at all
    trace: bool = False
    tags: bool = False
    audit: bool = False  # whether a step in which the auditor finds a breach raises; needs tags
    attention: bool = False  # whether sequences keep what their output tokens attended to; needs tags

    def unfit(self) -> str | None:
        """Why no engine can be set up so, or None."""
        least = {"blocks": 3, "block_size": 1, "max_concurrency": 1, "token_budget": 1}
        least |= dict.fromkeys(("depth", "remote", "transfer_steps", "draft", "logprobs"), 0)
        for name, number in least.items():
            if getattr(self, name) < number:
                return f"{name} is at least {number}, not {getattr(self, name)}"
        if self.depth > 1:
            return f"depth is 0 or 1, not {self.depth}"
        if self.draft and self.depth:
            return "guessing ahead needs depth 0: a step is planned on what the last one accepted"
        if (self.audit or self.attention) and not self.tags:
            return "auditing and observing attention need owner tags: set tags"
        return next((f"a bucket holds at least 1 row, not {size}" for size in self.buckets if size < 1), None)


@dataclass(frozen=True)
class Parts:
    """The classes an engine is made of: what is to behave otherwise is exchanged here."""

    pool: type[BlockPool] = BlockPool
    tree: type[PrefixTree] = PrefixTree
    storage: type[Storage] = Storage
    tags: type[OwnerTags] = OwnerTags
    clock: type[Clock] = Clock
    remote: type[RemoteStore] = RemoteStore
    cache: type[KVCache] = KVCache
    transfers: type[Transfers] = Transfers
    scheduler: type[Scheduler] = Scheduler
    runner: type[Runner] = Runner
    worker: type[Worker] = Worker
    steps: type[Steps] = Steps
    conversation: type[Conversation] = Conversation


DEFAULT, PARTS = Settings(), Parts()
