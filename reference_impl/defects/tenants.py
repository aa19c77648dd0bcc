"""Faults of the tenant's salt: who asked for it does not count, on one road or on all."""

from dataclasses import replace

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.keys import store, tree
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.scheduler import Preemption, Scheduler
from kvfence.reference_impl.sequence import Sequence
from kvfence.reference_impl.settings import Parts


def _no_salt(namespace: Namespace) -> Namespace:
    return replace(namespace, salt=None)


@defect(
    "key-salt.ignored",
    "KEY-SALT",
    "vllm-project/vllm#53194",
    "Tenants share the prefix pool: whose prompt is cached can be told.",
    subtle="the same tokens have the same K/V whoever asks: only the hits are wrong",
)
def _ignored(ran: Sentinel) -> Parts:
    return Parts(tree=tree(ran, _no_salt))


@defect(
    "key-salt.untagged",
    "KEY-SALT",
    "vllm-project/vllm#44701",
    "Salt and adapter go into the key as strings of one list: tenant x without an adapter is taken for adapter x.",
)
def _untagged(ran: Sentinel) -> Parts:
    def strings(namespace: Namespace) -> Namespace:
        parts = [namespace.salt or ""]
        if adapter := namespace.adapter:
            parts.append(adapter.name if adapter.version == 1 else f"{adapter.name}@{adapter.version}")
        return replace(namespace, salt=" ".join(filter(None, parts)), adapter=None)

    return Parts(tree=tree(ran, strings))


@defect(
    "key-salt.store",
    "KEY-SALT",
    "vllm-project/vllm#54342",
    "Tenants share the remote store.",
    needs={"remote": 64},
    subtle="the same tokens have the same K/V whoever asks: only the hits are wrong",
)
def _store(ran: Sentinel) -> Parts:
    return Parts(remote=store(ran, _no_salt))


@defect(
    "key-salt.preempted",
    "KEY-SALT",
    "vllm-project/vllm#39082",
    "A request that was preempted is queued again without its salt.",
    subtle="the owner tags lose the salt too; only a later request's hits are wrong",
)
def _preempted(ran: Sentinel) -> Parts:
    class Requeues(Scheduler):
        def preempt(self, sequence: Sequence, how: Preemption | None = None) -> None:
            super().preempt(sequence, how)
            if sequence.namespace.salt is not None:
                ran()
                sequence.namespace = _no_salt(sequence.namespace)

    return Parts(scheduler=Requeues)


@defect(
    "key-salt.fork",
    "KEY-SALT",
    "vllm-project/vllm#54342",
    "A fork is made without its parent's salt.",
    subtle="the same tokens have the same K/V whoever asks: only a later request's hits are wrong",
)
def _fork(ran: Sentinel) -> Parts:
    class Forks(KVCache):
        def fork(self, parent: Sequence, child: Sequence) -> None:
            super().fork(parent, child)
            if parent.namespace.salt is not None:
                ran()
                child.namespace = _no_salt(child.namespace)

    return Parts(cache=Forks)


@defect(
    "key-salt.chunk",
    "KEY-SALT",
    "vllm-project/vllm#39082",
    "From the second chunk of a prompt on, what is written is published without the salt.",
    needs={"token_budget": 32},
    subtle="only long prompts, and the same tokens have the same K/V whoever asks: only the hits are wrong",
)
def _chunk(ran: Sentinel) -> Parts:
    class Publishes(KVCache):
        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            own = sequence.namespace
            if own.salt is not None and 0 < sequence.published < sequence.written <= sequence.prompt:
                ran()
                sequence.namespace = _no_salt(own)
            super().publish(sequence, tail)
            sequence.namespace = own

    return Parts(cache=Publishes, pool=TrustingPool, tree=TrustingTree)
