"""Checkpoints of a search on GPUs: one folder for each rank, written at the ends of levels.

A rank may be killed between two writes of the others, so each keeps its last checkpoint but one, too: all go
on from the last level that every rank has.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np

from kvfence.checker.engines.checkpoint import FORMAT, Checkpoint, Saved, Seen, Subject
from kvfence.checker.engines.gpu.levels import Piece
from kvfence.checker.engines.gpu.search import Search
from kvfence.checker.engines.native.library import Sight
from kvfence.checker.errors import CannotRun

_CHUNK = 1 << 22  # states read or written at a time


class Saving(Checkpoint):
    """The folder of one rank, and what of a search it holds."""

    def __init__(self, folder: Path, subject: Subject, every: float, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(folder / f"rank-{rank}-of-{ranks}" if ranks > 1 else folder, subject, every)
        self.saved_levels = 0
        self.bytes = 0

    def resume(self, search: Search) -> bool:
        """Put back what an earlier run wrote; false when all ranks begin anew. CannotRun."""
        offers = {len(saved.levels): saved for saved in self._offers()}
        last = -search.ranks.largest(-max(offers, default=0))
        if last == 0:
            os.ftruncate(self.file, 0)
            return False
        saved = offers.get(last)
        if search.ranks.total([saved is None])[0]:
            raise CannotRun(f"{self.folder}: the checkpoints of the ranks do not fit; delete them all")
        assert saved is not None
        os.ftruncate(self.file, saved.bytes)
        search.before, search.finished = saved.seconds, saved.finished
        self.saved_levels, self.bytes = len(saved.levels), saved.bytes
        at = 0
        for count in saved.levels:
            search.levels.begin()
            for first in range(0, count, _CHUNK):
                n = min(_CHUNK, count - first) * search.key_words
                keys = np.frombuffer(os.pread(self.file, 8 * n, at), np.uint64)
                search.put_back(keys)
                at += 8 * n
            if search.levels.count(search.levels.depth) != count:
                raise CannotRun(
                    f"{self.folder}: the checkpoint is damaged: a state is there twice; delete it"
                )
        for what, kept in saved.seen.items():
            sights = [_sight(s) for s in kept]
            if what == "dead":
                search.dead = sights[0]
            else:
                setattr(search, what, sights)
        search.outside = list(saved.outside)
        search.put_back_taken(list(saved.taken))
        search.complete, search.complete_taken = len(saved.levels), search.taken
        return True

    def level_ended(self, search: Search) -> None:
        """Write a checkpoint if it is time for one: the first rank's clock decides."""
        due = search.finished or (search.ranks.rank == 0 and self.due(level_end=True))
        if search.ranks.total([int(due)])[0]:
            self.save(search)

    def append(self, search: Search, complete: int) -> None:
        """Write those of the first ``complete`` levels that the file does not have yet."""
        levels = search.levels
        try:
            for depth in range(self.saved_levels, complete):
                for piece in levels.levels[depth]:
                    for at in range(0, piece.count, _CHUNK):
                        part = Piece(piece.segment, piece.start + at, min(_CHUNK, piece.count - at))
                        data = levels.states(part).tobytes()
                        done = 0
                        while done < len(data):
                            done += os.pwrite(self.file, data[done:], self.bytes + done)
                        self.bytes += len(data)
            self.saved_levels = max(self.saved_levels, complete)
        except OSError as error:
            raise CannotRun(f"{self.folder} cannot take the states: {error.strerror}") from None

    def save(self, search: Search) -> None:
        """Write a checkpoint: of the levels that are complete."""
        if not search.complete:
            return
        self.append(search, search.complete)
        seen = {"looked": search.looked, "failed": search.failed, "dead": [search.dead]}
        path = self.folder / "checkpoint.json"
        if path.exists():
            before = self.folder / "checkpoint.json.before"
            before.unlink(missing_ok=True)
            os.link(path, before)
        self.write(
            Saved(
                format=FORMAT,
                subject=self.subject,
                levels=tuple(search.levels.count(d) for d in range(search.complete)),
                expanded=0,
                bytes=self.bytes,
                seconds=search.elapsed(),
                taken=tuple(search.complete_taken),
                seen={what: tuple(_seen(s) for s in sights) for what, sights in seen.items()},
                outside=tuple(search.outside),
                finished=search.finished,
            )
        )

    def _offers(self) -> list[Saved]:
        out = []
        for name in ("checkpoint.json.before", "checkpoint.json"):
            path = self.folder / name
            if not path.exists():
                continue
            try:
                saved = msgspec.json.decode(path.read_bytes(), type=Saved)
            except msgspec.DecodeError as error:
                raise CannotRun(f"{path} is not a checkpoint ({error}); delete the folder") from None
            if saved.format != FORMAT or saved.subject != self.subject:
                raise CannotRun(
                    f"{self.folder} holds a checkpoint of {saved.subject} or of another version, not "
                    f"{self.subject}; give another folder, or delete this one"
                )
            if os.fstat(self.file).st_size >= saved.bytes:
                out.append(saved)
        return out


def _seen(sight: Sight | None) -> Seen | None:
    return Seen(tuple(f"{w:x}" for w in sight.words), sight.depth, sight.instance) if sight else None


def _sight(seen: Seen | None) -> Sight | None:
    return Sight(tuple(int(w, 16) for w in seen.state), seen.depth, seen.instance) if seen else None
