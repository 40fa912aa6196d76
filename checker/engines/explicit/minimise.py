"""Shortens a counterexample: steps that do not matter for the violation are left out.

Breadth-first search finds shortest paths and has nothing to lose here. Random runs, traces of a connector and
counterexamples written by hand do.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.spec.language import Instance


def ends_in(run: Interpreter, steps: Sequence[Instance], name: str) -> int | None:
    """After how many of ``steps`` the condition ``name`` is first violated.

    None when it never is, or when a step before that cannot be taken. ``name`` is an invariant, a check, a
    range, or ``deadlock``.
    """
    state = run.initial()
    if _wrong(run, state, name):
        return 0
    for number, instance in enumerate(steps, 1):
        if instance not in run.enabled(state):
            return None
        state, failures = run.step(state, instance)
        if any(f.name == name for f in failures) or _wrong(run, state, name):
            return number
        if any(f.id == "RANGE" for f in failures):
            return None
    return None


def _wrong(run: Interpreter, state: tuple[int, ...], name: str) -> bool:
    if name == "deadlock":
        return not run.enabled(state) and not run.terminal(state)
    return any(p.name == name for p in run.violated(state))


def shorten(run: Interpreter, steps: Sequence[Instance], name: str) -> list[Instance]:
    """Steps of ``steps``, in their order, that still end in the violation of ``name`` and can spare none.

    ValueError when the steps do not end in that violation to begin with.
    """
    end = ends_in(run, steps, name)
    if end is None:
        raise ValueError(f"these {len(steps)} steps do not violate {name}")
    kept = list(steps[:end])
    size = max(1, len(kept) // 2)
    while size:
        at, dropped = 0, False
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            end = ends_in(run, shorter, name)
            if end is None:
                at += size
            else:
                kept, dropped = shorter[:end], True
        if size == 1 and not dropped:
            return kept
        size = size if dropped else size // 2
    return kept
