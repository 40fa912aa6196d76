"""The GPU engine: exhaustive search in CUDA, compiled for the machine at hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

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
    cell_bounds,
)
from kvfence.checker.engines.gpu.device import Device, NoGpu
from kvfence.checker.engines.gpu.exploration import GpuExploration, GpuModel
from kvfence.checker.engines.gpu.ranks import Alone, Ranks
from kvfence.checker.engines.gpu.search import Limits, Search
from kvfence.checker.engines.interpret import Interpreter
from kvfence.checker.engines.symmetry import Symmetry, symmetry
from kvfence.spec.language import Machine

Note = Callable[[str], None]


def _to_stderr(line: str) -> None:
    print(f"kvfence: {line}", file=sys.stderr)


def _first_gpu() -> Device:
    from kvfence.checker.engines.gpu.cuda import CudaDevice

    return CudaDevice()


class Gpu(Engine):
    """Breadth-first exploration on a GPU. States are exact, and the answer is that of the native engine.

    ``symmetry`` searches up to a renaming of interchangeable elements. ``device`` makes the device to search
    on; without one, ``instead`` explores, and ``note`` gets a line that says so.
    """

    name = "gpu"

    def __init__(
        self,
        *,
        symmetry: bool = False,
        note: Note | None = None,
        device: Callable[[], Device] | None = None,
        instead: Callable[[], Engine] | None = None,
        ranks: Ranks | None = None,
        limits: Limits | None = None,
        queue: int | None = None,
    ) -> None:
        self.symmetry, self.note = symmetry, note or _to_stderr
        self.device, self.instead = device or _first_gpu, instead
        self.ranks, self.limits, self.queue = ranks or Alone(), limits or Limits(), queue

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
        """See ``Engine.run``. ``memory`` is of the device: all that is free if None."""
        interpreter = Interpreter(machine, sizes)
        limits = cell_bounds(interpreter.grounded, bounds, required=True)
        model = GpuModel(interpreter, limits, self._symmetry(interpreter), self.queue)
        own = self.limits
        allowed = Limits(
            memory if memory is not None else own.memory,
            own.host_memory,
            max_states if max_states is not None else own.max_states,
            own.batch,
            own.narrow,
        )
        log = Log(interpreter.grounded)
        search: Search | None = None
        device: Device | None = None
        try:
            try:
                device = self.device()
                search = Search(model.printed, device, allowed, self.ranks, progress)
                search.begin(model.pack(interpreter.grounded.initial))
                search.explore(until)
                self._leaving_bounds(model, search)
            except Stop as stop:
                log.stopped = str(stop)
            except KeyboardInterrupt:
                log.stopped = "interrupted"
            except NoGpu as why:
                asked = {"until": until, "bounds": bounds, "max_states": max_states, "memory": memory}
                return self._on_the_processor(why, machine, sizes, progress=progress, **asked)
            if search is None:
                return log.result(self.name, 0.0, _no_path)
            summed = GpuExploration(model, log, search)
            steps = summed.finish(until)

            def path(sighting: Sighting, id_: str, name: str, text: str) -> Path:
                return interpreter.path(steps[id(sighting)], id_, name, text)

            reduced = model.symmetry.sorts if model.symmetry else ()
            return log.result(self.name, search.elapsed(), path, symmetry=reduced)
        finally:
            if device is not None:
                device.close()

    def _leaving_bounds(self, model: GpuModel, search: Search) -> None:
        if search.outside:
            lo, hi = model.limits[search.outside[0]]
            raise Stop(f"{model.grounded.cells[search.outside[0]].label} leaves its bounds {lo} to {hi}")

    def _symmetry(self, interpreter: Interpreter) -> Symmetry | None:
        if not self.symmetry:
            return None
        found = symmetry(interpreter.grounded)
        if not found.sorts:
            why = "; ".join(f"{sort}: {reason}" for sort, reason in found.left_out.items())
            self.note(f"no symmetry to reduce {interpreter.machine.name} by ({why})")
        return found

    def _on_the_processor(
        self, why: NoGpu, machine: Machine, sizes: Mapping[str, int] | None, **asked: Any
    ) -> Result:
        from kvfence.checker.engines.native import Native

        self.note(f"{why}: the native engine searches instead")
        engine = self.instead() if self.instead else Native(symmetry=self.symmetry, note=self.note)
        return engine.run(machine, sizes, **asked)


def _no_path(sighting: Sighting, id_: str, name: str, text: str) -> Path:
    raise AssertionError((sighting, id_, name, text))
