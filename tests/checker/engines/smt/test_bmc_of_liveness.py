"""Runs that stop owing something: bounded model checking finds them after as few steps as exploring.

No state breaks a promise about whole runs, so bounded model checking is not asked for one. But a run that
breaks one by stopping ends in a state: what was promised is owed there, and no step that fairness calls for
can be taken. A machine that remembers what it owes has that as an invariant, which both engines can break. A
run that breaks a promise by going round and round has no such state: how long its lasso is was never claimed
to be the least, and nothing is compared.
"""

import copy

import pytest

from kvfence.checker.analysis.liveness import liveness_sizes
from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.checker.engines.liveness.liveness import Liveness
from kvfence.checker.engines.smt.bmc import BMC
from kvfence.checker.engines.smt.conditions import after, initially, some
from kvfence.checker.engines.smt.counters import everywhere
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import And, Bool, Function, Implies, Machine, Not, Or, Property
from kvfence.spec.language.expr import apply, substitute
from kvfence.spec.machines import MACHINES

DESIGNS_WITHOUT_PROGRESS = [d.name for d in DESIGNS.values() if d.breaks == "PROGRESS"]
ROUND_AND_ROUND = {"fenced_victim_spin", "preempt_beside_parked"}


def owing(machine: Machine, promise: str) -> Machine:
    """The machine, which remembers what it owes; its only invariant: then some fair step can be taken."""
    p = machine.liveness[promise]
    assert p.when is not None
    owed = Function("owed", tuple(q.type for q in p.params), Bool, False, machine.where)
    now = apply(owed, owed.formals)
    over = {q.uid: formal for q, formal in zip(p.params, owed.formals, strict=True)}
    when, then = substitute(p.when, over), substitute(p.then, over)
    owed.init = initially(And(when, Not(then)))
    out = copy.copy(machine)
    out.functions = {**machine.functions, owed.name: owed}
    out.actions = {}
    for name, action in machine.actions.items():
        changed = copy.copy(action)
        still = And(Or(now, after(when, action)), Not(after(then, action)))
        changed.updates = {**action.updates, owed: still}
        out.actions[name] = changed
    fair = [a for a in machine.actions.values() if a.fair]
    goes_on = Or(*(some(a.params, And(*(g.expr for g in a.guards))) for a in fair))
    body = everywhere(owed.formals, Implies(now, goes_on))
    out.invariants = {"it_goes_on": Property("PROGRESS", "it_goes_on", "", body, (), where=machine.where)}
    return out


def stops(engine: Explore | BMC, machine: Machine, sizes: dict[str, int]) -> list[int]:
    """After how many steps the machine stops owing something, where the engine finds that it does."""
    found = engine.run(machine, sizes, until="first")
    return [len(path) for path in found.violated if path.name == "it_goes_on"]


@pytest.mark.parametrize("design", DESIGNS_WITHOUT_PROGRESS)
def test_a_run_that_stops_is_found_after_as_few_steps_as_its_stem_has(design: str) -> None:
    (name,) = DESIGNS[design].machines
    machine = MACHINES[name](DESIGNS[design].faults)
    whole = {sort: DESIGNS[design].sizes.get(sort, s.default) for sort, s in machine.sorts.items()}
    sizes = liveness_sizes(machine, whole)
    broken = [f for f in Liveness().run(machine, sizes).findings.values() if f.verdict is Verdict.violated]
    assert broken
    for finding in broken:
        path, remembering = finding.path, owing(machine, finding.name)
        assert path is not None
        explored = stops(Explore(), remembering, sizes)
        if path.loop == len(path):
            assert explored == stops(BMC(depth=len(path), only="PROGRESS"), remembering, sizes) == [path.loop]
        else:  # it goes round and round, and never stops
            assert explored == []
            assert design in ROUND_AND_ROUND


@pytest.mark.parametrize("promise", MACHINES["scheduling"](frozenset()).liveness)
def test_the_sound_scheduler_never_stops_owing_something(promise: str) -> None:
    machine = MACHINES["scheduling"](frozenset())
    sizes = liveness_sizes(machine, {sort: s.default for sort, s in machine.sorts.items()})
    assert stops(Explore(), owing(machine, promise), sizes) == []
