"""Liveness properties, judged beside an exploration of the same machine."""

from __future__ import annotations

from collections.abc import Mapping

from kvfence.checker.engines.base import Report, Result
from kvfence.checker.engines.liveness.liveness import MOST_STATES, Liveness
from kvfence.checker.engines.liveness.state_graph import Explored
from kvfence.spec.language import Machine

PROGRESS = "PROGRESS"
"""The invariant of the catalogue that is a liveness property."""


def requires_progress(machine: Machine) -> bool:
    """Whether the machine states PROGRESS, so that it is judged for each of its designs."""
    return any(p.id == PROGRESS for p in machine.liveness.values())


def liveness_sizes(machine: Machine, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes at which liveness is judged where all else is judged at ``sizes``: none is larger."""
    return {sort: min(size, machine.liveness_at.get(sort, size)) for sort, size in sizes.items()}


def judged(
    explored: Result, machine: Machine, report: Report | None = None, graph: Explored | None = None
) -> Result | None:
    """The verdicts on the liveness properties of a machine that was explored; None where they are not judged.

    They are not for a machine without such properties, or if its graph at these sizes would not fit.
    ``graph`` finds the graph, or the native engine does.
    """
    sizes = liveness_sizes(machine, explored.sizes)
    small_enough = sizes != explored.sizes or (explored.stopped is None and explored.states <= MOST_STATES)
    if not machine.liveness or not (machine.liveness_at or small_enough):
        return None
    engine = Liveness(explored=graph) if graph is not None else Liveness()
    return engine.run(machine, sizes, progress=report)
