"""Pins a counterexample: a list of steps whose last one, and no earlier one, violates one invariant.

The steps are evaluated straight from the traced machine, so a pinned counterexample stays valid whatever
engine found it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kvfence.spec.language.errors import SpecError, close
from kvfence.spec.language.evaluate import Evaluator, Values, spell
from kvfence.spec.language.ground import ground
from kvfence.spec.language.machine import Machine
from kvfence.spec.language.view import changes

Call = str | tuple[str, Mapping[str, object]]
Violation = tuple[str, str]  # id of the catalogue, own name
_CALL = re.compile(r"\s*(\w+)\s*\(\s*(.*?)\s*\)\s*", re.DOTALL)
_ARGUMENT = re.compile(r"(\w+)\s*=\s*(-?\w+)")


def parsed(call: Call) -> tuple[str, dict[str, object]]:
    """The action and its arguments from ``"lookup(r=0, local=0)"`` or ``("lookup", {"r": 0, "local": 0})``.

    SpecError for a text of another form.
    """
    if not isinstance(call, str):
        name, given = call
        return name, dict(given)
    match = _CALL.fullmatch(call)
    if match is None:
        raise SpecError(f'{call!r} is no step; write it as "action(name=value, name=value)"')
    args: dict[str, object] = {}
    for part in filter(None, re.split(r"\s*,\s*", match[2])):
        pair = _ARGUMENT.fullmatch(part)
        if pair is None:
            raise SpecError(f"{part!r} in {call!r} is no argument; write it as name=value")
        words: dict[str, object] = {"true": True, "false": False}
        text = pair[2]
        args[pair[1]] = words[text.lower()] if text.lower() in words else _number(text)
    return match[1], args


def _number(text: str) -> object:
    return int(text) if re.fullmatch(r"-?\d+", text) else text


class Replay:
    """A run of ``machine`` at ``sizes``, one step after the other, with what each step violates."""

    def __init__(self, machine: Machine, sizes: Mapping[str, int] | None = None) -> None:
        self.machine, self.grounded = machine, ground(machine, sizes)
        self.evaluator = Evaluator(self.grounded.layout, self.grounded.sizes)
        self.state: Values = self.grounded.initial
        self.before: Values = self.state

    def take(self, call: Call) -> list[Violation]:
        """Take one step; what it violates, checks of the step first. SpecError if it cannot be taken."""
        name, args = parsed(call)
        action = self.machine.actions.get(name)
        if action is None:
            known = close(name, self.machine.actions)
            raise SpecError(f"machine {self.machine.name} has no action {name}; {known}")
        env = self.evaluator.bind(action, args)
        for guard in action.guards:
            if not self.evaluator.value(guard.expr, self.state, env):
                raise SpecError(
                    f"{shown(name, args)} cannot be taken here: {spell(guard.expr, env)} is false "
                    f"({guard.where}); the step before left {self.grounded.view(self.state)}"
                )
        found = [(c.id, c.name) for c in action.checks if not self.evaluator.value(c.expr, self.state, env)]
        self.before, self.state = self.state, self.evaluator.after(action, self.state, env)
        wide = {
            f"range of {c.function.name}"
            for c, v in zip(self.grounded.cells, self.state, strict=True)
            if c.lo is not None and c.hi is not None and not c.lo <= v <= c.hi
        }
        found += [("RANGE", range_name) for range_name in sorted(wide)]
        return found if wide else found + self.violated()

    def violated(self) -> list[Violation]:
        """The invariants that are false in the present state."""
        return [
            (p.id, p.name)
            for p in self.machine.invariants.values()
            if not self.evaluator.value(p.expr, self.state, {})
        ]


def shown(name: str, args: Mapping[str, object]) -> str:
    """A step as it is written in a list of steps."""
    return f"{name}({', '.join(f'{k}={v}' for k, v in args.items())})"


def assert_discovers(
    machine: Machine, invariant: str, actions: Iterable[Call], sizes: Mapping[str, int] | None = None
) -> None:
    """See :meth:`Machine.assert_discovers`."""
    names = {
        **{p.name: p.id for p in machine.invariants.values()},
        **{c.name: c.id for a in machine.actions.values() for c in a.checks},
        **{f"range of {f.name}": "RANGE" for f in machine.functions.values()},
    }
    if invariant not in names and invariant not in names.values():
        known = close(invariant, {*names, *names.values()})
        raise SpecError(f"machine {machine.name} states no invariant {invariant}; {known}")
    steps = list(actions)
    run = Replay(machine, sizes)
    broken = run.violated()
    for number, call in enumerate(steps, 1):
        if broken:
            raise AssertionError(_early(broken, number - 1, len(steps), invariant))
        broken = run.take(call)
    wrong = [v for v in broken if invariant not in v]
    if broken and not wrong:
        return
    end = f"the {len(steps)} steps end" if steps else "the initial state is"
    if not broken:
        last = changes(run.grounded.view(run.before), run.grounded.view(run.state))
        text = ", ".join(f"{k}: {a} -> {b}" for k, (a, b) in last.items()) or "nothing"
        raise AssertionError(f"{end} without a violation of {invariant}; the last one changed {text}")
    raise AssertionError(f"{end} with another violation than {invariant}: {_listed(wrong)}")


def _listed(violations: Sequence[Violation]) -> str:
    return ", ".join(f"{id_} {name}" for id_, name in violations)


def _early(broken: Sequence[Violation], at: int, of: int, invariant: str) -> str:
    where = f"step {at} of {of}" if at else "the initial state"
    return f"{where} violates {_listed(broken)} already; the last step alone is to violate {invariant}"
