"""The class-naming table: which known class of faults a finding looks like. Used by verdicts and diagnosis alike.

A row matches where all its facts are known of a victim. The victims of a case are taken for those of one fault: the
first row that matches any of them names its class. What a log shows comes first, then what is wrong in the cache, then
how the answer is wrong and what the victim was put through, then which of some other scenarios go wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvfence.conformance.clauses import told
from kvfence.conformance.trigger import Trigger
from kvfence.reports.finding import Explanation

# Classes by what is drawn wrong; within a family only the inside of an engine tells them apart.
FAMILIES = {
    "key": ("KEY-HASH", "KEY-LORA", "KEY-MM", "KEY-SALT", "KEY-EMB", "KEY-EPOCH"),
    "index": ("PUB-EARLY", "PUB-FAIL", "STALE-IDX"),
    "lifetime": ("UAF-STEP", "UAF-DST", "UAF-SRC", "REFCOUNT", "COW"),
    "transfer": ("XFER-EARLY", "XFER-MAP", "MOVE"),
    "slot": ("STALE-TABLE", "SLOT-REUSE", "REC-STATE"),
    "length": ("ROLLBACK", "OFF-BY-ONE", "PREEMPT", "WINDOW"),
    "batch": ("RESUME-READ", "PAD-READ", "PAD-WRITE", "NAN-SLOT", "COMMON-PFX"),
    "precision": ("QUANT-DEP",),
}
FAMILY = {name: family for family, classes in FAMILIES.items() for name in classes}


# What a row goes by first, by the group of its first fact; of each kind, how sure a name is.
KINDS = {"first": "rules", "side": "domains", "kv": "cache", "got": "cache", "read": "reading"}

# (right + 1) / (named + 2) on held-out planted faults: right were 8 of 11, 2 of 2, 3 of 7, 1 of 3 and 7 of 21.
# `make faults` tells it anew.
CONFIDENCE = {"rules": 0.69, "domains": 0.75, "cache": 0.44, "reading": 0.40, "answers": 0.35}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    fault_class: str
    facts: tuple[str, ...]

    @property
    def kind(self) -> str:
        """What it goes by: broken rules, what domains that met differ in, the cache, how it was read, or answers."""
        return KINDS.get(self.facts[0].partition(":")[0], "answers")

    def matches(self, known: frozenset[str]) -> bool:
        """Whether all its facts are known."""
        return known.issuperset(self.facts)


def _row(fault_class: str, *facts: str) -> Row:
    return Row(fault_class, facts)


TABLE: tuple[Row, ...] = (
    # What is no number comes from slots that nobody wrote, through a mask.
    _row("NAN-SLOT", "out:no-number"),
    # A rule of ownership that broke. Padding comes first: what it overwrote is no longer what was published, either.
    _row("PAD-WRITE", "first:overlap:padding"),
    _row("KEY-SALT", "first:key:salt"),
    _row("KEY-LORA", "first:key:adapter"),
    _row("KEY-MM", "first:key:media"),
    _row("KEY-EPOCH", "first:key:weights"),
    _row("OFF-BY-ONE", "first:key:token", "side:one-more"),
    _row("KEY-HASH", "first:key:token"),
    _row("OFF-BY-ONE", "first:key:tail"),
    _row("SLOT-REUSE", "first:key:leftover"),
    _row("PUB-EARLY", "first:key:unwritten"),
    _row("ROLLBACK", "first:key:abandoned", "only:speculative.rolls-back"),
    _row("PUB-FAIL", "first:key:abandoned"),
    _row("STALE-IDX", "first:key:withdrawn"),
    _row("OFF-BY-ONE", "first:key:position"),
    _row("OFF-BY-ONE", "first:key:beyond"),
    _row("KEY-SALT", "first:fork:salt"),
    _row("KEY-LORA", "first:fork:adapter"),
    _row("KEY-EPOCH", "first:fork:weights"),
    _row("STALE-IDX", "first:fork:token"),
    _row("ROLLBACK", "kv:stored", "with:rewrites"),
    _row("UAF-DST", "first:overlap:fetched"),
    _row("STALE-TABLE", "first:overlap:freed", "case:table"),
    _row("UAF-STEP", "first:overlap:freed"),
    _row("REFCOUNT", "first:overlap:shared", "case:owner"),
    _row("REFCOUNT", "first:overlap:shared", "case:free"),
    _row("COW", "first:overlap:shared"),
    _row("REFCOUNT", "first:owner"),
    _row("STALE-TABLE", "first:free:used"),
    _row("STALE-TABLE", "first:free", "case:table"),
    _row("PREEMPT", "first:free:parked"),
    _row("REFCOUNT", "first:free"),
    _row("STALE-TABLE", "first:table"),
    _row("REFCOUNT", "first:overlap:handed"),
    _row("STALE-TABLE", "first:overlap:stray"),
    _row("SLOT-REUSE", "first:length"),
    # What two domains differ in that met.
    _row("KEY-SALT", "side:salt"),
    _row("KEY-LORA", "side:adapter"),
    _row("KEY-MM", "side:media"),
    _row("KEY-EPOCH", "side:weights"),
    _row("REFCOUNT", "first:key:overwritten"),
    # What goes wrong alone as well on a model with a window has to do with it.
    _row("WINDOW", "with:window", "solo:left"),
    # What the cache held, and how it came there.
    _row("QUANT-DEP", "kv:imprecise", "kv:stored"),
    _row("QUANT-DEP", "kv:scaled", "kv:stored"),
    _row("QUANT-DEP", "kv:scaled", "got:restore"),
    _row("KEY-LORA", "kv:adapter", "got:write"),
    _row("OFF-BY-ONE", "kv:turned", "got:write"),
    _row("KEY-HASH", "got:fetch", "side:nobody"),
    _row("XFER-MAP", "got:fetch", "kv:cells"),
    _row("XFER-MAP", "got:fetch", "got:some"),
    _row("XFER-MAP", "got:fetch", "kv:own", "got:all"),
    _row("UAF-SRC", "got:fetch", "kv:foreign", "got:meanwhile"),
    _row("PUB-FAIL", "got:fetch", "kv:left"),
    _row("PUB-FAIL", "got:fetch", "kv:own"),
    _row("PUB-EARLY", "got:fetch", "kv:foreign", "kv:earlier"),
    _row("XFER-EARLY", "got:fetch", "kv:foreign", "case:restored"),
    _row("STALE-IDX", "got:fetch", "kv:foreign"),
    _row("PUB-EARLY", "got:fetch", "kv:stored"),
    _row("UAF-SRC", "got:reuse:fetch", "kv:foreign", "kv:stored"),
    _row("PUB-FAIL", "got:nothing", "with:fetch"),
    _row("QUANT-DEP", "got:copy", "kv:scaled"),
    _row("UAF-SRC", "got:restore", "kv:foreign", "kv:whole", "got:meanwhile"),
    _row("XFER-MAP", "got:restore", "kv:cells"),
    _row("XFER-MAP", "got:restore", "got:some"),
    _row("XFER-MAP", "got:restore", "kv:own"),
    _row("SLOT-REUSE", "got:restore", "kv:left", "got:all"),
    _row("XFER-MAP", "got:restore", "kv:left"),
    _row("UAF-SRC", "got:restore", "kv:foreign"),
    _row("XFER-EARLY", "got:restore"),
    _row("PREEMPT", "got:lost"),
    _row("COW", "got:copy", "kv:stored"),
    _row("XFER-EARLY", "got:write", "kv:nobody", "kv:stored", "with:copy"),
    _row("XFER-EARLY", "got:write", "kv:derived", "with:restore"),
    _row("COW", "got:write", "kv:foreign", "with:fork"),
    _row("PREEMPT", "kv:stored", "with:again"),
    _row("OFF-BY-ONE", "kv:stored", "got:write"),
    # The cache was right and was read wrongly.
    _row("PAD-READ", "read:wrong", "read:beyond"),
    _row("STALE-TABLE", "read:wrong", "out:foreign"),
    _row("RESUME-READ", "read:wrong", "with:hit"),
    _row("COMMON-PFX", "read:wrong", "read:attention"),
    _row("PAD-READ", "read:wrong"),
    # Answers alone, and which of the probes go wrong.
    # What is off alone as well, and is right where slots change hands, is rounded.
    _row("QUANT-DEP", "solo:left", "holds:cancel.decoding", "holds:fork.at-the-edge"),
    _row("SLOT-REUSE", "takes:before", "with:no-sharing"),
    _row("KEY-HASH", "side:nobody", "out:foreign"),
    _row("OFF-BY-ONE", "side:nobody", "side:one-more"),
    _row("SLOT-REUSE", "fails:slot.recycled"),
    # Padding is nobody's.
    _row("STALE-TABLE", "out:foreign", "fails:batch.ragged"),
    _row("STALE-TABLE", "out:foreign", "fails:prefix.many"),
    _row("PAD-WRITE", "fails:batch.ragged", "fails:prefix.block-edges"),
    _row("PAD-READ", "fails:batch.ragged"),
    _row("PAD-READ", "fails:fork.in-a-block", "fails:preempt.for-room"),
    _row("PREEMPT", "fails:preempt.for-room"),
    _row("STALE-IDX", "fails:evict.reset", "holds:fork.in-a-block", "side:nobody"),
    _row(
        "STALE-IDX",
        "fails:cancel.decoding",
        "fails:transfer.fetched",
        "holds:prefix.block-edges",
        "holds:fork.at-the-edge",
    ),
    _row("COW", "fails:fork.in-a-block", "fails:prefix.block-edges"),
    _row("REFCOUNT", "fails:fork.at-the-edge", "fails:cancel.decoding"),
    _row("COW", "only:fork.private-tail", "with:fork"),
    _row("COMMON-PFX", "only:fork.private-tail"),
    _row("REFCOUNT", "only:cancel.keeps-shared", "fails:cancel.decoding"),
    _row("OFF-BY-ONE", "only:cancel.keeps-shared", "with:hit"),
    _row("KEY-LORA", "only:key.adapter"),
    _row("KEY-MM", "only:key.media"),
    _row("KEY-SALT", "only:key.salt"),
    _row("KEY-EPOCH", "only:key.weights"),
    _row("KEY-HASH", "only:prefix.same-tokens"),
    _row("KEY-HASH", "only:transfer.whole", "fails:transfer.same-block-elsewhere", "holds:transfer.fetched"),
    # A wrong map shows whenever something is fetched, not only where a transfer is cut short.
    _row("PUB-FAIL", "only:transfer.whole", "fails:transfer.fetched", "holds:transfer.same-block-elsewhere"),
    _row("XFER-MAP", "only:transfer.whole"),
    _row("STALE-IDX", "only:conversation.follows-history"),
    _row("ROLLBACK", "only:speculative.rolls-back"),
    _row("PREEMPT", "only:preempt.resumes"),
    _row("PUB-EARLY", "fails:prefix.many"),
    _row("OFF-BY-ONE", "fails:cancel.at-any-point", "fails:batch.hits-and-misses"),
    _row("RESUME-READ", "fails:batch.hits-and-misses"),
    _row("COW", "with:fork"),
)


def suggest(known: Mapping[str, frozenset[str]]) -> tuple[Row, str] | None:
    """The first row that matches any of some victims of one fault, by facts of each, and that victim."""
    matching = ((row, victim) for row in TABLE for victim, facts in known.items() if row.matches(facts))
    return next(matching, None)


def explanation(victim: str, named: tuple[Row, str] | None, trigger: Trigger | None = None) -> Explanation:
    """What made a victim of a request, as far as it was tried, and the class of faults that the case looks like."""
    row, of = named or (None, victim)
    whose = "" if of == victim else f" (seen at request {of})"
    return Explanation(
        triggers=trigger.requests if trigger else (),
        trigger_how=trigger.how if trigger else "",
        fault_class=row.fault_class if row else None,
        family=FAMILY[row.fault_class] if row else None,
        confidence=CONFIDENCE[row.kind] if row else None,
        class_how=told(row.facts) + whose if row else "no row of the table is like it",
        class_kind=row.kind if row else "",
    )
