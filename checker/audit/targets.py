"""What can be audited, as targets of a campaign."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from kvfence.checker.audit.cases.case import Case
from kvfence.checker.audit.cases.outcome import Outcome
from kvfence.checker.audit.cases.setup_features import Reach
from kvfence.checker.audit.releases.fetch import Release
from kvfence.checker.audit.releases.lab import Note
from kvfence.checker.audit.rig.process import Rig
from kvfence.checker.core.processes import end, processes

REFERENCE: Final = Reach(
    ranks=(1, 2, 4),
    disk=True,
    odds={"disk": 0.45, "failures": 0.2},
    weights={"returning": 4},
    shows_who_waits=True,
)
VLLM: Final = Reach(
    ranks=(1, 2),
    stages=(1, 2),
    unchunked=True,
    priority=True,
    drafts=(0, 1, 3),
    disk=True,
    launch_delay=True,
    # A worker reports each end once, by the code under test.
    repeats=False,
    second_connector=True,
)


class Reference:
    """The reference implementation with ``design`` switched on, in several processes if wanted."""

    def __init__(self, design: str, processes: int = 1) -> None:
        self.design = design
        self.name = "the reference" + ("" if design == "sound" else f" with {design}")
        self.width = processes
        self._pool: ProcessPoolExecutor | None = None

    def run(self, case: Case, record: Path | None = None) -> Outcome:
        """Drives it through ``case``; ``record``: a folder for the trace. Several threads may call it."""
        if record is None and self.width > 1:
            return self._processes().submit(_driven, self.design, case).result()
        return _driven(self.design, case, record)

    def run_all(self, cases: Sequence[Case]) -> Iterator[Outcome]:
        """Side by side, or one after the other."""
        if self.width == 1:
            return map(self.run, cases)
        return self._processes().map(partial(_driven, self.design), cases)

    def _processes(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Imported here, so that each process has it already: it takes a second.
            from kvfence.checker.audit.reference_run import prepare

            prepare()
            self._pool = processes(self.width)
        return self._pool

    def close(self) -> None:
        """Ends the processes."""
        if self._pool is not None:
            end(self._pool)
            self._pool = None


def _driven(design: str, case: Case, record: Path | None = None) -> Outcome:
    from kvfence.checker.audit.reference_run import drive

    return drive(case, design, record)


class Vllm:
    """A release of vLLM with ``connector``, in several processes that run cases side by side."""

    def __init__(self, release: Release, connector: str, processes: int, note: Note | None = None) -> None:
        self._rigs = [Rig(release, connector, note) for _ in range(processes)]
        self.name, self.release, self.width = self._rigs[0].name, release, processes
        self._free: queue.SimpleQueue[Rig] = queue.SimpleQueue()

    def start(self) -> None:
        """Starts the processes, and tries the connector. CannotRun if it cannot be driven."""
        with ThreadPoolExecutor(self.width) as pool:
            list(pool.map(Rig.start, self._rigs))
        self._rigs[0].check()
        for rig in self._rigs:
            self._free.put(rig)

    @contextmanager
    def _rig(self) -> Iterator[Rig]:
        rig = self._free.get()
        try:
            yield rig
        finally:
            self._free.put(rig)

    def run(self, case: Case, record: Path | None = None) -> Outcome:
        """Drives it through ``case``; ``record``: a folder for traces. Several threads may call it."""
        with self._rig() as rig:
            return rig.run(case, record)

    def control(self, case: Case) -> Outcome:
        """Drives the engine through ``case`` without a connector."""
        with self._rig() as rig:
            return rig.run(case, connector=None)

    def run_all(self, cases: Sequence[Case]) -> Iterator[Outcome]:
        """Side by side; a process takes the next case when it is done with one."""
        pool = ThreadPoolExecutor(self.width)
        try:
            yield from pool.map(self.run, cases)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Ends the processes."""
        for rig in self._rigs:
            rig.close()
