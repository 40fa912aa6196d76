"""The GPU engine: exhaustive search in CUDA, compiled for the machine at hand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from pathlib import Path

from kvfence.checker.core.terminal_text import print_err
from kvfence.checker.engines import base
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.word_engine import CompiledEngine, Note
from kvfence.checker.engines.gpu.checksums import DamagedStates
from kvfence.checker.engines.gpu.device.ranks import Lost, Ranks
from kvfence.checker.engines.gpu.device.search_device import Device, NoGpu
from kvfence.checker.engines.gpu.expansion import Limits
from kvfence.checker.engines.gpu.exploration import GpuExploration, GpuModel
from kvfence.checker.engines.gpu.host_levels import MakeStore, PlainStore
from kvfence.checker.engines.gpu.levels import available_memory
from kvfence.checker.engines.gpu.saving import Saving
from kvfence.checker.engines.gpu.search import Search
from kvfence.checker.engines.liveness.state_graph import StateGraph, explored
from kvfence.checker.engines.word_size import TooWide
from kvfence.spec.errors import CannotRun

ENDING = 1.0  # seconds that a process may take to end


def first_gpu() -> Device:
    """The first GPU. NoGpu."""
    from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice

    return CudaDevice()


class Gpu(CompiledEngine):
    """Breadth-first exploration on a GPU. States are exact, and the answer is that of the native engine.

    See ``CompiledEngine`` for the options that are not listed here. ``device`` makes the device to search on;
    without one, ``instead`` explores, and ``note`` gets a line that says so. ``store`` makes the place on the
    host for levels that do not fit the device.
    """

    name = "gpu"

    def __init__(
        self,
        *,
        symmetry: bool = False,
        note: Note | None = None,
        device: Callable[[], Device] | None = None,
        instead: Callable[[], base.Engine] | None = None,
        ranks: Ranks | None = None,
        limits: Limits | None = None,
        queue: int | None = None,
        checkpoint: Path | str | None = None,
        checkpoint_every: float = 30.0,
        store: MakeStore = PlainStore,
    ) -> None:
        super().__init__(symmetry, checkpoint, checkpoint_every, note)
        self.store = store
        self._saving: Saving | None = None
        self.device, self.instead = device or first_gpu, instead
        self.ranks, self.limits, self.queue = ranks or Ranks(), limits or Limits(), queue

    def explore(
        self, interpreter: Interpreter, limits: base.CellBounds, options: base.RunOptions
    ) -> base.Result:
        """See ``WordEngine.explore``. ``memory`` is of the device: all that is free if None."""
        model = GpuModel(interpreter, limits, self.symmetry_of(interpreter), self.queue)
        own = self.limits
        allowed = replace(
            own,
            memory=own.memory if options.memory is None else options.memory,
            max_states=own.max_states if options.max_states is None else options.max_states,
        )
        log = base.Log(interpreter.grounded)
        search: Search | None = None
        with ExitStack() as stack:
            try:
                device = self.device()
                stack.callback(device.close)
                search = Search(model.printed, device, allowed, self.ranks, options.report, self.store)
                stack.callback(search.levels.close)
                self.ranks.last_words = self._words_of(search)
                self._begin(model, search, stack)
                search.explore(options.until)
                model.stop_if_outside(search.outside)
            except base.Stop as stop:
                log.stopped = str(stop)
            except KeyboardInterrupt:
                log.stopped = base.INTERRUPTED
            except Lost as lost:
                return self._without_a_rank(str(lost), log, search)
            except DamagedStates as damaged:
                return self._damaged(damaged, log, search)
            except NoGpu as why:
                return self._on_the_processor(why, interpreter, options)
            if search is None:
                return log.result(self.name, 0.0)
            if self._saving is not None and (self.ranks.count == 1 or log.stopped != base.INTERRUPTED):
                self._saving.save(search)
            if log.stopped == base.INTERRUPTED and self.ranks.count > 1:
                # the others may be gone: nothing can be asked of them
                return self._without_a_rank(base.INTERRUPTED, log, search)
            try:
                paths = interpreter.path_to(GpuExploration(model, log, search).finish())
            except Lost as lost:
                return self._without_a_rank(str(lost), base.Log(interpreter.grounded), search)
            except DamagedStates as damaged:
                return self._damaged(damaged, base.Log(interpreter.grounded), search)
            except base.Stop as stop:  # searching again for a counterexample
                return self._untraced(str(stop), base.Log(interpreter.grounded), search)
            return log.result(self.name, search.elapsed(), paths, model.reduced_by)

    def graph(
        self,
        interpreter: Interpreter,
        bounds: base.Bounds | None,
        max_states: int,
        report: base.Reporter | None = None,
    ) -> StateGraph:
        """The graph of all reachable states, found on this rank's device. Stop, see ``graph_on``."""
        from kvfence.checker.engines.gpu.device_graph import graph_on

        try:
            device = self.device()
            with closing(device):
                limits = replace(self.limits, max_states=max_states)
                return graph_on(device, interpreter, bounds, limits, report)
        except (NoGpu, TooWide):
            return explored(interpreter, bounds, max_states, report)

    def _begin(self, model: GpuModel, search: Search, stack: ExitStack) -> None:
        """Enter the initial state, or go on from a checkpoint."""
        if self.checkpoint is not None:
            subject = model.subject(self.ranks.rank, self.ranks.count)
            saving = Saving(
                self.checkpoint, subject, self.checkpoint_every, self.ranks.rank, self.ranks.count, self.note
            )
            stack.enter_context(saving)
            self._saving = saving
            search.at_level_end = saving.level_ended
            search.levels.save_first = lambda: saving.keep(search, len(search.levels.levels) - 1)
            if saving.resume(search, model.form_on(search)):
                return
        search.begin(model.pack(model.grounded.initial))

    def _without_a_rank(self, why: str, log: base.Log, search: Search | None) -> base.Result:
        """What all ranks had found when they were last complete."""
        again = "; run again with the same --checkpoint to go on" if self.checkpoint else ""
        text = why if why == base.INTERRUPTED else f"a rank was lost ({why}){again}"
        if why != base.INTERRUPTED and self.ranks.rank:
            time.sleep(ENDING)
            if self.ranks.last_words is not None and self.ranks.speaks():
                self.note(self.ranks.last_words())  # the first rank, which reports results, is gone
        return self._untraced(text, log, search)

    def _damaged(self, damaged: DamagedStates, log: base.Log, search: Search | None) -> base.Result:
        """What was found before. A rank that is not alone leaves the others, as one that is lost."""
        if self.ranks.count > 1:
            raise CannotRun(f"{damaged}: run again") from None
        return self._untraced(str(damaged), log, search)

    def _words_of(self, search: Search) -> Callable[[], str]:
        """What there is to say where no rank can be asked anything more."""

        def words() -> str:
            again = ": run again with the same --checkpoint to go on" if self.checkpoint else ""
            depth = max(0, len(search.known_levels) - 1)
            return (
                f"a rank was lost when {sum(search.known_levels):,} states were known, up to depth {depth}; "
                f"undetermined{again}"
            )

        return words

    def _untraced(self, why: str, log: base.Log, search: Search | None) -> base.Result:
        """What was found, without the paths there: a condition that is violated stays undetermined."""
        log.stopped = why
        if search is None:
            return log.result(self.name, 0.0)
        log.states = sum(search.known_levels)
        log.taken = search.known_taken[: len(log.taken)]
        log.transitions = sum(log.taken)
        log.depth = max(0, len(search.known_levels) - 1)
        if any(search.failed) or search.dead or any(search.looked[: search.source.invariants]):
            log.stopped += "; something is violated: go on, or search with more memory, to see how"
        return log.result(self.name, search.elapsed())

    def _on_the_processor(
        self, why: NoGpu, interpreter: Interpreter, options: base.RunOptions
    ) -> base.Result:
        from kvfence.checker.engines.native import Native

        self.note(f"{why}: the native engine searches instead")
        engine = self.instead() if self.instead else Native(symmetry=self.symmetry, note=self.note)
        return engine.decide(interpreter.machine, interpreter.sizes, options)


def gpu_engine(
    *, threads: int, symmetry: bool, checkpoint: Path | None, note: Note | None, store: MakeStore = PlainStore
) -> Gpu:
    """The engine of the command line: on the first GPU, or, under torchrun, on one GPU a rank.

    Levels that do not fit there go to a ``store``, in up to half of the host's free memory. Without a GPU the
    native engine searches with so many ``threads``, or, under torchrun, the kernels run on the processor.
    """
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    limits = Limits(host_memory=available_memory() // 2 // ranks_here)

    def native() -> base.Engine:
        from kvfence.checker.engines.native import Native

        return Native(threads=threads, symmetry=symmetry, checkpoint=checkpoint, note=note)

    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    ranks, device = (None, None) if alone else _joined()
    return Gpu(
        symmetry=symmetry,
        checkpoint=checkpoint,
        note=note,
        instead=native if alone else None,
        ranks=ranks,
        device=device,
        limits=limits,
        store=store,
    )


@cache
def _joined() -> tuple[Ranks, Callable[[], Device]]:
    """This process among the ranks of torchrun, and how it makes its device."""
    from kvfence.checker.engines.gpu.device.cuda_kernels import CudaDevice
    from kvfence.checker.engines.gpu.device.host import HostDevice
    from kvfence.checker.engines.gpu.device.torch_ranks import TorchRanks

    local = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        CudaDevice(local).close()
    except NoGpu as why:
        if int(os.environ.get("RANK", "0")) == 0:
            print_err(f"{why}: every rank searches on its processor, slowly")
        room = available_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) // 4
        return TorchRanks(gpu=False), lambda: HostDevice(room=room)
    return TorchRanks(gpu=True), lambda: CudaDevice(local)
