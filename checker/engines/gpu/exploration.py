"""One exploration on a GPU, summed up as the native engine sums up its own."""

from __future__ import annotations

import hashlib

import msgspec

from kvfence.checker.engines.base import CellBounds, Log
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.symmetry import Symmetry
from kvfence.checker.engines.gpu.device.source import GpuSource
from kvfence.checker.engines.gpu.search import Search
from kvfence.checker.engines.native.exploration import Exploration, Model
from kvfence.checker.engines.native.layout import Dense
from kvfence.checker.engines.native.library import Sight, Status
from kvfence.checker.engines.native.saved import Form, Subject


class GpuModel(Model):
    """A machine printed for the GPU. Devices compile it."""

    def __init__(
        self,
        interpreter: Interpreter,
        limits: CellBounds,
        symmetry: Symmetry | None = None,
        queue: int | None = None,
    ) -> None:
        self.interpreter, self.symmetry = interpreter, symmetry
        self.grounded = interpreter.grounded
        self.packing = Dense(self.grounded, limits)
        self.printed = GpuSource(self.grounded, self.packing, limits, symmetry, queue)
        self.source = self.printed.machine
        self.limits = limits

    def subject(self, rank: int = 0, ranks: int = 1) -> Subject:
        """What a checkpoint is of: one rank's share."""
        text = "\n".join([f"{rank} of {ranks}", *self.printed.keys.text(), self.source.machine_text()])
        code = hashlib.sha256(text.encode()).hexdigest()
        return msgspec.structs.replace(super().subject(), code=code)

    def form_on(self, search: Search) -> Form:
        """What a checkpoint of one rank looks like: its states are keys."""
        return self.form()._replace(
            entry=8 * search.key_words,
            instances=search.source.instances,
            seen={"looked": len(search.looked), "failed": len(search.failed), "dead": 1},
            alone=search.ranks.count == 1,
            filling=False,
        )

    def representative(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """The dense words of the state that stands for this one and its renamings."""
        best = self.pack(state)
        if self.symmetry is not None:
            for k in self.symmetry.walk:
                state = self.symmetry.exchanges[k].apply(state)
                best = min(best, self.pack(state))
        return best


class _Answers:
    """A search, under the names that the summing up uses."""

    def __init__(self, model: GpuModel, search: Search) -> None:
        self.model, self.search = model, search
        self._levels: list[int] | None = None

    def levels(self) -> list[int]:
        """States of each level, of all ranks; the last one may be empty."""
        if self._levels is None:
            levels = self.search.levels
            self._levels = self.search.ranks.total([levels.count(d) for d in range(len(levels.levels))])
        return self._levels

    def status(self) -> Status:
        """How far the search is."""
        counts = self.levels()
        return Status(sum(counts), 0, 0, 0, len(counts) - 1, 0, 0, 0, 0, 0)

    def taken(self, instances: int) -> list[int]:
        """How often each instance was taken."""
        return self.search.ranks.total(self.search.taken)[:instances]

    def predecessors(self, depth: int, targets: list[tuple[int, ...]]) -> list[Sight | None]:
        """See ``Search.predecessors``."""
        return self.search.predecessors(depth, targets)

    def representative(self, words: tuple[int, ...]) -> tuple[int, ...]:
        """See ``GpuModel.representative``."""
        return self.model.representative(self.model.packing.unpack(words))


class GpuExploration(Exploration):
    """What a search found, as the log of a result."""

    def __init__(self, model: GpuModel, log: Log, search: Search) -> None:
        super().__init__(model, log, threads=1)
        self.gpu = search
        self.search = _Answers(model, search)  # type: ignore[assignment]

    def _sights(self) -> tuple[list[Sight | None], list[Sight | None], list[Sight | None]]:
        properties = len(self.model.grounded.invariants) + len(self.model.grounded.goals)
        return self.gpu.looked[:properties], self.gpu.failed[: len(self.model.source.checks)], [self.gpu.dead]
