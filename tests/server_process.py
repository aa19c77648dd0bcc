"""A real server as a child process: on a free port, waited for until it is ready, ended with all its children."""

import http.client
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress

START = 600.0  # seconds: a server that imports torch on a busy machine takes minutes
STOP = 10.0  # seconds that it is given to end by itself


class ServerProcess:
    """Runs `command` with `--host` and `--port` behind it; `log` is where it writes, and what is told if it fails."""

    def __init__(self, command, log, **environment):
        self.port, self._log = free_port(), log
        # What the tests' own processes are given (their path above all) is none of the server's business.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
        with log.open("wb") as out:
            # A session of its own, so that its children are found when it has to be ended.
            self._process = subprocess.Popen(
                [*map(str, command), "--host", "127.0.0.1", "--port", str(self.port)],
                env={**inherited, **quiet},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def get(self, path):
        """The status and text that it answers, or none if it does not."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return None, ""
        finally:
            connection.close()

    def close(self):
        """End it, and what it has started."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait(self):
        end = time.monotonic() + START
        while self.get("/health")[0] != 200:
            if self._process.poll() is not None or time.monotonic() > end:
                told = self._log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the server has not started (exit code {self._process.returncode}): {told}")
            time.sleep(0.1)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until(true, seconds=60.0):
    """Ask until it is so. Raises AssertionError if it is not in time."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came to be so"
        time.sleep(0.02)
