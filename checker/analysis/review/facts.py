"""What a review found out: the one structure that every report of `kvfence review` prints."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvfence.checker.analysis.results import Counterexample, MachineFacts, Value
from kvfence.checker.engines.base import Verdict

Side = Literal["base", "change"]
"""One of the two designs of a review."""
SIDES: tuple[Side, Side] = ("base", "change")
Effect = Literal["same", "better", "worse", "open"]
"""What a change does to one thing; ``open``: it could not be decided."""


class SourceLine(msgspec.Struct, frozen=True):
    """A line of the specification that only one side has, or that only one side's build went through."""

    side: Side
    file: str
    line: int
    text: str


class Difference(msgspec.Struct, frozen=True):
    """A part of the traced machine that differs: ``what`` as in "guard of evict", each side's text."""

    what: str
    base: str = ""
    change: str = ""
    where: str = ""


class Taken(msgspec.Struct, frozen=True):
    """One step of a behaviour: the action, its arguments, its meaning."""

    action: str
    arguments: dict[str, Value]
    doc: str

    def __str__(self) -> str:
        given = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in self.arguments.items()]
        return f"{self.action}({', '.join(given)})"


class Behaviour(msgspec.Struct, frozen=True):
    """Steps that only one side can take: the last of ``steps`` is the one that the other side refuses.

    ``refused`` are the other side's guards that are false there, in words, each with its place.
    """

    steps: tuple[Taken, ...]
    refused: tuple[str, ...]


class Behaviours(msgspec.Struct, frozen=True):
    """Shortest behaviours that one side has and the other lacks, one for each action that differs first.

    ``complete``: there are none, and none was missed; with ``found`` empty and ``complete`` false the search
    ended early, after ``states`` pairs of states, and ``why`` says so.
    """

    found: tuple[Behaviour, ...] = ()
    complete: bool = True
    states: int = 0
    why: str = ""


class UsedLemma(msgspec.Struct, frozen=True):
    """A lemma that a proof uses, and its one line of why it holds."""

    name: str
    why: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Why an invariant holds on one side.

    ``basis``: ``proved`` for any size of the sorts and runs of any length; ``exhausted``, which says nothing
    of other sizes: every state at ``sizes`` was judged, and ``why`` there is no proof; ``open``: neither.
    ``conditions`` are the machine's own names for what holds. A proof uses ``lemmas`` and the conditions
    ``invariants``; it took ``questions``, each decided again by a fresh z3, and by ``second`` (empty:
    no other solver) except for ``second_open``. ``states`` were judged one by one; for a liveness
    property, those of its graph, and ``fairness`` says what is assumed: of each fair action, how.
    """

    side: Side
    basis: Literal["proved", "exhausted", "open"]
    conditions: tuple[str, ...]
    lemmas: tuple[UsedLemma, ...] = ()
    invariants: tuple[str, ...] = ()
    questions: int = 0
    second: str = ""
    second_open: tuple[str, ...] = ()
    seconds: float = 0.0
    why: str = ""
    sizes: dict[str, int] = {}
    states: int = 0
    fairness: dict[str, str] = {}


class InvariantReview(msgspec.Struct, frozen=True, kw_only=True):
    """One invariant of the catalogue, or DEADLOCK, RANGE: its verdict on either side.

    ``base`` and ``change`` are None where that side does not state it. ``conditions`` are the machine's own
    names for what is violated. ``first``: whether a run breaks it while everything else still holds; it is
    false for an invariant that breaks only after others. ``story`` is a shortest counterexample, of
    the change if that violates it, else of the base. ``evidence``, of an invariant that the change concerns:
    why it holds, for each side on which it does.
    """

    invariant: str
    effect: Effect
    base: Verdict | None
    change: Verdict | None
    kind: Literal["safety", "progress"] = "safety"
    conditions: tuple[str, ...] = ()
    first: bool = True
    story: Counterexample | None = None
    story_of: Literal["base", "change", ""] = ""
    evidence: tuple[Evidence, ...] = ()
    sizes: dict[str, int] = {}
    """Sort sizes at which a liveness property was judged, where smaller than the others."""
    sentence: str = ""
    """What an id of the machine's own stands for."""

    @property
    def label(self) -> str:
        """The invariant; for a liveness property, also its name."""
        if self.kind == "safety":
            return self.invariant
        return f"{self.invariant} ({self.conditions[0].replace('_', ' ')})"


class MachineReview(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, before and after.

    ``same``: the traced machines are equal, so that nothing needs to be explored. ``new`` and ``lost``: what
    only the change, or only the base, can do. ``notes``: what could not be compared, and why.
    """

    machine: str
    sizes: dict[str, int]
    same: bool
    base: MachineFacts | None = None
    change: MachineFacts | None = None
    invariants: tuple[InvariantReview, ...] = ()
    new: Behaviours = Behaviours()
    lost: Behaviours = Behaviours()
    goals_lost: tuple[str, ...] = ()
    goals_gained: tuple[str, ...] = ()
    actions_lost: tuple[str, ...] = ()
    actions_gained: tuple[str, ...] = ()
    lines: tuple[SourceLine, ...] = ()
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """A whole review. ``verdict``: ``mixed`` when something got better and something else worse.

    >>> found = review("sound", "unpinned_lookup", machine="lookup", proving=None)
    >>> found.worse[0]
    'PIN is violated by the change in lookup'
    """

    version: str
    base: str
    change: str
    base_summary: str
    change_summary: str
    verdict: Literal["same", "different", "better", "worse", "mixed", "undetermined"]
    machines: tuple[MachineReview, ...]
    unchanged: tuple[str, ...] = ()
    only_base: tuple[str, ...] = ()
    only_change: tuple[str, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False

    def of(self, effect: Effect) -> tuple[tuple[MachineReview, InvariantReview], ...]:
        """Every invariant on which the change has this effect, with its machine."""
        return tuple((m, i) for m in self.machines for i in m.invariants if i.effect == effect)

    @property
    def worse(self) -> tuple[str, ...]:
        """Sentences: what got worse."""
        goals = [(goal.replace("_", " "), m.machine) for m in self.machines for goal in m.goals_lost]
        actions = [(action, m.machine) for m in self.machines for action in m.actions_lost]
        return (
            *_rows(self, "worse"),
            *(f"goal {goal} of {m} can no longer be reached" for goal, m in goals),
            *(f"action {action} of {m} can no longer be taken" for action, m in actions),
            *(f"machine {name} is gone" for name in self.only_base),
        )

    @property
    def better(self) -> tuple[str, ...]:
        """Sentences: what got better."""
        goals = [(goal.replace("_", " "), m.machine) for m in self.machines for goal in m.goals_gained]
        return (*_rows(self, "better"), *(f"goal {goal} of {m} can be reached now" for goal, m in goals))

    @property
    def open(self) -> tuple[str, ...]:
        """Sentences: what could not be decided."""
        return (*_rows(self, "open"), *(f"{m.machine}: {note}" for m in self.machines for note in m.notes))


def _rows(review: Review, effect: Effect) -> tuple[str, ...]:
    verb = {"worse": "is violated by the change", "better": "is violated no more", "open": "is undetermined"}
    out = []
    for m, i in review.of(effect):
        wake = "" if i.first or effect != "worse" else ", once another invariant is broken"
        gone = effect == "worse" and i.change is None
        what = "is no longer stated" if gone else verb[effect]
        out.append(f"{i.label} {what} in {m.machine}{'' if gone else wake}")
    return tuple(out)
