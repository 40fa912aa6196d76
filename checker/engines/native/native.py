"""The native engine: exhaustive search in C, compiled for the machine at hand."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from kvfence.checker.core.c_build import CannotCompile
from kvfence.checker.engines.base import CellBounds, Log, Result, RunOptions
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.explicit.word_engine import CompiledEngine, Note
from kvfence.checker.engines.native.checkpoint import Checkpoint
from kvfence.checker.engines.native.exploration import Exploration, Model
from kvfence.spec.errors import CannotRun


class Native(CompiledEngine):
    """Breadth-first exploration in C. States are exact; the answer does not depend on ``threads``.

    See ``CompiledEngine`` for the options. ``note`` gets a line when there is no C compiler (numpy explores
    then) or nothing to reduce by symmetry. Under a ``memory`` limit older levels go to a file; what cannot is
    the table of visited states.
    """

    name = "native"

    def __init__(
        self,
        *,
        threads: int = 1,
        symmetry: bool = False,
        checkpoint: Path | str | None = None,
        checkpoint_every: float = 30.0,
        note: Note | None = None,
    ) -> None:
        if threads < 1:
            raise CannotRun(f"{threads} threads cannot search; give 1 or more")
        super().__init__(symmetry, checkpoint, checkpoint_every, note)
        self.threads = threads

    def explore(self, interpreter: Interpreter, limits: CellBounds, options: RunOptions) -> Result:
        """See ``WordEngine.explore``. CannotRun for an unusable checkpoint."""
        try:
            model = Model(interpreter, limits, self.symmetry_of(interpreter))
        except CannotCompile as why:
            if self.checkpoint is not None:
                raise CannotRun(f"a checkpoint needs the native engine: {why}") from None
            self.note(f"{why}: exploring in numpy")
            return Explore().explore(interpreter, limits, options)
        log = Log(interpreter.grounded)
        with ExitStack() as stack:
            checkpoint = None
            if self.checkpoint is not None:
                checkpoint = Checkpoint(self.checkpoint, model.subject(), self.checkpoint_every, self.note)
                stack.enter_context(checkpoint)
            search = Exploration(model, log, self.threads, options)
            stack.callback(search.close)
            try:
                with log.stopping():
                    search.open(checkpoint)
                    search.explore(options.until)
            except MemoryError as error:
                log.stopped = f"the memory of this computer is used up: {error}"
            paths = interpreter.path_to(search.finish())
            return log.result(self.name, search.elapsed(), paths, model.reduced_by)
