"""The explorer in a real Chromium: walked by keys and clicks, reached by URL, switched between designs."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from kvfence.checker.cli.explorer.server import ExplorerServer
from kvfence.spec.machines import MACHINES

websocket = pytest.importorskip("websocket")
CHROMIUM = next(
    (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium: none is installed")
Serve = Callable[[str], AbstractContextManager[ExplorerServer]]
KEYS = {"Enter": 13, "Backspace": 8, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36}


class Tab:
    """One tab, driven through Chromium's DevTools protocol."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.number = 0

    def send(self, method: str, **params: Any) -> Any:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            said = json.loads(self.socket.recv())
            if said.get("id") == self.number:
                assert "error" not in said, said
                return said["result"]

    def run(self, script: str) -> Any:
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def key(self, key: str) -> None:
        code = KEYS.get(key, ord(key[0].upper()))
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def wait(self, what: str, script: str, seconds: float = 40) -> None:
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, (
                f"{what} did not happen; the page says {self.run('document.body.innerText')}"
            )
            time.sleep(0.02)

    def at(self, ready: str) -> None:
        """Waits until the page shows this position."""
        self.wait(f"position {ready}", f"document.body?.dataset.ready === {json.dumps(ready)}")

    def open(self, url: str, ready: str) -> None:
        self.send("Page.navigate", url=url)
        self.at(ready)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    folder = tmp_path_factory.mktemp("chromium")
    browser = subprocess.Popen(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--remote-debugging-port=0", f"--user-data-dir={folder}", "--window-size=1400,900", "about:blank",
        ],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port_file = folder / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert browser.poll() is None, "Chromium has ended"
            assert time.monotonic() < end, "Chromium does not answer"
            time.sleep(0.05)
        port = port_file.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            page = next(one for one in json.load(answer) if one["type"] == "page")
        url = page["webSocketDebuggerUrl"]
        socket = websocket.create_connection(url, suppress_origin=True, timeout=60)
        yield Tab(socket)
        socket.close()
    finally:
        browser.terminate()
        browser.wait(20)


@pytest.fixture
def served(request: pytest.FixtureRequest, serve: Serve) -> Iterator[ExplorerServer]:
    with serve(request.param) as server:
        yield server


@pytest.mark.parametrize("served", MACHINES, indirect=True)
def test_ten_actions_of_each_machine_are_taken_by_keys_and_taken_back(
    tab: Tab, served: ExplorerServer
) -> None:
    tab.open(served.url, "sound:")
    path: list[int] = []
    for n in range(10):
        actions = tab.run(
            "[...document.querySelectorAll('#actions button')].map(b => Number(b.dataset.index))"
        )
        if not actions:
            break
        if n % 3 == 0:
            tab.key("1")
            path.append(actions[0])
        elif n % 3 == 1:
            tab.key("j")
            tab.key("Enter")
            path.append(actions[1 % len(actions)])
        else:
            tab.run("document.querySelectorAll('#actions button')[0].click()")
            path.append(actions[0])
        tab.at("sound:" + ".".join(map(str, path)))
    assert len(path) > 2
    assert tab.run("document.querySelectorAll('#steps li').length") == len(path)
    url = tab.run("location.href")
    for n in range(len(path) - 1, -1, -1):
        tab.key("u" if n % 2 else "ArrowLeft")
        tab.at("sound:" + ".".join(map(str, path[:n])))
    tab.key("f")
    tab.at(f"sound:{path[0]}")
    tab.open(url, "sound:" + ".".join(map(str, path)))


@pytest.mark.parametrize("served", ["lookup"], indirect=True)
def test_a_counterexample_is_reached_by_url_and_by_search_and_refused_by_the_sound_design(
    tab: Tab, served: ExplorerServer
) -> None:
    path = served.explorer.search("unpinned_lookup", "promised_blocks_have_a_holder")
    dotted = ".".join(map(str, path))
    tab.open(f"{served.url}?design=unpinned_lookup&other=sound&path={dotted}", f"unpinned_lookup:{dotted}")
    assert "PIN" in tab.run("document.querySelector('#invariants li.bad').innerText")
    assert tab.run("document.querySelectorAll('#tables .other').length") > 0
    tab.run("document.getElementById('start').click()")
    tab.at("unpinned_lookup:")
    tab.run(
        "const j = document.getElementById('jump'); j.value = 'promised_blocks_have_a_holder';"
        "j.dispatchEvent(new Event('change'))"
    )
    tab.at(f"unpinned_lookup:{dotted}")
    tab.run(
        "const d = document.getElementById('design'); d.value = 'sound'; d.dispatchEvent(new Event('change'))"
    )
    tab.at(f"sound:{dotted}")
    assert tab.run("document.querySelectorAll('#invariants li.bad').length") == 0
    assert "design=sound" in tab.run("location.search")


@pytest.mark.parametrize("served", ["lookup"], indirect=True)
def test_a_path_that_does_not_exist_is_told_on_the_page(tab: Tab, served: ExplorerServer) -> None:
    tab.open(f"{served.url}?path=0.424242", "error")
    assert "no action 424242" in tab.run("document.getElementById('message').innerText")
