"""CUDA C for a grounded machine: the printed machine of the native engine, inside kernels."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Literal

from kvfence.checker.engines.base import CellBounds
from kvfence.checker.engines.explicit.symmetry import Symmetry
from kvfence.checker.engines.gpu.device.keys import Keys
from kvfence.checker.engines.native.c_source import NativeSource
from kvfence.checker.engines.native.layout import Dense
from kvfence.spec.language import Grounded

Program = Literal["search", "trace", "graph", "walk"]

THREADS = 256  # of a block
BLOCKS = 3  # on one multiprocessor at a time, at least
MOST_RANKS = 64
SENT_LOG2 = 20
_QUEUE_BYTES = 4096  # of a warp's queue of successors in shared memory
_PARTS = ("lanes.cuh", "", "table.cuh", "sights.cuh")


class GpuSource:
    """A machine as CUDA C. The same text compiles as C++, with warps of one thread."""

    def __init__(
        self,
        g: Grounded,
        packing: Dense,
        limits: CellBounds,
        symmetry: Symmetry | None = None,
        queue: int | None = None,
    ) -> None:
        self.machine = NativeSource(g, packing, limits, symmetry)
        self.keys = Keys(g, packing, limits)
        self.words, self.instances = packing.words, max(1, len(g.instances))
        self.invariants = len(g.invariants)
        self.properties = max(1, len(g.invariants) + len(g.goals))
        self.checks, self.cells = max(1, len(self.machine.checks)), max(1, len(g.cells))
        self.queue = queue or max(128, _QUEUE_BYTES // (8 * self.words))
        self.constants, self.functions = self.machine.parts()

    def shared_bytes(self, threads: int = THREADS) -> int:
        """Shared memory of a block of ``expand_level``."""
        return 8 * (threads // 32) * self._warp_words(32) + 4 * self.instances

    def _warp_words(self, warp: int) -> int:
        return self.words * self.queue + self.keys.words * 2 * warp + MOST_RANKS // 2

    def text(
        self, program: Program, *, host: bool = False, threads: int = THREADS, blocks: int = BLOCKS
    ) -> str:
        """The translation unit of one program, for CUDA or, with ``host``, as C++."""
        defines: Mapping[str, object] = {
            "KEY_WORDS": self.keys.words,
            "QUEUE": self.queue,
            "THREADS": threads,
            "BLOCKS": blocks,
            "WARPS": 1 if host else threads // 32,
            "WARP_WORDS": self._warp_words(1 if host else 32),
            "MOST_RANKS": MOST_RANKS,
            "SENT_LOG2": SENT_LOG2,
            **self.keys.mixing(),
        }
        lines = [*self.constants, *(f"#define {name} {value}" for name, value in defines.items())]
        if program == "walk":
            lines.append("#define WALKING")
        for part in _PARTS:
            lines.append(_packaged(part) if part else "\n".join(self.keys.text()))
        return "\n".join(
            [*lines, _packaged(f"{program}.cuh").replace("/*MACHINE*/", "\n".join(self.functions))]
        )


def _packaged(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
