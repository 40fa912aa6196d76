"""The explorer answers on this computer only, to whoever has the token, and every fault is a message."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from kvfence.checker.errors import CannotRun
from kvfence.checker.explorer.server import ExplorerServer
from kvfence.checker.explorer.walk import explorer_of


@pytest.fixture(scope="module")
def server() -> Iterator[ExplorerServer]:
    server = ExplorerServer(explorer_of("lookup", None, {}))
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield server
    server.close()
    thread.join()


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
    port = int(server.url.split(":")[2].split("/")[0])
    with pytest.raises(CannotRun, match=f"port {port}"):
        ExplorerServer(server.explorer, port)
