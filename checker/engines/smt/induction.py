"""One step of an induction at given sizes: which conditions it keeps, and a smallest state where it fails.

Such a state need not be reachable. It says what a lemma must exclude.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import z3

from kvfence.checker.engines.base import Step
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.smt.conditions import DEADLOCK, START
from kvfence.checker.engines.smt.finite import Unrolled
from kvfence.spec.language import Instance, Machine, SpecError, View, changes, flat
from kvfence.spec.language.ground import Grounded, ground

LARGEST = 3  # elements of a sort
SMALL = 2  # elements of each sort when steps are tried before z3 is asked about any size
BREAKS_WHEN_SMALL = f"a step breaks it when every sort has {SMALL} elements"


class Inductive:
    """One step at given sizes: which conditions of a machine, its lemmas among them, are kept together."""

    def __init__(self, machine: Machine, sizes: Mapping[str, int]) -> None:
        sound = copy.copy(machine)
        sound.faults = frozenset()  # so that the lemmas are there
        self.runs = Unrolled(ground(sound, sizes))
        self.runs.add_state()
        self.runs.add_state()
        self.solver = self.runs.solver()
        self.solver.add(self.runs.in_range(0), self.runs.step(0))
        self.names = [p.name for p, _ in self.runs.grounded.invariants]
        before, after = self.runs.conditions(0), self.runs.conditions(1)
        self.after = {name: after[name][1] for name in self.names}
        self.assume = {name: z3.Bool(f"assume {name}", self.runs.context) for name in self.names}
        for name in self.names:
            self.solver.add(z3.Implies(self.assume[name], before[name][1]))

    def keep_themselves(self, names: Sequence[str], besides: Sequence[str] = ()) -> list[str]:
        """The largest part of ``names`` that every step keeps if that part, and ``besides``, held before."""
        left = list(names)
        while left:
            some = z3.Bool(f"some of {len(left)}", self.runs.context)
            broken = [z3.Not(self.after[name]) for name in left]
            self.solver.add(z3.Implies(some, self.runs.some(broken)))
            if self.solver.check(some, *(self.assume[name] for name in (*left, *besides))) != z3.sat:
                break
            model = self.solver.model()
            left = [name for name in left if z3.is_true(model.eval(self.after[name], True))]
        return left

    def enough(self, name: str, given: Sequence[str], droppable: Sequence[str] = ()) -> list[str] | None:
        """Of ``given``, the conditions that suffice for ``name`` to be kept; None when all do not.

        Conditions in ``droppable`` are left out where the rest suffices.
        """
        bad = z3.Bool(f"bad {name}", self.runs.context)
        self.solver.add(z3.Implies(bad, z3.Not(self.after[name])))
        names = {self.assume[n].get_id(): n for n in given}
        if self.solver.check(bad, *(self.assume[n] for n in given)) != z3.unsat:
            return None
        core = [names[x.get_id()] for x in self.solver.unsat_core() if x.get_id() in names]
        for used in [n for n in core if n in set(droppable)]:
            fewer = [n for n in core if n != used]
            if self.solver.check(bad, *(self.assume[n] for n in fewer)) == z3.unsat:
                core = fewer
        return core


def broken_when_small(machine: Machine, names: Iterable[str]) -> set[str]:
    """Of ``names``, the conditions that a step breaks at size ``SMALL``, whatever else holds."""
    try:
        step = Inductive(machine, dict.fromkeys(machine.sorts, SMALL))
    except SpecError:
        return set()
    known = [name for name in names if name in step.names]
    return set(known) - set(step.keep_themselves(known))


@dataclass(frozen=True)
class Counterexample:
    """A counterexample to induction: ``before`` meets every condition, and ``step`` breaks ``of``."""

    of: str
    sizes: dict[str, int]
    initial: View
    before: View
    step: Step | None

    def __str__(self) -> str:
        sizes = ", ".join(f"{sort} {size}" for sort, size in self.sizes.items())
        start = flat(self.initial)
        unusual = [f"{name} = {_text(v)}" for name, v in flat(self.before).items() if v != start[name]]
        state = ", ".join(unusual) or "the initial state"
        if self.step is None:
            return f"{self.of} fails in a state with {sizes}: {state}"
        changed = changes(self.before, self.step.after)
        effect = ", ".join(f"{name}: {_text(a)} -> {_text(b)}" for name, (a, b) in changed.items())
        end = f" ({effect})" if effect else ""
        return f"{self.of} is not kept by {self.step}{end} from a state with {sizes}: {state}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def counterexample(
    machine: Machine, of: str, case: str, assumed: Sequence[str], seconds: float = 10.0
) -> Counterexample | None:
    """The smallest state in which all ``assumed`` hold and ``of`` fails, or fails after action ``case``.

    Sizes up to ``LARGEST`` of every sort are tried, small ones first, for some ``seconds``; None if none has
    such a state. ``case`` may be ``START``, for which there is no such state, empty for any action,
    and anything for conditions that are about one state only.
    """
    if case == START:
        return None
    deadline = time.perf_counter() + seconds
    for sizes in _growing(machine):
        left = deadline - time.perf_counter()
        if left <= 0:
            return None
        try:
            grounded = ground(machine, sizes)
        except SpecError:  # a machine may need larger sizes
            continue
        found = _search(grounded, of, case, assumed, left)
        if found is not None:
            return found
    return None


def _growing(machine: Machine) -> Iterator[Mapping[str, int]]:
    every = itertools.product(range(1, LARGEST + 1), repeat=len(machine.sorts))
    for sizes in sorted(every, key=lambda s: (sum(s), s)):
        yield dict(zip(machine.sorts, sizes, strict=True))


def _search(
    grounded: Grounded, of: str, case: str, assumed: Sequence[str], seconds: float
) -> Counterexample | None:
    runs = Unrolled(grounded)
    runs.add_state()
    solver = runs.solver(seconds)
    solver.add(runs.in_range(0))
    here = runs.conditions(0)
    solver.add(*(here[name][1] for name in assumed if name in here))
    about_one_state = of == DEADLOCK or (of in here and here[of][0].kind in ("check", "range"))
    if about_one_state:
        bad = here
    else:
        runs.add_state()
        solver.add(runs.step(0))
        if case:
            ways = [runs.choices[0] == i.index for i in grounded.instances if i.name == case]
            solver.add(runs.some(ways))
        bad = runs.conditions(1)
    if of not in bad:
        return None
    solver.add(z3.Not(bad[of][1]))
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    for cell in grounded.cells:  # as much as possible is as it was at the start
        usual = runs.equals(0, cell.number, cell.init)
        if z3.is_true(model.eval(usual, True)):
            solver.add(usual)
        elif solver.check(usual) == z3.sat:
            model = solver.model()  # before anything is added, which may take the model away
            solver.add(usual)
    return _read(runs, model, of)


def _read(runs: Unrolled, model: z3.ModelRef, of: str) -> Counterexample:
    """The counterexample that a model shows."""
    g = runs.grounded
    interpreter = Interpreter.of(g)
    before = runs.read(model, 0)
    step: Step | None = None
    if len(runs.states) > 1:
        instance: Instance | None = runs.taken(model, 1)[0]
    else:
        blamed = runs.culprit(model, 0, of)
        instance = blamed[0] if blamed else None
    if instance is not None:
        taken = interpreter.find(instance.name, **instance.args)
        after, _ = interpreter.step(before, taken)
        step = Step(taken.name, dict(taken.args), taken.action.doc, interpreter.view(after))
    return Counterexample(of, g.sizes, interpreter.view(g.initial), interpreter.view(before), step)
