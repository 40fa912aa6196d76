"""The reference implementation as a connector under test: it plays the cases of an audit.

Most of :mod:`kvfence.reference` needs torch. It is imported when asked for, so that everything else works
without torch.
"""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from kvfence.checker.adapters.reference import needs
from kvfence.checker.audit.cases.case import Abort, Case, Fail, Hold, Reset, Step, Submit
from kvfence.checker.audit.cases.judge import Judge
from kvfence.checker.audit.cases.outcome import Outcome
from kvfence.spec import events as ev
from kvfence.spec.files.traces import TraceWriter

_PATIENCE: Final = 500
"""Rounds without any progress after which a case stalls: it takes fewer until a copy lands."""
_MOST_ROUNDS: Final = 5000
"""Rounds after which a case should be over; the longest take some hundreds."""
_FILES_LAST: Final = 30
"""Ticks after which a file that gets lost is gone, at most: cases are short."""
_GROUPS: Final[tuple[Any, ...]] = ("full+sliding", "full+sliding", "full+chunked", "full+recurrent")

_ALIKE: Final = (
    "block_size",
    "gpu_blocks",
    "cpu_blocks",
    "ranks",
    "token_budget",
    "max_running",
    "seed",
    "fail_rate",
    "repeat_rate",
)
"""Parts of a setup that are options of the reference, under the same names."""


def prepare() -> None:
    """Imports what :func:`drive` needs. CannotRun when torch is missing."""
    try:
        for module in ("designs.faulty", "device.virtual_order", "engine"):
            import_module(f"kvfence.reference.{module}")
    except ImportError as error:
        raise needs(error.name) from error


def drive(case: Case, design: str, record: Path | None = None) -> Outcome:
    """One run of ``case`` through the reference, with ``design`` switched on; a trace goes to ``record``.

    What the reference has no part for (pipelines, priorities, speculation, a second connector) is left out
    of the case. Contents are compared in every step, events and the order of accesses judged. CannotRun when
    torch is missing.
    """
    prepare()
    from kvfence.reference.blocks.errors import GarbledBlock, OffloadError, OutOfBlocks, Stalled
    from kvfence.reference.device.virtual_order import replay_header
    from kvfence.reference.engine import header

    options = _options(case, design)
    kept: list[ev.Event] = []
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
        invariant, kind = "CONSERVE" if isinstance(error, OutOfBlocks) else "PROGRESS", type(error).__name__
        judge.sight(invariant, f"the engine breaks down with {kind}", "exception", f"{kind}: {error}")
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
    from kvfence.reference.scheduler.options import Options

    setup = case.setup
    windows = [window for window in setup.windows if window]
    several, disk = setup.ranks > 1, setup.tier == "disk"
    # What a case has no word for is drawn by its seed.
    draw = random.Random(setup.seed)
    groups: Any = draw.choice(_GROUPS) if windows else "full"
    count = groups.count("+") + 1
    sizes = tuple(draw.choice((1, 2)) * setup.block_size for _ in range(count)) if draw.random() < 0.4 else ()
    return Options(
        **{name: getattr(setup, name) for name in _ALIKE},
        block_sizes=sizes if count > 1 else (),
        groups=groups,
        window=windows[0] if windows else 1024,
        zero_fill=draw.random() < 0.3 and not disk,
        mode="lazy" if setup.lazy else "eager",
        async_depth=2 if setup.depth > 1 else 1,
        late_rank=draw.choice((0, 0, 2, 5)) if several else 0,
        refusing_ranks=draw.choice((0, 0, 1)) if several else 0,
        refuse_rate=draw.choice((0.0, 0.1)) if several else 0.0,
        tiers=3 if disk else 2,
        disk_blocks=4 * setup.cpu_blocks,
        lose_rate=draw.choice((0.0, 0.2, 0.6)) if disk else 0.0,
        max_waiting=1_000_000,
        store_batch=1,
        max_delay=setup.delay,
        fail_stores=True,
        on_failure=draw.choice(("recompute", "recompute", "fail")),
        publish=draw.random() < 0.5,
        share_loads=draw.random() < 0.5,
        design=design,
    )


def _scripted(case: Case, options: Any, judge: Judge) -> Any:
    """An engine that does what ``case`` says, in place of what it would draw."""
    from kvfence.reference.blocks.request import Request, State
    from kvfence.reference.designs.faulty import design_named
    from kvfence.reference.device.protocol import CopyJob
    from kvfence.reference.engine import Engine

    class Scripted(Engine):
        patience = _PATIENCE

        def __init__(self) -> None:
            order = judge.order_event if options.tiers == 2 else None  # emitted for two tiers only
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
            if not (self._fail_next and hasattr(self.device, "fail_rate")):
                self._submit(job)
                return
            rate, self._fail_next, self.device.fail_rate = self.device.fail_rate, False, 1.0
            self._submit(job)
            self.device.fail_rate = rate

    return Scripted()


def _specs(case: Case) -> list[Any]:
    """The requests of ``case``: every token by an id that stands for it and all before it."""
    import numpy as np

    from kvfence.reference.blocks.workload import RequestSpec

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
