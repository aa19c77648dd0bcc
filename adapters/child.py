"""The process an engine lives in: ``python -m kvfence.adapters.child FD`` serves one host over a socket.

It imports this package's contract and the adapter, nothing else of kvfence.
"""

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from kvfence.adapters.api import Engine, EngineConfig
from kvfence.adapters.player import Played, play
from kvfence.adapters.registry import load, look_here
from kvfence.adapters.schedule import Schedule
from kvfence.adapters.wire import EngineInfo, describe, failure


class Child:
    """Opens, drives and closes engines as its host asks."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def open(self, spec: str, model: str, config: EngineConfig) -> EngineInfo:
        self.close()
        self._engine = load(spec)(model, config)
        return describe(self._engine)

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._engine, method)(*args)

    def play(self, schedule: Schedule) -> Played:
        assert self._engine is not None
        return play(self._engine, schedule)

    def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.close()


def serve(wire: Connection) -> None:
    """Answer requests ``(verb, args)`` with ``(True, value)`` or ``(False, Failure)`` until the host hangs up."""
    child = Child()
    while True:
        try:
            verb, args = wire.recv()
        except EOFError:
            return child.close()
        try:
            answer: tuple[bool, Any] = (True, getattr(child, verb)(*args))
        except (Exception, SystemExit) as error:
            answer = (False, failure(error))
        try:
            wire.send(answer)
        except Exception as error:  # an answer that cannot be pickled
            wire.send((False, failure(error)))


def _die_with(parent: int) -> None:
    # An engine that hangs never notices that its host is gone; without this it would run on for ever.
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Serve the host that started this process."""
    wire = Connection(int(sys.argv[1]))
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    look_here()
    serve(wire)


if __name__ == "__main__":
    main()
