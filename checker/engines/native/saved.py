"""What a checkpoint says of a search: the record, its digest, and whether its numbers can be true.

The digest reveals damage. The bounds are checked even so, before anything is given to compiled code: a record
whose digest was computed anew may end a run with an error, but never with a crash.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from kvfence.checker.engines.native.library import Sight

FORMAT = 2
DIGEST = 32  # hexadecimal digits of a SHA-256 that are kept
KEPT_COUNTS = 100_000  # numbers in ``whole``: of machines with many instances, the last levels only
LARGEST = 1 << 62  # of every count


class SavedSight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where something was seen: the words of the state in hexadecimal, its depth, the instance."""

    state: tuple[str, ...]
    depth: int
    instance: int

    @classmethod
    def of(cls, sight: Sight | None) -> SavedSight | None:
        """A sight as it is written."""
        return cls(tuple(f"{w:x}" for w in sight.words), sight.depth, sight.instance) if sight else None

    def sight(self) -> Sight:
        """As it was seen. ValueError for words that are no numbers."""
        from kvfence.checker.engines.native.library import Sight  # the engine imports this file

        return Sight(tuple(int(w, 16) for w in self.state), self.depth, self.instance)


class Subject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class Whole(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was known when the last of so many levels was complete, and none of it expanded."""

    levels: int
    taken: tuple[int, ...]
    outside: tuple[int, ...]


class Saved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a search was.

    ``levels`` are the states of each level, as they lie one after another in ``bytes`` bytes of the file, and
    ``digests`` say of each level what the file holds up to its end. ``expanded`` of the last level but one
    were expanded. ``whole`` are earlier points to go on from when the last levels are damaged.
    """

    format: int
    subject: Subject
    levels: tuple[int, ...]
    digests: tuple[str, ...]
    expanded: int
    bytes: int
    seconds: float
    taken: tuple[int, ...]
    seen: dict[str, tuple[SavedSight | None, ...]]
    outside: tuple[int, ...]
    finished: bool
    whole: tuple[Whole, ...]
    digest: str = ""

    def sealed(self) -> Saved:
        """With its digest."""
        return msgspec.structs.replace(self, digest=self._digest())

    def is_sealed(self) -> bool:
        """Whether the digest is that of everything else."""
        return self.digest == self._digest()

    def _digest(self) -> str:
        text = msgspec.json.encode(msgspec.structs.replace(self, digest=""), order="sorted")
        return hashlib.sha256(text).hexdigest()[:DIGEST]

    def back_to(self, levels: int, form: Form) -> Saved | None:
        """The search as it was when so many levels were complete; None where that was not kept."""
        known = next((w for w in self.whole if w.levels == levels), None)
        if known is None:
            return None

        def seen_then(what: str, seen: SavedSight | None) -> SavedSight | None:
            depth = levels - 1 if what == "looked" else levels - 2
            return seen if seen is not None and seen.depth <= depth else None

        counts, digests = self.levels[:levels], self.digests[:levels]
        return msgspec.structs.replace(
            self,
            levels=(*counts, 0) if form.filling else counts,
            digests=(*digests, digests[-1]) if form.filling else digests,
            expanded=0,
            bytes=form.entry * sum(counts),
            taken=known.taken,
            seen={what: tuple(seen_then(what, s) for s in seen) for what, seen in self.seen.items()},
            outside=known.outside,
            finished=False,
            whole=tuple(w for w in self.whole if w.levels <= levels),
        )


class Form(NamedTuple):
    """What the record of a machine must look like."""

    entry: int  # bytes of a state in the file
    words: int  # of a state that was seen
    instances: int
    cells: int
    seen: dict[str, int]  # how many sights of each kind
    alone: bool  # the file has all states of each level, not one rank's share
    filling: bool  # the last level is the one being filled
    true: Callable[[str, int, Sight], bool]
    """Whether the sight, by kind and position, is what it claims to be."""

    def fault(self, saved: Saved) -> str | None:
        """What is wrong with the record; None when all its numbers can be true."""
        return next(self._faults(saved), None)

    def _faults(self, saved: Saved) -> Iterator[str]:
        levels, counts = saved.levels, (*saved.levels, *saved.taken, saved.expanded, saved.bytes)
        finished = saved.finished and self.alone
        wrong = (
            (not all(0 <= n < LARGEST for n in counts), "a count is out of its bounds"),
            (len(saved.digests) != len(levels), "it has not one digest for each level"),
            (saved.bytes != self.entry * sum(levels), "its levels are not as long as the states"),
            (len(levels) <= self.filling, "a level is missing"),
            (self.alone and (levels[:1] != (1,) or 0 in levels[:-1]), "a level is empty"),
            (saved.expanded > sum(levels[-2:-1]), "more states are expanded than there are"),
            (finished and any(levels[-1:]), "it is said to be finished and has states to expand"),
            (not (math.isfinite(saved.seconds) and saved.seconds >= 0), "its time is no time"),
        )
        yield from (text for is_wrong, text in wrong if is_wrong)
        for taken, outside in ((saved.taken, saved.outside), *((w.taken, w.outside) for w in saved.whole)):
            if len(taken) != self.instances or not all(0 <= n < LARGEST for n in taken):
                yield "it does not count the steps of this machine"
            if not all(0 <= cell < self.cells for cell in outside):
                yield "a cell is out of its bounds"
        if not all(0 < known.levels <= len(saved.levels) - self.filling for known in saved.whole):
            yield "an earlier point is out of its bounds"
        if {what: len(seen) for what, seen in saved.seen.items()} != self.seen:
            yield "it has not the sights of this machine"
        for what, each in saved.seen.items():
            for k, seen in enumerate(each):
                if seen is not None and not self._true(what, k, seen, len(saved.levels)):
                    yield "something was not seen where it says"

    def _true(self, what: str, k: int, seen: SavedSight, levels: int) -> bool:
        try:
            sight = seen.sight()
            return (
                len(sight.words) == self.words
                and all(0 <= w < 1 << 64 for w in sight.words)
                and 0 <= sight.depth < levels
                and 0 <= sight.instance < max(1, self.instances)
                and self.true(what, k, sight)
            )
        except (ValueError, LookupError):
            return False
