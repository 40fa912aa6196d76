"""Checkpoints: a search on disk, from which a later run goes on.

A folder holds ``states``, every state found so far, level by level, and ``checkpoint.json``: how much of that
file is valid, where the levels begin, how far the present one is expanded, and what was seen. The states are
only ever appended to, and the small file is replaced in one step, so a run may be killed at any time.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

import msgspec

from kvfence.checker.errors import CannotRun

FORMAT = 1
LEVEL_EVERY = 1.0  # seconds: levels that end sooner than this after the last checkpoint are not written


class Seen(msgspec.Struct, frozen=True):
    """Where something was seen: the words of the state in hexadecimal, its depth, the instance."""

    state: tuple[str, ...]
    depth: int
    instance: int


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched; ``code`` stands for the printed machine."""

    machine: str
    faults: tuple[str, ...]
    sizes: dict[str, int]
    symmetry: tuple[str, ...]
    code: str

    def __str__(self) -> str:
        sizes = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        faults = f" with {', '.join(self.faults)}" if self.faults else ""
        reduced = f", reduced by {', '.join(self.symmetry)}" if self.symmetry else ""
        return f"{self.machine}{faults} ({sizes}{reduced})"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """How far a search was."""

    format: int
    subject: Subject
    levels: tuple[int, ...]
    expanded: int
    bytes: int
    seconds: float
    taken: tuple[int, ...]
    seen: dict[str, tuple[Seen | None, ...]]
    outside: tuple[int, ...]
    finished: bool


class Checkpoint:
    """The folder of one search, locked while it is open. CannotRun where it cannot be used."""

    def __init__(self, folder: Path, subject: Subject, every: float) -> None:
        self.folder, self.subject, self.every = folder, subject, every
        self.written = time.monotonic()

    def __enter__(self) -> Checkpoint:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file = os.open(self.folder / "states", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise CannotRun(f"{self.folder} cannot take a checkpoint: {error.strerror}") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.file)
            raise CannotRun(f"{self.folder} is in use by another run; give each its own folder") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.file)

    def load(self) -> Saved | None:
        """What an earlier run wrote; None in a new folder. CannotRun for a checkpoint of something else."""
        path = self.folder / "checkpoint.json"
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=Saved)
        except FileNotFoundError:
            os.ftruncate(self.file, 0)
            return None
        except msgspec.DecodeError as error:
            raise CannotRun(
                f"{path} is not a checkpoint ({error}); delete the folder to begin anew"
            ) from None
        way_out = "give another folder, or delete this one"
        if saved.format != FORMAT:
            raise CannotRun(
                f"{self.folder} holds a checkpoint of format {saved.format}, and this version writes format "
                f"{FORMAT}; {way_out}"
            )
        if saved.subject != self.subject:
            same = str(saved.subject) == str(self.subject)
            what = f"an earlier version of {self.subject}" if same else f"{saved.subject}, not {self.subject}"
            raise CannotRun(f"{self.folder} holds a checkpoint of {what}; {way_out}")
        if os.fstat(self.file).st_size < saved.bytes:
            raise CannotRun(f"{self.folder}/states is shorter than its checkpoint says; {way_out}")
        os.ftruncate(self.file, saved.bytes)
        return saved

    def due(self, level_end: bool) -> bool:
        """Whether it is time for the next one."""
        passed = time.monotonic() - self.written
        return passed >= (min(LEVEL_EVERY, self.every) if level_end else self.every)

    def write(self, saved: Saved) -> None:
        """Replace the checkpoint; the states must have been saved to ``file``."""
        os.fsync(self.file)
        temporary = self.folder / "checkpoint.json.new"
        with temporary.open("wb") as out:
            out.write(msgspec.json.encode(saved))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(self.folder / "checkpoint.json")
        self.written = time.monotonic()
