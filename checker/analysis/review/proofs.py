"""Why an invariant holds in a design of a review: a proof for any size, or the sizes that were exhausted."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from kvfence.checker.analysis.results import MachineFacts
from kvfence.checker.analysis.review.facts import SIDES, Evidence, InvariantReview, Side, UsedLemma
from kvfence.checker.core.names import PROOF_SECONDS
from kvfence.checker.engines.base import Progress, Result, Verdict
from kvfence.spec.language import Machine

if TYPE_CHECKING:
    from kvfence.checker.engines.smt.needed import Prover

NO_PROOF_ASKED = "no proof was asked for"
WHOLE_RUNS = "promises about whole runs are not proved"
NO_Z3 = "z3 is not installed: pip install 'kvfence[smt]'"


@dataclass(frozen=True)
class Proving:
    """What the proofs of a review may cost: ``seconds`` in all. ``second``: another solver to ask, too."""

    seconds: float = PROOF_SECONDS
    second: str | None = None


class Proofs:
    """The proofs of one review, which share one limit of time; with ``None`` nothing is proved.

    CannotRun for a second solver that does not exist or is not installed.
    """

    def __init__(self, options: Proving | None) -> None:
        self.options = options
        self.left = options.seconds if options else 0.0
        self.interrupted = False
        self.able = find_spec("z3") is not None
        if options is not None and options.second and self.able:
            from kvfence.checker.engines.smt.recheck import second_solver

            second_solver(options.second)

    def added(
        self,
        rows: Sequence[InvariantReview],
        machines: Sequence[Machine],
        facts: Sequence[MachineFacts],
        liveness: Sequence[Result | None],
        restated: Collection[str],
        report: Callable[[Side], Callable[[Progress], None] | None],
    ) -> list[InvariantReview]:
        """The rows; those that the change concerns say why they hold, for each design in which they do.

        These are the rows whose verdict differs, and those whose statement does (``restated``). ``machines``,
        ``facts`` and results on ``liveness`` are those of the base and of the change.
        """
        out = list(rows)
        for side, machine, own, live in zip(SIDES, machines, facts, liveness, strict=True):
            judge = _Evidences(self, machine, own, live, side, report(side))
            for k, row in enumerate(out):
                verdict = row.base if side == "base" else row.change
                concerned = row.base is not row.change or row.effect == "open"
                concerned = concerned or (side == "change" and row.invariant in restated)
                if concerned and judge.may_hold(row, verdict):
                    out[k] = replace(row, evidence=(*row.evidence, judge.evidence(row, verdict)))
        return out


@dataclass
class _Evidences:
    """The evidence for the rows of one machine, of the base or of the change."""

    proofs: Proofs
    machine: Machine
    facts: MachineFacts
    liveness: Result | None
    side: Side
    report: Callable[[Progress], None] | None
    prover: Prover | None = None

    def may_hold(self, row: InvariantReview, verdict: Verdict | None) -> bool:
        """Whether there is anything to say: it holds, or an exploration that was stopped left it open."""
        unfinished = row.kind == "safety" and self.facts.stopped is not None
        return verdict is Verdict.holds or (verdict is Verdict.undetermined and unfinished)

    def evidence(self, row: InvariantReview, verdict: Verdict | None) -> Evidence:
        """Why the row's invariant holds."""
        if row.kind == "progress":
            return self._of_liveness(row)
        names = dict.fromkeys(c.name for c in self.facts.conditions if c.invariant == row.invariant)
        plain = Evidence(
            side=self.side,
            basis="exhausted" if verdict is Verdict.holds else "open",
            conditions=tuple(names),
            sizes=self.facts.sizes,
            states=self.facts.states,
        )
        options = self.proofs.options
        if options is None:
            return replace(plain, why=NO_PROOF_ASKED)
        if not self.proofs.able or self.proofs.interrupted:
            return replace(plain, why="interrupted" if self.proofs.able else NO_Z3)
        start = time.perf_counter()
        try:
            return self._proved(row, plain, options)
        except KeyboardInterrupt:
            self.proofs.interrupted = True
            return replace(plain, why="interrupted")
        finally:
            self.proofs.left -= time.perf_counter() - start

    def _proved(self, row: InvariantReview, plain: Evidence, options: Proving) -> Evidence:
        from kvfence.checker.engines.smt.needed import Prover, named

        if self.prover is None:
            false = {c.name for c in self.facts.conditions if c.verdict is Verdict.violated}
            self.prover = Prover(self.machine, false=false, second=options.second, progress=self.report)
        self.prover.deadline = time.perf_counter() + self.proofs.left
        names = named(self.machine, row.invariant)
        found = self.prover.prove(names)
        if found.open:
            return replace(plain, why=found.open, seconds=found.seconds)
        lemmas = self.machine.lemmas
        besides = [name for name in found.needs if name not in names]
        return replace(
            plain,
            basis="proved",
            conditions=tuple(names),
            lemmas=tuple(UsedLemma(n, " ".join(lemmas[n].doc.split())) for n in besides if n in lemmas),
            invariants=tuple(n for n in besides if n not in lemmas),
            questions=found.questions,
            second=options.second or "",
            second_open=found.second_open,
            seconds=found.seconds,
        )

    def _of_liveness(self, row: InvariantReview) -> Evidence:
        graph = self.liveness
        assert graph is not None
        fair: dict[str, str] = {
            name: a.fair for name, a in self.machine.actions.items() if a.fair is not None
        }
        found: Any = {"conditions": row.conditions, "sizes": graph.sizes, "states": graph.states}
        return Evidence(side=self.side, basis="exhausted", why=WHOLE_RUNS, fairness=fair, **found)
