"""The events of one engine: its pools, requests, transfers and steps, as the hooks observe them.

An engine is a GPU block pool with whatever schedules on it and the connectors bound to it. Each has a stream
of events of its own, which begins with a header.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from kvfence.checker.adapters.vllm.notes.note_queue import NoteQueue
from kvfence.checker.adapters.vllm.stream.live_request import RequestState
from kvfence.checker.adapters.vllm.stream.pool_events import OpenSink, PoolStream, PoolTap
from kvfence.checker.ledger.state.violation import InvariantViolation
from kvfence.spec import events as ev

MakeNoteQueue: TypeAlias = Callable[[Any], NoteQueue]

MOST_STEPS_AHEAD: Final = 64
"""vLLM bounds the steps in flight by the executor, which the scheduler side does not see."""
REMEMBERED_IDS: Final = 1 << 16
MOST_TROUBLE: Final = 20
"""Exceptions of the adapter itself after which it stops to observe an engine."""

log = logging.getLogger("kvfence.vllm")


class Stream(PoolStream):
    """Emits the events of one engine to a sink, from what the hooks put on its note queue."""

    def __init__(
        self, open_sink: OpenSink, gpu_pool: Any, producer: str, make_note_queue: MakeNoteQueue
    ) -> None:
        super().__init__(open_sink)
        self.producer = producer
        self.note_queue = make_note_queue(self)
        self.gpu = PoolTap("gpu", gpu_pool, self)
        self.taps = {id(gpu_pool): self.gpu}
        self.tiers: list[PoolTap] = []
        self.connectors: list[Any] = []
        """The observed scheduler sides of connectors."""
        self.groups: tuple[ev.Group, ...] = ()
        self.ranks = 1
        self.requests: dict[str, RequestState] = {}
        self.last_gens: dict[str, int] = {}
        self.next_op = 0
        self.trouble_count = 0
        self.troubles: list[str] = []
        """The first exceptions of the adapter itself, in words."""
        self.loads: list[dict[str, list[Any]]] = []
        """Of each tier: its open loads by request."""
        self.noted_cursors: list[dict[str, int]] = []
        """Of each tier: the sum of a request's store cursors, as last noted. For the engine's thread."""
        self.off = False

    def header(self) -> ev.Header:
        """What the numbers in the events refer to."""
        pools = list(self.taps.values())
        return ev.Header(
            producer=self.producer,
            pools=tuple(
                ev.Pool(tap.name, len(tap.pool.blocks), None if tap.null < 0 else tap.null) for tap in pools
            ),
            groups=self.groups,
            ranks=self.ranks,
            depth=MOST_STEPS_AHEAD,
            tier=self.tiers[0].name if self.tiers else "gpu",
            unique="slot",
        )

    def trouble(self, error: Exception) -> None:
        """Raise ``error`` if it is a violation; count any other exception of the adapter."""
        if isinstance(error, InvariantViolation):
            raise error
        self.trouble_count += 1
        if len(self.troubles) < MOST_TROUBLE:
            message = f"could not follow vLLM: {type(error).__name__}: {error}"
            self.troubles.append(message)
            not_checked = getattr(self.sink, "not_checked", None)
            if not_checked is not None:
                not_checked(message)
        if self.trouble_count == 1:
            log.warning("kvfence could not follow vLLM: %s: %s", type(error).__name__, error, exc_info=error)
        if self.trouble_count >= MOST_TROUBLE and not self.off:
            self.off = True
            self.note_queue.stop()
            log.error("kvfence stops observing this engine: it could not follow vLLM %d times", MOST_TROUBLE)

    # Requests.

    def request(self, id_: str) -> RequestState:
        """The request ``id_``; one that was added before it was observed is taken as it is."""
        found = self.requests.get(id_)
        if found is None:
            found = self.requests[id_] = RequestState(id_, self.last_gens.pop(id_, -1) + 1)
        return found

    def submit(self, id_: str, tokens: int) -> None:
        """Emit that a request was added to the engine."""
        known = self.requests.get(id_)
        if known is not None and not known.ended:
            return
        self.requests.pop(id_, None)
        state = self.request(id_)
        self.emit(ev.Submit(state.id, state.gen, tokens))

    def forget(self, request: RequestState) -> None:
        """Forget a request that is gone; its id may come again."""
        if self.requests.get(request.id) is request:
            del self.requests[request.id]
        self.last_gens.pop(request.id, None)
        self.last_gens[request.id] = request.gen
        if len(self.last_gens) > REMEMBERED_IDS:
            del self.last_gens[next(iter(self.last_gens))]
