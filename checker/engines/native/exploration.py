"""One search in C: runs in slices, and looks after time, memory, Ctrl-C and the checkpoint in between."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence

from kvfence.checker.core.c_build import library
from kvfence.checker.engines import base
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.symmetry import Symmetry
from kvfence.checker.engines.native.c_source import NativeSource
from kvfence.checker.engines.native.checkpoint import Checkpoint
from kvfence.checker.engines.native.layout import Dense
from kvfence.checker.engines.native.library import Search, Sight, bound
from kvfence.checker.engines.native.saved import Form, Saved, SavedSight, Subject, Whole
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import PREMISE, Instance

SLICE = 0.1  # seconds in C between two looks at the clock, the limits and Ctrl-C
FULL = 0.5  # a table fuller than this is doubled,
FULLEST = 0.88  # or, where memory forbids that, filled up to here
SMALLEST_BLOCKS = 4 << 20  # bytes of levels that must fit beside the table
UNLIMITED = 1 << 62


class Model:
    """A machine compiled for searching. CannotCompile when it cannot be."""

    def __init__(
        self, interpreter: Interpreter, limits: base.CellBounds, symmetry: Symmetry | None = None
    ) -> None:
        self.interpreter, self.symmetry = interpreter, symmetry
        self.grounded = interpreter.grounded
        self.packing = Dense(self.grounded, limits)
        self.source = NativeSource(self.grounded, self.packing, limits, symmetry)
        self.limits = limits
        self.library = bound(library(self.source.text()))

    def pack(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """The words of a state."""
        return tuple(int(x) for x in self.packing.pack(state)[:, 0])

    @property
    def reduced_by(self) -> tuple[str, ...]:
        """The sorts up to whose renaming states are counted."""
        return self.symmetry.sorts if self.symmetry else ()

    def stop_if_outside(self, cells: Sequence[int]) -> None:
        """Stop where some step would have taken one of these cells out of its bounds."""
        if cells:
            raise base.Stop(base.bounds_left(self.grounded, cells[0], self.limits))

    def subject(self) -> Subject:
        """What a checkpoint is of."""
        g = self.grounded
        return Subject(
            machine=g.machine.name,
            faults=tuple(sorted(g.machine.faults)),
            sizes=g.sizes,
            symmetry=self.reduced_by,
            code=hashlib.sha256(self.source.machine_text().encode()).hexdigest(),
        )

    def form(self) -> Form:
        """What a checkpoint of it looks like."""
        g = self.grounded
        return Form(
            entry=8 * self.packing.words,
            words=self.packing.words,
            instances=len(g.instances),
            cells=len(g.cells),
            seen={"looked": len(g.invariants) + len(g.goals), "failed": len(self.source.checks), "dead": 1},
            alone=True,
            filling=True,
            true=self._is_true,
        )

    def _is_true(self, what: str, k: int, sight: Sight) -> bool:
        """Whether a sight of a file is one: the ``k``-th property, check or deadlock."""
        run, g = self.interpreter, self.grounded
        state = self.packing.unpack(sight.words)
        if self.pack(state) != sight.words or not base.in_ranges(g, state, self.limits):
            return False
        if what == "looked":
            properties = [p for p, _ in (*g.invariants, *g.goals)]
            return properties[k] in (run.violated(state) if k < len(g.invariants) else run.reached(state))
        if what == "failed":
            instance = g.instances[sight.instance]
            names = {failure.name for failure in run.failures(state, instance)}
            return instance in run.enabled(state) and list(self.source.checks)[k] in names
        return not run.enabled(state) and not run.terminal(state)


class Exploration:
    """One search: runs the C in slices, and between them looks after time, memory and the checkpoint."""

    def __init__(
        self, model: Model, log: base.Log, threads: int, options: base.RunOptions | None = None
    ) -> None:
        options = options or base.RunOptions()
        self.model, self.log, self.threads = model, log, threads
        self.max_states, self.memory, self.report = options.max_states, options.memory, options.report
        self.checkpoint: Checkpoint | None = None
        self.search: Search | None = None
        self.before = 0.0  # seconds spent by the runs that this one goes on from
        self.finished = False
        self.spill_to: int | None = None  # descriptor of the file that blocks go to,
        self.own_file = False  # to be closed in the end

    def elapsed(self) -> float:
        """Seconds spent, those before a checkpoint included."""
        return self.before + self.report.seconds()

    def open(self, checkpoint: Checkpoint | None = None) -> None:
        """Begin, or go on from a checkpoint. Stop when the memory limit is too small for that."""
        saved = None
        if checkpoint is not None:
            saved = checkpoint.load(self.model.form())
            checkpoint.emit_notes()
        entry = 8 * self.model.packing.words
        buffers = int(self.model.library.buffers()) * self.threads
        self.slack = 2 * buffers // (entry + 8)  # successors that may be entered after a run has to stop
        known = int(sum(saved.levels) / FULL) if saved else 0
        log2 = max(12, (2 * self.slack).bit_length(), known.bit_length())
        if self.memory is not None and (entry << log2) + buffers > self.memory:
            self._limit_reached()
        search = self.search = Search(
            self.model.library, self.model.packing.words, threads=self.threads, log2=log2
        )
        if checkpoint is not None:
            search.set_file(checkpoint.file)
            self.spill_to = checkpoint.file
        if saved is None:
            search.begin(self.model.pack(self.model.grounded.initial))
            if checkpoint is not None:
                checkpoint.completed(self._whole())
        else:
            search.put_back(
                list(saved.taken),
                {what: [x.sight() if x else None for x in seen] for what, seen in saved.seen.items()},
                list(saved.outside),
            )
            twice = search.restore(list(saved.levels), saved.expanded)
            if twice:
                assert checkpoint is not None
                raise CannotRun(
                    f"{checkpoint.folder} is damaged: its state {twice - 1} is there twice; delete the folder"
                )
            self.before, self.finished = saved.seconds, saved.finished
        self.checkpoint = checkpoint

    def explore(self, until: base.Until) -> None:
        """Level by level until nothing is new. Stop says why it ended early."""
        search = self._search()
        while not self.finished:
            self._stop_if_enough(until)
            self._expand_level()
            self._stop_if_enough(until)
            if not search.next_level():
                self.finished = True
            elif self.checkpoint is not None:
                self.checkpoint.completed(self._whole())
            self._write(level_end=True)
        self.model.stop_if_outside(search.outside(len(self.model.grounded.cells)))

    def close(self) -> None:
        """Give everything back."""
        if self.search is not None:
            self.search.close()
            self.search = None
        if self.spill_to is not None and self.own_file:
            os.close(self.spill_to)

    def finish(self) -> dict[int, list[Instance]]:
        """Complete the log; the steps to each sighting, by its ``id``."""
        log, g, search = self.log, self.model.grounded, self.search
        if search is None or search.status().states == 0:
            return {}
        if self.checkpoint is not None and not self.finished:
            self._write(level_end=True, now=True)
        levels = search.levels()
        log.states, log.taken = sum(levels), search.taken(len(g.instances))
        log.transitions, log.depth = sum(log.taken), len(levels) - (1 if levels[-1] else 2)
        looked, failed, dead = self._sights()
        if log.stopped == base.FIRST:
            # a violation in a step ends the search before the states behind it are judged
            expanded = len(levels) - 2
            if any(s and s.depth <= expanded for s in (*looked, *failed, *dead)):
                looked = [s if s and s.depth <= expanded else None for s in looked]
        for (name, where), sight in zip(log.places(), looked, strict=True):
            if sight is not None:
                where[name] = base.Sighting(sight.words, sight.depth)
        for name, sight in zip(self.model.source.checks, failed, strict=True):
            if sight is not None:
                log.failed[name] = self._failure(name, sight)
        if dead[0] is not None:
            log.dead = base.Sighting(dead[0].words, dead[0].depth)
        wanted = [log.reached[p.name] for p, _ in g.goals if p.name in log.reached and p.id != PREMISE]
        return self._retrace([*log.failed.values(), *wanted, *([] if log.dead is None else [log.dead])])

    def _search(self) -> Search:
        assert self.search is not None
        return self.search

    def _sights(self) -> tuple[list[Sight | None], list[Sight | None], list[Sight | None]]:
        g, search = self.model.grounded, self._search()
        return (
            search.sights("looked", len(g.invariants) + len(g.goals)),
            search.sights("failed", len(self.model.source.checks)),
            search.sights("dead", 1),
        )

    def _stop_if_enough(self, until: base.Until) -> None:
        """Stop when what ``until`` asks for was found."""
        if until == "end":
            return
        search, g = self._search(), self.model.grounded
        if self._seen_up_to(search.status().depth - 1):
            raise base.Stop(base.FIRST)
        if until == "seen":
            goals = self._sights()[0][len(g.invariants) :]
            met = [p.name for (p, _), sight in zip(g.goals, goals, strict=True) if sight is not None]
            if self.log.covers(search.taken(len(g.instances)), met):
                raise base.Stop(base.SEEN)

    def _seen_up_to(self, depth: int) -> bool:
        """Whether something is violated in a state up to this depth, or in a step out of one."""
        looked, failed, dead = self._sights()
        invariants = looked[: len(self.model.grounded.invariants)]
        return any(s is not None and s.depth <= depth for s in (*invariants, *failed, *dead))

    def _expand_level(self) -> None:
        search = self._search()
        while True:
            full_at, blocks = self._make_room()
            why = search.run(SLICE, full_at, blocks)
            now = search.status()
            self.report(self._progress)
            if self.max_states is not None and now.states > self.max_states:
                raise base.Stop(f"more than {self.max_states} states")
            if why == 0:
                return
            self._write(level_end=False)

    def _make_room(self) -> tuple[int, int]:
        """Grow the table and move blocks to the file as needed; the limits of the next slice.

        They are the number of states at which to stop, and the bytes of blocks.
        """
        search = self._search()
        now = search.status()
        slots, table = now.slots, now.table_bytes
        while now.states >= FULL * slots - self.slack:
            if not self._fits(2 * table):
                break
            times = 2 if slots < 1 << 18 and self._fits(4 * table) else 1
            if now.block_bytes + (table << times) + search.buffer_bytes > (self.memory or UNLIMITED):
                self._spill(SMALLEST_BLOCKS // 2)
            search.grow(times)
            slots, table = slots << times, table << times
        full_at = (
            int(FULL * slots) if self._fits(2 * table) else min(int(FULLEST * slots), slots - self.slack)
        )
        if now.states >= full_at:
            self._limit_reached()
        blocks = UNLIMITED
        if self.memory is not None:
            blocks = self.memory - table - search.buffer_bytes
            if search.status().block_bytes > blocks * 3 // 4:
                self._spill(blocks // 4)
        if self.max_states is not None:
            full_at = min(full_at, self.max_states + 1)
        return full_at, blocks

    def _fits(self, table: int) -> bool:
        return self.memory is None or table + self._search().buffer_bytes + SMALLEST_BLOCKS <= self.memory

    def _limit_reached(self) -> None:
        raise base.Stop(f"the memory limit of {self.memory} bytes was reached")

    def _spill(self, keep: int) -> None:
        search = self._search()
        if self.spill_to is None:
            folder = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
            with tempfile.TemporaryFile(dir=folder) as made:
                self.spill_to, self.own_file = os.dup(made.fileno()), True
            search.set_file(self.spill_to)
        try:
            search.spill(keep)
        except OSError as error:
            raise base.Stop(
                f"the memory limit of {self.memory} bytes was reached, and levels cannot go to a file: "
                f"{error.strerror}"
            ) from None

    def _progress(self) -> base.Progress:
        now = self._search().status()
        return base.Progress(now.states, now.level_states, now.depth - 1, now.states / self.elapsed())

    def _write(self, level_end: bool, now: bool = False) -> None:
        """Write a checkpoint if it is time for one."""
        checkpoint, search = self.checkpoint, self._search()
        if checkpoint is None or not (now or self.finished or checkpoint.due(level_end)):
            return
        try:
            search.save()
            checkpoint.write(self._saved(checkpoint))
        except OSError as error:
            checkpoint.failed(error)

    def _saved(self, checkpoint: Checkpoint) -> Saved:
        search, g = self._search(), self.model.grounded
        state = search.status()
        kept = dict(zip(("looked", "failed", "dead"), self._sights(), strict=True))
        return checkpoint.record(
            levels=tuple(search.levels()),
            expanded=state.expanded,
            bytes=state.file_bytes,
            seconds=self.elapsed(),
            taken=tuple(search.taken(len(g.instances))),
            seen={what: tuple(SavedSight.of(s) for s in sights) for what, sights in kept.items()},
            outside=tuple(search.outside(len(g.cells))),
            finished=self.finished,
        )

    def _whole(self) -> Whole:
        search, g = self._search(), self.model.grounded
        taken, outside = search.taken(len(g.instances)), search.outside(len(g.cells))
        return Whole(search.status().depth, tuple(taken), tuple(outside))

    def _failure(self, name: str, sight: Sight) -> base.Sighting:
        instance = self.model.grounded.instances[sight.instance]
        state = self.model.packing.unpack(sight.words)
        failures = self.model.interpreter.failures(state, instance)
        text = next((f.text for f in failures if f.name == name), "")
        return base.Sighting(sight.words, sight.depth, instance, text)

    def _retrace(self, sightings: list[base.Sighting]) -> dict[int, list[Instance]]:
        """A shortest way to each sighting, found by expanding the levels again, last to first."""
        chains: dict[int, list[tuple[int, ...]]] = {id(s): [s.state] for s in sightings}  # type: ignore[list-item]
        steps: dict[int, list[Instance]] = {id(s): [] for s in sightings}
        instances = self.model.grounded.instances
        for level in range(max((s.depth for s in sightings), default=0), 0, -1):
            targets = list(dict.fromkeys(chains[id(s)][0] for s in sightings if s.depth >= level))
            came = dict(zip(targets, self._search().predecessors(level - 1, targets), strict=True))
            for s in sightings:
                if s.depth >= level:
                    before = came[chains[id(s)][0]]
                    if before is None:
                        assert self.checkpoint is not None
                        raise CannotRun(
                            f"{self.checkpoint.folder} is damaged: nothing leads to a state that it has"
                        )
                    chains[id(s)].insert(0, before.words)
                    steps[id(s)].insert(0, instances[before.instance])
        for s in sightings:
            if self.model.symmetry is not None and self.model.symmetry.sorts:
                steps[id(s)] = self._renamed(chains[id(s)], s)
            elif s.instance is not None:
                steps[id(s)].append(s.instance)
        return steps

    def _renamed(self, chain: list[tuple[int, ...]], seen: base.Sighting) -> list[Instance]:
        """A run of the machine itself through states that the chain's states stand for."""
        run, search = self.model.interpreter, self._search()
        state, out = run.initial(), []
        for wanted in chain[1:]:
            for index, after, _ in run.successors(state):
                if (
                    base.in_ranges(self.model.grounded, after, self.model.limits)
                    and search.representative(self.model.pack(after)) == wanted
                ):
                    out.append(run.instances[index])
                    state = after
                    break
            else:
                raise AssertionError("a path under symmetry cannot be followed")
        if seen.instance is not None:
            name = next(n for n, s in self.log.failed.items() if s is seen)
            for index, _, _ in run.successors(state):
                failing = [f for f in run.failures(state, run.instances[index]) if f.name == name]
                if failing:
                    seen.text = failing[0].text
                    return [*out, run.instances[index]]
            raise AssertionError("a failing step under symmetry cannot be followed")
        return out
