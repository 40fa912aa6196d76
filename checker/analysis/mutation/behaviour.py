"""What a mutant does that its machine does not: its first new step.

Guards are only weakened, so a mutant without a new step in any reachable state behaves as the machine does.
Machine and mutants are grounded together, so that one pass over the machine's reachable states compares all
steps. Up to its first new step, a mutant only takes steps of the machine, so these states are the ones to
look at.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvfence.checker.analysis.counterexamples import node_value
from kvfence.checker.analysis.mutation.mutants import Mutant
from kvfence.checker.engines.base import Stop
from kvfence.checker.engines.explicit.interpret import Interpreter, Values
from kvfence.checker.engines.explicit.numpy_search import Reachable
from kvfence.spec.language import Grounded, Instance, Machine, changes, ground
from kvfence.spec.language.nodes import Node


@dataclass(frozen=True)
class Behaviour:
    """A step that a mutant can take and its machine cannot.

    ``way`` are the steps before it, ``difference`` what it does that no step of the machine does there.
    """

    way: tuple[str, ...]
    step: str
    difference: str

    def __str__(self) -> str:
        before = f"after {', '.join(self.way)}: " if self.way else "at once: "
        return f"{before}{self.step} {self.difference}"


class Comparison:
    """A machine at given sizes, all of its reachable states, and its mutants beside it.

    SpecError for mutants that cannot be grounded; Stop when ``memory`` (bytes) is used up.
    """

    def __init__(
        self, machine: Machine, mutants: Sequence[Mutant], sizes: Mapping[str, int], memory: int | None = None
    ) -> None:
        self.mutants = {m.name: m for m in mutants}
        both = copy.copy(machine)
        both.actions = dict(machine.actions)
        for m in mutants:
            action = copy.copy(m.machine.actions[m.action])
            action.name = m.name
            both.actions[m.name] = action
        self.grounded: Grounded = ground(both, sizes)
        self._of: dict[str, dict[tuple[int, ...], Instance]] = {name: {} for name in both.actions}
        for i in self.grounded.instances:
            self._of[i.name][i.values] = i
        self.grounded.instances = [i for i in self.grounded.instances if i.name in machine.actions]
        self.reachable = Reachable(self.grounded, memory=memory)
        if self.reachable.log.stopped:
            raise Stop(self.reachable.log.stopped)

    @property
    def states(self) -> int:
        """How many states the machine reaches."""
        return len(self.reachable)

    def differing(self, names: Sequence[str]) -> dict[str, list[Instance]]:
        """Of these mutants, those with a new step in a reachable state, and a shortest way to that state."""
        graph, out = self.grounded.graph, {}
        for action in dict.fromkeys(self.mutants[name].action for name in names):
            own = [name for name in names if self.mutants[name].action == action]
            nodes = [graph.junction("or", [n for _, n in self._differences(name)]) for name in own]
            open_ = [k for k, n in enumerate(nodes) if n is not graph.false]
            for k, way in self.reachable.first([nodes[k] for k in open_]).items():
                out[own[open_[k]]] = way
        return out

    def behaviour(self, name: str, way: Sequence[Instance]) -> Behaviour:
        """The new step of the mutant in the state that ``way`` leads to."""
        run = Interpreter.of(self.grounded)
        state = run.initial()
        for i in way:
            state, _ = run.step(state, i)
        sound, mutated = self._of[self.mutants[name].action], self._of[name]
        values = next(v for v, n in self._differences(name) if _holds(n, state))
        old, new = sound.get(values), mutated[values]
        shown = str(new).replace(name, self.mutants[name].action, 1)
        return Behaviour(tuple(map(str, way)), shown, self._difference(state, old, new))

    def _difference(self, state: Values, old: Instance | None, new: Instance) -> str:
        """What the new step does that the machine's own step, if it can be taken, does not."""
        here, after = self.grounded.view(state), self.grounded.view(_after(state, new))
        if old is None or not _holds(old.guard, state):
            changed = [f"{k}: {a} -> {b}" for k, (a, b) in changes(here, after).items()]
            return f"can be taken: {', '.join(changed) or 'it changes nothing'}"
        sound = self.grounded.view(_after(state, old))
        changed = [f"{k} {b} instead of {a}" for k, (a, b) in changes(sound, after).items()]
        return f"leaves {', '.join(changed)}"

    def _differences(self, name: str) -> list[tuple[tuple[int, ...], Node]]:
        """For each choice of arguments, when the mutant has a step that the machine has not."""
        g = self.grounded.graph
        sound, mutated = self._of[self.mutants[name].action], self._of[name]
        out = []
        for values, new in mutated.items():
            old = sound.get(values)
            if old is None:
                out.append((values, new.guard))
                continue
            cells = {**old.updates, **new.updates}
            unlike = [g.negation(g.equal(self._next(old, c), self._next(new, c))) for c in cells]
            other = g.junction("or", (g.negation(old.guard), *unlike))
            out.append((values, g.junction("and", (new.guard, other))))
        return out

    def _next(self, i: Instance, cell: int) -> Node:
        return i.updates[cell] if cell in i.updates else self.grounded.now(cell)


def _holds(node: Node, state: Values) -> bool:
    return bool(node_value(node, state))


def _after(state: Values, i: Instance) -> Values:
    out = list(state)
    for cell, node in i.updates.items():
        out[cell] = node_value(node, state)
    return tuple(out)
