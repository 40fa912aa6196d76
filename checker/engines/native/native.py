"""The native engine: exhaustive search in C, compiled for the machine at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path as FilePath

from kvfence.checker.core.c_build import CannotCompile
from kvfence.checker.core.terminal_text import print_err
from kvfence.checker.engines.base import (
    Bounds,
    Engine,
    Log,
    Path,
    Report,
    Result,
    Sighting,
    Stop,
    Until,
)
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.explicit.symmetry import Symmetry, symmetry
from kvfence.checker.engines.native.checkpoint import Checkpoint
from kvfence.checker.engines.native.exploration import Exploration, Model
from kvfence.checker.engines.word_size import TooWide, refused, word_bounds
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Machine

Note = Callable[[str], None]


class Native(Engine):
    """Breadth-first exploration in C. States are exact; the answer does not depend on ``threads``.

    ``symmetry`` searches up to a renaming of interchangeable elements: counts are then of representatives.
    ``checkpoint`` is a folder to write to every ``checkpoint_every`` seconds and to go on from. ``note`` gets
    a line when there is no C compiler (numpy explores then) or nothing to reduce by symmetry.
    """

    name = "native"

    def __init__(
        self,
        *,
        threads: int = 1,
        symmetry: bool = False,
        checkpoint: FilePath | str | None = None,
        checkpoint_every: float = 30.0,
        note: Note | None = None,
    ) -> None:
        if threads < 1:
            raise CannotRun(f"{threads} threads cannot search; give 1 or more")
        self.threads, self.symmetry, self.note = threads, symmetry, note or print_err
        self.checkpoint = FilePath(checkpoint) if checkpoint is not None else None
        self.checkpoint_every = checkpoint_every

    def run(
        self,
        machine: Machine,
        sizes: Mapping[str, int] | None = None,
        *,
        until: Until = "end",
        bounds: Bounds | None = None,
        max_states: int | None = None,
        memory: int | None = None,
        progress: Report | None = None,
    ) -> Result:
        """See ``Engine.run``. Every unbounded Int needs ``bounds``. CannotRun for an unusable checkpoint.

        Under a ``memory`` limit older levels go to a file; what cannot, is the table of the states seen.
        """
        start = time.perf_counter()
        interpreter = Interpreter(machine, sizes)
        try:
            limits = word_bounds(interpreter.grounded, bounds)
        except TooWide as why:
            return refused(self.name, interpreter.grounded, why)
        try:
            model = Model(interpreter, limits, self._symmetry(interpreter))
        except CannotCompile as why:
            if self.checkpoint is not None:
                raise CannotRun(f"a checkpoint needs the native engine: {why}") from None
            self.note(f"{why}: exploring in numpy")
            return Explore().run(
                machine,
                sizes,
                until=until,
                bounds=bounds,
                max_states=max_states,
                memory=memory,
                progress=progress,
            )
        log = Log(interpreter.grounded)
        with ExitStack() as stack:
            checkpoint = None
            if self.checkpoint is not None:
                checkpoint = Checkpoint(self.checkpoint, model.subject(), self.checkpoint_every)
                stack.enter_context(checkpoint)
            search = Exploration(
                model,
                log,
                self.threads,
                max_states=max_states,
                memory=memory,
                progress=progress,
                start=start,
                note=self.note,
            )
            stack.callback(search.close)
            try:
                search.open(checkpoint)
                search.explore(until)
            except Stop as stop:
                log.stopped = str(stop)
            except KeyboardInterrupt:
                log.stopped = "interrupted"
            except MemoryError as error:
                log.stopped = f"the memory of this computer is used up: {error}"
            steps = search.finish()

            def path(sighting: Sighting, id_: str, name: str, text: str) -> Path:
                return interpreter.path(steps[id(sighting)], id_, name, text)

            reduced = model.symmetry.sorts if model.symmetry else ()
            return log.result(self.name, search.elapsed(), path, symmetry=reduced)

    def _symmetry(self, interpreter: Interpreter) -> Symmetry | None:
        if not self.symmetry:
            return None
        found = symmetry(interpreter.grounded)
        if not found.sorts:
            why = "; ".join(f"{sort}: {reason}" for sort, reason in found.left_out.items())
            self.note(f"no symmetry to reduce {interpreter.machine.name} by ({why})")
        return found
