"""Checkpoints: a search on disk, from which a later run goes on.

A folder holds ``states``, every state found so far, level by level, and ``checkpoint.json``: how much of that
file is valid, where the levels begin, how far the present one is expanded, what was seen, and digests of all
this. The states are only ever appended to, and the small file is replaced in one step, the one before being
kept as ``checkpoint.json.before``, so a run may be killed at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from kvfence.checker.engines.native.saved import DIGEST, FORMAT, KEPT_COUNTS, Form, Saved, Subject, Whole
from kvfence.spec.errors import CannotRun

LEVEL_EVERY = 1.0  # seconds: levels that end sooner than this after the last checkpoint are not written
INDEX = "checkpoint.json"
_CHUNK = 1 << 22  # bytes read at a time
_WAY_OUT = "give another folder, or delete this one to begin anew"


class _Format(msgspec.Struct):
    format: int


class _Damaged(Exception):  # noqa: N818 (a reason to look for another index)
    """An index that cannot be believed."""


class LevelDigests:
    """Digests of a file that is only appended to: of each level, that of all bytes up to its end."""

    def __init__(self, file: int, entry: int) -> None:
        self._file, self._entry = file, entry
        self._known: tuple[Any, int, tuple[str, ...]] = hashlib.sha256(), 0, ()

    def extend(self, levels: Sequence[int]) -> tuple[str, ...]:
        """The digests of levels of so many states; the last one may be longer the next time.

        One that the file has not in full gets none, nor do those behind it. OSError.
        """
        known, done, closed = self._known
        hasher = known.copy()
        end = self._entry * sum(levels[: len(closed)])
        digests = list(closed)
        for count in levels[len(closed) :]:
            end += self._entry * count
            while done < end:
                data = os.pread(self._file, min(_CHUNK, end - done), done)
                if not data:
                    return tuple(digests)
                hasher.update(data)
                done += len(data)
            digests.append(hasher.copy().hexdigest()[:DIGEST])
        # in one assignment: an interrupted call leaves what was known before it
        self._known = hasher, done, tuple(digests[:-1])
        return tuple(digests)


class Checkpoint:
    """The folder of one search, locked while it is open. CannotRun where it cannot be used.

    ``notes`` are lines about what was found damaged and done without; ``note`` gets them.
    """

    def __init__(
        self, folder: Path, subject: Subject, every: float, note: Callable[[str], None] | None = None
    ) -> None:
        self.folder, self.subject, self.every = folder, subject, every
        self._note = note or (lambda _: None)
        self.written = time.monotonic()
        self.notes: list[str] = []
        self.whole: list[Whole] = []
        self._failed = False

    def __enter__(self) -> Checkpoint:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file = os.open(
                self.folder / "states", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
            )
        except OSError as error:
            raise CannotRun(f"{self.folder} cannot take a checkpoint: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(self.file).st_mode):
                raise CannotRun(f"{self.folder}/states is not a file; {_WAY_OUT}")
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CannotRun(f"{self.folder} is in use by another run; give each its own folder") from None
        except CannotRun:
            os.close(self.file)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.file)

    def load(self, form: Form) -> Saved | None:
        """What an earlier run wrote, as far as it is sound; None in a new folder.

        Damaged levels are left out, back to one that was complete. CannotRun for a checkpoint of something
        else, or one of which nothing can be used.
        """
        self.digests = LevelDigests(self.file, form.entry)
        saved = self._index(form)
        if saved is None:
            self.begin_anew(form)
            return None
        self.whole = list(saved.whole)
        return self._sound(saved, form)

    def begin_anew(self, form: Form) -> None:
        """Forget what is there. CannotRun where nothing can be written."""
        self.digests, self.whole = LevelDigests(self.file, form.entry), []
        try:
            os.ftruncate(self.file, 0)
            counts = {"levels": (), "expanded": 0, "bytes": 0, "seconds": 0.0, "taken": (), "outside": ()}
            self._replace(self.record(**counts, seen={}, finished=False))
        except OSError as error:
            raise CannotRun(f"{self.folder} cannot take a checkpoint: {error.strerror}") from None

    def go_back(self, saved: Saved, levels: int, form: Form) -> Saved | None:
        """A loaded checkpoint as it was when so many levels were complete; None where that was not kept."""
        found = saved.back_to(levels, form)
        if found is not None:
            self.whole = list(found.whole)
            self.digests = LevelDigests(self.file, form.entry)
            self.digests.extend(found.levels)
        return found

    def _sound(self, saved: Saved, form: Form) -> Saved:
        """What is left of a checkpoint without the levels that are not as they were written."""
        try:
            digests = self.digests.extend(saved.levels)
        except OSError as error:
            raise CannotRun(f"{self.folder}/states cannot be read: {error.strerror}") from None
        good = 0
        while good < len(digests) and digests[good] == saved.digests[good]:
            good += 1
        if good == len(saved.levels):
            os.ftruncate(self.file, saved.bytes)
            return saved
        short = os.fstat(self.file).st_size < saved.bytes
        what = f"{self.folder}/states is {'shorter than its checkpoint says' if short else 'damaged'}"
        at = f"level {good} of {len(saved.levels) - 1}"
        back = max((w.levels for w in saved.whole if w.levels <= good), default=0)
        found = self.go_back(saved, back, form)
        if found is None:
            raise CannotRun(f"{what} from {at} on, and nothing before it can be used; {_WAY_OUT}")
        self.notes.append(f"{what} from {at} on: the search goes on from the end of level {back - 1}")
        return found

    def _index(self, form: Form) -> Saved | None:
        """The index, or the one before where it is damaged."""
        path, before = self.folder / INDEX, self.folder / f"{INDEX}.before"
        if not path.exists() and not before.exists():
            if os.fstat(self.file).st_size:
                raise CannotRun(f"{self.folder}/states is there without a {INDEX}; {_WAY_OUT}")
            return None
        try:
            return self._read(path, form)
        except _Damaged as damage:
            with contextlib.suppress(_Damaged):
                earlier = self._read(before, form)
                if earlier is not None:
                    self.notes.append(f"{damage}: the search goes on from the checkpoint before")
                    return earlier
            raise CannotRun(f"{damage}; {_WAY_OUT}") from None

    def _read(self, path: Path, form: Form) -> Saved | None:
        try:
            text = path.read_bytes()
            written = msgspec.json.decode(text, type=_Format).format
            if written != FORMAT:
                raise CannotRun(
                    f"{self.folder} holds a checkpoint of format {written}, and this version writes format "
                    f"{FORMAT}; {_WAY_OUT}"
                )
            saved = msgspec.json.decode(text, type=Saved)
            if not saved.is_sealed():
                raise _Damaged(f"{path} is damaged: its digest is not that of its content")
        except OSError as error:
            raise _Damaged(f"{path} cannot be read ({error.strerror})") from None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _Damaged(f"{path} is not a checkpoint ({error})") from None
        if not saved.levels:
            return None
        if saved.subject != self.subject:
            same = str(saved.subject) == str(self.subject)
            what = f"an earlier version of {self.subject}" if same else f"{saved.subject}, not {self.subject}"
            raise CannotRun(f"{self.folder} holds a checkpoint of {what}; {_WAY_OUT}")
        fault = form.fault(saved)
        if fault is not None:
            raise _Damaged(f"{path} is damaged: {fault}")
        return saved

    def due(self, level_end: bool) -> bool:
        """Whether it is time for the next one."""
        passed = time.monotonic() - self.written
        return passed >= (min(LEVEL_EVERY, self.every) if level_end else self.every)

    def completed(self, known: Whole) -> None:
        """Keep a point to go back to: a level is complete."""
        while self.whole and self.whole[-1].levels >= known.levels:
            self.whole.pop()
        self.whole.append(known)
        del self.whole[: -max(4, KEPT_COUNTS // max(1, len(known.taken)))]

    def failed(self, error: OSError) -> None:
        """Note that a checkpoint could not be written: the search goes on, and the last one stays."""
        self.written = time.monotonic()
        if not self._failed:
            self._failed = True
            self.notes.append(
                f"{self.folder} cannot take the checkpoint ({error.strerror}): the search goes on, and the "
                f"last checkpoint that was written stays"
            )
            self.emit_notes()

    def emit_notes(self) -> None:
        """Give each line to ``note``, once."""
        for line in self.notes:
            self._note(line)
        self.notes.clear()

    def record(self, **facts: Any) -> Saved:
        """A record of this search: the fields of ``Saved`` but for those that ``write`` fills in."""
        return Saved(format=FORMAT, subject=self.subject, digests=(), whole=(), **facts)

    def write(self, saved: Saved) -> None:
        """Replace the checkpoint; the states must have been saved to ``file``. OSError."""
        self.written = time.monotonic()
        os.fsync(self.file)
        digests = self.digests.extend(saved.levels)
        whole = tuple(w for w in self.whole if w.levels <= len(saved.levels))
        self._replace(msgspec.structs.replace(saved, digests=digests, whole=whole))

    def _replace(self, saved: Saved) -> None:
        path, new, before = (self.folder / f"{INDEX}{end}" for end in ("", ".new", ".before"))
        new.unlink(missing_ok=True)
        out = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(out, "wb") as file:  # noqa: PTH123
            file.write(msgspec.json.encode(saved.sealed()))
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            before.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a file system without links keeps no earlier one
                os.link(path, before)
        new.replace(path)
        self._sync_folder()

    def _sync_folder(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
