"""What can be audited, as targets of a campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvfence.checker.audit.case import Case
from kvfence.checker.audit.outcome import Outcome
from kvfence.checker.audit.workload import Reach

REFERENCE: Final = Reach()
VLLM: Final = Reach(
    ranks=(1, 1, 2),
    stages=(1, 1, 1, 2),
    unchunked=True,
    priority=True,
    disk=True,
    launch_delay=True,
    # A worker reports each end once, by the code under test.
    repeats=False,
    second_connector=True,
)


class Reference:
    """The reference implementation with ``design`` switched on."""

    def __init__(self, design: str) -> None:
        self.design = design
        self.name = "the reference" + ("" if design == "sound" else f" with {design}")

    def run(self, case: Case, record: Path | None = None) -> Outcome:
        """Drives it through ``case``; ``record``: a folder for the trace."""
        from kvfence.checker.adapters.reference import drive

        return drive(case, self.design, record)

    def close(self) -> None:
        """Nothing to give back."""
