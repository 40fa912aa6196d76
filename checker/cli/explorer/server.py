"""Serves the explorer's page and its answers on the loopback interface, to clients that have the token.

A page of another origin gets nothing, also where a name server tells its browser that the origin is this
computer (DNS rebinding): Host and Origin are compared with the address that was printed.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from kvfence.checker.cli.explorer.walk import Explorer
from kvfence.checker.report.diagrams.svg import palette
from kvfence.checker.report.html.policy import inline, page_policy
from kvfence.spec.errors import CannotRun

PAGE: Final = Path(__file__).parent / "page.html"
LOCAL: Final = "127.0.0.1"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer, beside the policy of the page."""
MOST_CONNECTIONS: Final = 32
"""Connections at a time, each with a thread. One more ends the one that has waited longest without asking."""
PATIENCE: Final = 10.0
"""Seconds in which a connection has to have asked."""


class ExplorerServer:
    """The server of one explorer. ``port`` 0 takes a free one; CannotRun when the port is taken."""

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        self.explorer = explorer
        self.token = secrets.token_urlsafe(16)
        self._walking = threading.Lock()
        self._searching = threading.Lock()
        self.page = PAGE.read_text(encoding="utf-8").replace("/*palette*/", palette())
        styles, scripts = inline(self.page, "style"), inline(self.page, "script")
        policy = page_policy(styles, scripts, "connect-src 'self'", "frame-ancestors 'none'")
        self.headers = HEADERS | {"Content-Security-Policy": policy}
        try:
            self._http = _Bounded((LOCAL, port), self._handler())
        except OSError as error:
            raise CannotRun(f"cannot listen on port {port}: {error.strerror}; give another --port") from error
        at = self._http.server_address[1]
        self._hosts = {f"{name}:{at}" for name in (LOCAL, "localhost")}

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOCAL}:{self._http.server_address[1]}/{self.token}/"

    def serve(self) -> None:
        """Answers until :meth:`close` or Ctrl-C."""
        self._http.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stops answering."""
        self._http.shutdown()
        self._http.server_close()

    def answer(self, what: str, asked: dict[str, str]) -> Any:
        """The answer to one question of the page. CannotRun for what cannot be answered."""
        design = asked.get("design") or self.explorer.designs[0]
        if what == "search":
            with self._searching:
                return {"path": self.explorer.search(design, asked.get("to", ""))}
        with self._walking:
            path = _path(asked.get("path", ""))
            if what == "translate":
                return {"path": self.explorer.translate(design, path, asked.get("to", ""))}
            return self.explorer.position(design, path, asked.get("other") or None)

    def from_elsewhere(self, hosts: list[str], origins: list[str]) -> bool:
        """Whether a request with these Host and Origin headers is none of the page that was printed."""
        known = len(hosts) == 1 and hosts[0].strip().lower() in self._hosts
        return not known or any(o.strip().lower() != f"http://{hosts[0].strip().lower()}" for o in origins)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE

            def version_string(self) -> str:
                return "kvfence"

            def do_GET(self) -> None:
                sent = self.headers
                if server.from_elsewhere(sent.get_all("Host", []), sent.get_all("Origin", [])):
                    self._send(403, "text/plain", "kvfence: open the address that was printed")
                    return
                parts = urlsplit(self.path)
                _, token, what, *_ = [*parts.path.split("/"), "", ""]
                if not secrets.compare_digest(token.encode(), server.token.encode()):
                    self._send(403, "text/plain", "kvfence: this address lacks the token that was printed")
                elif what == "":
                    self._send(200, "text/html", server.page)
                elif what in ("position", "search", "translate"):
                    asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                    self._answer(lambda: server.answer(what, asked))
                else:
                    self._send(404, "text/plain", f"kvfence: there is no {what}")

            def parse_request(self) -> bool:
                if whole := super().parse_request():
                    server._http.asked(self.connection)
                return whole

            def _answer(self, ask: Callable[[], Any]) -> None:
                try:
                    status, found = 200, ask()
                except CannotRun as error:
                    status, found = 400, {"error": str(error)}
                except Exception as error:  # the page shows it, and goes on
                    status, found = 500, {"error": f"{type(error).__name__}: {error}"}
                self._send(status, "application/json", json.dumps(found))

            def _send(self, status: int, kind: str, text: str) -> None:
                body = text.encode("utf-8")
                self.send_response(status)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def end_headers(self) -> None:
                """Adds what every answer has, an error of the library included."""
                for name, value in server.headers.items():
                    self.send_header(name, value)
                super().end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


class _Bounded(ThreadingHTTPServer):
    """A thread for each connection, of a few at a time; one that does not ask is ended."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[socket.socket, float] = {}
        """Connections by when they began; 0 for those that have asked."""
        self._change = threading.Lock()
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        """Whether there is room for one more connection, perhaps after another one was ended."""
        with self._change:
            if len(self._open) >= MOST_CONNECTIONS:
                waiting = [(since, one) for one, since in self._open.items() if since]
                if not waiting:
                    return False
                self._end(min(waiting, key=lambda pair: pair[0])[1])
            self._open[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        """Ends, now and then, connections that took too long to ask, a byte at a time perhaps."""
        with self._change:
            late = time.monotonic() - PATIENCE
            for one in [one for one, since in self._open.items() if 0 < since < late]:
                self._end(one)

    def asked(self, connection: socket.socket) -> None:
        """The connection has sent a whole request: it is answered, however long that takes."""
        with self._change:
            if connection in self._open:
                self._open[connection] = 0.0

    def shutdown_request(self, request: Any) -> None:
        """Forgets the connection and closes it."""
        with self._change:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def _end(self, connection: socket.socket) -> None:
        del self._open[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a connection that breaks: the user has done nothing wrong."""


def _path(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(".") if part]
    except ValueError:
        raise CannotRun(f"a path is action indexes with dots between them, not {text[:80]!r}") from None
