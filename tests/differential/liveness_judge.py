"""The judge of promises: whether a fair run breaks one, that is, can stay in some set of states for ever.

Written from the meaning of fairness, over plain sets, and held against trying every set of states where there
are few.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from direct import Direct, State
from recipes import Pledge

from kvfence.checker.engines.base import Path

Step = tuple[int, int, int]  # from, to, instance


class Judge:
    """The graph of a machine, and which of its steps fairness calls for."""

    def __init__(self, run: Direct) -> None:
        self.run = run
        _, self.number, taken = run.explore()
        self.states: list[State] = list(self.number)
        names = self.names = {(a.name, args): k for k, (a, args) in enumerate(run.instances)}
        self.fair = {k: a.fair for k, (a, _) in enumerate(run.instances) if a.fair}
        self.steps: list[list[tuple[int, int]]] = [
            [(self.number[t.after], names[t.action, t.args]) for t in out if t.after in self.number]
            for out in taken
        ]
        self.enabled = [{i for _, i in out} for out in self.steps]
        self.depth = {0: 0}  # of each state, which are visited in the order of their depth
        for k, out in enumerate(self.steps):
            for y, _ in out:
                self.depth.setdefault(y, self.depth[k] + 1)

    def choices(self, q: Pledge) -> Iterator[tuple[int, ...]]:
        """The arguments of a promise."""
        return itertools.product(*(self.run.values(t) for _, t in q.params))

    def truths(self, q: Pledge, args: tuple[int, ...]) -> tuple[set[int], set[int]]:
        """The states in which the promise begins to be owed, and those in which it is kept."""
        names = tuple(n for n, _ in q.params)
        then = self.run.function(q.then, names)
        kept = {k for k, s in enumerate(self.states) if then(s, *args)}
        if q.when is None:
            return {0}, kept
        when = self.run.function(q.when, names)
        return {k for k, s in enumerate(self.states) if when(s, *args)}, kept

    def broken(self, q: Pledge) -> tuple[bool, int | None]:
        """Whether a fair run breaks the promise, and the depth at which it is first owed."""
        broken, depths = False, set[int]()
        for args in self.choices(q):
            owed, kept = self.truths(q, args)
            depths |= {self.depth[k] for k in owed}
            region = self.reach(owed - kept, set(range(len(self.states))) - kept)
            broken = broken or self.can_stay(region)
        return broken, min(depths, default=None)

    def reach(self, begin: set[int], inside: set[int]) -> set[int]:
        """What can be reached from ``begin`` without leaving ``inside``."""
        found, todo = set(begin), list(begin)
        while todo:
            for y, _ in self.steps[todo.pop()]:
                if y in inside and y not in found:
                    found.add(y)
                    todo.append(y)
        return found

    def fair_home(self, places: set[int]) -> bool:
        """Whether a fair run can visit exactly these states again and again."""
        start = min(places)
        if self.reach({start}, places) != places or any(start not in self.reach({k}, places) for k in places):
            return False
        return not self.owed(places, self._taken(places))

    def owed(self, places: Iterable[int], taken: set[int]) -> set[int]:
        """The instances, none ``taken``, that fairness calls for in a run that stays in ``places``."""
        enabled = [self.enabled[k] for k in places]
        due = {"weak": set.intersection(*enabled), "strong": set.union(*enabled)}
        return {i for i, kind in self.fair.items() if i in due[kind] - taken}

    def _taken(self, places: set[int]) -> set[int]:
        return {i for k in places for y, i in self.steps[k] if y in places}

    def can_stay(self, region: set[int]) -> bool:
        """Whether a fair run can stay in the region for ever."""
        left = set(region)
        while left:
            start = next(iter(left))
            forward = self.reach({start}, left)
            home = {k for k in forward if start in self.reach({k}, forward)}
            left -= home
            if self._home_within(home):
                return True
        return False

    def _home_within(self, home: set[int]) -> bool:
        """Whether a fair run can stay within one component."""
        owed = self.owed(home, self._taken(home))
        if not owed:
            return True
        if any(self.fair[i] == "weak" for i in owed):
            return False
        return self.can_stay({k for k in home if not owed & self.enabled[k]})

    def can_stay_by_trying(self, region: set[int]) -> bool:
        """The same by trying every set of states; for few."""
        sets = (set(x) for n in range(1, len(region) + 1) for x in itertools.combinations(sorted(region), n))
        return any(self.fair_home(s) for s in sets)


def follow(judge: Judge, q: Pledge, path: Path) -> list[str]:
    """What is wrong with a run that is said to break a promise; it can be taken, which is seen elsewhere."""
    run = judge.run
    at = [0]
    instances = []
    for step in path.steps:
        t = run.taken(judge.states[at[-1]], step.action, step.args)
        if t is None:
            return []
        at.append(judge.number[t.after])
        instances.append(judge.names[t.action, t.args])
    if path.loop is None or at[-1] != at[path.loop]:
        return [f"the run that breaks {q.name} does not repeat"]
    around = at[path.loop :]
    unfair = [run.instances[i] for i in sorted(judge.owed(around, set(instances[path.loop :])))]
    out = [f"the run that breaks {q.name} is unfair to {a.name}{args}" for a, args in unfair]
    for args in judge.choices(q):
        owed, kept = judge.truths(q, args)
        first = [k for k, x in enumerate(at) if x in (owed if q.when is not None else {0})]
        last_kept = max((k for k, x in enumerate(at) if x in kept), default=-1)
        begins = [0] if q.when is None else first
        if any(k > last_kept for k in begins if k <= path.loop or q.when is not None):
            return out
    return [*out, f"the run that breaks {q.name} keeps it"]
