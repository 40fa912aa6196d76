"""What the engines have in common that compute in 64-bit words: they refuse numbers that do not fit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from kvfence.checker.core.terminal_text import print_err
from kvfence.checker.engines.base import CellBounds, Engine, Result, RunOptions
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.symmetry import Symmetry, symmetry
from kvfence.checker.engines.word_size import TooWide, refused, word_bounds
from kvfence.spec.language import Machine

Note = Callable[[str], None]


class WordEngine(Engine):
    """An engine that computes in 64-bit words. Every unbounded Int needs ``bounds``."""

    def decide(self, machine: Machine, sizes: Mapping[str, int] | None, options: RunOptions) -> Result:
        """Explore, or refuse a machine that words are too narrow for."""
        interpreter = Interpreter(machine, sizes)
        try:
            limits = word_bounds(interpreter.grounded, options.bounds)
        except TooWide as why:
            return refused(self.name, interpreter.grounded, why)
        return self.explore(interpreter, limits, options)

    @abstractmethod
    def explore(self, interpreter: Interpreter, limits: CellBounds, options: RunOptions) -> Result:
        """The answer for a machine that fits, with ``limits`` for cells that have no range of their own."""


class CompiledEngine(WordEngine):
    """A word engine that compiles the machine, may reduce it by symmetry, and may write checkpoints.

    ``symmetry`` searches up to a renaming of interchangeable elements: counts are then of representatives.
    ``checkpoint`` is a folder to write to every ``checkpoint_every`` seconds and to go on from. ``note`` gets
    a line where something else is done than was asked for.
    """

    def __init__(
        self, symmetry: bool, checkpoint: Path | str | None, checkpoint_every: float, note: Note | None
    ) -> None:
        self.symmetry, self.note = symmetry, note or print_err
        self.checkpoint = Path(checkpoint) if checkpoint is not None else None
        self.checkpoint_every = checkpoint_every

    def symmetry_of(self, interpreter: Interpreter) -> Symmetry | None:
        """The symmetry to reduce a machine by; None where none was asked for."""
        if not self.symmetry:
            return None
        found = symmetry(interpreter.grounded)
        if not found.sorts:
            why = "; ".join(f"{sort}: {reason}" for sort, reason in found.left_out.items())
            self.note(f"no symmetry to reduce {interpreter.machine.name} by ({why})")
        return found
