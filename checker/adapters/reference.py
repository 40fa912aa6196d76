"""The reference implementation as a connector under test.

The only file of the checker that knows :mod:`kvfence.reference`, most of which needs torch. It is imported
when asked for, so that everything else works without torch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from kvfence.checker.audit.case import Abort, Case, Fail, Hold, Reset, Step, Submit
from kvfence.checker.audit.judge import Judge
from kvfence.checker.audit.outcome import Outcome
from kvfence.checker.errors import CannotRun
from kvfence.checker.monitor.ledger import Ledger
from kvfence.checker.monitor.violation import Violation
from kvfence.checker.order.trace_file import OrderTraceWriter
from kvfence.checker.outputs import check_outputs, write_text
from kvfence.checker.report.replayed import Replayed, Verdict
from kvfence.checker.traces import TraceWriter
from kvfence.spec.events import Event
from kvfence.spec.order import Header as OrderHeader
from kvfence.spec.order import OrderEvent

Progress = Callable[[int, float], None]


_PATIENCE: Final = 500
"""Rounds without any progress after which a case stalls: it takes fewer until a copy lands."""
_MOST_ROUNDS: Final = 5000
"""Rounds after which a case should be over; the longest take some hundreds."""
_FILES_LAST: Final = 30
"""Ticks after which a file that gets lost is gone, at most: cases are short."""
_GROUPS: Final[tuple[Any, ...]] = ("full+sliding", "full+sliding", "full+chunked", "full+recurrent")


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
    metrics: Path | None = None,
    progress: Progress | None = None,
) -> Replayed:
    """Replays the production trace ``path`` through the reference implementation, up to the first violation.

    With ``expected``, the invariant that a faulty design is known to break, the run goes on after violations
    of other invariants until that one is violated as well; the first of each invariant is kept.

    ``options`` are the fields of :class:`kvfence.reference.options.Options`. Each event is judged by the
    ledger (unless ``judge`` is false), and written to the trace file ``record`` if there is one; the device's
    order events are written to the order trace ``record_order``, and when the run ends its metrics to the
    file ``metrics``, as Prometheus reads them. Attention compares contents in any case.
    CannotRun when torch is missing, an option cannot work, or a file cannot be read or written.
    """
    try:
        from kvfence.reference.device.driver import NoDevice
        from kvfence.reference.device.host_pool import HostMemoryRefused
        from kvfence.reference.device.virtual_order import replay_header
        from kvfence.reference.engine import header
        from kvfence.reference.errors import OffloadError, OptionsError, WorkloadError
        from kvfence.reference.faults import design_named
        from kvfence.reference.options import Options
        from kvfence.reference.replay import run
        from kvfence.reference.workload import read_mooncake
    except ImportError as error:
        raise CannotRun(
            f"a replay needs {error.name}, which is not installed: run pip install 'kvfence[reference]'"
        ) from error
    try:
        chosen = Options(**options)
        design_named(chosen.design)
        begin = header(chosen)
        # Its first request is read before any file is opened to be written: a refused run leaves none.
        workload = read_mooncake(path, chosen.limit)
        requests = chain([next(workload)], workload)
    except (OptionsError, WorkloadError, ValueError) as error:
        raise CannotRun(str(error)) from error
    outputs = {"--record": record, "--record-order": record_order, "--metrics": metrics}
    check_outputs(outputs, inputs=[path])
    ledger = Ledger(begin, "count")
    found: dict[str, Violation] = {}
    report: dict[str, Any] | None = None
    broke = ""
    with ExitStack() as stack:
        writer = stack.enter_context(TraceWriter(record, begin, inputs=[path])) if record else None
        order = None
        if record_order:
            order = stack.enter_context(OrderTraceWriter(record_order, replay_header(chosen), inputs=[path]))
        watch = _published(metrics, stack, path) if metrics else None
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
    """Publishes a run's metrics in a registry of their own, written to ``file`` when the run ends.

    Of a run that was refused nothing is written.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError as error:
        raise CannotRun(
            f"metrics need {error.name}, which is not installed: run pip install prometheus-client"
        ) from error
    from kvfence.reference.metrics import publish

    registry = CollectorRegistry()

    def written(_kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, CannotRun):
            write_text(file, generate_latest(registry).decode(), inputs=[workload])

    stack.push(written)
    return lambda engine: publish(engine, registry)


def designs() -> tuple[str, ...]:
    """The faulty designs that the reference can switch on. CannotRun when torch is missing."""
    try:
        from kvfence.reference.faults import FAULTS
    except ImportError as error:
        raise _needs(error.name) from error
    return tuple(FAULTS)


def _needs(package: str | None) -> CannotRun:
    return CannotRun(
        f"the reference needs {package}, which is not installed: pip install 'kvfence[reference]'"
    )


def prepare() -> None:
    """Imports what :func:`drive` needs. CannotRun when torch is missing."""
    try:
        import kvfence.reference.device.virtual_order
        import kvfence.reference.engine
        import kvfence.reference.faults  # noqa: F401
    except ImportError as error:
        raise _needs(error.name) from error


def drive(case: Case, design: str, record: Path | None = None) -> Outcome:
    """One run of ``case`` through the reference, with ``design`` switched on; a trace goes to ``record``.

    What the reference has no part for (pipelines, priorities, speculation, a second connector) is left out
    of the case. Contents are compared in every step, events and the order of accesses judged. CannotRun when
    torch is missing.
    """
    prepare()
    from kvfence.reference.device.virtual_order import replay_header
    from kvfence.reference.engine import header
    from kvfence.reference.errors import GarbledBlock, OffloadError, OutOfBlocks, Stalled

    options = _options(case, design)
    kept: list[Event] = []
    judge = Judge(kept.append if record is not None else None)
    judge.begin(header(options))
    if options.tiers == 2:
        judge.begin_order(replay_header(options))
    engine = _scripted(case, options, judge)
    rounds = 0
    try:
        for rounds in engine.rounds():
            judge.step = rounds
            if rounds > _MOST_ROUNDS:
                cause = "steps go on, and requests never come to an end"
                judge.sight("PROGRESS", cause, "stall", f"still busy after {rounds:,} rounds")
                break
    except GarbledBlock as error:
        judge.sight("USE-READY", "attention reads another content than its own", "content", str(error))
    except Stalled as error:
        judge.sight("PROGRESS", "requests wait, and nothing runs any more", "stall", str(error))
    except (OffloadError, AssertionError, KeyError, IndexError, ValueError, RuntimeError) as error:
        invariant = "CONSERVE" if isinstance(error, OutOfBlocks) else ""
        cause = f"the engine breaks down with {type(error).__name__}"
        judge.sight(invariant or "PROGRESS", cause, "exception", f"{type(error).__name__}: {error}")
    finally:
        engine.close()
    if record is not None:
        with TraceWriter(record / "trace.jsonl", header(options)) as writer:
            for event in kept:
                writer(event)
    stats = engine.stats
    judge.counts.update(
        requests=stats.requests, preemptions=stats.preemptions, stores=stats.stores, loads=stats.loads
    )
    return judge.outcome(rounds)


def _options(case: Case, design: str) -> Any:
    from kvfence.reference.options import Options

    setup = case.setup
    windows = [window for window in setup.windows if window]
    several, disk = setup.ranks > 1, setup.tier == "disk"
    # What a case has no word for is drawn by its seed.
    draw = random.Random(setup.seed)
    groups: Any = draw.choice(_GROUPS) if windows else "full"
    count = groups.count("+") + 1
    sizes = tuple(draw.choice((1, 2)) * setup.block_size for _ in range(count)) if draw.random() < 0.4 else ()
    return Options(
        block_size=setup.block_size,
        block_sizes=sizes if count > 1 else (),
        gpu_blocks=setup.gpu_blocks,
        cpu_blocks=setup.cpu_blocks,
        groups=groups,
        window=windows[0] if windows else 1024,
        zero_fill=draw.random() < 0.3 and not disk,
        mode="lazy" if setup.lazy else "eager",
        async_depth=min(setup.depth, 2),
        ranks=setup.ranks,
        late_rank=draw.choice((0, 0, 2, 5)) if several else 0,
        refusing_ranks=draw.choice((0, 0, 1)) if several else 0,
        refuse_rate=draw.choice((0.0, 0.1)) if several else 0.0,
        tiers=3 if disk else 2,
        disk_blocks=4 * setup.cpu_blocks,
        lose_rate=draw.choice((0.0, 0.2, 0.6)) if disk else 0.0,
        token_budget=setup.token_budget,
        max_running=setup.max_running,
        max_waiting=1_000_000,
        store_batch=1,
        max_delay=setup.delay,
        seed=setup.seed,
        fail_rate=setup.fail_rate,
        fail_stores=True,
        on_failure=draw.choice(("recompute", "recompute", "fail")),
        publish=draw.random() < 0.5,
        share_loads=draw.random() < 0.5,
        repeat_rate=setup.repeat_rate,
        design=design,
    )


def _scripted(case: Case, options: Any, judge: Judge) -> Any:
    """An engine that does what ``case`` says, in place of what it would draw."""
    from kvfence.reference.device.protocol import CopyJob
    from kvfence.reference.engine import Engine
    from kvfence.reference.faults import design_named
    from kvfence.reference.request import Request, State

    class Scripted(Engine):
        patience = _PATIENCE

        def __init__(self) -> None:
            order = judge.order_event if options.tiers == 2 else None  # told of two tiers only
            super().__init__(options, iter(()), design_named(options.design), judge.event, order)
            self._script = list(reversed(case.actions))
            self._specs = _specs(case)
            self._requests: list[Request] = []
            self._pause = self._held = 0
            self._until_waits = False
            self._submit = self.device.submit
            setattr(self.device, "submit", self._start)  # noqa: B010 - a method of the protocol
            self._fail_next = False
            if hasattr(self.device, "files") and self.device.files is not None:
                self.device.files.lasts = _FILES_LAST

        def _feed(self) -> bool:
            if self._pause and self._until_waits and self._some_wait():
                self._pause = 0
            if self._pause:
                self._pause -= 1
                return True
            while self._script:
                match self._script.pop():
                    case Submit():
                        self._requests.append(self.scheduler.add_request(self._specs[len(self._requests)]))
                    case Abort() as abort:
                        self._abort(abort)
                    case Reset(running):
                        self.scheduler.reset_prefix_cache(preempt_running=running)
                    case Hold(ticks):
                        self._held = ticks
                    case Fail():
                        self._fail_next = True
                    case Step(times, until_waits):
                        self._until_waits = until_waits
                        if until_waits and self._some_wait():
                            continue
                        self._pause = max(0, times - 1)
                        return True
            return False

        def _some_wait(self) -> bool:
            connector = self.connector
            asks = connector.disk is not None and (connector.disk.questions or connector.disk.fetching)
            return bool(self.scheduler.parked or connector.promises or asks)

        def _waits(self, request: Request) -> bool:
            connector = self.connector
            if request.state is State.PARKED or request.hit_holder in connector.promises:
                return True
            disk = connector.disk
            return disk is not None and (request.holder in disk.questions or disk.is_fetching(request))

        def _abort(self, action: Abort) -> None:
            live = [i for i, request in enumerate(self._requests) if request.state is not State.ENDED]
            waiting = [i for i in live if action.waits and self._waits(self._requests[i])]
            number = action.chosen(len(self._requests), live, waiting)
            if number >= 0:
                self.scheduler.abort_request(self._requests[number])

        def _advance(self) -> None:
            if self._held:
                self._held -= 1
            else:
                super()._advance()

        def _start(self, job: CopyJob) -> None:
            rate = getattr(self.device, "fail_rate", 0.0)
            if self._fail_next and hasattr(self.device, "fail_rate"):
                self._fail_next, self.device.fail_rate = False, 1.0
            self._submit(job)
            if hasattr(self.device, "fail_rate"):
                self.device.fail_rate = rate

    return Scripted()


def _specs(case: Case) -> list[Any]:
    """The requests of ``case``: every token by an id that stands for it and all before it."""
    import numpy as np

    from kvfence.reference.workload import RequestSpec

    specs: list[Any] = []
    texts: list[list[int]] = []
    for action in case.actions:
        if not isinstance(action, Submit):
            continue
        uid = len(specs)
        text = list(texts[action.after]) if 0 <= action.after < uid else []
        begin, prompt = len(text), len(text) + action.prompt
        shared = min(action.shared, action.prompt) if not text else 0
        end = prompt + action.output
        text += [((action.family + 1) << 32) + t for t in range(begin, begin + shared)]
        text += [((uid + 1) << 44) + t for t in range(begin + shared, end)]
        # What it samples is fixed too, so that a later prompt can go on from there.
        specs.append(RequestSpec(uid, prompt, action.output, np.array(text, np.int64), end, 1))
        texts.append(text)
    return specs


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
