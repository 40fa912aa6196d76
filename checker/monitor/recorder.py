"""The recorder: keeps the last events of a guard, and writes them as a trace when something is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kvfence.checker.packing import packed
from kvfence.spec.events import Event, Header

if TYPE_CHECKING:
    from kvfence.checker.monitor.ledger import Ledger

LAST: Final = 1 << 16
MAX_BYTES: Final = 64 << 20
MAX_FILES: Final = 8


class Recorder:
    """Writes the last ``last`` events, or some more, into a new file of the folder ``path``.

    There are never more than ``max_files`` of them, of ``max_bytes`` each at most; the oldest go first. Only
    their owner can read them. A disk that is full, or a folder that cannot be written, is counted in
    ``failures``, and nothing else happens.
    """

    def __init__(
        self,
        path: str | Path,
        last: int = LAST,
        max_bytes: int = MAX_BYTES,
        max_files: int = MAX_FILES,
    ) -> None:
        self.path = Path(path)
        self.last, self.max_bytes, self.max_files = last, max_bytes, max_files
        self.ring = last
        self.written = 0
        self.failures = 0
        self.bytes = 0
        self._ledger: Ledger | None = None

    def begin(self, ledger: Ledger) -> None:
        """Record the events that ``ledger`` judges from here on."""
        self._ledger = ledger

    def noticed(self, ledger: Ledger) -> None:
        """``ledger`` has judged an event."""

    def write(self, why: str, *, wait: bool = False) -> Path | None:  # noqa: ARG002
        """Write what is remembered. None if that was not possible."""
        ledger = self._ledger
        if ledger is None:
            return None
        try:
            return self._write(ledger.header, list(ledger.books.ring), why)
        except OSError:
            self.failures += 1
            return None

    def close(self) -> None:
        """Wait for what is being written."""

    def _write(self, header: Header, events: list[Event], why: str) -> Path:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        word = re.sub("[^A-Za-z0-9-]", "_", why)[:40]
        path = self.path / f"kvfence-{os.getpid()}-{self.written:04}-{word}.jsonl"
        encode = msgspec.json.Encoder().encode
        text = b"\n".join(encode(item) for item in (header, *map(packed, events))) + b"\n"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.write(file, text)
        finally:
            os.close(file)
        self.written += 1
        self.bytes += len(text)
        return path
