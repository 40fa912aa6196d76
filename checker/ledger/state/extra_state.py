"""What the ledger knows beside pools, requests, transfers and steps: votes, questions, published keys.

Each is written by the events of its own kind only, and is empty in a trace that has none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvfence.checker.ledger.state.tags import Tag

OpKey = tuple[int, int]
"""Id and generation of a transfer."""


@dataclass(slots=True)
class Votes:
    """What the ranks said about carrying a transfer out; bit ``r`` stands for rank ``r``."""

    asked: int = 0
    reserved: int = 0
    committed: int = 0
    aborted: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """An open question to a tier."""

    req: str
    gen: int
    pool: str
    tags: tuple[Tag, ...]


@dataclass(slots=True)
class HostMemory:
    """The host memory of one pool: by rank, the pieces registered, whether one was refused, and its use."""

    pieces: dict[int, set[int]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    pinned: dict[int, bool] = field(default_factory=dict)

    def copy(self) -> HostMemory:
        """An independent copy."""
        pieces = {rank: set(pieces) for rank, pieces in self.pieces.items()}
        return HostMemory(pieces, set(self.refused), dict(self.pinned))


@dataclass(slots=True)
class Extra:
    """What the ledger remembers of the rarer events."""

    zeroing: dict[tuple[str, int], int] = field(default_factory=dict)
    """Pool and slot -> the dispatched step that writes zeros over it."""
    failed: dict[OpKey, set[int]] = field(default_factory=dict)
    """Open transfer -> the destinations that a rank could not fill."""
    suspects: dict[str, set[int]] = field(default_factory=dict)
    """Pool -> slots from which a load failed, and which nothing filled since."""
    promised: dict[str, tuple[int, int, tuple[int, ...]]] = field(default_factory=dict)
    """Request generation -> local and external tokens of its promise, and how many slots of each group."""
    misses: dict[str, set[Tag]] = field(default_factory=dict)
    """Pool -> keys of which a load failed."""
    votes: dict[OpKey, Votes] = field(default_factory=dict)
    buffers: dict[tuple[int, int], OpKey] = field(default_factory=dict)
    """Rank and descriptor buffer -> the last transfer whose descriptors it got."""
    questions: dict[int, Question] = field(default_factory=dict)
    asked: bool = False
    """Whether there ever was a question: only then ``misses`` are kept."""
    published: dict[str, set[Tag]] = field(default_factory=dict)
    """Pool -> the keys that were published as stored and not as removed."""
    host: dict[str, HostMemory] = field(default_factory=dict)
    round: object = None
    """What the last idle round saw, and how often in a row nothing had changed since."""
    rounds: int = 0
    victim: tuple[str, int] | None = None
    """The last request preempted for room, and the step that had been processed by then."""

    def copy(self) -> Extra:
        """An independent copy."""
        return replace(
            self,
            zeroing=dict(self.zeroing),
            failed={op: set(slots) for op, slots in self.failed.items()},
            suspects={pool: set(slots) for pool, slots in self.suspects.items()},
            promised=dict(self.promised),
            misses={pool: set(tags) for pool, tags in self.misses.items()},
            votes={op: replace(votes) for op, votes in self.votes.items()},
            buffers=dict(self.buffers),
            questions=dict(self.questions),
            published={pool: set(tags) for pool, tags in self.published.items()},
            host={pool: memory.copy() for pool, memory in self.host.items()},
        )
