"""The explorer: every reachable state of a machine at given sizes, breadth first, in numpy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.engines import base
from kvfence.checker.engines.explicit import expand as kernels
from kvfence.checker.engines.explicit.interpret import Interpreter, failed
from kvfence.checker.engines.explicit.pack import WORD, WORD_BITS, Packing, Words
from kvfence.checker.engines.explicit.state_set import StateSet, state_set
from kvfence.checker.engines.explicit.word_engine import WordEngine
from kvfence.checker.engines.word_size import fits, word_bounds
from kvfence.spec.language import Grounded, Instance
from kvfence.spec.language.nodes import Node

CHUNK = 1 << 15  # states expanded at a time: their columns stay in the second-level cache
BATCH = 4  # successors entered at a time, in chunks


class Explore(WordEngine):
    """Breadth-first exploration in numpy. States are exact: nothing is lost to hashing.

    ``chunk`` is the number of states expanded at a time; it bounds the temporary memory.
    """

    name = "explore"

    def __init__(self, chunk: int = CHUNK) -> None:
        self.chunk = chunk

    def explore(
        self, interpreter: Interpreter, limits: base.CellBounds, options: base.RunOptions
    ) -> base.Result:
        """See ``WordEngine.explore``."""
        log = base.Log(interpreter.grounded)
        search = _Search(log, limits, self.chunk, options)
        with log.stopping():
            search.explore(options.until)
        paths = interpreter.path_to(search.finish())
        return log.result(self.name, options.report.seconds(), paths)


class _Batch:
    """Successors waiting: ``words[:, :count]``, shown by lane (bits per lane) in ``lanes``.

    ``flush`` empties it when it is full.
    """

    def __init__(self, words: int, size: int, flush: Callable[[], None]) -> None:
        self.words: Words = np.empty((words, size), WORD)
        self.lanes = {
            bits: self.words.view(f"u{bits // 8}").reshape(words, size, WORD_BITS // bits)
            for bits in (8, 16, 32, 64)
        }
        self.size, self.count, self.flush = size, 0, flush

    def room(self, more: int) -> int:
        """The place of ``more`` successors."""
        if self.count + more > self.size:
            self.flush()
        self.count += more
        return self.count - more


class _Search:
    """The states seen, in order of discovery, and where each level of them begins."""

    def __init__(self, log: base.Log, limits: base.CellBounds, chunk: int, options: base.RunOptions) -> None:
        self.grounded, self.log, self.limits, self.chunk = log.grounded, log, limits, chunk
        self.max_states, self.report = options.max_states, options.report
        self.memory: int | None = None
        self.packing = Packing(self.grounded, limits)
        self.batch = _Batch(self.packing.words, BATCH * chunk, self._enter)
        self.seen: StateSet = state_set(self.packing, self._reserve)
        self.seen.add(self.packing.pack(self.grounded.initial))
        self.memory = options.memory  # from here on: the smallest tables are always taken
        self.levels = [0]  # number of the first state of each level; the last may still be empty
        self.judged = 0  # states below this number
        self.left_bounds: str | None = None
        self.judge = self._open()
        g = self.grounded
        self.is_terminal = kernels.look(self.packing, [(0, g.terminal)])
        self.expand = kernels.expand(g, self.packing, limits)

    def explore(self, until: base.Until) -> None:
        """Level by level until nothing is new."""
        self._reserve(self.seen.nbytes)
        while True:
            self._look()
            self.log.stop_if_enough(until)
            first, end = self.levels[-1], self.seen.count
            self.levels.append(end)
            for a in range(first, end, self.chunk):
                self._expand(a, min(a + self.chunk, end))
                self.report(self._progress)
            self._enter()
            self.log.stop_if_enough(until)
            if self.seen.count == end:
                break
        if self.left_bounds:
            raise base.Stop(self.left_bounds)

    def finish(self) -> dict[int, list[Instance]]:
        """Complete the log; the steps to each sighting, by its ``id``."""
        log = self.log
        self.settle()
        return self.retrace(
            [*log.failed.values(), *log.reached.values(), *([] if log.dead is None else [log.dead])]
        )

    def settle(self) -> None:
        """Complete the log."""
        log = self.log
        if log.stopped and log.stopped != base.FIRST:
            self._look()
        log.states, log.transitions = self.seen.count, sum(log.taken)
        log.depth = len(self.levels) - (1 if self.seen.count > self.levels[-1] else 2)

    def _reserve(self, nbytes: int) -> None:
        if self.memory is not None and nbytes + self.batch.words.nbytes > self.memory:
            raise base.Stop(f"the memory limit of {self.memory} bytes was reached")

    def _progress(self) -> base.Progress:
        n, (first, end) = self.seen.count, self.levels[-2:]
        return base.Progress(n, end - first, len(self.levels) - 2, self.report.rate(n))

    def _open(self) -> Callable[..., None]:
        """The judgement of the properties that are still open."""
        g, log = self.grounded, self.log
        self.open = [(p.name, n, log.failed) for p, n in g.invariants if p.name not in log.failed]
        self.open += [
            (p.name, g.graph.negation(n), log.reached) for p, n in g.goals if p.name not in log.reached
        ]
        return kernels.look(self.packing, [(k, n) for k, (_, n, _) in enumerate(self.open)])

    def _look(self) -> None:
        """Judge the states not yet judged, all of the last level."""
        depth = len(self.levels) - 1
        while self.judged < self.seen.count:
            a, b = self.judged, min(self.judged + self.chunk, self.seen.count)
            found: dict[int, int] = {}
            self.judge(self.seen.words[:, a:b], found.__setitem__)
            for position, state in found.items():
                name, _, where = self.open[position]
                where[name] = base.Sighting(a + state, depth)
            self.judged = b
            if found:
                self.judge = self._open()

    def _expand(self, a: int, b: int) -> None:
        words, log, depth = self.seen.words[:, a:b], self.log, len(self.levels) - 2
        live = np.zeros(b - a, np.bool_)

        def fail(index: int, position: int, state: int) -> None:
            instance = self.grounded.instances[index]
            (c,) = failed(instance, (position,))
            if c.name not in log.failed:
                log.failed[c.name] = base.Sighting(a + state, depth, instance, c.text)

        def outside(cell: int) -> None:
            self.left_bounds = self.left_bounds or base.bounds_left(self.grounded, cell, self.limits)

        batch = self.batch
        self.expand(words, batch.words, batch.lanes, batch.room, log.taken, fail, outside, None, live)
        if log.dead is None and not live.all():
            stuck = np.flatnonzero(~live)
            found: dict[int, int] = {}
            self.is_terminal(words.take(stuck, axis=1), found.__setitem__)
            if found:
                log.dead = base.Sighting(a + int(stuck[found[0]]), depth)

    def _enter(self) -> None:
        """Enter the batch into the states seen."""
        n, self.batch.count = self.batch.count, 0
        self.seen.add(self.batch.words[:, :n])
        if self.max_states is not None and self.seen.count > self.max_states:
            raise base.Stop(f"more than {self.max_states} states")

    def retrace(self, sightings: list[base.Sighting]) -> dict[int, list[Instance]]:
        """A shortest way to each sighting, found by expanding the levels again, last to first."""
        steps = {id(s): [s.instance] if s.instance else [] for s in sightings}
        at = {id(s): int(s.state) for s in sightings if isinstance(s.state, int)}
        back = _Back(self) if any(n > 0 for n in at.values()) else None
        for level in range(len(self.levels) - 1, 0, -1):
            targets = {n for n in at.values() if n >= self.levels[level]}
            if targets and back is not None:
                came = back.predecessors(targets, self.levels[level - 1], self.levels[level])
                for key, n in at.items():
                    if n in came:
                        at[key], instance = came[n]
                        steps[key].insert(0, instance)
        return steps


class _Back:
    """Finds, for states of one level, a state of the level before and the step between."""

    def __init__(self, search: _Search) -> None:
        self.search = search
        self.batch = search.batch
        self.batch.flush = self._match
        self.expand = kernels.expand(search.grounded, search.packing, search.limits, traced=True)
        self.marks: list[tuple[int, int, NDArray[np.int64]]] = []  # place, instance, states of the chunk
        self.missing: dict[int, Words] = {}
        self.came: dict[int, tuple[int, int]] = {}  # of the present chunk: state of the chunk, instance

    def predecessors(self, targets: set[int], first: int, end: int) -> dict[int, tuple[int, Instance]]:
        """For each target its earliest predecessor among the states ``first`` to ``end``, and the step."""
        words, instances = self.search.seen.words, self.search.grounded.instances
        self.missing = {t: words[:, t] for t in targets}
        out: dict[int, tuple[int, Instance]] = {}
        for a in range(first, end, self.search.chunk):
            chunk = words[:, a : min(a + self.search.chunk, end)]
            self.batch.count, self.marks, self.came = 0, [], {}
            taken, live = [0] * len(instances), np.zeros(chunk.shape[1], np.bool_)
            batch = self.batch
            self.expand(
                chunk, batch.words, batch.lanes, batch.room, taken, _ignore, _ignore, self._mark, live
            )
            self._match()
            for t, (state, instance) in self.came.items():
                out[t] = a + state, instances[instance]
                del self.missing[t]
            if not self.missing:
                break
        return out

    def _mark(self, instance: int, states: NDArray[np.int64], place: int) -> None:
        self.marks.append((place, instance, states))

    def _match(self) -> None:
        """Look for the targets among the successors in the batch, and empty it."""
        words = self.batch.words[:, : self.batch.count]
        places = [place for place, _, _ in self.marks]
        for t, target in self.missing.items():
            for k in np.flatnonzero((words == target[:, None]).all(axis=0)).tolist():
                place, instance, states = self.marks[bisect_right(places, k) - 1]
                found = int(states[k - place]), instance
                self.came[t] = min(found, self.came.get(t, found))
        self.batch.count, self.marks = 0, []


class Reachable:
    """Every reachable state of a grounded machine, in the order of discovery, to ask questions about.

    ``log`` says what was seen on the way, without paths; ``log.stopped`` why states are missing, if any are.
    ``memory`` is in bytes. Ctrl-C is passed on. TooWide for what 64 bits are too few for.
    """

    def __init__(
        self,
        grounded: Grounded,
        *,
        memory: int | None = None,
        max_states: int | None = None,
        chunk: int = CHUNK,
    ) -> None:
        self.log = base.Log(grounded)
        self._limits = limits = word_bounds(grounded, None)
        options = base.RunOptions(max_states=max_states, memory=memory)
        search = _Search(self.log, limits, chunk, options)
        try:
            search.explore("end")
        except base.Stop as stop:
            self.log.stopped = str(stop)
        search.settle()
        self._search = search

    def __len__(self) -> int:
        return self._search.seen.count

    def first(self, conditions: Sequence[Node]) -> dict[int, list[Instance]]:
        """By position, a shortest way to the first state in which the condition holds, where one does."""
        search, words = self._search, self._search.seen.words
        graph = search.grounded.graph
        if graph.wide:
            fits(search.grounded, (("a difference", n) for n in conditions), self._limits)
        judge = kernels.look(search.packing, [(k, graph.negation(n)) for k, n in enumerate(conditions)])
        sightings: dict[int, base.Sighting] = {}
        for a in range(0, len(self), search.chunk):
            found: dict[int, int] = {}
            judge(words[:, a : min(a + search.chunk, len(self))], found.__setitem__)
            for k, state in found.items():
                sightings.setdefault(k, base.Sighting(a + state, 0))
        ways = search.retrace(list(sightings.values()))
        return {k: ways[id(s)] for k, s in sightings.items()}


def _ignore(*_: object) -> None:
    """The failures of the steps were recorded when they were first taken."""
