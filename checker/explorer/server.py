"""Serves the explorer's page and its answers on the loopback interface, to whoever has the token."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from kvfence.checker.errors import CannotRun
from kvfence.checker.explorer.walk import Explorer
from kvfence.checker.report.svg import palette

PAGE: Final = Path(__file__).parent / "page.html"
LOCAL: Final = "127.0.0.1"
POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)
"""The page may run what it brings along, and asks nobody but this server."""


class ExplorerServer:
    """The server of one explorer. ``port`` 0 takes a free one; CannotRun when the port is taken."""

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        self.explorer = explorer
        self.token = secrets.token_urlsafe(16)
        self._walking = threading.Lock()
        self._searching = threading.Lock()
        try:
            self._http = ThreadingHTTPServer((LOCAL, port), self._handler())
        except OSError as error:
            raise CannotRun(f"cannot listen on port {port}: {error.strerror}; give another --port") from error
        self._http.daemon_threads = True

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOCAL}:{self._http.server_address[1]}/{self.token}/"

    def serve(self) -> None:
        """Answers until :meth:`close` or Ctrl-C."""
        self._http.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """No more answers."""
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

    def page(self) -> str:
        """The page, complete in itself."""
        return PAGE.read_text(encoding="utf-8").replace("/*palette*/", palette())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                _, token, what, *_ = [*parts.path.split("/"), "", ""]
                if not secrets.compare_digest(token.encode(), server.token.encode()):
                    self._send(403, "text/plain", "kvfence: this address lacks the token that was printed")
                elif what == "":
                    self._send(200, "text/html", server.page())
                elif what in ("position", "search", "translate"):
                    asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                    self._answer(lambda: server.answer(what, asked))
                else:
                    self._send(404, "text/plain", f"kvfence: there is no {what}")

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
                self.send_header("Cache-Control", "no-store")
                self.send_header("Content-Security-Policy", POLICY)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _path(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(".") if part]
    except ValueError:
        raise CannotRun(f"a path is action indexes with dots between them, not {text[:80]!r}") from None
