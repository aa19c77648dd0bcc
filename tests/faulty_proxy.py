"""A proxy before a real server that answers badly when told to: what is between a client and an engine does that."""

import http.client
import threading
from collections import deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class FaultyProxy:
    """Forwards to `upstream`; each completion asked for meets the next of `plan`, or none if there is no more."""

    def __init__(self, upstream):
        self.plan, self.seen, self.released = deque(), [], threading.Event()
        self._upstream = urlsplit(upstream)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                proxy.forward(self, b"")

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.seen.append((self.path, dict(self.headers), body))
                fault = proxy.plan.popleft() if proxy.plan else None
                with suppress(ConnectionError):
                    proxy.forward(self, body) if fault is None else fault(proxy, self, body)

            def log_message(self, *args):
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}{self._upstream.path}"

    def close(self):
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def lines(self, handler, body):
        """What the real server answers, line by line; its status first."""
        connection = http.client.HTTPConnection(self._upstream.netloc)
        try:
            connection.request(handler.command, handler.path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            yield response.status
            yield from response
        finally:
            connection.close()

    def forward(self, handler, body, change=lambda lines: lines):
        lines = self.lines(handler, body)
        start(handler, next(lines))
        for line in change(lines):
            handler.wfile.write(line)


def start(handler, status=200, **headers):
    handler.send_response(status)
    handler.send_header("Connection", "close")
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def answer(status, text, **headers):
    """A fault: this answer, whatever was asked."""

    def fault(proxy, handler, body):
        start(handler, status, **headers)
        handler.wfile.write(text.encode())

    return fault


def hang(proxy, handler, body):
    """Nothing comes, and the connection stays open."""
    proxy.released.wait()


def stop_after(events):
    """The first events of the real answer, and a proper end."""

    def fault(proxy, handler, body):
        left = events

        def change(lines):
            nonlocal left
            for line in lines:
                left -= line.startswith(b"data:")
                if left < 0:
                    return
                yield line

        proxy.forward(handler, body, change)

    return fault


def tear_after(events):
    """The first events of the real answer; then the connection is gone, in the middle of what was announced."""

    def fault(proxy, handler, body):
        lines = proxy.lines(handler, body)
        start(handler, next(lines), Content_Length="1000000")
        left = events
        for line in lines:
            handler.wfile.write(line)
            left -= line.startswith(b"data:")
            if not left:
                return

    return fault


def hang_after(events):
    """The first events of the real answer, and then nothing, while the connection stays open."""

    def fault(proxy, handler, body):
        lines = proxy.lines(handler, body)
        start(handler, next(lines))
        left = events
        for line in lines:
            handler.wfile.write(line)
            handler.wfile.flush()
            left -= line.startswith(b"data:")
            if not left:
                proxy.released.wait()
                return

    return fault


def without_event(number):
    """The real answer but for one event."""

    def fault(proxy, handler, body):
        seen = 0

        def change(lines):
            nonlocal seen
            for line in lines:
                seen += line.startswith(b"data:")
                if seen != number or not line.startswith(b"data:"):
                    yield line

        proxy.forward(handler, body, change)

    return fault


def echo_key(proxy, handler, body):
    """Refuses the key, and says which."""
    start(handler, 401)
    handler.wfile.write(f'{{"error": {{"message": "no such key: {handler.headers["Authorization"]}"}}}}'.encode())
