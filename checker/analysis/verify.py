"""Verifies the machines of a design: selects them, runs an engine on each, and gathers the facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack, cast

from kvfence import __version__
from kvfence.checker.analysis.counterexamples import counterexample
from kvfence.checker.analysis.liveness import judged, liveness_sizes, requires_progress
from kvfence.checker.analysis.named_specs import named_spec
from kvfence.checker.analysis.own_ids import sentences, stated_ids, undeclared
from kvfence.checker.analysis.results import (
    Condition,
    Counterexample,
    JudgedLiveness,
    MachineFacts,
    Verification,
    worst,
)
from kvfence.checker.core import interrupts
from kvfence.checker.core.names import ENGINES, EXPLORERS, SMT_ENGINES, SOUND
from kvfence.checker.engines.base import FIRST, Engine, Finding, Path, Progress, Result, Verdict
from kvfence.checker.engines.explicit.interpret import Interpret
from kvfence.checker.engines.liveness.liveness import Liveness
from kvfence.checker.engines.liveness.state_graph import Explored
from kvfence.checker.engines.smt import smt_engine
from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.designs import DESIGNS, Design
from kvfence.spec.errors import CannotRun, unknown
from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES

if TYPE_CHECKING:
    from kvfence.spec import events as ev
    from kvfence.spec.files.traces import LineWriter

INTERRUPTED = "interrupted"

MachineProgress = Callable[[str, Progress], None]


class EngineOptions(TypedDict, total=False):
    """Options that only some engines have: see :func:`engine_named`."""

    threads: int
    symmetry: bool
    checkpoint: FilePath | None
    export: FilePath | None
    second_solver: str | None
    infer_lemmas: bool
    walks: Mapping[str, int] | None
    note: Callable[[str], None] | None


_FOR_SMT: Final = ("export", "second_solver", "infer_lemmas")


def engine_named(name: str, **options: Unpack[EngineOptions]) -> Engine:
    """The engine of that name; CannotRun for another name than those of ENGINES, or options it lacks.

    ``threads`` (default 1), ``symmetry`` and ``checkpoint`` (a folder) are for engines native and gpu.
    ``note`` gets a line when engine native falls back on numpy, or engine gpu on the processor. ``export``
    (a folder), ``second_solver`` and ``infer_lemmas`` are for engine smt, and ``walks`` (``walks``,
    ``steps``, ``seed``) for engine swarm.
    """
    every = cast("dict[str, Any]", options)
    for_smt = {option: every[option] for option in _FOR_SMT if every.get(option) not in (None, False)}
    for option in for_smt:
        if name != "smt":
            raise CannotRun(f"engine {name} has no --{option.replace('_', '-')}: use --engine smt")
    note = options.get("note")
    symmetry, checkpoint = options.get("symmetry", False), options.get("checkpoint")
    searches: Any = {"threads": options.get("threads", 1), "symmetry": symmetry, "checkpoint": checkpoint}
    if name == "native":
        from kvfence.checker.engines.native import Native

        return Native(**searches, note=note)
    if name == "gpu":
        from kvfence.checker.engines.gpu import gpu_engine
        from kvfence.checker.engines.gpu.pinned_levels import pinned_levels

        return gpu_engine(**searches, note=note, store=pinned_levels)
    if symmetry or checkpoint is not None:
        option = "--symmetry" if symmetry else "--checkpoint"
        raise CannotRun(f"engine {name} has no {option}: use --engine native or gpu")
    if name == "swarm":
        from kvfence.checker.engines.gpu.random_walks import STEPS, WALKS, Swarm

        walks: Any = {"walks": WALKS, "steps": STEPS, "seed": 0, **(options.get("walks") or {})}
        return Swarm(**walks, note=note)
    if name in SMT_ENGINES:
        return smt_engine(name, **for_smt)
    if name == "liveness":
        return Liveness()
    if name == "explore":
        from kvfence.checker.engines.explicit.numpy_search import Explore

        return Explore()
    if name == "interpret":
        return Interpret()
    raise unknown("engine", name, ENGINES, f"there is {', '.join(ENGINES)}")


def machines_for(
    design_name: str, machine_name: str | Machine | None, sizes: Mapping[str, int]
) -> list[Machine]:
    """The machines of a question, with the faults of the design; CannotRun for names that do not exist.

    ``machine_name`` may also be one's own: a Machine, or one in a file, ``FILE.py:MACHINE``.
    """
    design = DESIGNS.get(design_name)
    if design is None:
        raise unknown("design", design_name, DESIGNS, "kvfence designs lists them")
    if isinstance(machine_name, Machine) or (machine_name is not None and ".py" in machine_name):
        if design.breaks:
            raise CannotRun(
                f"design {design.name} is one of kvfence's own machines: for a fault of yours, give "
                f"FILE.py:BUILDER+FAULT as the machine"
            )
        machines = (
            [machine_name.finished()]
            if isinstance(machine_name, Machine)
            else [make().machine for make in named_spec(machine_name).builders.values()]
        )
    else:
        if machine_name is not None and machine_name not in MACHINES:
            raise unknown("machine", machine_name, MACHINES, f"there is {', '.join(MACHINES)}")
        names = [name for name in design.machines if machine_name in (None, name)]
        if not names:
            touched = ", ".join(design.machines)
            raise CannotRun(
                f"design {design.name} does not touch machine {machine_name}: it touches {touched}"
            )
        machines = [MACHINES[name](design.faults) for name in names]
    names = [machine.name for machine in machines]
    check_sorts(sizes, machines, f"the sorts of {', '.join(names)} are")
    return machines


def check_sorts(sizes: Mapping[str, int], machines: Iterable[Machine], these_are: str = "there is") -> None:
    """CannotRun for sizes of sorts that none of the machines has; ``these_are`` begins the list of sorts."""
    sorts = {sort for machine in machines for sort in machine.sorts}
    for sort in sizes:
        if sort not in sorts:
            raise unknown("sort", sort, sorts, f"{these_are} {', '.join(sorted(sorts))}")


def _graph_search(result: Result, engine: Engine) -> Explored | None:
    """What finds the graph for liveness properties, if that is not the native engine."""
    if result.engine != "gpu":
        return None
    from kvfence.checker.engines.gpu import Gpu

    return engine.graph if isinstance(engine, Gpu) else None


@dataclass
class _Runs:
    """How :func:`verify` runs each machine of a design: by which engine, at which sizes and how far."""

    design: Design
    sizes: Mapping[str, int]
    engine: str
    may_interpret: bool  # what 64 bits are too few for
    until: Literal["first", "end"] | None
    memory: int | None
    options: EngineOptions
    progress: MachineProgress | None
    notes: dict[str, str] = field(default_factory=dict)
    noted: set[str] = field(default_factory=set)

    def note(self, line: str) -> None:
        """Gives a line to the caller, once."""
        caller = self.options.get("note")
        if caller is not None and line not in self.noted:
            self.noted.add(line)
            caller(line)

    def engine_for(self, machine: Machine) -> Engine:
        """The engine, with a folder of the machine's own for checkpoints."""
        options, folder = self.options.copy(), self.options.get("checkpoint")
        options["checkpoint"] = folder / machine.name if folder is not None else None
        options["note"] = self.note
        return engine_named(self.engine, **options)

    def sizes_of(self, machine: Machine) -> dict[str, int]:
        """The sizes of the machine's sorts, where they differ from its defaults."""
        own = {sort: size for sort, size in self.sizes.items() if sort in machine.sorts}
        if self.engine != "liveness":
            return own
        return liveness_sizes(machine, {name: sort.default for name, sort in machine.sorts.items()}) | own

    def wants_all(self, machine: Machine) -> bool:
        """Whether all verdicts are wanted: a fault may buy progress with safety, or the other way round."""
        return not self.design.breaks or (self.engine in EXPLORERS and requires_progress(machine))

    def results(self, machine: Machine) -> list[Result]:
        """The engine's result, and the one on liveness properties if these are judged."""
        own_sizes, all_wanted, breaks = self.sizes_of(machine), self.wants_all(machine), self.design.breaks

        def report(state: Progress) -> None:
            if self.progress is not None:
                self.progress(machine.name, state)

        def run(until: Literal["first", "end"]) -> Result:
            limits: Any = {"until": until, "memory": self.memory, "progress": report}
            result = self.engine_for(machine).run(machine, own_sizes, **limits)
            if result.overflow and self.may_interpret:
                too_wide = f"{result.overflow}, too much for the 64 bits of engine {result.engine}"
                self.notes[machine.name] = f"{too_wide}: engine interpret explores instead"
                self.note(f"{machine.name}: {self.notes[machine.name]}")
                result = Interpret().run(machine, own_sizes, **limits)
            return result

        results = [run(self.until or ("end" if all_wanted else "first"))]
        if self.engine in EXPLORERS and all_wanted and results[0].stopped != INTERRUPTED:
            graph = _graph_search(results[0], self.engine_for(machine))
            liveness = judged(results[0], machine, report, graph)
            results += [liveness] if liveness else []
        broken = {path.id for result in results for path in result.violated}
        if self.until is None and results[0].stopped == FIRST and breaks not in broken:
            results[0] = run("end")
        return results


def verify(
    design: str = SOUND,
    *,
    machine: str | Machine | None = None,
    sizes: Mapping[str, int] | None = None,
    engine: str | None = None,
    memory: int | None = None,
    until: Literal["first", "end"] | None = None,
    progress: MachineProgress | None = None,
    **options: Unpack[EngineOptions],
) -> Verification:
    """Verifies every machine of ``design`` (or the one given), and sums up.

    ``machine`` is a Machine, the name of one of kvfence's, or one in a file: ``"FILE.py:NAME"``.
    Without an ``engine`` it is the native one, or the interpreter if numbers exceed 64 bits. ``sizes`` by
    sort, where they differ from the design's and the machine's own; ``memory`` in bytes for one machine.
    ``until="first"`` stops a machine at its first violation. That is the default for a faulty design, unless
    another invariant than the one it is known to break is violated first, or its machine states PROGRESS.
    ``options``: see :func:`engine_named`; ``checkpoint`` is a folder with one inside for each machine.
    CannotRun for names and sizes that do not exist. Ctrl-C keeps what was found, and leaves out the machines
    that were not begun.

    >>> found = verify("unpinned_lookup", machine="lookup", engine="interpret")
    >>> found.verdict == "violated", found.counterexamples[0].invariant
    (True, 'PIN')
    """
    start = time.perf_counter()
    chosen = machines_for(design, machine, sizes or {})
    own = isinstance(machine, Machine) or (machine is not None and machine not in MACHINES)
    named = DESIGNS[design]
    # symmetry and checkpoints are the native engine's: a caller that asks for them has chosen it
    may_interpret = engine is None and not options.get("symmetry") and options.get("checkpoint") is None
    engine = engine or ENGINES[0]
    if engine == "liveness":
        chosen = [built for built in chosen if built.liveness] or chosen
    whole = {**named.sizes, **(sizes or {})}
    runs = _Runs(named, whole, engine, may_interpret, until, memory, options, progress)
    facts: list[MachineFacts] = []
    examples: list[Counterexample] = []
    skipped: list[str] = []
    ended = False
    for built in chosen:
        if ended or (facts and facts[-1].stopped == INTERRUPTED):
            skipped.append(built.name)
            continue
        try:
            results = runs.results(built)
            facts.append(machine_facts(*results, machine=built, note=runs.notes.get(built.name, "")))
            paths = _shortest_paths(results, named.breaks)
            examples += [counterexample(built, result.sizes, path) for result, path in paths]
        except KeyboardInterrupt:  # outside of a search: while something is compiled, for instance
            if not interrupts.pressed():
                raise
            ended = True
            if not facts or facts[-1].machine != built.name:
                skipped.append(built.name)
    overall = worst([*(found.verdict for found in facts), *(Verdict.undetermined for _ in skipped)])
    return Verification(
        version=__version__,
        design=design if not own else machine.name if isinstance(machine, Machine) else str(machine),
        verdict=overall or Verdict.undetermined,
        expected=named.breaks,
        summary=chosen[0].doc.strip().partition("\n")[0] if own else named.summary,
        reports=named.reports,
        machines=tuple(facts),
        not_yet=() if machine or named.breaks or skipped else _not_yet(facts, chosen),
        not_begun=tuple(skipped),
        counterexamples=tuple(examples),
        seconds=time.perf_counter() - start,
    )


def record(found: Verification, path: FilePath, inputs: Iterable[FilePath] = ()) -> bool:
    """Writes the first counterexample that has a trace to ``path``; false when there is none.

    What the machine's header says decides whether it is a trace or an order trace. CannotRun for a path that
    cannot be written, or is one of ``inputs``.
    """
    for example in found.counterexamples:
        if example.header is not None:
            with _writer(path, example.header, inputs) as writer:
                for event in example.trace:
                    writer(event)
            return True
    return False


def _writer(path: FilePath, header: object, inputs: Iterable[FilePath]) -> LineWriter[Any, Any]:
    from kvfence.spec import order
    from kvfence.spec.files.order_traces import OrderTraceWriter
    from kvfence.spec.files.traces import TraceWriter

    if isinstance(header, order.Header):
        return OrderTraceWriter(path, header, inputs=inputs)
    return TraceWriter(path, cast("ev.Header", header), inputs=inputs)


def _shortest_paths(results: list[Result], expected: str) -> list[tuple[Result, Path]]:
    """One shortest path for each violated invariant, with its result; the expected invariant comes first."""
    every = [(result, path) for result in results for path in result.violated]
    first = {path.id: (result, path) for result, path in reversed(every)}
    return sorted(first.values(), key=lambda found: (found[1].id != expected, len(found[1])))


_AS_FOUND = (
    "machine",
    "sizes",
    "engine",
    "states",
    "transitions",
    "depth",
    "symmetry",
    "goals",
    "searched",
    "proof",
)
"""What the facts of a machine have from the engine's result as it is."""
_STATED = ("invariant", "check", "promise")  # the kinds of what a machine states of itself


def machine_facts(
    result: Result, liveness: Result | None = None, *, machine: Machine | None = None, note: str = ""
) -> MachineFacts:
    """What is reported of one machine: its result, and the one on liveness properties if they were judged.

    ``machine``, if it is given, says which properties were not judged. ``note`` is reported as it is.
    """
    results = [result, *([liveness] if liveness else [])]
    findings = [finding for each in results for finding in each.findings.values()]
    unknown_ids = undeclared(machine) if machine else {}
    conditions = [Condition(f.id, f.name, _known(f, unknown_ids)) for f in findings]
    proof = result.proof if result.stopped != INTERRUPTED else None
    proved = proof is not None and "deadlock" not in proof.open
    alive = Verdict.holds if result.stopped is None or proved else Verdict.undetermined
    stuck = alive if result.deadlock is None else Verdict.violated
    known = {found.name for found in findings}
    if result.engine != "liveness":
        conditions.append(Condition("DEADLOCK", "no_state_is_stuck", stuck))
    verdicts = [each.verdict for each in results]
    states_nothing = machine is not None and not stated_ids(machine)
    judged_none = machine is not None and not any(f.kind in _STATED for f in findings)
    if unknown_ids or states_nothing or judged_none:
        verdicts.append(Verdict.undetermined)
    return MachineFacts(
        **{name: getattr(result, name) for name in _AS_FOUND},
        verdict=worst(verdicts) or result.verdict,
        seconds=sum(each.seconds for each in results),
        conditions=tuple(conditions),
        taken=result.coverage,
        vacuous=tuple(name for each in results for name in each.vacuous),
        unmet=result.unmet | (liveness.unmet if liveness else {}),
        unevaluated=result.unjudged,
        declared=sentences(machine) if machine else {},
        undeclared=unknown_ids,
        states_nothing=states_nothing,
        judged_none=judged_none and not states_nothing,
        stopped=INTERRUPTED if liveness and liveness.stopped == INTERRUPTED else result.stopped,
        promised=JudgedLiveness(liveness.sizes, liveness.states, liveness.stopped) if liveness else None,
        unjudged=tuple(p for p in (machine.liveness if machine else ()) if p not in known),
        note=note,
    )


def _known(found: Finding, unknown_ids: Mapping[str, str]) -> Verdict:
    """The verdict on a condition; nothing holds under an unknown id."""
    return Verdict.undetermined if found.id in unknown_ids and found.path is None else found.verdict


def _not_yet(facts: list[MachineFacts], machines: list[Machine]) -> tuple[str, ...]:
    stated = {condition.invariant for found in facts for condition in found.conditions}
    stated |= {p.id for machine in machines for p in machine.liveness.values()}
    return tuple(row.id for row in INVARIANTS if row.id not in stated)
