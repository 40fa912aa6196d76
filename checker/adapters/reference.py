"""The reference implementation on production traces, and on order programs.

Most of :mod:`kvfence.reference` needs torch. It is imported when asked for, so that everything else works
without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec import events as ev
from kvfence.spec import order as od
from kvfence.spec.errors import CannotRun
from kvfence.spec.files.order_traces import OrderTraceWriter
from kvfence.spec.files.outputs import check_outputs, write_text
from kvfence.spec.files.traces import TraceWriter

Progress = Callable[[int, float], None]
Verdict = Literal["holds", "violated", "undetermined"]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One replay.

    ``run`` is the connector's own report, None when it broke down; ``broke`` says how. ``checks`` counts the
    judgements made for each invariant; there are none when ``judged`` is false. ``why`` a run that shows no
    violation is undetermined: ``not judged``, ``interrupted`` or ``nothing ran``. ``violations``: the first
    of each invariant that was violated; ``expected``: the one that the design is known to break.
    """

    path: str
    verdict: Verdict
    options: dict[str, Any]
    run: dict[str, Any] | None
    judged: bool
    events: int
    checks: dict[str, int]
    why: str = ""
    violations: tuple[Violation, ...] = ()
    expected: str = ""
    broke: str = ""
    recorded: str | None = None


class _StopRun(KeyboardInterrupt):
    """Ends the run as Ctrl-C does, so that the run's own report is kept."""


def replay(
    path: str | Path,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    expected: str = "",
    judge: bool = True,
    record: str | Path | None = None,
    record_order: str | Path | None = None,
    metrics: str | Path | None = None,
    progress: Progress | None = None,
) -> Replayed:
    """Replays the workload ``path`` through the reference implementation, up to the first violation.

    With ``expected``, the invariant that a faulty design is known to break, the run goes on after violations
    of other invariants until that one is violated as well; the first of each invariant is kept.

    ``options`` are those of :mod:`kvfence.reference.scheduler.options`. Each event is judged by the
    ledger (unless ``judge`` is false), and written to the trace file ``record`` if there is one; the device's
    order events are written to the order trace ``record_order``, and when the run ends its metrics to the
    file ``metrics``, as Prometheus reads them. Attention compares contents in any case.
    CannotRun when torch is missing, an option cannot work, or a file cannot be read or written.

    >>> import json, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     workload, trace = pathlib.Path(folder, "workload.jsonl"), pathlib.Path(folder, "trace.jsonl")
    ...     request = {"timestamp": 0, "input_length": 32, "output_length": 4, "hash_ids": [1]}
    ...     _ = workload.write_text(json.dumps(request) + "\\n")
    ...     done = replay(workload, {"gpu_blocks": 64, "cpu_blocks": 64}, record=trace)
    ...     done.verdict, len(trace.read_text().splitlines()) == 1 + done.events
    ('holds', True)
    """
    path = Path(path)
    outputs = {"--record": record, "--record-order": record_order, "--metrics": metrics}
    files = {option: Path(file) if file else None for option, file in outputs.items()}
    try:
        from kvfence.reference.blocks.errors import OffloadError, OptionsError, WorkloadError
        from kvfence.reference.blocks.workload import read_mooncake
        from kvfence.reference.designs.faulty import design_named
        from kvfence.reference.device.virtual_order import replay_header
        from kvfence.reference.driver.driver import NoDevice
        from kvfence.reference.driver.host_pool import HostMemoryRefused
        from kvfence.reference.engine import header
        from kvfence.reference.replay import run
        from kvfence.reference.scheduler.options import Options
    except ImportError as error:
        what = f"a replay needs {error.name}, which is not installed: run pip install 'kvfence[reference]'"
        raise CannotRun(what) from error
    try:
        chosen = Options(**options)
        design_named(chosen.design)
        begin = header(chosen)
        # Its first request is read before any file is opened to be written: a refused run leaves none.
        workload = read_mooncake(path, chosen.limit)
        requests = chain([next(workload)], workload)
    except (OptionsError, WorkloadError, ValueError) as error:
        raise CannotRun(str(error)) from error
    check_outputs(files, inputs=[path])
    ledger = Ledger(begin, "count")
    found: dict[str, Violation] = {}
    report: dict[str, Any] | None = None
    broke = ""
    with ExitStack() as stack:
        writer = stack.enter_context(TraceWriter(record, begin, inputs=[path])) if record else None
        order = None
        if record_order:
            order = stack.enter_context(OrderTraceWriter(record_order, replay_header(chosen), inputs=[path]))
        watch = _published(Path(metrics), stack, path) if metrics else None
        try:
            observer = _observer(ledger.apply if judge else None, writer, found, expected)
            done = run(requests, chosen, observer, progress, order, watch)
            report = {**msgspec.to_builtins(done), "hit_rates": done.hit_rates}
        except (OptionsError, WorkloadError, NoDevice, HostMemoryRefused) as error:
            raise CannotRun(str(error)) from error
        except _StopRun:
            pass
        except OffloadError as error:
            broke = f"{type(error).__name__}: {error}"
    checks = ledger.checks_by_invariant() if judge else {}
    verdict: Verdict = "violated" if found or broke else "holds"
    why = ""
    if verdict == "holds" and not (report and report["complete"]):
        verdict, why = "undetermined", "interrupted"
    elif verdict == "holds" and not sum(checks.values()):
        verdict, why = "undetermined", "not judged"
    elif verdict == "holds" and report and not report["stats"]["steps"]:
        verdict, why = "undetermined", "nothing ran"
    return Replayed(
        path=str(path),
        verdict=verdict,
        options=msgspec.to_builtins(chosen),
        run=report,
        judged=judge,
        events=ledger.events,
        checks=checks,
        why=why,
        violations=tuple(found.values()),
        expected=expected,
        broke=broke,
        recorded=str(record) if record else None,
    )


def _published(file: Path, stack: ExitStack, workload: Path) -> Callable[[Any], object]:
    """Publish a run's metrics in a registry of their own, written to ``file`` when the run ends.

    Of a run that was refused nothing is written.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError as error:
        raise CannotRun(
            f"metrics need {error.name}, which is not installed: run pip install prometheus-client"
        ) from error
    from kvfence.reference.published import publish

    registry = CollectorRegistry()

    def written(_kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, CannotRun):
            write_text(file, generate_latest(registry).decode(), inputs=[workload])

    stack.push(written)
    return lambda engine: publish(engine, registry)


def designs() -> tuple[str, ...]:
    """The faulty designs that the reference can switch on. CannotRun when torch is missing."""
    try:
        from kvfence.reference.designs.faulty import FAULTS
    except ImportError as error:
        raise needs(error.name) from error
    return tuple(FAULTS)


def needs(package: str | None) -> CannotRun:
    """The error that says which ``package`` of the reference is not installed."""
    return CannotRun(
        f"the reference needs {package}, which is not installed: pip install 'kvfence[reference]'"
    )


def _observer(
    apply: Callable[[ev.Event], Violation | None] | None,
    writer: TraceWriter | None,
    found: dict[str, Violation],
    expected: str,
) -> Callable[[ev.Event], None] | None:
    """What the engine emits its events to: records first, so that the event judged is on the trace."""
    if apply is None:
        return writer

    def observe(event: ev.Event) -> None:
        if writer is not None:
            writer(event)
        violation = apply(event)
        if violation is not None:
            found.setdefault(violation.invariant, violation)
            if expected in {violation.invariant, ""}:
                raise _StopRun

    return observe


def execute(header: od.Header, events: Sequence[od.OrderEvent], steps: Sequence[str]) -> list[str]:
    """Execute an order program on the virtual device in the order ``steps``; needs no torch.

    Returns what was read, or left in memory, other than in the order in which the program is written: a line
    each. CannotRun if the steps do not fit the program.
    """
    from kvfence.reference.order_programs.program import Program, ProgramError
    from kvfence.reference.order_programs.schedules import witness

    try:
        program = Program(header, events)
        run = witness(program, steps)
    except ProgramError as error:
        raise CannotRun(f"the witness cannot be executed: {error}") from error
    regions = list(program.regions.values())
    problems = []
    for mismatch in run.mismatches:
        if mismatch.step is None:
            region = regions[mismatch.place]
            problems.append(f"memory of {region.name or f'region {region.id}'} ends with another content")
        else:
            call = program.call(mismatch.step)
            name = getattr(call, "name", "") or type(call).__name__.lower()
            problems.append(f"step {mismatch.step} ({name}) reads a content that it should not")
    return problems
