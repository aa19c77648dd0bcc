"""The class-naming table: which known class of faults a finding looks like. Used by verdicts and diagnosis alike.

A row matches where all its facts are known of the victim; the first row that matches names the class. What a log shows
comes first, then what is wrong in the cache, then how the answer is wrong and what the victim was put through.
"""

from dataclasses import dataclass

from kvfence.conformance.driven import Driven
from kvfence.conformance.evidence import Evidence, Observation
from kvfence.conformance.facts import facts
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


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    fault_class: str
    facts: tuple[str, ...]
    confidence: float = 0.5

    def matches(self, known: frozenset[str]) -> bool:
        """Whether all its facts are known; one that begins with "-" must not be."""
        return all(fact[1:] not in known if fact[0] == "-" else fact in known for fact in self.facts)


def _row(fault_class: str, *facts: str) -> Row:
    return Row(fault_class, facts)


TABLE: tuple[Row, ...] = (
    _row("NAN-SLOT", "out:no-number"),
    _row("KEY-SALT", "log:key:salt"),
)


def suggest(known: frozenset[str]) -> Row | None:
    """The first row that matches."""
    return next((row for row in TABLE if row.matches(known)), None)


def explanation(
    driven: Driven, observation: Observation, evidence: Evidence, trigger: Trigger | None = None
) -> Explanation:
    """What made a victim of a request, as far as it was tried, and the class of faults that it looks like."""
    known = facts(driven, observation, evidence)
    if trigger:
        known |= {f"takes:{trigger.takes}"}
    row = suggest(known)
    return Explanation(
        triggers=trigger.requests if trigger else (),
        trigger_how=trigger.how if trigger else "",
        fault_class=row.fault_class if row else None,
        family=FAMILY[row.fault_class] if row else None,
        confidence=row.confidence if row else None,
        class_how=", ".join(row.facts if row else sorted(known)),
    )
