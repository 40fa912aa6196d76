"""Checkpoints of a search on GPUs: one folder for each rank, written at the ends of levels.

A rank may be killed between two writes of the others, or have damaged levels: all go on from the last level
that every rank has and can go back to.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvfence.checker.engines.gpu.levels import Piece
from kvfence.checker.engines.gpu.search import Search
from kvfence.checker.engines.native.checkpoint import Checkpoint
from kvfence.checker.engines.native.saved import Form, Saved, SavedSight, Subject, Whole
from kvfence.spec.errors import CannotRun

_CHUNK = 1 << 22  # states read or written at a time


class Saving(Checkpoint):
    """The folder of one rank, and what of a search it holds. ``note`` gets a line about what is damaged."""

    def __init__(
        self,
        folder: Path,
        subject: Subject,
        every: float,
        rank: int = 0,
        ranks: int = 1,
        note: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(folder / f"rank-{rank}-of-{ranks}" if ranks > 1 else folder, subject, every, note)
        self.saved_levels = 0
        self.bytes = 0
        self._lost = False

    def resume(self, search: Search, form: Form) -> bool:
        """Put back what an earlier run wrote; false when all ranks begin anew. CannotRun."""
        refused: CannotRun | None = None
        saved: Saved | None = None
        try:
            saved = self.load(form)
        except CannotRun as error:
            refused = error  # all ranks have to know before this one ends
        if search.ranks.total([int(refused is not None)])[0]:
            raise refused or CannotRun(f"{self.folder}: the checkpoint of another rank cannot be used")
        self.emit_notes()
        last = -search.ranks.largest(-len(saved.levels) if saved else 0)
        if last == 0:
            if saved is not None:
                self.notes.append(f"{self.folder}: another rank has no checkpoint: the search begins anew")
                self.emit_notes()
                self.begin_anew(form)
            self.completed(Whole(1, (0,) * form.instances, ()))
            return False
        if saved is not None and len(saved.levels) != last:
            saved = self.go_back(saved, last, form)
        if search.ranks.total([int(saved is None)])[0]:
            raise CannotRun(f"{self.folder}: the checkpoints of the ranks do not fit; delete them all")
        assert saved is not None
        self._put_back(search, saved, form)
        return True

    def _put_back(self, search: Search, saved: Saved, form: Form) -> None:
        search.before, search.finished = saved.seconds, saved.finished
        self.saved_levels, self.bytes = len(saved.levels), saved.bytes
        at = 0
        for count in saved.levels:
            search.levels.begin()
            for first in range(0, count, _CHUNK):
                nbytes = min(_CHUNK, count - first) * form.entry
                data = os.pread(self.file, nbytes, at)
                if len(data) != nbytes:
                    raise CannotRun(f"{self.folder}/states changed while it was read; run again")
                search.put_back(np.frombuffer(data, np.uint64))
                at += nbytes
            if search.levels.count(search.levels.depth) != count:
                raise CannotRun(
                    f"{self.folder}: the checkpoint is damaged: a state is there twice; delete it"
                )
        for what, kept in saved.seen.items():
            sights = [s.sight() if s is not None else None for s in kept]
            if what == "dead":
                search.dead = sights[0]
            else:
                setattr(search, what, sights)
        search.outside = list(saved.outside)
        search.put_back_taken(list(saved.taken))
        search.complete, search.complete_taken = len(saved.levels), search.taken

    def level_ended(self, search: Search) -> None:
        """Write a checkpoint if it is time for one: the first rank's clock decides."""
        self.completed(Whole(search.complete, tuple(search.complete_taken), tuple(search.outside)))
        due = search.finished or (search.ranks.rank == 0 and self.due(level_end=True))
        if search.ranks.total([int(due)])[0]:
            self.save(search)

    def append(self, search: Search, complete: int) -> None:
        """Write those of the first ``complete`` levels that the file does not have yet. OSError."""
        levels = search.levels
        for depth in range(self.saved_levels, complete):
            end = self.bytes
            for piece in levels.levels[depth]:
                for at in range(0, piece.count, _CHUNK):
                    part = Piece(piece.segment, piece.start + at, min(_CHUNK, piece.count - at))
                    data = memoryview(levels.states(part).tobytes())
                    while data:
                        written = os.pwrite(self.file, data, end)
                        data, end = data[written:], end + written
            self.saved_levels, self.bytes = depth + 1, end

    def keep(self, search: Search, complete: int) -> None:
        """Write levels whose states are about to be let go. A disk that takes none of it is noted only."""
        try:
            self.append(search, complete)
        except OSError as error:
            self._lost = True  # what is let go cannot be written later
            self.failed(error)

    def save(self, search: Search) -> None:
        """Write a checkpoint, of the levels that are complete. A disk that takes none is noted only."""
        if not search.complete or self._lost:
            return
        seen = {"looked": search.looked, "failed": search.failed, "dead": [search.dead]}
        try:
            self.append(search, search.complete)
            self.write(
                self.record(
                    levels=tuple(search.levels.count(d) for d in range(search.complete)),
                    expanded=0,
                    bytes=self.bytes,
                    seconds=search.elapsed(),
                    taken=tuple(search.complete_taken),
                    seen={what: tuple(SavedSight.of(s) for s in sights) for what, sights in seen.items()},
                    outside=tuple(search.outside),
                    finished=search.finished,
                )
            )
        except OSError as error:
            self.failed(error)
