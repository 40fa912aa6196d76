"""How the ranks agree to carry a transfer out: each sets aside what it needs, then all do it, or none."""

import random
from typing import Literal

from kvfence.reference.blocks.pool import Observer
from kvfence.spec import events as ev


class RankVotes:
    """``refuse_rate`` of the transfers find a rank that cannot set aside what it needs."""

    def __init__(
        self, ranks: int, refuse_rate: float = 0.0, seed: int = 0, observer: Observer | None = None
    ) -> None:
        self.ranks = ranks
        self.refuse_rate = refuse_rate
        self.observer = observer
        self._random = random.Random(seed)
        self.aborted = 0

    def carry_out(self, op: int, generation: int) -> bool:
        """Whether the ranks carry the transfer out; if not, none of them has begun."""
        if not self.refuse_rate:
            return True
        refusing = self._random.randrange(self.ranks) if self._random.random() < self.refuse_rate else -1
        if self.observer is not None:
            for rank in range(self.ranks):
                self.observer(ev.Reserve(op=op, gen=generation, rank=rank, ok=rank != refusing))
        for rank in range(self.ranks):
            what = self._decision(rank, refusing)
            if self.observer is not None:
                self.observer(ev.Decide(op=op, gen=generation, rank=rank, what=what))
        self.aborted += refusing >= 0
        return refusing < 0

    def _decision(self, rank: int, refusing: int) -> Literal["commit", "abort"]:
        """What ``rank`` does: the same as every other."""
        del rank
        return "commit" if refusing < 0 else "abort"
