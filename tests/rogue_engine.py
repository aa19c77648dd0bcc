"""An engine that answers canary prompts by their closed form, and misbehaves on requests of group B as it is told.

`how` is the engine argument; the private methods say what there is.
"""

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace

from kvfence.adapters.api import (
    Completion,
    Engine,
    EngineConfig,
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


def open_engine(model: str, config: EngineConfig) -> RogueEngine:
    if config.dtype != "float32":
        raise UnsupportedConfigError(f"rogue has no dtype {config.dtype}; it has float32")
    how = config.engine_args.get("how", "good")
    if how == "no-start":
        raise EngineStartError("rogue cannot start: no licence")
    return RogueEngine(how)
