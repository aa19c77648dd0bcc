"""Hand-made schedules, by family: small plays in which one kind of boundary is crossed."""

from kvfence.conformance.scenarios import batch, key, prefix, running, times
from kvfence.conformance.scenarios.cast import REPERTOIRE

__all__ = ["REPERTOIRE", "batch", "key", "prefix", "running", "times"]
