"""An engine that answers canary prompts by their closed form, and misbehaves on requests of group B as it is told.

`how` is the engine argument; the private methods say what there is.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType, ModuleType

from kvfence.adapters.api import (
    Completion,
    Engine,
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    Request,
    UnsupportedConfigError,
)
from kvfence.prompts import alphabet


class RogueEngine(Engine):
    name = "rogue"
    version = "1"

    def __init__(self, how: str) -> None:
        self._how = how

    def generate(self, requests: Sequence[Request]) -> Sequence[Completion]:
        good = [Completion(r.id, alphabet.answer(r.prompt, r.max_tokens)) for r in requests]
        if not any("/B" in r.id for r in requests) or self._how == "good":
            return good
        return getattr(self, "_" + self._how.replace("-", "_"))(good)

    def _raise(self, good):
        raise RuntimeError("block table is full\nsecond line")

    def _exit(self, good):
        os._exit(7)

    def _kill(self, good):
        print("last words of the engine", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def _hang(self, good):
        threading.Event().wait()

    def _none(self, good):
        return None

    def _few(self, good):
        return good[:-1]

    def _foreign_id(self, good):
        return [replace(good[0], id="somebody"), *good[1:]]

    def _short(self, good):
        return [replace(c, tokens=c.tokens[:-1]) for c in good]

    def _long(self, good):
        return [replace(c, tokens=(*c.tokens, 8)) for c in good]

    def _vocabulary(self, good):
        return [replace(c, tokens=(*c.tokens[:-1], alphabet.VOCAB_SIZE)) for c in good]

    def _type(self, good):
        return [replace(c, tokens=(*c.tokens[:-1], "word")) for c in good]

    def _unpicklable(self, good):
        return [replace(c, tokens=(lambda: 0,)) for c in good]

    def _own_class(self, good):
        own = _only_here(Completion)
        return [own(**vars(c)) for c in good]

    def _own_error(self, good):
        raise _only_here(EngineFaultError)("slot 3 is gone\nsecond line")

    def _nan(self, good):
        return [replace(c, logprobs=(float("nan"),) * len(c.tokens)) for c in good]

    def _nan_after_one(self, good):
        return [replace(c, logprobs=(-0.0, *(float("nan"),) * (len(c.tokens) - 1))) for c in good]

    def _cached(self, good):
        return [replace(c, cached_tokens=-5) for c in good]


def _only_here(kind):
    """A subclass in a module that no other process can import."""
    module = sys.modules["only_here"] = ModuleType("only_here")
    module.Own = type("Own", (kind,), {"__module__": "only_here"})
    return module.Own


class Sized(RogueEngine):
    block_size = "16"


class Capable(RogueEngine):
    capabilities = MappingProxyType({"token_prompts": True})


# Returned in place of an engine that keeps to the contract.
ODD = {"no-engine": lambda how: 42, "block-size": Sized, "capabilities": Capable}


def open_engine(model: str, config: EngineConfig) -> RogueEngine:
    if config.dtype != "float32":
        raise UnsupportedConfigError(f"rogue has no dtype {config.dtype}; it has float32")
    how = config.engine_args.get("how", "good")
    if how == "no-start":
        raise EngineStartError("rogue cannot start: no licence")
    return ODD.get(how, RogueEngine)(how)
