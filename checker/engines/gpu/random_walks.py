"""Swarm: random walks on the kernels of the GPU engine, for machines too large to exhaust. Never a proof."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from kvfence.checker.core.terminal_text import print_err
from kvfence.checker.engines import base
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.minimise import shorten
from kvfence.checker.engines.explicit.word_engine import Note, WordEngine
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.gpu.device.keys import mix
from kvfence.checker.engines.gpu.device.search_device import Device, NoGpu, Params
from kvfence.checker.engines.gpu.expansion import C_TAKEN
from kvfence.checker.engines.gpu.exploration import GpuModel
from kvfence.checker.engines.gpu.gpu import first_gpu
from kvfence.checker.engines.gpu.search import NOTHING
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import Instance

WALKS, STEPS = 1 << 20, 1000
AT_ONCE = 1 << 18  # walks between two looks at the clock and at Ctrl-C
MOST_STEPS = 1 << 31  # in one go: each block counts the steps of an action in 32 bits
C_STEPS = 5
_MASK = (1 << 64) - 1
_STEP, _INSTANCE = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93


class Swarm(WordEngine):
    """So many random walks of at most so many steps. The same ``seed`` walks the same ways everywhere.

    ``states`` of the result counts states as often as walks visited them, and ``depth`` is the length of the
    longest walk permitted. Counterexamples are shortened, but need not be shortest. What holds in all walks
    stays undetermined.
    """

    name = "swarm"

    def __init__(
        self,
        *,
        walks: int = WALKS,
        steps: int = STEPS,
        seed: int = 0,
        note: Note | None = None,
        device: Callable[[], Device] | None = None,
    ) -> None:
        if walks < 1 or not 1 <= steps < 1 << 24:
            raise CannotRun(f"{walks} walks of {steps} steps cannot be walked; give 1 or more of each")
        self.walks, self.steps, self.seed = walks, steps, seed
        self.note, self.device = note or print_err, device or first_gpu

    def explore(
        self, interpreter: Interpreter, limits: base.CellBounds, options: base.RunOptions
    ) -> base.Result:
        """See ``Engine.run``; ``until="first"`` stops after the walks among which something was violated."""
        model = GpuModel(interpreter, limits)
        log = base.Log(interpreter.grounded)
        if model.printed.instances > 1 << 16:
            name = interpreter.machine.name
            raise CannotRun(f"machine {name} has too many actions at these sizes; use smaller ones")
        device = self._open(model)
        try:
            walks = _Walks(model, device, self.seed, self.steps)
            done, why = 0, ""
            try:
                while done < self.walks:
                    n = min(AT_ONCE, max(1, MOST_STEPS // self.steps), self.walks - done)
                    walks.walk(done, n)
                    done += n
                    options.report(partial(self._progress, options, walks, done, n))
                    if options.until != "end" and walks.violated():
                        break
                    if options.max_states is not None and walks.states(done) > options.max_states:
                        break
            except KeyboardInterrupt:
                why = f"{base.INTERRUPTED}: "
            log.states, log.depth = walks.states(done), self.steps
            log.taken = walks.taken()[: len(log.taken)]
            log.transitions = sum(log.taken)
            log.stopped = (
                f"{why}{done} random walks of up to {self.steps} steps are no proof, and count states again "
                "that they come back to"
            )
            ways = walks.sightings(log)
        finally:
            device.close()

        def path(sighting: base.Sighting, id_: str, name: str, text: str) -> base.Path:
            steps = ways[id(sighting)]
            if id_:
                steps = shorten(interpreter, steps, name)
            return interpreter.path(steps, id_, name, text)

        return log.result(self.name, options.report.seconds(), path)

    def _progress(self, options: base.RunOptions, walks: _Walks, done: int, last: int) -> base.Progress:
        states = walks.states(done)
        return base.Progress(states, last, self.steps, options.report.rate(states))

    def _open(self, model: GpuModel) -> Device:
        try:
            device = self.device()
            device.compile(model.printed, "walk")
        except NoGpu as why:
            self.note(f"{why}: the walks run on the processor, slowly")
            device = HostDevice()
            device.compile(model.printed, "walk")
        return device


class _Walks:
    """Walks of one machine on one device, and what they saw."""

    def __init__(self, model: GpuModel, device: Device, seed: int, steps: int) -> None:
        self.model, self.device, self.seed, self.length = model, device, seed & _MASK, steps
        source = model.printed
        self._counted = C_TAKEN + source.instances + source.checks + source.cells
        self._seen = source.properties + source.checks + 1
        self.counters = device.allocate(8 * self._counted)
        self.sights = device.allocate(8 * self._seen)
        self.closed = device.allocate(source.properties)
        self.initial = device.allocate(8 * source.keys.words)
        device.clear(self.counters, 8 * self._counted)
        device.clear(self.sights, 8 * self._seen, 0xFF)
        device.clear(self.closed, source.properties)
        key = source.keys.encode(model.pack(model.grounded.initial))
        device.write(self.initial, np.array(key, np.uint64))

    def walk(self, first: int, count: int) -> None:
        """Walk so many walks, numbered from ``first`` on."""
        params = Params(
            into=self.initial,
            in_count=first,
            counters=self.counters,
            sights=self.sights,
            closed=self.closed,
            seed=self.seed,
            steps=self.length,
            walks=count,
            ranks=1,
        )
        self.device.launch("walk", params, count)
        self.device.read(self.counters, 1)

    def states(self, walks: int) -> int:
        """States that so many walks visited."""
        return walks + int(self.device.read(self.counters, C_STEPS + 1)[C_STEPS])

    def taken(self) -> list[int]:
        """How often each instance was taken."""
        counts = self.device.read(self.counters, C_TAKEN + self.model.printed.instances)
        return [int(x) for x in counts[C_TAKEN:]]

    def violated(self) -> bool:
        """Whether some walk saw a violation."""
        source = self.model.printed
        seen = self.device.read(self.sights, self._seen) != NOTHING
        return bool(seen[: source.invariants].any() or seen[source.properties :].any())

    def sightings(self, log: base.Log) -> dict[int, list[Instance]]:
        """Enter into the log what was seen; the steps to each sighting, by its ``id``."""
        source = self.model.printed
        sights = [int(x) for x in self.device.read(self.sights, self._seen)]
        ways: dict[int, list[Instance]] = {}
        for (name, where), sight in zip(log.places(), sights, strict=False):
            if sight != NOTHING:
                steps, state = self._again(sight)
                where[name] = base.Sighting(state, len(steps))
                ways[id(where[name])] = steps
        for name, sight in zip(self.model.source.checks, sights[source.properties :], strict=False):
            if sight != NOTHING:
                steps, state = self._again(sight)
                run = self.model.interpreter
                last, text = next(
                    (i, f.text) for i in run.enabled(state) for f in run.failures(state, i) if f.name == name
                )
                log.failed[name] = base.Sighting(state, len(steps), last, text)
                ways[id(log.failed[name])] = [*steps, last]
        if sights[-1] != NOTHING:
            steps, state = self._again(sights[-1])
            log.dead = base.Sighting(state, len(steps))
            ways[id(log.dead)] = steps
        return ways

    def _again(self, sight: int) -> tuple[list[Instance], tuple[int, ...]]:
        """The steps of a walk up to a sight, and the state there."""
        depth, walk = sight >> 40, sight & ((1 << 40) - 1)
        run = self.model.interpreter
        state, steps = run.initial(), []
        stream = mix(self.seed + walk * _STEP & _MASK)
        for at in range(depth):
            random = mix(stream + at * _STEP & _MASK)
            drawn = [
                (mix(random ^ (index * _INSTANCE & _MASK)) & ~0xFFFF | index, index, after)
                for index, after, _ in run.successors(state)
                if base.in_ranges(self.model.grounded, after, self.model.limits)
            ]
            _, index, state = min(drawn)
            steps.append(run.instances[index])
        return steps, state
