"""What travels between a host and its child besides requests and completions."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from kvfence.adapters.api import AdapterError, Capability, Engine, Support


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


@dataclass(frozen=True)
class Failure:
    """An exception on its way to the host: an AdapterError keeps its class, anything else is told in one line."""

    error: AdapterError | None
    message: str
    details: str


def describe(engine: Engine) -> EngineInfo:
    """The facts of an opened engine."""
    return EngineInfo(engine.name, str(engine.version), engine.block_size, dict(engine.capabilities))


def failure(error: BaseException) -> Failure:
    """Make an exception fit for the wire."""
    text = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    own = type(error)(*error.args) if isinstance(error, AdapterError) else None
    return Failure(own, message, "".join(traceback.format_exception(error)))
