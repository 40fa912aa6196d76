"""Liveness properties: a fair run that violates one, or the certainty that there is none.

A run violates "``when`` leads to ``then``" if it reaches a state with ``when`` and stays for ever where
``then`` is false. In a finite graph such a run ends up in one strongly connected component. It may also
stop: every state can be followed by itself. Fairness rules runs out, for each instance of an action on its
own: a weakly fair one that is enabled from some time on is taken, and so is a strongly fair one that is
enabled again and again.

States are not reduced by symmetry here: a run that treats two elements unequally would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kvfence.checker.engines.base import Engine, Finding, Log, Path, Result, RunOptions, Verdict
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.liveness.components import components
from kvfence.checker.engines.liveness.state_graph import Explored, Numbers, StateGraph, Truths, explored
from kvfence.spec.errors import CannotRun
from kvfence.spec.language import LivenessInstance, Machine
from kvfence.spec.language.evaluate import spell

MOST_STATES = 1_000_000  # the graph is kept in memory, with all its steps


class Liveness(Engine):
    """Decides the liveness properties of a machine on its explored graph.

    ``fair=False`` takes no notice of the fairness marks, and ``explored`` finds the graph. The findings of
    the result are those properties; a violated one has a run as its path, whose last steps repeat for ever. A
    property whose ``when`` never holds counts as an invariant whose premise is never met does.
    """

    name = "liveness"

    def __init__(self, *, fair: bool = True, explored: Explored = explored) -> None:
        self.fair, self.explored = fair, explored

    def decide(self, machine: Machine, sizes: Mapping[str, int] | None, options: RunOptions) -> Result:
        """See ``Engine.run``. More than a million states (or ``max_states``) are undetermined.

        CannotRun for a machine without liveness properties.
        """
        if not machine.liveness:
            raise CannotRun(f"machine {machine.name} states no liveness property: use another engine")
        interpreter = Interpreter(machine, sizes)
        log = Log(interpreter.grounded)
        findings = {
            p.name: Finding(p.id, p.name, "promise", Verdict.undetermined) for p in machine.liveness.values()
        }
        premises: dict[str, int | None] = {}
        most = min(
            options.max_states or MOST_STATES, (options.memory or MOST_STATES * 200) // 200, MOST_STATES
        )
        with log.stopping():
            graph = self.explored(interpreter, options.bounds, most, options.report)
            search = _Search(interpreter, graph, self.fair)
            log.states, log.transitions, log.depth = graph.count, len(graph.source), search.depth
            log.taken = np.bincount(graph.instance, minlength=len(interpreter.instances)).tolist()
            for name, finding in findings.items():
                findings[name], premises[name] = search.decide(finding)
                if options.until == "first" and findings[name].path is not None:
                    break
        found = log.result(self.name, options.report.seconds())
        taken = {} if log.stopped else found.coverage  # nothing is known of it before the graph is whole
        unmet = {
            name: spell(p.when)
            for name, p in machine.liveness.items()
            if p.when is not None and premises.get(name, 0) is None
        }
        found = replace(found, goals={}, witnesses={}, premises=premises, unmet=unmet, unjudged=())
        return replace(found, findings=findings, coverage=taken)


class _Search:
    """Looks for fair runs in a graph."""

    def __init__(self, run: Interpreter, graph: StateGraph, fair: bool) -> None:
        self.run, self.graph = run, graph
        kinds = {i.index: i.action.fair for i in run.instances} if fair else {}
        self.weak = [i for i, kind in kinds.items() if kind == "weak"]
        self.strong = [i for i, kind in kinds.items() if kind == "strong"]
        self.from_start = self._distances()
        self.depth = int(self.from_start.max())
        self.liveness: dict[str, list[LivenessInstance]] = {}
        for p in run.grounded.liveness():
            self.liveness.setdefault(p.name, []).append(p)

    def _distances(self) -> Numbers:
        g = self.graph
        found = np.full(g.count, -1)
        found[0] = 0
        frontier = np.zeros(1, np.int64)
        while frontier.size:
            after = np.unique(g.target[g.steps_from(frontier)])
            after = after[found[after] < 0]
            found[after] = found[frontier[0]] + 1
            frontier = after
        return found

    def decide(self, finding: Finding) -> tuple[Finding, int | None]:
        """The verdict on a liveness property, and the depth at which its ``when`` first holds."""
        shortest: Path | None = None
        first: int | None = None
        for p in self.liveness.get(finding.name, []):
            pending = ~self.graph.where(p.then)
            when = np.zeros(self.graph.count, np.bool_) if p.when is None else self.graph.where(p.when)
            if p.when is None:
                when[0] = True
            if when.any():
                met = int(self.from_start[when].min())
                first = met if first is None else min(met, first)
            path = self._broken(p, when & pending, pending)
            if path is not None and (shortest is None or len(path) < len(shortest)):
                shortest = path
        verdict = Verdict.violated if shortest is not None else Verdict.holds
        return replace(finding, verdict=verdict, path=shortest), first

    def _broken(self, p: LivenessInstance, begin: Truths, pending: Truths) -> Path | None:
        region, came = self._reached(begin, pending)
        if not region.any():
            return None
        goal = self._may_stop(region)
        loop: list[int] = []
        if not goal.any():
            goal = self._fair_component(region)
            if not goal.any():
                return None
        end = self._nearest(goal, came)
        stem = self._stem(end, begin, came)
        if not self._may_stop(goal)[end]:
            loop = self._loop(end, goal)
        args = ", ".join(f"{k}={v}" for k, v in p.args.items())
        what = p.stated.doc or "what the property asks for never comes true"
        steps = [self.run.instances[int(self.graph.instance[s])] for s in (*stem, *loop)]
        path = self.run.path(steps, p.stated.id, p.name, f"{what} ({args})" if args else what)
        return replace(path, loop=len(stem))

    def _reached(self, begin: Truths, pending: Truths) -> tuple[Truths, dict[str, Numbers]]:
        """Pending states that can be reached from ``begin`` through pending ones, and how: soonest first."""
        g = self.graph
        region = np.zeros(g.count, np.bool_)
        depth, by = np.full(g.count, -1), np.full(g.count, -1)  # by: the step taken, -1 where it begins
        level = 0
        frontier = np.empty(0, np.int64)
        last = int(self.from_start[begin].max()) if begin.any() else -1
        while frontier.size or level <= last:
            steps = g.steps_from(frontier)
            steps = steps[pending[g.target[steps]] & ~region[g.target[steps]]]
            after, first = np.unique(g.target[steps], return_index=True)
            by[after] = steps[first]
            region[after] = True
            here = np.flatnonzero(begin & (self.from_start == level) & ~region)
            region[here] = True
            frontier = np.concatenate((after, here))
            depth[frontier] = level
            level += 1
        return region, {"depth": depth, "by": by}

    def _may_stop(self, region: Truths) -> Truths:
        """States of the region where no fair instance is enabled."""
        g = self.graph
        busy = np.zeros(g.count, np.bool_)
        busy[g.source[np.isin(g.instance, [*self.weak, *self.strong])]] = True
        return region & ~busy

    def _fair_component(self, region: Truths) -> Truths:
        """The states of a component in which a fair run can stay; none when there is no such component."""
        g = self.graph
        region = np.array(region)
        while region.any():
            inside = region[g.source] & region[g.target]
            label = components(g.count, g.source[inside], g.target[inside])
            names, part = np.unique(label[region], return_inverse=True)
            of = np.full(g.count, -1)
            of[region] = part
            size = np.bincount(part)
            within = inside & (of[g.source] == of[g.target])
            unfair = np.zeros(len(names), np.bool_)
            thinned = np.zeros(len(names), np.bool_)
            removed = np.zeros(g.count, np.bool_)
            for i in (*self.weak, *self.strong):
                mine = g.instance == i
                sources = g.source[mine & region[g.source]]
                enabled = np.bincount(of[sources], minlength=len(names))
                taken = np.bincount(of[g.source[mine & within]], minlength=len(names)) > 0
                if i in self.weak:
                    unfair |= (enabled == size) & ~taken
                else:
                    owed = (enabled > 0) & ~taken
                    thinned |= owed
                    removed[sources[owed[of[sources]]]] = True
            good = np.flatnonzero(~unfair & ~thinned)
            if good.size:
                best = of[region & np.isin(of, good)][self.from_start[region & np.isin(of, good)].argmin()]
                fair: Truths = region & (of == best)
                return fair
            # a run may stay in what is left when the states that owe a strongly fair step are avoided
            left = np.flatnonzero(thinned & ~unfair)
            region &= np.isin(of, left) & ~removed
        return region  # empty: every component was left out

    def _nearest(self, goal: Truths, came: dict[str, Numbers]) -> int:
        states = np.flatnonzero(goal)
        return int(states[came["depth"][states].argmin()])

    def _stem(self, end: int, begin: Truths, came: dict[str, Numbers]) -> list[int]:
        """Steps from the initial state, by way of a state where ``when`` holds, to ``end``."""
        out: list[int] = []
        at = end
        while came["by"][at] >= 0:
            out.insert(0, int(came["by"][at]))
            at = int(self.graph.source[out[0]])
        if not begin[at]:
            raise AssertionError("the way back does not lead to a state where ``when`` holds")
        everything = np.ones(self.graph.count, np.bool_)
        return [*self._way(0, self._only(at), everything), *out]

    def _only(self, state: int) -> Truths:
        """The set of one state."""
        only: Truths = np.arange(self.graph.count) == state
        return only

    def _way(self, start: int, goal: Truths, inside: Truths) -> list[int]:
        """A shortest list of steps from ``start`` into ``goal``, through states of ``inside``."""
        g = self.graph
        by = np.full(g.count, -1)
        visited = self._only(start)
        frontier = np.array([start])
        while not goal[frontier].any():
            steps = g.steps_from(frontier)
            steps = steps[inside[g.target[steps]] & ~visited[g.target[steps]]]
            frontier, first = np.unique(g.target[steps], return_index=True)
            if not frontier.size:
                raise AssertionError("the states are not connected")
            visited[frontier] = True
            by[frontier] = steps[first]
        at = int(frontier[goal[frontier]][0])
        out: list[int] = []
        while at != start:
            out.insert(0, int(by[at]))
            at = int(g.source[out[0]])
        return out

    def _loop(self, start: int, inside: Truths) -> list[int]:
        """Steps from ``start`` back to it, within a fair component, that are fair when repeated."""
        g = self.graph
        within = inside[g.source] & inside[g.target]
        out: list[int] = []
        at = start
        for i in (*self.weak, *self.strong):
            mine = within & (g.instance == i)
            enabled = np.zeros(g.count, np.bool_)
            enabled[g.source[g.instance == i]] = True
            idle = inside & ~enabled
            visited = np.array([start, *(int(g.target[s]) for s in out)])
            if (i in self.weak and idle[visited].any()) or any(g.instance[s] == i for s in out):
                continue
            if i in self.strong and not (inside & enabled).any():
                continue
            sources = np.zeros(g.count, np.bool_)
            sources[g.source[mine]] = True
            out += self._way(at, sources | idle if i in self.weak else sources, inside)
            at = int(g.target[out[-1]]) if out else start
            if sources[at]:
                steps = np.flatnonzero(mine & (g.source == at))
                out.append(int(steps[0]))
                at = int(g.target[steps[0]])
        if not out:  # a step, any step, so that there is something to repeat
            steps = np.flatnonzero(within & (g.source == start))
            out = [int(steps[0])]
            at = int(g.target[steps[0]])
        return [*out, *self._way(at, self._only(start), inside)]
