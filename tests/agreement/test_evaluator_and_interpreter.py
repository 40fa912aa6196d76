"""The evaluator, which reads expressions as they are written, and the interpreter take the same steps."""

import random

import pytest

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.spec.language.evaluate import Evaluator
from kvfence.spec.machines import MACHINES

SIZES = {"transfer": {"Operation": 1, "Host": 2}, "stream_order": {"Operation": 1}}


@pytest.mark.parametrize("name", list(MACHINES))
def test_guards_updates_checks_and_invariants_agree_on_random_walks(name: str) -> None:
    machine, draw = MACHINES[name](frozenset()), random.Random(7)
    run = Interpreter(machine, SIZES.get(name))
    evaluator = Evaluator(run.grounded.layout, run.sizes)
    for _ in range(3):
        state = run.initial()
        for _ in range(25):
            enabled = {i.index for i in run.enabled(state)}
            for i in draw.sample(run.instances, min(12, len(run.instances))):
                env = evaluator.bind(i.action, i.args)
                open_ = all(evaluator.value(g.expr, state, env) for g in i.action.guards)
                assert open_ == (i.index in enabled), f"{i} in {run.view(state)}"
            for p in (*machine.invariants.values(), *machine.goals.values()):
                told = {q.name for q in (*run.violated(state), *run.reached(state))}
                assert bool(evaluator.value(p.expr, state, {})) == (
                    (p.name in told) == (p.name in machine.goals)
                )
            if not enabled:
                break
            taken = run.instances[draw.choice(sorted(enabled))]
            after, failures = run.step(state, taken)
            env = evaluator.bind(taken.action, taken.args)
            assert evaluator.after(taken.action, state, env) == after
            wrong = {c.name for c in taken.action.checks if not evaluator.value(c.expr, state, env)}
            assert wrong == {f.name for f in failures if f.id != "RANGE"}
            state = after
