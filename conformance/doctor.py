"""The doctor: what this machine has, and what each engine found on it would let itself be observed doing."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from kvfence.adapters.api import AdapterError, EngineConfig, Support
from kvfence.adapters.host import make_host
from kvfence.adapters.registry import spec
from kvfence.conformance.versions import package_versions
from kvfence.prompts import models

# What lets oracles look deeper, the shallowest first; tokens are what every engine shows.
DEPTH = ("logprobs", "cached_tokens", "session", "events", "kv", "attention")
GIB = 1 << 30


@dataclass(frozen=True)
class Checkup:
    """One engine, opened on the canary, or why it was not."""

    engine: str
    version: str  # "" where it was not opened
    reason: str  # why not, in one line; "" where it was
    capabilities: Mapping[str, str]  # SUPPORTED, or what is said instead; empty where it was not opened

    @property
    def shows(self) -> tuple[str, ...]:
        """What it would let itself be observed in."""
        return tuple(name for name in DEPTH if self.capabilities.get(name) == Support.SUPPORTED)


def machine() -> dict[str, str]:
    """What a run would run on: versions, processor, memory, device."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        **package_versions(),
        "system": platform.platform(terse=True),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": _memory(),
        "cuda": torch.cuda.get_device_name(0) if cuda else "none",
    }


def checkup(engine: str, arguments: Mapping[str, str], deadline: float) -> Checkup:
    """Open an engine in a process of its own and ask what it can do. Nothing is raised for one that does not open."""
    try:
        model = models.resolve("canary").path.resolve()
        host = make_host(spec(engine), str(model), deadline, in_process=False)
        try:
            info = host.open(EngineConfig(engine_args=arguments))
        finally:
            host.close()
    except AdapterError as error:
        return Checkup(engine, "", " ".join(str(error).split()), {})
    said = {
        name: known.state if known.state is Support.SUPPORTED else f"{known.state}: {known.reason}".removesuffix(": ")
        for name, known in info.capabilities.items()
    }
    return Checkup(engine, info.version, "", said)


def _memory() -> str:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        free, total = os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    except (ValueError, OSError, AttributeError):  # not told on this system
        return "not told"
    return f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
