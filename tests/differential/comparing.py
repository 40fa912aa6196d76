"""What an engine says of a machine, held against the direct judge: every difference, each with its kind."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from unittest.mock import patch

from direct import Answer, Direct, State, Taken, judged
from liveness_judge import Judge, follow
from recipes import Node, Recipe, T, build, nodes, within

from kvfence.checker.core import c_build as compiling
from kvfence.checker.engines import Gpu, Interpret, Interpreter, Liveness, Native
from kvfence.checker.engines.base import Engine, Path, Result, Verdict, cell_bounds
from kvfence.checker.engines.gpu.device import host as gpu_host
from kvfence.checker.engines.gpu.device.host import HostDevice
from kvfence.checker.engines.liveness import state_graph as graph_module
from kvfence.checker.engines.native import exploration
from kvfence.checker.engines.native.exploration import Model
from kvfence.checker.engines.smt.exercised import Exercised
from kvfence.checker.engines.smt.kinduction import KInduction
from kvfence.checker.engines.smt.unbounded import Unbounded
from kvfence.spec.language import Machine, SpecError, flat, ground
from kvfence.spec.language.evaluate import Evaluator

SMALL = 3000  # states at most for what takes long for each


@dataclass(frozen=True)
class Difference:
    """``kind`` stays the same while a machine is made smaller; ``text`` says what differs."""

    kind: str
    text: str


@dataclass
class Case:
    """A machine with what is known of it."""

    recipe: Recipe
    machine: Machine = field(init=False)
    direct: Direct = field(init=False)
    answer: Answer = field(init=False)

    def __post_init__(self) -> None:
        made = build(self.recipe)
        assert isinstance(made, Machine)
        self.machine, self.direct, self.answer = made, Direct(self.recipe), judged(self.recipe)

    @cached_property
    def premises(self) -> dict[str, int | None]:
        """By condition, at which depth its premises are met, as the interpreter finds; None where never.

        Counters that turn on their own meet no premise.
        """
        core, _ = self.recipe.parts()
        made = build(core)
        assert isinstance(made, Machine)
        return Interpret().run(made, bounds=core.limits, max_states=self.enough).premises

    @property
    def overall(self) -> str:
        """The verdict, with premises: a condition whose premise is never met says nothing."""
        vacuous = self.verdict == "holds" and None in self.premises.values()
        return "undetermined" if vacuous else self.verdict

    @property
    def enough(self) -> int:
        """More states than an engine can find that is right: a wrong one need not go on for ever."""
        return self.answer.states + 20_000

    @property
    def verdict(self) -> str:
        """violated, undetermined or holds, premises aside."""
        a = self.answer
        if a.violated or a.deadlock is not None:
            return "violated"
        missing = a.outside or not all(a.coverage.values()) or None in a.goals.values()
        return "undetermined" if missing else "holds"


Compared = list[Difference]
Question = Callable[[Case], Compared]


def quietly(_: str) -> None:
    """Takes the notes of engines."""


@contextmanager
def compiled_without_optimisation(one_lane: bool) -> Iterator[None]:
    """Compiles without optimizing; with one lane also without the headers of vector instructions."""
    flags = (*compiling.FLAGS, "-O0", *(["-DONE_LANE"] if one_lane else []))
    with patch.object(compiling, "FLAGS", flags), patch.object(gpu_host, "FLAGS", (*gpu_host.FLAGS, "-O0")):
        yield


@contextmanager
def own_cache() -> Iterator[None]:
    """A cache of compiled machines that is gone afterwards."""
    # a compiler that outlives its killed worker may still write there
    with (
        tempfile.TemporaryDirectory(prefix="kvfence-differential-", ignore_cleanup_errors=True) as folder,
        patch.dict(os.environ, XDG_CACHE_HOME=folder),
    ):
        yield


# What is asked. Each question takes a case and gives the differences.


def asking(
    make: Callable[[], Engine],
    judge: Callable[[Case, Result], Compared],
    *,
    until: str = "end",
    one_lane: bool = True,
    name: str | None = None,
    limited: bool = True,
) -> Question:
    """A question: run an engine on the machine, and judge its result.

    ``name`` is what the result must call the engine. Without ``limited`` it gets no bounds and no limit of
    states, which solvers do not need.
    """

    def ask(c: Case) -> Compared:
        limits: dict[str, Any] = {"bounds": c.recipe.limits, "max_states": c.enough} if limited else {}
        with compiled_without_optimisation(one_lane):
            r = make().run(c.machine, until=until, **limits)
        return [*(expect("engine", name, r.engine) if name else ()), *judge(c, r)]

    return ask


def resumed(c: Case) -> Compared:
    """The native engine, stopped half way, and again from its checkpoint."""
    with (
        compiled_without_optimisation(True),
        tempfile.TemporaryDirectory(prefix="kvfence-differential-") as folder,
    ):
        for most in (max(1, c.answer.states // 2), c.enough):
            engine = Native(checkpoint=folder + "/kept", note=quietly)
            r = engine.run(c.machine, bounds=c.recipe.limits, max_states=most)
    return explored(c, r)


def short_of_memory(c: Case) -> Compared:
    """The native engine with just enough memory for its table: levels go to a file and come back."""
    with compiled_without_optimisation(True):
        run = Interpreter(c.machine)
        model = Model(run, cell_bounds(run.grounded, c.recipe.limits, required=True))
        entry, buffers = 8 * model.packing.words, int(model.library.buffers())
        slack = 2 * buffers // (entry + 8)
        slots = 1 << max(12, (2 * slack).bit_length())
        while min(int(exploration.FULLEST * slots), slots - slack) <= c.answer.states:
            slots *= 2
        room = 1 << 16
        with patch.object(exploration, "SMALLEST_BLOCKS", room):
            memory = entry * slots + buffers + room
            r = Native(note=quietly).run(c.machine, bounds=c.recipe.limits, memory=memory)
    return explored(c, r)


def on_gpu(threads: int, symmetry: bool, card: bool) -> Question:
    """The GPU engine: its kernels as C++, or on a card."""
    device = None if card else lambda: HostDevice(threads)
    return asking(
        lambda: Gpu(device=device, symmetry=symmetry, note=quietly),
        reduced if symmetry else explored,
        name="gpu",
    )


def promised(python: bool) -> Question:
    """Promises about whole runs, on a graph found in Python or in C."""

    def ask(c: Case) -> Compared:
        model = _refused if python else graph_module.Model
        with compiled_without_optimisation(True), patch.object(graph_module, "Model", model):
            r = Liveness().run(c.machine, max_states=c.enough)
        return liveness(c, r)

    return ask


def _refused(*_: object) -> None:
    raise compiling.CannotCompile("in Python")


def bounded(make: Callable[[], Engine], complete: bool = False) -> Question:
    """A solver: what it says of runs of some length, all of which it judges if ``complete``."""
    return asking(make, partial(searched, complete=complete), limited=False)


def exercised(c: Case) -> Compared:
    """k-induction as on the command line: actions must be taken, goals reached and premises met."""
    with compiled_without_optimisation(True):
        r = Exercised(KInduction(4, seconds=4.0)).run(c.machine, bounds=c.recipe.limits, max_states=c.enough)
    out = searched(c, r, complete=False)
    if r.verdict is Verdict.holds:
        out += expect("overall verdict", c.overall, "holds")
    return out


def for_any_size(c: Case) -> Compared:
    """Proofs for sorts of any size: what is claimed must hold at the sizes that are tried."""
    r = Unbounded(seconds=0.3, search_seconds=1.0).run(c.machine)
    out = []
    held = {f.name for f in r.findings.values() if f.verdict is Verdict.holds}
    live = r.deadlock is None and r.stopped is None and r.proof is not None and "deadlock" not in r.proof.open
    sorts = list(c.recipe.sizes)
    for sizes in itertools.product((1, 2, 3), repeat=len(sorts)):
        run = Direct(c.recipe, dict(zip(sorts, sizes, strict=True)), bounded=False)
        if not run.starts_in_range():
            continue
        answer, _, _ = run.explore(250)
        for name in held & set(answer.violated):
            text = f"{name} is claimed for any size; it is violated after {answer.violated[name]} steps"
            out.append(Difference("any size", f"{text} at {run.sizes}"))
        if live and answer.deadlock is not None:
            out.append(Difference("any size", f"no deadlock is claimed, and there is one at {run.sizes}"))
    found = {f.name: f.path for f in r.findings.values() if f.verdict is Verdict.violated}
    whole = unbounded_answer(c, 8)
    for name, path in found.items():
        out += length(name, whole.violated.get(name), path, whole.cut)
        out += replayed(c, path, name)
    return out


def evaluated(c: Case) -> Compared:
    """The evaluator, which explains and replays single steps."""
    e = Evaluator(ground(c.machine).layout, c.recipe.sizes)
    out: Compared = []
    _, number, steps = c.direct.explore(40)
    for state, taken in list(zip(number, steps, strict=False))[:40]:
        by_step = {(t.action, t.args): t for t in taken}
        for action, args in c.direct.instances:
            a = c.machine.actions[action.name]
            env = {p.uid: x for p, x in zip(a.params, args, strict=True)}
            can = all(e.value(g.expr, state, env) for g in a.guards)
            t = by_step.get((action.name, args))
            out += expect("evaluator", t is not None, can)
            if t is not None and can:
                out += expect("evaluator", t.after, e.after(a, state, env))
                failing = {k.name for k in a.checks if not e.value(k.expr, state, env)}
                out += expect("evaluator", {n for n in t.failing if not n.startswith("range of ")}, failing)
        for p in (*c.machine.invariants.values(), *c.machine.goals.values()):
            own = next(q for q in (*c.recipe.invariants, *c.recipe.goals) if q.name == p.name)
            out += expect("evaluator", c.direct.holds(own.expr, state), bool(e.value(p.expr, state, {})))
        if out:
            return out[:3]
    return out


# Holding results against answers.


def expect(kind: str, wanted: object, found: object, of: str = "") -> Compared:
    """A difference if two things are not equal."""
    text = f"{of or kind} should be {wanted!r} and is {found!r}"
    return [] if wanted == found else [Difference(kind, text)]


def explored(c: Case, r: Result) -> Compared:
    """A result of exploring everything."""
    a = c.answer
    counted = ("states", "transitions", "depth", "coverage")
    out = [d for what in counted for d in expect(what, getattr(a, what), getattr(r, what))]
    return out + conditions(c, r)


def conditions(c: Case, r: Result) -> Compared:
    """The verdicts of a result, the lengths of its paths, and the paths themselves."""
    a = c.answer
    out = expect("goals", a.goals, r.goals)
    out += expect("stopped", a.outside, r.stopped is not None, "whether it stopped early")
    wanted = {p.name for p in (*c.recipe.invariants, *c.recipe.lemmas)} | set(a.violated)
    out += expect("conditions", set(), wanted - set(r.findings), "conditions left out")
    for f in r.findings.values():
        out += length(f.name, a.violated.get(f.name), f.path, False)
        out += expect("verdict", f.name in a.violated, f.verdict is Verdict.violated, f"{f.name} violated")
        if f.verdict is Verdict.holds:
            out += expect("verdict", False, a.outside, f"{f.name} holds though the search is incomplete")
        out += replayed(c, f.path, f.name)
    out += length("deadlock", a.deadlock, r.deadlock, False) + replayed(c, r.deadlock, "deadlock")
    for name, depth in r.goals.items():
        path = r.witnesses.get(name)
        out += length(f"witness of {name}", depth, path, False) + replayed(c, path, name)
    out += expect("premises", c.premises, r.premises)
    return out + expect("overall verdict", c.overall, str(r.verdict))


def first(c: Case, r: Result) -> Compared:
    """A result of a search up to the first violation."""
    a = c.answer
    lengths = a.all_violated
    found = {p.name: len(p) for p in r.violated}
    out = expect("first violation", bool(lengths), bool(found), "whether something is violated")
    if lengths and found:
        out += expect("first violation", min(lengths.values()), min(found.values()), "the shortest path")
    for p in r.violated:
        out += length(p.name, lengths.get(p.name), p, False) + replayed(c, p, p.name)
    return out


def reduced(c: Case, r: Result) -> Compared:
    """A result up to renaming: the same verdicts, and as many states as there are classes of states."""
    out = expect("depth", c.answer.depth, r.depth) + conditions(c, r)
    core, noise = c.recipe.parts()
    run = Direct(core)
    numbered = {n.args[0].type.name for e in within(core, Node) for n in nodes(e) if n.op == "index"}
    alike = [s for s, size in core.sorts if size > 1 and s not in numbered]
    alike = [s for s in alike if all(rename(run.initial) == run.initial for rename in renamings(run, [s]))]
    out += expect("symmetry", set(), set(alike) - set(r.symmetry), "interchangeable elements told apart")
    group = list(renamings(run, r.symmetry))
    answer, number, steps = run.explore(SMALL)
    if answer.cut or len(group) * len(number) > 12_000:
        return out
    beside = c.answer.states // answer.states
    least: dict[State, int] = {}
    for k, state in enumerate(number):
        least.setdefault(min(rename(state) for rename in group), k)
    out += expect("symmetry", len(least) * beside, r.states, "the number of classes of states")
    if not noise:
        each = sum(len(steps[k]) for k in least.values())
        out += expect("symmetry", each, r.transitions, "steps of classes")
    return out


def renamings(run: Direct, sorts: Sequence[str]) -> Iterator[Callable[[State], State]]:
    """Every renaming of the elements of some sorts, as what it does to a state."""
    place = {(f.name, at): k for k, (f, at) in enumerate(run.cells)}
    sizes = [range(run.sizes[s]) for s in sorts]
    for each in itertools.product(*(itertools.permutations(s) for s in sizes)):
        to = dict(zip((T("sort", s) for s in sorts), each, strict=True))
        indices = [
            [to[t][i] if t in to else i for t, i in zip(f.domain, at, strict=True)] for f, at in run.cells
        ]
        where = [place[f.name, tuple(index)] for (f, _), index in zip(run.cells, indices, strict=True)]
        yield partial(_renamed, where, [to.get(f.value) for f, _ in run.cells])


def _renamed(where: list[int], values: list[tuple[int, ...] | None], state: State) -> State:
    """A state with each cell moved, and its value renamed if it is an element of a renamed sort."""
    out = list(state)
    for at, by, x in zip(where, values, state, strict=True):
        out[at] = by[x] if by else x
    return tuple(out)


def unbounded_answer(c: Case, depth: int) -> Answer:
    """What there is to find within so many steps when unbounded Ints take every value."""
    if not c.recipe.bounds:
        return c.answer
    return Direct(c.recipe, bounded=False).explore(SMALL * 4, depth)[0]


def searched(c: Case, r: Result, *, complete: bool) -> Compared:
    """A result of a search of some depth: shortest paths to what is violated, and no false "holds"."""
    depth = r.depth
    a = unbounded_answer(c, max(depth, 12))
    late = r.stopped is not None and "time" in r.stopped  # a level may have been asked about in part
    out: Compared = []
    found = {f.name: f.path for f in r.findings.values()}
    found["deadlock"] = r.deadlock
    for name, path in found.items():
        wanted = a.all_violated.get(name)
        extra = 1 if "." in name or name.startswith("range of ") else 0
        if path is not None:
            out += length(name, wanted, path, a.cut) + replayed(c, path, name)
        elif wanted is not None and not late and complete and wanted - extra <= depth:
            text = f"{name} is violated after {wanted} steps, searched to depth {depth}"
            out.append(Difference("missed", text))
    for f in r.findings.values():
        if f.verdict is Verdict.holds and f.name in a.violated:
            text = f"{f.name} is said to hold, and is violated after {a.violated[f.name]} steps"
            out.append(Difference("holds", text))
        out += expect("verdict", f.path is not None, f.verdict is Verdict.violated, f"{f.name} violated")
    if r.verdict is Verdict.holds and (a.violated or a.deadlock is not None):
        out.append(Difference("holds", "the machine is said to hold, and something is violated"))
    if complete and not late:
        for name, goal in a.goals.items():
            if goal is not None and goal <= depth:
                out += expect("goals", goal, r.goals.get(name), f"goal {name}")
    for name, goal in r.goals.items():
        if goal is not None and not a.cut:
            out += expect("goals", a.goals[name], goal, f"goal {name}")
        out += replayed(c, r.witnesses.get(name), name)
    return out


def length(name: str, wanted: int | None, path: Path | None, cut: bool) -> Compared:
    """The length of a shortest path, None where there is none."""
    found = None if path is None else len(path)
    if cut and wanted is None:
        return []
    return expect("length", wanted, found, f"the path to {name}")


def replayed(c: Case, path: Path | None, name: str) -> Compared:
    """Take a path step by step, and look whether it shows what it is said to show."""
    if path is None:
        return []
    run = c.direct
    out = expect("path", run.shown(run.initial), flat(path.initial), f"the start of the path to {name}")
    state, last = run.initial, None
    for k, step in enumerate(path.steps):
        last = run.taken(state, step.action, step.args)
        if last is None:
            return [*out, Difference("path", f"step {k + 1} of the path to {name}, {step}, cannot be taken")]
        what = f"the state after step {k + 1} to {name}"
        out += expect("path", run.shown(last.after), flat(step.after), what)
        if last.out_of_range and k + 1 < len(path.steps):
            out.append(Difference("path", f"step {k + 1} of the path to {name} leaves a range"))
        state = last.after
    return out if path.loop is not None else out + _shows(c, state, last, name)


def _shows(c: Case, state: State, last: Taken | None, name: str) -> Compared:
    run, r = c.direct, c.recipe
    known = {p.name: (p.expr, False) for p in (*r.invariants, *r.lemmas)}
    known |= {g.name: (g.expr, True) for g in r.goals}
    if name == "deadlock":
        stuck = not run.successors(state) and (r.terminal is None or not run.holds(r.terminal, state))
        return expect("path", True, stuck, "a deadlock at the end of its path")
    if name in known:
        e, wanted = known[name]
        return expect("path", wanted, run.holds(e, state), f"{name} at the end of its path")
    fails = last is not None and name in last.failing
    return expect("path", True, fails, f"{name} failing at the end of its path")


def liveness(c: Case, r: Result) -> Compared:
    """Promises, against the judge of promises."""
    if c.answer.outside or any(n.startswith("range of ") for n in c.answer.violated):
        return []
    judge = Judge(c.direct)
    out: Compared = []
    for q in c.recipe.liveness:
        f = r.findings[q.name]
        broken, when = judge.broken(q)
        out += expect("promise", broken, f.verdict is Verdict.violated, f"{q.name} broken")
        out += expect("promise", when, r.premises.get(q.name), f"the depth at which {q.name} is first owed")
        if f.path is not None:
            out += replayed(c, f.path, q.name)
            out += [Difference("promise", text) for text in follow(judge, q, f.path)]
    return out


# Asking.


def ask(question: Question, c: Case) -> Compared:
    """The differences; an exception of an engine is one, too."""
    try:
        return question(c)
    except SpecError as error:
        return [Difference("refused", f"SpecError: {error}")]
    except Exception as error:
        import traceback

        at = traceback.extract_tb(error.__traceback__)[-1]
        return [Difference("error", f"{type(error).__name__}: {error} ({at.name}, line {at.lineno})")]
