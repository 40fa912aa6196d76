"""The explorer answers on this computer only, to who has the token, and every fault is a message."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from kvfence.checker.cli.explorer.server import ExplorerServer
from kvfence.spec.errors import CannotRun

Serve = Callable[[str], AbstractContextManager[ExplorerServer]]
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@pytest.fixture(scope="module")
def server(serve: Serve) -> Iterator[ExplorerServer]:
    with serve("lookup") as server:
        yield server


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_is_complete_in_itself(server: ExplorerServer) -> None:
    status, page = get(server.url)
    assert status == 200
    assert "http://" not in page
    assert "https://" not in page
    assert "--paper" in page


def test_without_the_token_nothing_is_answered(server: ExplorerServer) -> None:
    root = server.url.rsplit("/", 2)[0]
    assert server.url.startswith("http://127.0.0.1:")
    for place in ("/", "/position", "/wrong/position?path=", f"/{server.token[:-1]}/"):
        status, said = get(root + place)
        assert status == 403
        assert "lookup" not in said


def test_a_position_is_json(server: ExplorerServer) -> None:
    status, said = get(server.url + "position?path=0")
    assert status == 200
    assert [step["index"] for step in json.loads(said)["steps"]] == [0]


@pytest.mark.parametrize(
    ("asked", "status", "hint"),
    [
        ("position?path=a.b", 400, "action indexes"),
        ("position?path=77777", 400, "no action 77777"),
        ("position?design=none", 400, "none"),
        ("search?to=nowhere", 400, "nowhere"),
        ("nothing", 404, "nothing"),
    ],
)
def test_what_cannot_be_answered_is_told(server: ExplorerServer, asked: str, status: int, hint: str) -> None:
    assert (found := get(server.url + asked))[0] == status
    assert hint in found[1]


def test_a_taken_port_is_told(server: ExplorerServer) -> None:
    with pytest.raises(CannotRun, match=f"port {port_of(server)}"):
        ExplorerServer(server.explorer, port_of(server))


def asked(
    server: ExplorerServer, what: str = "", method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    """The answer to a request with headers of one's own; ``Host`` left out where it is empty."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=20)
    connection.putrequest(method, f"/{server.token}/{what}", skip_host=True)
    for name, value in ({"Host": f"127.0.0.1:{port_of(server)}"} | headers).items():
        if value:
            connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse()


def port_of(server: ExplorerServer) -> int:
    """Where it listens."""
    return int(server.url.split(":")[2].split("/")[0])


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1", "0.0.0.0:{port}", ""]
)
def test_another_host_gets_nothing_though_it_has_the_token(server: ExplorerServer, host: str) -> None:
    for what in ("", "position"):
        answer = asked(server, what, Host=host.format(port=port_of(server)))
        assert answer.status == 403
        assert b"lookup" not in answer.read()


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"]
)
def test_a_page_of_another_origin_gets_nothing(server: ExplorerServer, origin: str) -> None:
    assert asked(server, "position", Origin=origin.format(port=port_of(server))).status == 403


def test_the_page_itself_is_answered(server: ExplorerServer) -> None:
    port = port_of(server)
    for name in ("127.0.0.1", "localhost"):
        answer = asked(server, "position", Host=f"{name}:{port}", Origin=f"http://{name}:{port}")
        assert answer.status == 200


@pytest.mark.parametrize(
    ("what", "method", "status"), [("", "GET", 200), ("none", "GET", 404), ("", "POST", 501)]
)
def test_every_answer_says_what_a_browser_may_do_with_it(
    server: ExplorerServer, what: str, method: str, status: int
) -> None:
    answer = asked(server, what, method)
    assert answer.status == status
    for name, value in SAFE.items():
        assert answer.headers[name] == value
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_the_policy_allows_the_style_and_the_script_of_the_page(server: ExplorerServer) -> None:
    answer = asked(server)
    page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    for element in ("style", "script"):
        (text,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert " style=" not in page
    assert " onclick=" not in page


def test_idle_connections_take_few_threads_and_delay_no_one(server: ExplorerServer) -> None:
    before = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(200)]
    for one in idle[::2]:
        with contextlib.suppress(OSError):
            one.sendall(b"GET / HTTP/1.1\r\n")  # and no more: it has not asked
    started = time.monotonic()
    assert asked(server, "position").status == 200
    assert time.monotonic() - started < 5
    assert threading.active_count() - before <= 40
    for one in idle:
        one.close()


def test_a_client_that_sends_byte_by_byte_is_let_go(
    server: ExplorerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvfence.checker.cli.explorer.server.PATIENCE", 0.5)
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as slow:
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - started < 15:
                slow.sendall(b"G")
                time.sleep(0.1)
        assert time.monotonic() - started < 10
