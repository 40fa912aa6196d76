"""Checks the machines of the specification: picks them, runs an engine on each, and gathers the facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal, cast

from kvfence.checker.analysis.counterexamples import counterexample
from kvfence.checker.analysis.liveness import judged, liveness_sizes, requires_progress
from kvfence.checker.analysis.own_ids import sentences, stated_ids, undeclared
from kvfence.checker.analysis.results import (
    Condition,
    Counterexample,
    JudgedLiveness,
    MachineFacts,
    Verification,
    worst,
)
from kvfence.checker.analysis.review_sides import side
from kvfence.checker.core import interrupts
from kvfence.checker.core.names import ENGINES, EXPLORERS, SMT_ENGINES, SOUND
from kvfence.checker.engines.base import FIRST, Engine, Finding, Path, Progress, Result, Verdict
from kvfence.checker.engines.explicit.interpret import Interpret
from kvfence.checker.engines.liveness.state_graph import Explored
from kvfence.checker.engines.smt import smt_engine
from kvfence.spec.catalog import INVARIANTS
from kvfence.spec.designs import DESIGNS
from kvfence.spec.errors import CannotRun, unknown
from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES

if TYPE_CHECKING:
    from kvfence.spec import events as ev
    from kvfence.spec.files.traces import LineWriter

INTERRUPTED = "interrupted"

MachineProgress = Callable[[str, Progress], None]


def engine_named(
    name: str,
    *,
    threads: int = 1,
    symmetry: bool = False,
    checkpoint: FilePath | None = None,
    export: FilePath | None = None,
    second_solver: str | None = None,
    infer_lemmas: bool = False,
    walks: Mapping[str, int] | None = None,
    note: Callable[[str], None] | None = None,
) -> Engine:
    """The engine of that name; CannotRun for another name than those of ENGINES, or options it lacks.

    ``note`` gets a line when the native engine has to make do with numpy, or engine gpu with the processor.
    ``walks`` are the options of engine swarm.
    """
    if name != "smt" and (export is not None or second_solver is not None or infer_lemmas):
        option = (
            "--export" if export is not None else "--second-solver" if second_solver else "--infer-lemmas"
        )
        raise CannotRun(f"engine {name} has no {option}: use --engine smt")
    if name == "native":
        from kvfence.checker.engines.native import Native

        return Native(threads=threads, symmetry=symmetry, checkpoint=checkpoint, note=note)
    if name == "swarm" and not symmetry and checkpoint is None:
        from kvfence.checker.engines.gpu.random_walks import STEPS, WALKS, Swarm

        asked = {"walks": WALKS, "steps": STEPS, "seed": 0, **(walks or {})}
        return Swarm(walks=asked["walks"], steps=asked["steps"], seed=asked["seed"], note=note)
    if name == "gpu":
        from kvfence.checker.engines.gpu import gpu_engine
        from kvfence.checker.engines.gpu.pinned_levels import pinned_levels

        return gpu_engine(
            threads=threads, symmetry=symmetry, checkpoint=checkpoint, note=note, store=pinned_levels
        )
    if symmetry or checkpoint is not None:
        option = "--symmetry" if symmetry else "--checkpoint"
        raise CannotRun(f"engine {name} has no {option}: use --engine native or gpu")
    if name in SMT_ENGINES:
        return smt_engine(name, export=export, second_solver=second_solver, infer_lemmas=infer_lemmas)
    if name == "liveness":
        from kvfence.checker.engines.liveness.liveness import Liveness

        return Liveness()
    if name == "explore":
        from kvfence.checker.engines.explicit.numpy_search import Explore

        return Explore()
    if name == "interpret":
        from kvfence.checker.engines.explicit.interpret import Interpret

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
            else [make().machine for make in side(machine_name).builders.values()]
        )
        _check_sorts(machines, sizes)
        return machines
    if machine_name is not None and machine_name not in MACHINES:
        raise unknown("machine", machine_name, MACHINES, f"there is {', '.join(MACHINES)}")
    names = [name for name in design.machines if machine_name in (None, name)]
    if not names:
        touched = ", ".join(design.machines)
        raise CannotRun(f"design {design.name} does not touch machine {machine_name}: it touches {touched}")
    machines = [MACHINES[name](design.faults) for name in names]
    _check_sorts(machines, sizes)
    return machines


def beyond_words(result: Result) -> str:
    """What is said where another engine explores than the one by default."""
    return (
        f"{result.overflow}, too much for the 64 bits of engine {result.engine}: engine interpret explores "
        "instead"
    )


def _grapher(result: Result, engine: Engine) -> Explored | None:
    """Who finds the graph that promises are judged on, if not the native engine."""
    if result.engine != "gpu":
        return None
    from kvfence.checker.engines.gpu import Gpu

    return engine.graph if isinstance(engine, Gpu) else None


def _check_sorts(machines: list[Machine], sizes: Mapping[str, int]) -> None:
    names = [machine.name for machine in machines]
    sorts = {sort for machine in machines for sort in machine.sorts}
    for sort in sizes:
        if sort not in sorts:
            raise unknown(
                "sort", sort, sorts, f"the sorts of {', '.join(names)} are {', '.join(sorted(sorts))}"
            )


def verify(
    design: str = SOUND,
    *,
    machine: str | Machine | None = None,
    sizes: Mapping[str, int] | None = None,
    engine: str | None = None,
    memory: int | None = None,
    until: Literal["first", "end"] | None = None,
    threads: int = 1,
    symmetry: bool = False,
    checkpoint: FilePath | None = None,
    export: FilePath | None = None,
    second_solver: str | None = None,
    infer_lemmas: bool = False,
    walks: Mapping[str, int] | None = None,
    note: Callable[[str], None] | None = None,
    progress: MachineProgress | None = None,
) -> Verification:
    """Explores every machine of ``design``, or only ``machine``, and sums up.

    ``machine`` is a Machine, the name of one of kvfence's, or one in a file: ``"FILE.py:NAME"``.
    Without an ``engine`` it is the native one, or the interpreter for what 64-bit numbers are too few for.
    ``sizes`` by sort, where they differ from the design's and the machine's own; ``memory`` in bytes for one
    machine.
    ``until="first"`` stops a machine at its first violation; a faulty design gets that when nothing is said,
    unless something else than the invariant it is known to break was violated first, or its machine promises
    progress, so that all verdicts say what is paid with what. ``threads``,
    ``symmetry`` and ``checkpoint`` (a folder, with one inside for each machine) are for the native engine,
    and ``note`` gets its lines; ``export`` (a folder), ``second_solver`` and ``infer_lemmas`` are for engine
    smt, ``walks`` (``walks``, ``steps``, ``seed``) for engine swarm. CannotRun for names and sizes that do
    not exist. Ctrl-C keeps what was found and leaves out the machines that were not begun.

    >>> found = verify("unpinned_lookup", machine="lookup", engine="interpret")
    >>> found.verdict == "violated", found.counterexamples[0].invariant
    (True, 'PIN')
    """
    start = time.perf_counter()
    chosen = machines_for(design, machine, sizes or {})
    own = isinstance(machine, Machine) or (machine is not None and machine not in MACHINES)
    # symmetry and checkpoints are the native engine's: who asks for them has named it
    may_change = engine is None and not symmetry and checkpoint is None
    engine = engine or ENGINES[0]
    if engine == "liveness":
        chosen = [built for built in chosen if built.liveness] or chosen
    sizes = {**DESIGNS[design].sizes, **(sizes or {})}
    expected = DESIGNS[design].breaks
    said: set[str] = set()

    def once(line: str) -> None:
        if note is not None and line not in said:
            said.add(line)
            note(line)

    def runner(name: str) -> Engine:
        folder = checkpoint / name if checkpoint is not None else None
        return engine_named(
            engine,
            threads=threads,
            symmetry=symmetry,
            checkpoint=folder,
            export=export,
            second_solver=second_solver,
            infer_lemmas=infer_lemmas,
            walks=walks,
            note=once,
        )

    facts: list[MachineFacts] = []
    notes: dict[str, str] = {}
    examples: list[Counterexample] = []
    skipped: list[str] = []
    ended = False
    for built in chosen:
        if ended or (facts and facts[-1].stopped == INTERRUPTED):
            skipped.append(built.name)
            continue
        own_sizes = {sort: size for sort, size in sizes.items() if sort in built.sorts}
        if engine == "liveness":
            default = {name: sort.default for name, sort in built.sorts.items()}
            own_sizes = liveness_sizes(built, default) | own_sizes

        def report(state: Progress, name: str = built.name) -> None:
            if progress is not None:
                progress(name, state)

        def run(
            mode: Literal["first", "end"], built: Machine = built, own: dict[str, int] = own_sizes
        ) -> Result:
            result = runner(built.name).run(built, own, until=mode, memory=memory, progress=report)
            if result.overflow and may_change:
                notes[built.name] = beyond_words(result)
                once(f"{built.name}: {notes[built.name]}")
                result = Interpret().run(built, own, until=mode, memory=memory, progress=report)
            return result

        # what breaks safety may buy progress, and the other way round: then all verdicts are wanted
        all_wanted = not expected or (engine in EXPLORERS and requires_progress(built))
        try:
            result = run(until or ("end" if all_wanted else "first"))
            promised = None
            asked = engine in EXPLORERS and (not expected or requires_progress(built))
            if asked and result.stopped != INTERRUPTED:
                promised = judged(result, built, report, _grapher(result, runner(built.name)))
            results = [result, *([promised] if promised else [])]
            if until is None and result.stopped == FIRST and not any(_breaks(r, expected) for r in results):
                results[0] = run("end")
            facts.append(machine_facts(*results, machine=built, note=notes.get(built.name, "")))
            examples += [counterexample(built, at.sizes, path) for at, path in _told(results, expected)]
        except KeyboardInterrupt:  # outside of a search: while something is compiled, for instance
            if not interrupts.pressed():
                raise
            ended = True
            if not facts or facts[-1].machine != built.name:
                skipped.append(built.name)
    overall = worst([*(found.verdict for found in facts), *(Verdict.undetermined for _ in skipped)])
    return Verification(
        version=version("kvfence"),
        design=design if not own else machine.name if isinstance(machine, Machine) else str(machine),
        verdict=overall or Verdict.undetermined,
        expected=expected,
        summary=_first_line(chosen) if own else DESIGNS[design].summary,
        reports=DESIGNS[design].reports,
        machines=tuple(facts),
        not_yet=() if machine or expected or skipped else _not_yet(facts, chosen),
        not_begun=tuple(skipped),
        counterexamples=tuple(examples),
        seconds=time.perf_counter() - start,
    )


def _first_line(machines: list[Machine]) -> str:
    return machines[0].doc.strip().partition("\n")[0] if machines[0].doc else ""


def record(found: Verification, path: FilePath, inputs: Iterable[FilePath] = ()) -> bool:
    """Writes the first counterexample as a trace; false when there is none.

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


def _breaks(result: Result, invariant: str) -> bool:
    return any(path.id == invariant for path in result.violated)


def _told(results: list[Result], expected: str) -> list[tuple[Result, Path]]:
    """One shortest path for each invariant that is violated, the expected one first, and where it is from."""
    every = [(result, path) for result in results for path in result.violated]
    first = {path.id: (result, path) for result, path in reversed(every)}
    return sorted(first.values(), key=lambda found: (found[1].id != expected, len(found[1])))


_STATED = ("invariant", "check", "promise")  # the kinds of what a machine states of itself


def machine_facts(
    result: Result, promised: Result | None = None, *, machine: Machine | None = None, note: str = ""
) -> MachineFacts:
    """What is reported of one machine's result, and of the verdicts on its promises if they were judged.

    ``machine``, where it is given, tells which promises were not; ``note`` is told as it is.
    """
    findings = [*result.findings.values(), *(promised.findings.values() if promised else ())]
    unknown_ids = undeclared(machine) if machine else {}
    conditions = [Condition(f.id, f.name, _known(f, unknown_ids)) for f in findings]
    proved = (
        result.proof is not None and result.stopped != INTERRUPTED and "deadlock" not in result.proof.open
    )
    unsure = result.stopped is not None and not proved
    alive = Verdict.undetermined if unsure else Verdict.holds
    stuck = alive if result.deadlock is None else Verdict.violated
    known = {found.name for found in findings}
    if result.engine != "liveness":
        conditions.append(Condition("DEADLOCK", "no_state_is_stuck", stuck))
    verdicts = [result.verdict, *([promised.verdict] if promised else [])]
    states_nothing = machine is not None and not stated_ids(machine)
    judged_none = machine is not None and not any(f.kind in _STATED for f in findings)
    if unknown_ids or states_nothing or judged_none:
        verdicts.append(Verdict.undetermined)
    return MachineFacts(
        machine=result.machine,
        sizes=result.sizes,
        engine=result.engine,
        verdict=worst(verdicts) or result.verdict,
        states=result.states,
        transitions=result.transitions,
        depth=result.depth,
        seconds=result.seconds + (promised.seconds if promised else 0),
        conditions=tuple(conditions),
        taken=result.coverage,
        symmetry=result.symmetry,
        goals=result.goals,
        vacuous=(*result.vacuous, *(promised.vacuous if promised else ())),
        unmet=result.unmet | (promised.unmet if promised else {}),
        unevaluated=result.unjudged,
        searched=result.searched,
        declared=sentences(machine) if machine else {},
        undeclared=unknown_ids,
        states_nothing=states_nothing,
        judged_none=judged_none and not states_nothing,
        stopped=INTERRUPTED if promised and promised.stopped == INTERRUPTED else result.stopped,
        proof=result.proof,
        promised=JudgedLiveness(promised.sizes, promised.states, promised.stopped) if promised else None,
        unjudged=tuple(p for p in (machine.liveness if machine else ()) if p not in known),
        note=note,
    )


def _known(found: Finding, unknown_ids: Mapping[str, str]) -> Verdict:
    """The verdict on a condition; nothing holds under an id that nobody knows."""
    return Verdict.undetermined if found.id in unknown_ids and found.path is None else found.verdict


def _not_yet(facts: list[MachineFacts], machines: list[Machine]) -> tuple[str, ...]:
    stated = {condition.invariant for found in facts for condition in found.conditions}
    stated |= {p.id for machine in machines for p in machine.liveness.values()}
    return tuple(row.id for row in INVARIANTS if row.id not in stated)
