"""The reference implementation as a connector under test.

The only file of the checker that knows :mod:`kvfence.reference`, most of which needs torch. It is imported
when asked for, so that everything else works without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from kvfence.checker.errors import CannotRun
from kvfence.checker.monitor.ledger import Ledger
from kvfence.checker.monitor.violation import Violation
from kvfence.checker.order.trace_file import OrderTraceWriter
from kvfence.checker.report.replayed import Replayed, Verdict
from kvfence.checker.traces import TraceWriter
from kvfence.spec.events import Event
from kvfence.spec.order import Header as OrderHeader
from kvfence.spec.order import OrderEvent

Progress = Callable[[int, float], None]


class _StopRun(KeyboardInterrupt):
    """Ends the run as Ctrl-C does, so that the run's own report is kept."""


def replay(
    path: Path,
    options: Mapping[str, Any],
    *,
    expected: str = "",
    judge: bool = True,
    record: Path | None = None,
    record_order: Path | None = None,
    progress: Progress | None = None,
) -> Replayed:
    """Replays the production trace ``path`` through the reference implementation, up to the first violation.

    With ``expected``, the invariant that a faulty design is known to break, the run goes on after violations
    of other invariants until that one is violated as well; the first of each invariant is kept.

    ``options`` are the fields of :class:`kvfence.reference.options.Options`. Each event is judged by the
    ledger (unless ``judge`` is false), and written to the trace file ``record`` if there is one; the device's
    order events are written to the order trace ``record_order``. Attention compares contents in any case.
    CannotRun when torch is missing, an option cannot work, or a file cannot be read or written.
    """
    try:
        from kvfence.reference.device.driver import NoDevice
        from kvfence.reference.device.host_pool import HostMemoryRefused
        from kvfence.reference.device.virtual_order import replay_header
        from kvfence.reference.engine import header
        from kvfence.reference.errors import OffloadError, OptionsError, WorkloadError
        from kvfence.reference.options import Options
        from kvfence.reference.replay import replay as run
    except ImportError as error:
        raise CannotRun(
            f"a replay needs {error.name}, which is not installed: run pip install 'kvfence[reference]'"
        ) from error
    try:
        chosen = Options(**options)
        begin = header(chosen)
    except (OptionsError, ValueError) as error:
        raise CannotRun(str(error)) from error
    ledger = Ledger(begin, "count")
    found: dict[str, Violation] = {}
    report: dict[str, Any] | None = None
    broke = ""
    with ExitStack() as stack:
        writer = stack.enter_context(TraceWriter(record, begin)) if record else None
        order = None
        if record_order:
            order = stack.enter_context(OrderTraceWriter(record_order, replay_header(chosen)))
        try:
            observer = _observer(ledger.apply if judge else None, writer, found, expected)
            done = run(path, chosen, observer, progress, order)
            report = {**msgspec.to_builtins(done), "hit_rates": done.hit_rates}
        except (OptionsError, WorkloadError, NoDevice, HostMemoryRefused) as error:
            raise CannotRun(str(error)) from error
        except _StopRun:
            pass
        except OffloadError as error:
            broke = f"{type(error).__name__}: {error}"
    verdict: Verdict = "violated" if found or broke else "holds"
    if verdict == "holds" and not (report and report["complete"]):
        verdict = "undetermined"
    return Replayed(
        path=str(path),
        verdict=verdict,
        options=msgspec.to_builtins(chosen),
        run=report,
        judged=judge,
        events=ledger.events,
        checks=ledger.checks_by_invariant() if judge else {},
        violations=tuple(found.values()),
        expected=expected,
        broke=broke,
        recorded=str(record) if record else None,
    )


def _observer(
    apply: Callable[[Event], Violation | None] | None,
    writer: TraceWriter | None,
    found: dict[str, Violation],
    expected: str,
) -> Callable[[Event], None] | None:
    """What the engine tells its events to: records first, so that the event judged is on the trace."""
    if apply is None:
        return writer

    def observe(event: Event) -> None:
        if writer is not None:
            writer(event)
        violation = apply(event)
        if violation is not None:
            found.setdefault(violation.invariant, violation)
            if expected in {violation.invariant, ""}:
                raise _StopRun

    return observe


def execute(header: OrderHeader, events: Sequence[OrderEvent], steps: Sequence[str]) -> list[str]:
    """Executes an order program on the virtual device in the order ``steps``; needs no torch.

    Returns what was read, or left in memory, other than in the order in which the program is written: a line
    each. CannotRun if the steps do not fit the program.
    """
    from kvfence.reference.device.program import Program, ProgramError
    from kvfence.reference.device.schedules import witness

    try:
        program = Program(header, events)
        run = witness(program, steps)
    except ProgramError as error:
        raise CannotRun(f"the witness cannot be executed: {error}") from error
    regions = list(program.regions.values())
    told = []
    for mismatch in run.mismatches:
        if mismatch.step is None:
            region = regions[mismatch.place]
            told.append(f"memory of {region.name or f'region {region.id}'} ends with another content")
        else:
            call = program.call(mismatch.step)
            name = getattr(call, "name", "") or type(call).__name__.lower()
            told.append(f"step {mismatch.step} ({name}) reads a content that it should not")
    return told
