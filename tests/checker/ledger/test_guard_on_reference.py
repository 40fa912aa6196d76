"""The guard beside a faulty reference implementation: it goes on, and what it records shows the same.

Whatever a faulty design does, the guard in mode ``count`` has no error of its own, and judges to the end of
the run. The recording that it wrote when a rule was broken first, which begins with a snapshot, is judged by
``check`` as the guard judged the run: nothing is wrong before the last event, and that breaks the same rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_traffic import FAILING, SLIDING_AHEAD, SMALL, TIGHT

from kvfence.checker.ledger.check import check_trace
from kvfence.checker.ledger.guard.guard import Guard
from kvfence.checker.ledger.guard.recorder import Recorder

torch = pytest.importorskip("torch")

FAULTS: dict[str, dict[str, Any]] = {
    "over_pop": {},
    "double_release": {},
    "unpinned_lookup": {},
    "evict_pinned": {"gpu_blocks": 135, "cpu_blocks": 60},
    "pins_added_not_replaced": {},
    "count_promised": TIGHT,
    "free_before_processed": SLIDING_AHEAD,
    "duplicate_in_flight_store": {},
    "no_flush_on_finish": {},
    "cursor_not_rewound": {},
    "unpinned_destination": {},
    "ignore_generation": FAILING,
    "complete_on_first_rank": FAILING,
    "lost_completion": {},
    "register_before_landing": {},
    "keep_label_on_failure": FAILING,
    "reset_ignores_in_flight": FAILING,
    "reset_one_tier": FAILING,
}
QUICK = {"evict_pinned", "free_before_processed", "ignore_generation", "reset_ignores_in_flight"}


def serve(guard: Guard, design: str, extra: dict[str, Any]) -> None:
    """Serve small traffic; the fault may end it early."""
    from kvfence.reference.blocks.errors import OffloadError
    from kvfence.reference.blocks.workload import conversations
    from kvfence.reference.engine import header
    from kvfence.reference.replay import run
    from kvfence.reference.scheduler.options import Options

    options = Options(**{**SMALL, **extra}, seed=1, design=design)
    guard(header(options))
    try:
        run(conversations(100, 1), options, guard)
    except OffloadError:
        assert design != "sound"


@pytest.mark.parametrize(
    "design", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_recordings_of_a_faulty_design_show_what_the_guard_found(design: str, tmp_path: Path) -> None:
    guard = Guard("count", recorder=Recorder(tmp_path, last=300, max_files=100))
    serve(guard, design, FAULTS[design])
    guard.close()
    facts = guard.facts()
    assert (facts.verdict, facts.internal_errors, facts.recording_failures) == ("violated", 0, 0)
    recordings = sorted(tmp_path.iterdir())
    assert len(recordings) == facts.recordings > 0
    first = check_trace(recordings[0], limit=None)
    (violation,) = first.violations
    assert violation.number == first.events - 1
    fault = guard.faults[0]
    assert (violation.invariant, violation.condition) == (fault.invariant, fault.condition)


@pytest.mark.parametrize("extra", [{}, FAILING, SLIDING_AHEAD], ids=["plain", "failing", "sliding"])
def test_a_recording_of_the_sound_design_holds_wherever_it_begins(
    extra: dict[str, Any], tmp_path: Path
) -> None:
    guard = Guard("raise", recorder=Recorder(tmp_path, last=200, max_files=1))
    judged = 0

    def now_and_then(event: Any) -> None:
        nonlocal judged
        guard(event)
        if guard.events % 389 == 388:
            path = guard.record()
            assert path is not None
            report = check_trace(path)
            assert report.verdict == "holds", report.violations
            judged += 1

    guard_of_run: Any = now_and_then
    serve(guard_of_run, "sound", extra)
    assert judged > 10
    assert guard.verdict == "holds"
