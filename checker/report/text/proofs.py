"""How a proof for sorts of any size reads in the report of ``kvfence verify``."""

from __future__ import annotations

from collections.abc import Iterator

from kvfence.checker.analysis.results import MachineFacts

SHOWN = 8  # names of undecided questions that are printed

Row = tuple[str, ...]


def verdict_with_time(machine: MachineFacts, invariant: str) -> str | None:
    """The verdict on an invariant and the seconds that its questions took; None when it is not stated."""
    verdict = machine.verdict_on(invariant)
    if verdict is None or machine.proof is None:
        return verdict and str(verdict)
    own = [c.name for c in machine.conditions if c.invariant == invariant]
    names = ["deadlock"] if invariant == "DEADLOCK" else own
    seconds = sum(machine.proof.seconds.get(name, 0.0) for name in names)
    return f"{verdict} {seconds:.1f} s"


def work_rows(machines: tuple[MachineFacts, ...]) -> Iterator[Row]:
    """The rows of the table that say how much was asked."""
    proofs = [machine.proof for machine in machines if machine.proof is not None]
    yield "questions", *(f"{p.questions:,}" for p in proofs), "asked of z3, each with a time limit"
    yield "rechecked", *(f"{p.rechecked:,}" for p in proofs), "decided again by a new z3"
    if any(p.second for p in proofs):
        second = next(p.second for p in proofs if p.second) or ""
        decided = (f"{p.rechecked - len(p.second_open):,}" for p in proofs)
        yield second, *decided, "of these, decided again by another solver"


def proof_remarks(machine: MachineFacts) -> Iterator[str]:
    """What must be said of a proof besides the verdicts."""
    proof = machine.proof
    if proof is None:
        return
    for why in dict.fromkeys(proof.open.values()):
        names = ", ".join(name for name, reason in proof.open.items() if reason == why)
        text = f"not proved: {names}" if "," in names else f"{names} is not proved"
        yield f"{machine.machine}: {text}: {why}."
    if proof.second_open:
        names = ", ".join(proof.second_open[:SHOWN])
        more = f" and {len(proof.second_open) - SHOWN} more" if len(proof.second_open) > SHOWN else ""
        yield f"{machine.machine}: {proof.second} did not decide in time: {names}{more}."
    if proof.exported:
        yield f"{machine.machine}: the proof is in {proof.exported}/{machine.machine}."
