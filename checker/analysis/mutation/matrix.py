"""The kill matrix: which condition notices which mutants, and what an invariant adds to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from kvfence.checker.analysis.mutation import kill
from kvfence.checker.analysis.mutation.kill import DEADLOCK, RANGE, Campaign, Fate, Outcome
from kvfence.checker.analysis.mutation.mutants import Kind
from kvfence.checker.analysis.verify import machines_for
from kvfence.checker.core.names import SOUND
from kvfence.checker.engines.base import Verdict
from kvfence.spec.errors import CannotRun

LEMMA = "LEMMA"
GOALS = "goals and actions"  # a goal no longer reached, an action never taken


class Row(msgspec.Struct, frozen=True):
    """What one condition notices.

    ``kills``: mutants noticed, by kind. ``alone``: those that no other invariant or check notices; ``first``:
    those that it notices in fewer steps than any other. ``implied_by``: where both are none, few others of
    which one notices each mutant that this one does, in as few steps.
    """

    invariant: str
    name: str
    kills: dict[str, int]
    alone: int
    first: int
    example: str
    implied_by: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Mutants noticed."""
        return sum(self.kills.values())


class Survivor(msgspec.Struct, frozen=True):
    """A mutant that nothing notices: the first new step it takes, and why it is accepted, if it is."""

    name: str
    kind: str
    fate: str
    new: str
    why: str


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """The campaign on one machine, summed up.

    ``tried``: mutants by kind. ``by_lemma``: mutants noticed by lemmas only. ``idle``: conditions that notice
    nothing; ``accepted_idle``: those of which the machine says why. ``ghosts``: fields whose assignments are
    left as they are, and why. ``survivors``: the accepted ones too. ``missing``: mutants not tried when the
    run stopped.
    """

    machine: str
    states: tuple[tuple[dict[str, int], int], ...]
    tried: dict[str, int]
    killed: dict[str, int]
    same: int
    by_lemma: int
    rows: tuple[Row, ...]
    idle: tuple[str, ...]
    accepted_idle: dict[str, str]
    ghosts: dict[str, str]
    vacuous: tuple[str, ...]
    stale: tuple[str, ...]
    survivors: tuple[Survivor, ...]
    undetermined: tuple[Survivor, ...]
    missing: int
    stopped: str | None
    seconds: float

    @property
    def unexplained(self) -> tuple[Survivor, ...]:
        """Survivors that the machine does not accept."""
        return tuple(s for s in self.survivors if s.fate == Fate.survived)

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong, one line each.

        Survivors without a reason, reasons without a survivor, conditions that notice nothing or hold of
        nothing.
        """
        return (
            *(f"nothing notices {s.name}" for s in self.unexplained),
            *(f"the acceptance of {text}" for text in self.stale),
            *(f"{name} notices no mutant" for name in self.idle),
            *(f"{name} holds only because no state meets its premise" for name in self.vacuous),
        )

    @property
    def verdict(self) -> Verdict:
        """Violated for a fault, undetermined if a mutant was not tried to the end, else holds."""
        if self.faults:
            return Verdict.violated
        return Verdict.undetermined if self.stopped or self.undetermined else Verdict.holds


def mutate(
    machine: str | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    only: str | None = None,
    memory: int = kill.MEMORY,
    progress: Callable[[int, int], None] | None = None,
) -> list[Matrix]:
    """The matrix of each machine of the sound design, or of the one named.

    ``sizes``, where given, replace the sizes of a machine that has one of the sorts. ``only``: mutants whose
    name fits this pattern; then nothing is said of conditions that notice none. ``progress`` gets how many
    mutants of a machine are done, and of how many. CannotRun for names that do not exist, and for a pattern
    that fits nothing. Ctrl-C keeps what was found.
    """
    built = machines_for(SOUND, machine, sizes or {})
    found: list[Matrix] = []
    for m in built:
        own = {sort: n for sort, n in (sizes or {}).items() if sort in m.sorts}
        shown = None if progress is None else (lambda _, done, total: progress(done, total))
        campaign = kill.run(m, [own] if own else None, memory=memory, progress=shown, only=only)
        if campaign.outcomes or campaign.stopped:
            found.append(matrix(campaign, partial=only is not None))
        if campaign.stopped == kill.INTERRUPTED:
            break
    if not found:
        machines = ", ".join(m.name for m in built)
        why = f"there is nothing to mutate in {machines}: give a machine with actions"
        if only is not None:
            why = f"no mutant is called {only!r}: kvfence mutate --accepted lists names; * is any text"
        raise CannotRun(why)
    return found


def matrix(campaign: Campaign, partial: bool = False) -> Matrix:
    """The matrix of a campaign; ``partial``: of some mutants only, which need not touch every condition."""
    killed = campaign.of(Fate.killed)
    rows = tuple(r for r in _rows(campaign.conditions, killed) if r.total or not partial)
    judged = not (partial or campaign.stopped or campaign.of(Fate.undetermined))
    return Matrix(
        **{name: getattr(campaign, name) for name in ("machine", "ghosts", "missing", "stopped", "seconds")},
        states=tuple(campaign.states),
        tried=_by_kind(campaign.outcomes),
        killed=_by_kind(killed),
        same=len(campaign.of(Fate.same)),
        by_lemma=sum(all(campaign.conditions.get(c) == LEMMA for c in o.noticed) for o in killed),
        rows=rows,
        idle=tuple(r.name for r in rows if judged and not r.total and r.name not in campaign.may_idle),
        accepted_idle=campaign.may_idle,
        vacuous=tuple(campaign.vacuous),
        stale=tuple(campaign.stale),
        survivors=tuple(_survivor(o) for o in campaign.outcomes if o.fate in (Fate.accepted, Fate.survived)),
        undetermined=tuple(_survivor(o) for o in campaign.of(Fate.undetermined)),
    )


def _rows(conditions: dict[str, str], killed: Sequence[Outcome]) -> tuple[Row, ...]:
    """A row for each condition of the machine, for deadlock and ranges, and one for goals and actions."""
    stated = [name for name, id_ in conditions.items() if id_ != LEMMA]
    judges = {*stated, DEADLOCK, RANGE}
    noticed = {o.name: {c: d for c, d in o.noticed.items() if c in judges} for o in killed}
    rows = []
    for name in (*stated, RANGE, DEADLOCK):
        mine = [o for o in killed if name in o.noticed]
        alone = [o for o in mine if len(noticed[o.name]) == 1]
        as_soon = [{c for c, d in noticed[o.name].items() if d <= o.noticed[name]} - {name} for o in mine]
        first = [o for o, others in zip(mine, as_soon, strict=True) if not others]
        implied = _cover(as_soon) if name in conditions and not alone and not first else ()
        id_ = conditions.get(name, "RANGE" if name == RANGE else "DEADLOCK")
        example = (alone or first or mine)[0].name if mine else ""
        if mine or name in conditions:
            rows.append(Row(id_, name, _by_kind(mine), len(alone), len(first), example, implied))
    for id_, title, belongs in (
        (LEMMA, "lemmas", lambda c: conditions.get(c) == LEMMA),
        ("", GOALS, lambda c: c not in conditions and c not in judges),
    ):
        mine = [o for o in killed if any(map(belongs, o.noticed))]
        alone = [o for o in mine if all(map(belongs, o.noticed))]
        if mine:
            rows.append(Row(id_, title, _by_kind(mine), len(alone), 0, (alone or mine)[0].name))
    return tuple(rows)


def _cover(kills: Sequence[set[str]]) -> tuple[str, ...]:
    """Few conditions with at least one of each of the sets, which are not empty."""
    # what the machine states says more than that something went out of range or got stuck
    stated = [k - {RANGE, DEADLOCK} for k in kills]
    left = stated if all(stated) else list(kills)
    chosen: list[str] = []
    while left:
        best = max(sorted({c for k in left for c in k}), key=lambda c: sum(c in k for k in left))
        chosen.append(best)
        left = [k for k in left if best not in k]
    return tuple(chosen)


def _by_kind(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {str(kind): n for kind in Kind if (n := sum(o.kind is kind for o in outcomes))}


def _survivor(o: Outcome) -> Survivor:
    return Survivor(o.name, str(o.kind), str(o.fate), o.new, o.why)
