"""The running order: scenarios of one setup together, and first those that see most faults a second.

Made from which planted faults each scenario shows by answers alone, and what it costs: each counts for what those
before it have not shown. What is not named here comes last of its setup.
"""

ORDER = (
    "fork.more-than-fit", "cancel.decoding", "transfer.same-block-elsewhere", "key.media-evicted",
    "key.adapters-evicted", "transfer.fetched", "key.salts-evicted", "preempt.for-room-with-a-prefix",
    "key.weights-evicted", "accounting.churn", "evict.evicted", "key.media", "conversation.edited",
    "prefix.same-block-elsewhere", "prefix.polynomial-twins", "batch.eight-on-a-prefix", "key.adapters-by-turns",
    "prefix.many", "fork.parent-withdrawn", "key.salts", "preempt.parked", "batch.hits-and-misses",
    "conversation.turns", "prefix.block-edges", "key.salted-turns", "speculative.misled", "key.adapters-in-a-batch",
    "fork.at-the-edge", "prefix.one-token-apart", "key.adapters", "evict.reset", "prefix.whole-prompt",
    "key.weights", "cancel.at-any-point", "key.salts-on-every-path", "preempt.in-its-prompt", "publish.at-once",
    "chunk.long-prompts", "publish.withdrawn-in-prefill", "cancel.retried", "slot.recycled-in-batch",
    "preempt.for-room", "slot.recycled", "batch.strangers", "batch.ragged", "padding.uneven-rows", "fork.in-a-block",
)  # fmt: skip

# The first scenario that each of the planted faults shows in, with all that can be observed: `make faults`.
QUICK = (
    "batch.eight-on-a-prefix", "batch.hits-and-misses", "cancel.at-any-point", "cancel.decoding",
    "conversation.edited", "fork.more-than-fit", "key.adapters", "key.adapters-by-turns", "key.adapters-evicted",
    "key.media", "key.media-evicted", "key.salts-evicted", "key.salts-on-every-path", "key.weights",
    "key.weights-evicted", "preempt.for-room", "preempt.for-room-with-a-prefix", "preempt.in-its-prompt",
    "prefix.many", "prefix.polynomial-twins", "speculative.misled", "transfer.asked-for-again", "transfer.fetched",
    "transfer.just-pushed-out", "transfer.pushed-out-meanwhile", "transfer.same-block-elsewhere",
    "transfer.withdrawn-on-return",
)  # fmt: skip
