"""The proof of the reference engine: random schedules, all of whose outputs are golden's, audited at every step.

SCHEDULES says how many; `make proof` runs 2,000 and tells what happened in them.
"""

import os
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from ref_judge import Tally
from ref_machine import Schedules
from ref_subjects import NAMES

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.clock import Operation
from kvfence.reference_impl.holding import Draining
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.radix import PrefixTree
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Sequence as Request
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Pages, Storage

SCHEDULES = os.environ.get("SCHEDULES")


def run(machine: type[Schedules], schedules: int, phases: Sequence[Phase], number: int = 0) -> None:
    """Run so many schedules: the same ones each time for the same number, unless SCHEDULES is set."""
    configured = settings(
        max_examples=schedules,
        stateful_step_count=20,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine if SCHEDULES else seed(number)(machine), settings=configured)


def test_every_output_is_golden_in_random_schedules():
    schedules, tally = int(SCHEDULES or 99), Tally()
    for number, model in enumerate(NAMES):
        machine = type(model, (Schedules,), {"names": (model,), "tally": tally})
        run(machine, -(-schedules // len(NAMES)), (Phase.generate, Phase.shrink), number)
    print(f"\n{tally}")
    assert tally.schedules["schedules"] >= schedules
    # Schedules in which nothing was short or shared would prove little.
    for name in ("evict events", "preempted for room"):
        assert tally.share(name) > 0.5, name
    for name in ("hits", "forks", "stop", "cancelled", "timed out", "edits", "new weights", "accepted", "rejected"):
        assert tally.counts[name] > 0, name
    for name in ("copy events", "swap-in events", *(["fetch events"] if SCHEDULES else [])):  # fetches are rare
        assert tally.counts[name] > 0, name
    for name in ("ties", "hesitations"):
        assert tally.counts[name] < tally.counts["tokens"] / 100, name


class NoCopy(KVCache):
    """Writes to blocks that others share."""

    def _copy_on_write(self, sequence: Request) -> None:
        pass


class NoFence(KVCache):
    """Frees blocks that work in flight touches."""

    def _let_go(self, request: str, blocks: list[int], operations: Iterable[Operation]) -> None:
        self._free(Draining(request, blocks, []))


class Misplacing(Storage):
    """Brings swapped blocks back in another order."""

    def restore(self, blocks: Sequence[int], pages: Pages) -> None:
        super().restore(blocks[::-1], pages)


class Blind(PrefixTree):
    """Shares K/V between tenants: they are the same, but whose prompt is cached can be told."""

    def match(self, namespace: Namespace, tokens: Sequence[int]) -> tuple[list[int], int]:
        return super().match(Namespace(), tokens)

    def insert(self, namespace: Namespace, tokens: Sequence[int], blocks: Sequence[int]) -> list[int]:
        return super().insert(Namespace(), tokens, blocks)


@pytest.mark.parametrize(
    ("parts", "fixed", "told"),
    [
        (Parts(cache=NoCopy), {"audit": True}, "is written to by"),
        (Parts(cache=NoFence), {"audit": True, "depth": 1, "draft": 0}, "block"),
        (Parts(cache=NoFence), {"depth": 1, "draft": 0, "sharing": False}, "below golden's"),
        (Parts(storage=Misplacing), {"audit": True, "preemption": Preemption.SWAP}, "block"),
        (Parts(storage=Misplacing), {"preemption": Preemption.SWAP}, "below golden's"),
        (Parts(tree=Blind), {"audit": True}, "block"),
    ],
)
def test_random_schedules_find_a_fault(parts, fixed, told):
    """By golden alone too, where an output shows it."""
    tally = Tally()
    machine = type("Faulty", (Schedules,), {"parts": parts, "fixed": fixed, "tally": tally})
    with pytest.raises(Exception, match=told):
        run(machine, 300, (Phase.generate,))
    print(f"found in schedule {tally.schedules['schedules'] + 1}")
