"""The instrumentation of this process: one, however often and by whomever it is asked for."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, get_args

from kvfence.checker.adapters.vllm.hooks.instrument import Instrumentation, instrument
from kvfence.checker.adapters.vllm.notes.compiled_hooks import compiled_hooks
from kvfence.checker.adapters.vllm.notes.hook_coverage import CHECKED
from kvfence.checker.adapters.vllm.notes.judge_thread import Judge, flush_all
from kvfence.checker.adapters.vllm.stream.pool_events import Sink
from kvfence.checker.adapters.vllm.worker.worker_races import Races
from kvfence.checker.ledger.guard.guard import Guard, GuardMode
from kvfence.checker.ledger.guard.recorder import Recorder
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec import events as ev

MODES: Final[tuple[str, ...]] = get_args(GuardMode)
ENGINES_KEPT: Final = 64
"""Guards of engines that are kept for reports, when one process makes many engines."""

log = logging.getLogger("kvfence.vllm")


class Runtime:
    """Hooks of this process and a guard for each engine in it."""

    def __init__(self, mode: GuardMode, folder: str | None) -> None:
        self.mode = mode
        self.folder = folder
        self.guards: list[Guard] = []
        self.before: Counter[str] = Counter()
        """Violations of engines whose guards are not kept any more."""
        self.on_violation: Callable[[Violation], None] | None = None
        self.judge = None if mode == "raise" else Judge()
        self.races = Races(mode)
        """Of the worker sides of this process: what is wrong with the order on their streams."""
        self.instrumentation: Instrumentation = instrument(
            open_sink=self.open,
            make_note_queue=None if self.judge is None else self.judge.note_queue,
            on_race=self.races.found,
            not_checked=self.races.not_checked,
        )
        self.instrumentation.workers.after_step = self.races.raise_found

    def open(self, header: ev.Header) -> Sink:
        """What gets the events of an engine that begins with ``header``: a guard, or what leads to one."""
        recorder = Recorder(self.folder) if self.folder else None
        guard = Guard(self.mode, header, recorder=recorder, on_violation=self._found)
        for hook, state in self.instrumentation.coverage.items():
            if state != CHECKED and hook in self.instrumentation.coverage.needed:
                guard.not_checked(f"{hook}: {state}")
        if recorder is not None:
            guard.record_on()
        self.guards.append(guard)
        if len(self.guards) > ENGINES_KEPT:
            gone = self.guards.pop(0)
            gone.close()
            self.before.update(gone.facts().violations)
        return guard if self.judge is None else self.judge.sink(guard)

    def _found(self, violation: Violation) -> None:
        if self.on_violation is not None:
            self.on_violation(violation)

    def violations(self) -> Counter[str]:
        """How often each invariant was broken, in all engines of the process, as far as it is judged."""
        return self.engine_violations() + self.races.counts

    def engine_violations(self) -> Counter[str]:
        """Those of :meth:`violations` that the ledger found on the scheduler side."""
        total = Counter(self.before)
        for guard in self.guards:
            total.update(guard.facts().violations)
        return total

    @property
    def undetermined(self) -> bool:
        """Whether something could not be judged."""
        return self.instrumentation.undetermined or any(
            guard.verdict == "undetermined" for guard in self.guards
        )

    def not_checked(self) -> list[str]:
        """What was not checked, and why, each once."""
        coverage = self.instrumentation.coverage
        found = {f"{hook}: {state}": None for hook, state in coverage.items() if state != CHECKED}
        for guard in self.guards:
            found.update(dict.fromkeys(guard.facts().gaps))
        found.update(self.races.gaps)
        return list(found)

    def close(self) -> None:
        """Take the hooks out, and wait for what is being written."""
        self.instrumentation.close()
        self.instrumentation.remove()
        for guard in self.guards:
            guard.close()


_lock = threading.Lock()
_here: Runtime | None = None


def install(mode: str, folder: str | None = None) -> Runtime:
    """Observe the engines of this process; the second and further calls change nothing.

    ``folder``: where to write the last events when something is wrong. ValueError for a mode that there is
    not; ImportError without vLLM.
    """
    global _here  # noqa: PLW0603 - one for each process
    if mode not in MODES or mode == "off":
        raise ValueError(f"kvfence has no mode {mode!r}: use raise, log or count")
    with _lock:
        if _here is None:
            _here = Runtime(mode, folder)  # type: ignore[arg-type]  # one of MODES
            hooks = "in Python" if _here.judge is None or compiled_hooks() is None else "compiled"
            log.info("kvfence observes the engines of process %d (%s, hooks %s)", os.getpid(), mode, hooks)
        elif _here.mode != mode:
            log.warning("kvfence is in mode %s already; %s is ignored", _here.mode, mode)
        return _here


def active() -> Runtime | None:
    """The instrumentation of this process, if there is one."""
    return _here


def uninstall() -> None:
    """Take the hooks of this process out again."""
    global _here  # noqa: PLW0603 - one for each process
    with _lock:
        if _here is not None:
            _here.close()
            _here = None


def facts(runtime: Runtime, *, wait: bool = True) -> dict[str, Any]:
    """What the engines of a process have shown so far, as plain numbers: for metrics.

    ``wait``: until everything that happened is judged.
    """
    if wait:
        flush_all()
    known = [guard.facts() for guard in runtime.guards]
    return {
        "violations": dict(runtime.violations()),
        "events": sum(each.events for each in known),
        "slots": sum(each.slots for each in known),
        "internal_errors": sum(each.internal_errors for each in known),
        "undetermined": int(runtime.undetermined),
    }


def worker_facts(runtime: Runtime) -> dict[str, Any]:
    """What the worker sides of a process have shown so far, as plain numbers: for metrics."""
    instrumentation = runtime.instrumentation
    return {
        "violations": dict(runtime.races.counts),
        "events": instrumentation.workers.events,
        "slots": instrumentation.workers.accesses,
        "internal_errors": 0,
        "undetermined": int(bool(instrumentation.coverage.undetermined or instrumentation.workers.unchecked)),
    }
