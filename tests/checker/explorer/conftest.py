"""An explorer that is served while a test runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from kvfence.checker.cli.explorer.server import ExplorerServer
from kvfence.checker.cli.explorer.walk import explorer_of


@pytest.fixture(scope="session")
def serve() -> Callable[[str], AbstractContextManager[ExplorerServer]]:
    """Serves the explorer of a machine in a thread of its own, within a ``with`` statement."""

    @contextmanager
    def serving(machine: str) -> Iterator[ExplorerServer]:
        server = ExplorerServer(explorer_of(machine, None, {}))
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield server
        server.close()
        thread.join()

    return serving
