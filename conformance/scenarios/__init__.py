"""Hand-made schedules, by family: small plays in which one kind of boundary is crossed."""

from kvfence.conformance.scenarios import batch, cells, factors, key, prefix, running, times
from kvfence.conformance.scenarios.cast import REPERTOIRE

__all__ = ["REPERTOIRE", "batch", "cells", "factors", "key", "prefix", "running", "times"]
