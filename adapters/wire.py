"""What travels between a host and its child besides requests and completions."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from kvfence.adapters.api import (
    AdapterError,
    Capability,
    Engine,
    EngineFaultError,
    EngineStartError,
    RefusedError,
    Support,
    UnsupportedConfigError,
)

ERRORS = (EngineStartError, UnsupportedConfigError, RefusedError, EngineFaultError, AdapterError)


@dataclass(frozen=True)
class EngineInfo:
    """What the host needs to know of an opened engine."""

    name: str
    version: str
    block_size: int | None
    capabilities: Mapping[str, Capability]

    def can(self, capability: str) -> bool:
        """Whether a capability is SUPPORTED."""
        known = self.capabilities.get(capability)
        return known is not None and known.state is Support.SUPPORTED

    def lacks(self, capability: str) -> bool:
        """Whether a capability is UNSUPPORTED, and not just unknown."""
        known = self.capabilities.get(capability)
        return known is not None and known.state is Support.UNSUPPORTED


@dataclass(frozen=True)
class Failure:
    """An exception on its way to the host: an AdapterError keeps its class, anything else is told in one line."""

    error: AdapterError | None
    message: str
    details: str


def describe(engine: Engine) -> EngineInfo:
    """The facts of an opened engine. Raises EngineStartError where they are not what the contract says."""
    if not isinstance(engine, Engine):
        raise EngineStartError(f"the adapter must return an Engine, not {type(engine).__name__}")
    if not isinstance(engine.capabilities, Mapping):
        raise EngineStartError(f"the engine's capabilities must be a mapping, not {type(engine.capabilities).__name__}")
    if odd := [name for name, state in engine.capabilities.items() if not isinstance(state, Capability)]:
        raise EngineStartError(f"the engine's capability {odd[0]} must be a Capability")
    if (size := engine.block_size) is not None and (not isinstance(size, int) or size < 1):
        raise EngineStartError(f"the engine's block size is {size!r}; it must be a positive int, or None")
    return EngineInfo(engine.name, str(engine.version), engine.block_size, dict(engine.capabilities))


def failure(error: BaseException) -> Failure:
    """Make an exception fit for the wire."""
    text = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    # Of a class of the adapter's own the host knows nothing: it gets the contract's.
    known = next((kind for kind in type(error).__mro__ if kind in ERRORS), None)
    own = known(text[0] if text else message) if known else None
    return Failure(own, message, "".join(traceback.format_exception(error)))
