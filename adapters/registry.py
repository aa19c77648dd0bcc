"""Where adapters are found: entry points of the group `kvfence.adapters`, or ``module:factory``."""

import importlib
import sys
from importlib.metadata import entry_points
from pathlib import Path

from kvfence.adapters.api import Adapter, EngineStartError

GROUP = "kvfence.adapters"


def names() -> list[str]:
    """Names of the installed adapters."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def spec(engine: str) -> str:
    """The ``module:factory`` of an engine named by the user, without importing it.

    Raises EngineStartError for a name that is neither installed nor of that form.
    """
    if ":" in engine:
        return engine
    for point in entry_points(group=GROUP):
        if point.name == engine:
            return point.value
    raise EngineStartError(f"unknown engine {engine!r}: choose one of {', '.join(names())}, or give module:factory")


def look_here() -> None:
    """Let modules be found in the working directory, where a user keeps that of module:factory."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def load(spec: str) -> Adapter:
    """Import the factory that ``module:factory`` names. Raises EngineStartError if it is not there."""
    module, _, attribute = spec.partition(":")
    try:
        factory: Adapter = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise EngineStartError(f"cannot load adapter {spec}: {error}") from error
    if not callable(factory):
        raise EngineStartError(f"adapter {spec} is not callable; it must be a function open(model, config)")
    return factory
