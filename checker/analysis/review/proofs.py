"""Why an invariant holds on a side of a review: a proof for any size, or at which sizes it was exhausted."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from kvfence.checker.analysis.results import MachineFacts
from kvfence.checker.analysis.review.facts import Evidence, InvariantReview, Leant
from kvfence.checker.core.names import PROOF_SECONDS
from kvfence.checker.engines.base import Progress, Result, Verdict
from kvfence.spec.language import Machine

if TYPE_CHECKING:
    from kvfence.checker.engines.smt.needed import Prover

NO_PROOF_ASKED = "no proof was asked for"
WHOLE_RUNS = "promises about whole runs are not proved"
NO_Z3 = "z3 is not installed: pip install 'kvfence[smt]'"

Side = Literal["base", "change"]


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
        machines: Mapping[Side, Machine],
        facts: Mapping[Side, MachineFacts],
        promised: Mapping[Side, Result | None],
        restated: Collection[str],
        report: Callable[[Side], Callable[[Progress], None] | None],
    ) -> list[InvariantReview]:
        """The rows, those that the change concerns with why they hold, on each side where they do.

        These are the rows whose verdict differs, and those whose statement does (``restated``).
        """
        out = list(rows)
        for side in ("base", "change"):
            judge = _Judge(self, machines[side], facts[side], promised[side], side, report(side))
            for k, row in enumerate(out):
                verdict = row.base if side == "base" else row.change
                concerned = row.base is not row.change or row.effect == "open"
                concerned = concerned or (side == "change" and row.invariant in restated)
                if concerned and judge.may_hold(row, verdict):
                    out[k] = replace(row, evidence=(*row.evidence, judge.evidence(row, verdict)))
        return out


class _Judge:
    """The evidence for the rows of one side of one machine."""

    def __init__(
        self,
        proofs: Proofs,
        machine: Machine,
        facts: MachineFacts,
        promised: Result | None,
        side: Side,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.proofs, self.machine, self.facts, self.promised = proofs, machine, facts, promised
        self.side, self.report = side, report
        self.prover: Prover | None = None

    def may_hold(self, row: InvariantReview, verdict: Verdict | None) -> bool:
        """Whether there is anything to say: it holds, or an exploration that was stopped left it open."""
        if row.kind == "progress":
            return verdict is Verdict.holds
        return verdict is Verdict.holds or (
            verdict is Verdict.undetermined and self.facts.stopped is not None
        )

    def evidence(self, row: InvariantReview, verdict: Verdict | None) -> Evidence:
        """Why the row's invariant holds on this side."""
        if row.kind == "progress":
            return self._of_liveness(row)
        plain = Evidence(
            side=self.side,
            basis="exhausted" if verdict is Verdict.holds else "open",
            conditions=tuple(
                dict.fromkeys(c.name for c in self.facts.conditions if c.invariant == row.invariant)
            ),
            sizes=self.facts.sizes,
            states=self.facts.states,
        )
        options = self.proofs.options
        if options is None:
            return replace(plain, why=NO_PROOF_ASKED)
        if not self.proofs.able:
            return replace(plain, why=NO_Z3)
        if self.proofs.interrupted:
            return replace(plain, why="interrupted")
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
            lemmas=tuple(Leant(n, _line(lemmas[n].doc)) for n in besides if n in lemmas),
            invariants=tuple(n for n in besides if n not in lemmas),
            questions=found.questions,
            second=options.second or "",
            second_open=found.second_open,
            seconds=found.seconds,
        )

    def _of_liveness(self, row: InvariantReview) -> Evidence:
        graph = self.promised
        assert graph is not None
        fair = {name: a.fair for name, a in self.machine.actions.items() if a.fair is not None}
        return Evidence(
            side=self.side,
            basis="exhausted",
            conditions=row.conditions,
            why=WHOLE_RUNS,
            sizes=graph.sizes,
            states=graph.states,
            fairness=dict(fair),
        )


def _line(doc: str) -> str:
    return " ".join(doc.split())
