"""Faults of the key: K/V that depend on something else are found as if they did not."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.holding import Retained
from kvfence.reference_impl.key import AdapterId, Media, Namespace
from kvfence.reference_impl.radix import PrefixTree
from kvfence.reference_impl.remote import Key, RemoteStore
from kvfence.reference_impl.sequence import Sequence as Request
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Pages

Wrong = Callable[[Namespace], Namespace]  # what is left of a namespace in the key


def tree(ran: Sentinel, wrong: Wrong) -> type[PrefixTree]:
    """A prefix tree with the wrong key."""

    class Aliases(PrefixTree):
        def __init__(self, block_size: int) -> None:
            super().__init__(block_size)
            self._whose: dict[int, Namespace] = {}

        def match(self, namespace: Namespace, tokens: Sequence[int]) -> tuple[list[int], int]:
            blocks, length = super().match(wrong(namespace), tokens)
            if any(self._whose[block] != namespace for block in blocks):
                ran()
            return blocks, length

        def insert(self, namespace: Namespace, tokens: Sequence[int], blocks: Sequence[int]) -> list[int]:
            added = super().insert(wrong(namespace), tokens, blocks)
            self._whose |= dict.fromkeys(added, namespace)
            return added

    return Aliases


def store(ran: Sentinel, wrong: Wrong) -> type[RemoteStore]:
    """A remote store with the wrong key."""

    class Aliases(RemoteStore):
        def __init__(self, capacity: int) -> None:
            super().__init__(capacity)
            self._whose: dict[Key, Namespace] = {}

        def match(self, namespace: Namespace, tokens: Sequence[int], first: int, size: int) -> list[Key]:
            keys = super().match(wrong(namespace), tokens, first, size)
            if any(self._whose[key] != namespace for key in keys):
                ran()
            return keys

        def put(self, namespace: Namespace, tokens: Sequence[int], pages: Pages) -> None:
            key = (wrong(namespace), tuple(tokens))
            if key not in self._slots:
                self._whose[key] = namespace
            super().put(key[0], tokens, pages)

    return Aliases


def _no_adapter(namespace: Namespace) -> Namespace:
    return replace(namespace, adapter=None)


def _no_media(namespace: Namespace) -> Namespace:
    return replace(namespace, media=())


@defect(
    "key-lora.dropped", "KEY-LORA", "vllm-project/vllm#8240", "The prefix pool does not ask which adapter K/V are of."
)
def _adapter_dropped(ran: Sentinel) -> Parts:
    return Parts(tree=tree(ran, _no_adapter))


@defect(
    "key-lora.name-only",
    "KEY-LORA",
    "vllm-project/vllm#44250",
    "An adapter is known by its name: reloaded with other weights it finds the K/V of the old ones.",
)
def _adapter_by_name(ran: Sentinel) -> Parts:
    def named(namespace: Namespace) -> Namespace:
        adapter = namespace.adapter
        return replace(namespace, adapter=adapter and AdapterId(adapter.name, 0))

    return Parts(tree=tree(ran, named))


@defect(
    "key-lora.store",
    "KEY-LORA",
    "xLLM-AI/xllm#2047",
    "The remote store does not ask which adapter K/V are of.",
    needs={"remote": 64},
)
def _adapter_dropped_in_store(ran: Sentinel) -> Parts:
    return Parts(remote=store(ran, _no_adapter))


@defect(
    "key-lora.conversation",
    "KEY-LORA",
    "vllm-project/vllm#30931",
    "A turn goes on from what its conversation retains, though that was computed with another adapter.",
)
def _adapter_dropped_in_conversation(ran: Sentinel) -> Parts:
    class Resumes(KVCache):
        def resume(self, sequence: Request, kept: Retained) -> bool:
            adapter = sequence.namespace.adapter
            if kept in self.retained and kept.namespace.adapter != adapter:
                ran()
            kept.namespace = replace(kept.namespace, adapter=adapter)
            return super().resume(sequence, kept)

    return Parts(cache=Resumes)


@defect(
    "key-mm.ignored", "KEY-MM", "kekzl/imp#1180", "The prefix pool compares placeholder tokens, not what they show."
)
def _media_ignored(ran: Sentinel) -> Parts:
    return Parts(tree=tree(ran, _no_media))


@defect(
    "key-mm.short-id",
    "KEY-MM",
    "LMCache/LMCache#3301",
    "A media item is known by the last four characters of what it shows.",
    subtle="two contents must end alike",
)
def _media_by_short_id(ran: Sentinel) -> Parts:
    def cut(namespace: Namespace) -> Namespace:
        return replace(namespace, media=tuple(Media(m.position, m.content[-4:]) for m in namespace.media))

    return Parts(tree=tree(ran, cut))


@defect(
    "key-mm.position",
    "KEY-MM",
    "vllm-project/vllm#49975",
    "The key says which media a prompt has, but not where they stand.",
    subtle="the same item must stand elsewhere among the same tokens",
)
def _media_position_ignored(ran: Sentinel) -> Parts:
    def anywhere(namespace: Namespace) -> Namespace:
        return replace(namespace, media=tuple(Media(0, m.content) for m in namespace.media))

    return Parts(tree=tree(ran, anywhere))


@defect(
    "key-mm.joined",
    "KEY-MM",
    "sgl-project/sglang#36595",
    "What the media of a prompt show is joined without bounds: ab and c are taken for a and bc.",
    subtle="two lists must differ in their bounds only",
)
def _media_joined(ran: Sentinel) -> Parts:
    def joined(namespace: Namespace) -> Namespace:
        places = tuple(Media(m.position, "") for m in namespace.media)
        return replace(namespace, media=(*places, Media(-1, "".join(m.content for m in namespace.media))))

    return Parts(tree=tree(ran, joined))


@defect(
    "key-mm.store",
    "KEY-MM",
    "ROCm/ATOM#1358",
    "The remote store compares placeholder tokens, not what they show.",
    needs={"remote": 64},
)
def _media_ignored_in_store(ran: Sentinel) -> Parts:
    return Parts(remote=store(ran, _no_media))
