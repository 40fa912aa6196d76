"""A package index on the loopback interface, with made-up wheels, which states the truth or lies."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMPILED = random.Random(7).randbytes(3 << 20)
"""What no audit needs, and more than is fetched at once."""


def wheel_of(
    files: dict[str, bytes],
    name: str = "vllm-9.9.9",
    *,
    record: Callable[[str], str] = lambda text: text,
) -> bytes:
    """A wheel with ``files`` and a RECORD of them, which ``record`` may change."""
    made = io.BytesIO()
    rows = []
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(content)}\n")
        own = f"{name}.dist-info/RECORD"
        archive.writestr(zipfile.ZipInfo(own), record("".join([*rows, f"{own},,\n"])))
    return made.getvalue()


def plain(note: bytes = b"") -> dict[str, bytes]:
    """The files of a made-up vLLM: Python files before and after what is compiled."""
    return {
        "vllm/__init__.py": b"",
        "vllm/_C.abi3.so": COMPILED,
        "vllm/v1/engine.py": b"x = 1\n" * 1000 + note,
        "vllm/settings.json": b"{}",
        "vllm/kernel.cu": b"none",
    }


class Made:
    """What the index has, how it behaves, and what it was asked."""

    def __init__(self) -> None:
        self.wheels: dict[str, bytes] = {}
        self.stated: dict[str, dict[str, object]] = {}
        """By wheel: what the list says of it in place of the truth."""
        self.ranges = True
        self.html = False
        self.more_links: list[str] = []
        self.range_header: Callable[[str], str] = lambda text: text
        self.body: Callable[[bytes], bytes] = lambda body: body
        self.redirect = False
        self.asked: list[str] = []
        self.authorizations: list[tuple[str, str | None]] = []
        self.sent = 0
        self.url = ""

    def add(self, name: str, wheel: bytes, **stated: object) -> None:
        """A wheel."""
        self.wheels[name] = wheel
        self.stated[name] = stated

    def page(self, project: str) -> str:
        """The list of a project's files; empty if there are none."""
        start = project.replace("-", "_")
        entries = []
        for name, content in self.wheels.items():
            if not name.startswith(f"{start}-"):
                continue
            digest = hashlib.sha256(content).hexdigest()
            entry = {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest}}
            entries.append({**entry, "size": len(content), **self.stated[name]})
        if not entries:
            return ""
        if not self.html:
            return json.dumps({"files": entries})
        links = [f'<a href="{e["url"]}#sha256={e["hashes"]["sha256"]}">x</a>' for e in entries]
        return "<!doctype html>" + "".join([*self.more_links, *links])


@contextmanager
def serving(made: Made) -> Iterator[Made]:
    """Serves ``made`` for as long as it is needed; ``made.url`` is that of the index."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            made.authorizations.append((self.path, self.headers.get("Authorization")))
            if found := re.fullmatch(r"/simple/([\w-]+)/", self.path):
                page = made.page(found[1]).encode()
                kind = "text/html" if made.html else "application/vnd.pypi.simple.v1+json"
                self.answer(200 if page else 404, page, {"Content-Type": kind})
                return
            name = self.path.rsplit("/", 1)[-1]
            if made.redirect and not self.path.startswith("/moved/"):
                self.answer(302, b"", {"Location": f"/moved/{name}"})
                return
            whole = made.wheels.get(name)
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if whole is None:
                self.answer(404, b"", {})
            elif wanted is None or not made.ranges:
                self.answer(200, whole, {})
            else:
                first, last = int(wanted[1]), int(wanted[2])
                stated = made.range_header(f"bytes {first}-{last}/{len(whole)}")
                self.answer(206, whole[first : last + 1], {"Content-Range": stated})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            sent = body if "/simple/" in self.path else made.body(body)
            made.sent += len(sent)
            self.wfile.write(sent)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/simple/"
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
