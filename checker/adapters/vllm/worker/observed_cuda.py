"""What a connector's worker does with CUDA, reported: streams, events, queues, threads and copies.

The names that a module of vLLM uses are replaced by ones that do the same and report it. A stream is still a
``torch.cuda.Stream``, an event still a ``torch.Event``: observed ones are subclasses. The same is done with
whatever stands in for CUDA where there is none.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from kvfence.checker.adapters.vllm.worker.worker_order import COMPUTE, WorkerOrder
from kvfence.spec import order as od

OBSERVED: Final = "__kvfence_observed__"
"""Attribute of what stands for a name of a module: what it stands for."""
SOURCE_ORDERS: Final[dict[int, od.SourceOrder]] = {1: "stream", 2: "call", 3: "any"}
"""By the number that the driver knows them by."""


class _Here(threading.local):
    """What a thread of the process is doing."""

    def __init__(self) -> None:
        self.worker: WorkerOrder | None = None
        """The worker on whose behalf it runs."""
        self.thread = 0
        """Its number among the threads of that worker."""
        self.by = ""
        self.quiet = False
        """Whether its caller reports what it does now."""


here: Final = _Here()


@contextmanager
def on_behalf_of(worker: WorkerOrder | None, by: str = "") -> Iterator[None]:
    """What this thread does meanwhile is done by ``worker``."""
    before = here.worker, here.thread, here.by
    here.worker, here.thread, here.by = worker, 0, by
    try:
        yield
    finally:
        here.worker, here.thread, here.by = before


def active_worker() -> WorkerOrder | None:
    """The worker to which this thread reports what it does, if any."""
    worker = here.worker
    return None if worker is None or here.quiet or worker.off else worker


def maker_of(event: Any) -> WorkerOrder | None:
    """The worker to which this thread reports, if ``event`` is one of that worker's own."""
    worker = active_worker()
    return worker if worker is not None and event._kvfence_worker is worker else None


def _made(base: Any, cls: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A new ``cls``, of a type written in C or in Python."""
    return object.__new__(cls) if base.__new__ is object.__new__ else base.__new__(cls, *args, **named)


@functools.cache
def event_class(base: Any) -> Any:
    """A subclass of a class of device events that reports what is done with them."""

    class ObservedEvent(base):  # type: ignore[misc]
        _kvfence_worker: WorkerOrder | None = None
        _kvfence_id = -1
        _kvfence_time: Any = None
        """Of an event with a time: one of the class itself, recorded with it."""

        def __new__(cls, *args: Any, **named: Any) -> Any:
            event = _made(base, cls, args, named)
            if named.get("enable_timing"):
                event._kvfence_time = base(*args, **named)
            if (worker := active_worker()) is not None:
                event._kvfence_worker = worker
                event._kvfence_id = worker.new_event(event)
            return event

        def __del__(self) -> None:
            if self._kvfence_worker is not None:
                self._kvfence_worker.gone_event(self._kvfence_id)

        def record(self, stream: Any = None) -> Any:
            if (worker := maker_of(self)) is not None:
                worker.recorded(here.thread, stream, self._kvfence_id)
            time = self._kvfence_time
            if time is not None:  # First: it is over when this one is.
                time.record() if stream is None else time.record(stream)
            return base.record(self) if stream is None else base.record(self, stream)

        def elapsed_time(self, end_event: Any) -> Any:
            # torch.Event takes no event of a subclass here.
            time = getattr(end_event, "_kvfence_time", None)
            return base.elapsed_time(self, end_event if time is None else time)

        def wait(self, stream: Any = None) -> Any:
            if (worker := active_worker()) is not None:
                worker.waited(here.thread, worker.stream_of(stream), self)
            return base.wait(self) if stream is None else base.wait(self, stream)

        def query(self) -> Any:
            done = base.query(self)
            if (worker := maker_of(self)) is not None:
                worker.queried(here.thread, self._kvfence_id, bool(done))
            return done

        def synchronize(self) -> Any:
            result = base.synchronize(self)
            if (worker := maker_of(self)) is not None:
                worker.synchronized(here.thread, self._kvfence_id)
            return result

    setattr(ObservedEvent, OBSERVED, base)
    return ObservedEvent


@functools.cache
def stream_class(base: Any) -> Any:
    """A subclass of a class of streams that reports what is done with them."""

    class ObservedStream(base):  # type: ignore[misc]
        _kvfence_worker: WorkerOrder | None = None

        def __new__(cls, *args: Any, **named: Any) -> Any:
            stream = _made(base, cls, args, named)
            stream._kvfence_worker = active_worker()
            return stream

        def wait_event(self, event: Any) -> Any:
            if (worker := active_worker()) is None:
                return base.wait_event(self, event)
            worker.waited(here.thread, worker.stream_of(self), event)
            return _quietly(base.wait_event, self, event)

        def wait_stream(self, stream: Any) -> Any:
            if (worker := active_worker()) is None:
                return base.wait_stream(self, stream)
            worker.waited_for_stream(here.thread, worker.stream_of(self), worker.stream_of(stream))
            return _quietly(base.wait_stream, self, stream)

        def record_event(self, event: Any = None) -> Any:
            if (worker := active_worker()) is None:
                return base.record_event(self, event)
            if event is None:
                event = worker.event_type()
            event.record(self)
            return event

        def synchronize(self) -> Any:
            result = base.synchronize(self)
            if (worker := active_worker()) is not None:
                worker.synchronized_stream(here.thread, worker.stream_of(self))
            return result

    setattr(ObservedStream, OBSERVED, base)
    return ObservedStream


def _quietly(function: Any, *args: Any) -> Any:
    here.quiet = True
    try:
        return function(*args)
    finally:
        here.quiet = False


class _Item:
    """Something in a queue, with its number."""

    __slots__ = ("by", "number", "what")

    def __init__(self, number: int, what: Any, by: str) -> None:
        self.number, self.what, self.by = number, what, by


@functools.cache
def queue_class(base: Any) -> Any:
    """A subclass of a class of queues between threads that reports what is handed over."""

    class ObservedQueue(base):  # type: ignore[misc]
        def put(self, item: Any, *args: Any, **named: Any) -> Any:
            if (worker := active_worker()) is not None:
                item = _Item(worker.handed_over(here.thread), item, here.by)
            return base.put(self, item, *args, **named)

        def get(self, *args: Any, **named: Any) -> Any:
            found = base.get(self, *args, **named)
            if not isinstance(found, _Item):
                return found
            here.by = found.by
            if (worker := active_worker()) is not None:
                worker.taken(here.thread, found.number)
            return found.what

        def put_nowait(self, item: Any) -> Any:
            return self.put(item, False)

        def get_nowait(self) -> Any:
            return self.get(False)

    setattr(ObservedQueue, OBSERVED, base)
    return ObservedQueue


@functools.cache
def thread_class(base: Any) -> Any:
    """A subclass of ``Thread`` whose threads are known."""

    class ObservedThread(base):  # type: ignore[misc]
        def __init__(self, group: Any = None, target: Any = None, *args: Any, **named: Any) -> None:
            self._kvfence_worker = worker = active_worker()
            self._kvfence_thread = -1 if worker is None else worker.new_thread()
            base.__init__(self, group, self._kvfence_run(target), *args, **named)

        def _kvfence_run(self, target: Any) -> Any:
            if target is None or self._kvfence_worker is None:
                return target
            worker, number = self._kvfence_worker, self._kvfence_thread

            @functools.wraps(target)
            def run(*args: Any, **named: Any) -> Any:
                before = here.worker, here.thread, here.by, here.quiet
                here.worker, here.thread, here.by, here.quiet = worker, number, "", False
                try:
                    return target(*args, **named)
                finally:
                    here.worker, here.thread, here.by, here.quiet = before

            return run

        def start(self) -> Any:
            if self._kvfence_worker is not None:
                self._kvfence_worker.spawned(here.thread, self._kvfence_thread)
            return base.start(self)

    setattr(ObservedThread, OBSERVED, base)
    return ObservedThread


class _Names(ModuleType):
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        super().__init__(getattr(module, "__name__", "module"))
        self.__dict__[OBSERVED] = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__[OBSERVED], name)


def _torch(module: Any) -> Any:
    cuda = module.cuda
    names = {"Stream": stream_class(cuda.Stream)}
    if hasattr(cuda, "Event"):
        names["Event"] = event_class(cuda.Event)
    more = {"cuda": _Names(cuda, **names)}
    if hasattr(module, "Event"):
        more["Event"] = event_class(module.Event)
    return _Names(module, **more)


def _platform(platform: Any) -> Any:
    """``current_platform`` with observed streams, where it makes them."""
    if not hasattr(platform, "Stream"):
        return None
    return _Names(platform, Stream=stream_class(platform.Stream))


def _build_params(original: Any) -> Any:
    def build_params(src_caches: Any, dst_caches: Any, stream: Any, *args: Any, **named: Any) -> Any:
        params = original(src_caches, dst_caches, stream, *args, **named)
        if (worker := active_worker()) is not None:
            asked = args[0] if args else named.get("src_access_order")
            worker.prepared(params, src_caches, dst_caches, stream, source_order(original, params, asked))
        return params

    return build_params


def source_order(build: Any, params: Any, asked: Any) -> od.SourceOrder:
    """In which order the copies that ``params`` describe read."""
    attributes: Any = getattr(params, "attrs", None)
    if hasattr(attributes, "srcAccessOrder"):
        if getattr(params, "num_attrs", 1) == 0:
            return "stream"  # The driver is given no attributes.
        return SOURCE_ORDERS.get(int(attributes.srcAccessOrder), "any")
    if asked is None:
        parameter = inspect.signature(build).parameters.get("src_access_order")
        asked = 3 if parameter is None or parameter.default is parameter.empty else parameter.default
    return SOURCE_ORDERS.get(int(asked), "any")


def _copy_blocks(original: Any) -> Any:
    def copy_blocks(src_block_ids: Any, dst_block_ids: Any, params: Any, *args: Any, **named: Any) -> Any:
        result = original(src_block_ids, dst_block_ids, params, *args, **named)
        if (worker := active_worker()) is not None:
            worker.copied(here.thread, src_block_ids, dst_block_ids, params, here.by)
        return result

    return copy_blocks


STAND_INS: Final[dict[str, Callable[[Any], Any]]] = {
    "torch": _torch,
    "queue": lambda old: _Names(old, SimpleQueue=queue_class(old.SimpleQueue)),
    "threading": lambda old: _Names(old, Thread=thread_class(old.Thread)),
    "current_platform": _platform,
    "build_params": _build_params,
    "copy_blocks": _copy_blocks,
}


class Observed:
    """Names of modules that are replaced, and what they were."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def observe(self, module: Any, names: tuple[str, ...]) -> list[str]:
        """Replace those of ``names`` that ``module`` has, each once; returns those that it lacks."""
        missing = []
        for name in names:
            if name not in vars(module):
                missing.append(name)
                continue
            now = vars(module)[name]
            if OBSERVED in getattr(now, "__dict__", {}):
                continue
            replaced = STAND_INS[name](now)
            if replaced is None:
                continue
            if not isinstance(replaced, ModuleType):
                setattr(replaced, OBSERVED, now)
            setattr(module, name, replaced)
            self._undo.append((module, name, replaced, now))
        return missing

    def remove(self) -> None:
        """Put back the names that were not replaced again in the meantime."""
        while self._undo:
            module, name, replaced, before = self._undo.pop()
            if vars(module).get(name) is replaced:
                setattr(module, name, before)


__all__ = ["COMPUTE", "Observed", "active_worker", "here", "on_behalf_of"]
