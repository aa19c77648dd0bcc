"""All tests of the suite, for the repository of an engine: `from kvfence.conformance.topics import *`."""

from kvfence.conformance.test_modes import test_independent, test_serial, test_shared
from kvfence.conformance.test_scenarios import test_scenario

__all__ = ["test_independent", "test_scenario", "test_serial", "test_shared"]
