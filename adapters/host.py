"""The host of an engine: a child process with a deadline on every call, started anew after a crash or a hang."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol

from kvfence.adapters.api import (
    AdapterError,
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    Request,
)
from kvfence.adapters.child import Child
from kvfence.adapters.registry import look_here
from kvfence.adapters.schedule import Schedule
from kvfence.adapters.wire import EngineInfo, Failure

PROGRESS = re.compile(r"\d%\|")  # a progress bar: the last that was written, and no reason
LOG_TAIL = 400  # characters of the child's last output kept in an error


class Host(Protocol):
    """An engine that can be opened in one configuration after another."""

    info: EngineInfo | None

    def open(self, config: EngineConfig) -> EngineInfo:
        """Open the engine in `config`, or return at once if it is. Raises AdapterError."""

    def generate(self, requests: Sequence[Request]) -> object:
        """What the engine answers, not yet checked. Raises EngineFaultError if it raises, hangs or dies."""

    def reset_cache(self) -> None:
        """Make the engine forget what it has cached. Raises EngineFaultError likewise."""

    def observe(self) -> object:
        """What was seen since the last call, not yet checked. Raises EngineFaultError likewise."""

    def play(self, schedule: Schedule) -> object:
        """What came of a schedule, not yet checked. Raises EngineFaultError likewise."""

    def call(self, method: str) -> object:
        """What a method of the adapter's own answers. Raises EngineFaultError likewise."""

    def restart(self) -> EngineInfo:
        """Close the engine and open it anew in the same configuration. Raises AdapterError."""

    def close(self) -> None:
        """Close the engine and its process."""


class InProcessHost:
    """The engine in this process, for a debugger: nothing guards against a hang or a crash."""

    def __init__(self, spec: str, model: str) -> None:
        self._spec, self._model = spec, model
        self._child = Child()
        self._config: EngineConfig | None = None
        self.info: EngineInfo | None = None

    def open(self, config: EngineConfig) -> EngineInfo:
        if self.info is None or config != self._config:
            self.info = None
            self.info = _guard(lambda: self._child.open(self._spec, self._model, config))
            self._config = config
        return self.info

    def generate(self, requests: Sequence[Request]) -> object:
        return _guard(lambda: self._child.call("generate", list(requests)))

    def reset_cache(self) -> None:
        _guard(lambda: self._child.call("reset_cache"))

    def observe(self) -> object:
        return self.call("observe")

    def play(self, schedule: Schedule) -> object:
        return _guard(lambda: self._child.play(schedule))

    def call(self, method: str) -> object:
        return _guard(lambda: self._child.call(method))

    def restart(self) -> EngineInfo:
        assert self._config is not None
        self.info = None
        return self.open(self._config)

    def close(self) -> None:
        self.info = None
        self._child.close()


def _guard(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except AdapterError:
        raise
    except Exception as error:
        raise EngineFaultError(f"engine raised {type(error).__name__}: {error}") from error


class ProcessHost:
    """The engine in a child process of its own.

    A call that passes its deadline (seconds) kills the child's whole process group; the next call opens the engine
    again in the same configuration. One configuration a process, unless the engine can "reopen".
    """

    def __init__(self, spec: str, model: str, deadline: float = 300.0) -> None:
        self._spec, self._model, self._deadline = spec, model, deadline
        self._config: EngineConfig | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: Connection | None = None
        self._busy = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the host
        self.info: EngineInfo | None = None

    def open(self, config: EngineConfig) -> EngineInfo:
        if self.info is not None and config == self._config:
            return self.info
        return self._launch(config)

    def generate(self, requests: Sequence[Request]) -> object:
        return self._call("call", "generate", list(requests))

    def reset_cache(self) -> None:
        self.call("reset_cache")

    def observe(self) -> object:
        return self.call("observe")

    def play(self, schedule: Schedule) -> object:
        return self._call("play", schedule)

    def call(self, method: str) -> object:
        return self._call("call", method)

    def restart(self) -> EngineInfo:
        assert self._config is not None
        return self._launch(self._config)

    def close(self) -> None:
        self._close_engine()
        self._stop()
        self._log.close()

    def _launch(self, config: EngineConfig) -> EngineInfo:
        """Open an engine in place of any other: in the same process only where it can be opened again there."""
        if self.info is None or not self.info.can("reopen"):
            self._stop()
        self.info = None
        if self._process is None:
            self._start()
        self.info = self._ask("open", self._spec, self._model, config)
        self._config = config
        return self.info

    def _call(self, verb: str, *args: Any) -> object:
        if self.info is None:
            if self._config is None:
                raise EngineStartError("the engine has not been opened")
            self.open(self._config)
        return self._ask(verb, *args)

    def _close_engine(self) -> None:
        # A call that was interrupted is still being answered: nothing more can be asked.
        if self._process is not None and self.info is not None and not self._busy:
            with suppress(EngineFaultError):
                self._ask("close")

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._log.truncate(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvfence.adapters.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        self._wire = Connection(ours.detach())

    def _ask(self, verb: str, *args: Any) -> Any:
        assert self._wire is not None
        self._busy = True
        try:
            self._wire.send((verb, args))
            answered = self._wire.poll(self._deadline)
            good, answer = self._wire.recv() if answered else (False, None)
        except (EOFError, OSError) as error:
            raise EngineFaultError(self._obituary()) from error
        except Exception as error:  # whatever a class does that is known to the child only
            self._busy = False
            raise EngineFaultError(f"the engine's answer holds objects of its own: {error}") from error
        if not answered:
            self._stop()
            raise EngineFaultError(f"engine did not answer within {self._deadline:g} s and was killed")
        self._busy = False
        if good:
            return answer
        assert isinstance(answer, Failure)
        if answer.error is not None:
            raise answer.error
        raise EngineFaultError(f"engine raised {answer.message}") from RuntimeError(answer.details)

    def _obituary(self) -> str:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.returncode
        cause = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        self._log.seek(0)
        lines = re.split(r"[\r\n]+", self._log.read().decode(errors="replace").strip())
        words = [line for line in lines if line and not PROGRESS.search(line)]
        self._stop()
        return f"engine process died ({cause})" + (f": {words[-1][-LOG_TAIL:]}" if words else "")

    def _stop(self) -> None:
        self.info, busy, self._busy = None, self._busy, False
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._process is None:
            return
        # Give an idle child a moment to leave by itself, then end its whole group: engines have workers.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0 if busy else 0.5)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


def make_host(spec: str, model: str, deadline: float, in_process: bool) -> Host:
    """A host for the adapter `spec` on the model folder `model`."""
    if in_process:
        look_here()
        return InProcessHost(spec, model)
    return ProcessHost(spec, model, deadline)
