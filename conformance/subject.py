"""A subject: what a run examines one at a time, a case of the matrix or a scenario."""

from kvfence.conformance.case import Case
from kvfence.conformance.scenarios.scenario import Scenario

Subject = Case | Scenario
