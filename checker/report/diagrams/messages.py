"""Events as messages between lanes: what a sequence diagram draws for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from kvfence.checker.analysis.recorded.slot_holders import fields_of
from kvfence.spec import events as ev
from kvfence.spec import order as od

REQUESTS, SCHEDULER, WORKER, MODEL = "requests", "scheduler", "workers", "model steps"
Kind = Literal["call", "answer", "copy", "note"]
MOST_SLOTS = 6


@dataclass(frozen=True)
class Message:
    """One arrow, or with ``to`` equal to ``source`` a note at a lane."""

    source: str
    to: str
    text: str
    kind: Kind = "call"


POOL = ""
"""In the tables: the lane of the pool that the event names."""
Form = tuple[str, str, str, Kind]
"""Source, target, text and kind of an event's message; the text has the event's fields in braces."""
_ADMIT = "admit {req}: {local} local + {external} loaded + {compute} computed"
FORMS: Final[dict[type[Any], Form]] = {
    ev.Alloc: (SCHEDULER, POOL, "take {slots}: {holder}", "call"),
    ev.Touch: (SCHEDULER, POOL, "join {slots}: {holder}", "call"),
    ev.Free: (SCHEDULER, POOL, "leave {slots}: {holder}", "call"),
    ev.Deny: (POOL, SCHEDULER, "{asked} for {holder}: no room", "answer"),
    ev.Evict: (SCHEDULER, POOL, "evict {slots}", "call"),
    ev.Label: (SCHEDULER, POOL, "index {slots}", "call"),
    ev.Unlabel: (SCHEDULER, POOL, "unindex {slots}: {why}", "call"),
    ev.Submit: (REQUESTS, SCHEDULER, "request {req}, {prompt} tokens", "call"),
    ev.Admit: (SCHEDULER, REQUESTS, _ADMIT, "answer"),
    ev.Queue: (SCHEDULER, SCHEDULER, "queue {kind} {op}.{gen}: {src_pool} {src} to {dst_pool} {dst}", "note"),
    ev.Report: (WORKER, SCHEDULER, "rank {rank}: {op}.{gen} {outcome}", "answer"),
    ev.Stale: (WORKER, SCHEDULER, "rank {rank}: {op}.{gen} again, ignored", "answer"),
    ev.Process: (MODEL, SCHEDULER, "output of step {step}", "answer"),
    ev.Failed: (WORKER, SCHEDULER, "rank {rank}: {op}.{gen} left {dst} unfilled", "answer"),
    ev.Decide: (WORKER, WORKER, "rank {rank}: {what} {op}.{gen}", "note"),
    ev.Describe: (WORKER, WORKER, "rank {rank}: {op}.{gen} in buffer {buffer}", "note"),
    ev.Ask: (SCHEDULER, POOL, "question {ask} of {req}: {keys} keys", "call"),
    ev.Answer: (SCHEDULER, SCHEDULER, "answer {ask} for {req}: {hits} hits", "note"),
    ev.Stored: (POOL, POOL, "publish {tag}: {keys} keys", "note"),
    ev.Removed: (POOL, POOL, "publish {tag}: {keys} keys", "note"),
    ev.Cleared: (POOL, POOL, "publish {tag}", "note"),
    ev.Published: (POOL, POOL, "publish {tag}", "note"),
    ev.Unregister: (WORKER, POOL, "rank {rank}: {tag} piece {piece}", "call"),
    ev.Zero: (SCHEDULER, MODEL, "step {step} zeroes {pool} {slots}", "call"),
    ev.Preempt: (SCHEDULER, SCHEDULER, "preempt {req}.{gen}", "note"),
    ev.Retire: (SCHEDULER, SCHEDULER, "{req}.{gen} is gone", "note"),
    ev.Withdraw: (SCHEDULER, SCHEDULER, "withdraw the promise to {req}.{gen}", "note"),
    ev.Cursor: (SCHEDULER, SCHEDULER, "store cursor of {req}.{gen} to {to}", "note"),
    ev.Drop: (SCHEDULER, SCHEDULER, "block {at} of {req}.{gen} is not stored: {why}", "note"),
    ev.Rollback: (SCHEDULER, SCHEDULER, "{req}.{gen} counts {computed} tokens only", "note"),
}


class Speaker:
    """Turns the events of a trace into messages; remembers queued transfers, whose slots an issue names."""

    def __init__(self, header: ev.Header) -> None:
        self.pools = [pool.name for pool in header.pools]
        self.queued: dict[tuple[int, int], ev.Queue] = {}

    @property
    def lanes(self) -> list[str]:
        """All lanes, from left to right."""
        return [REQUESTS, SCHEDULER, *(pool_lane(p) for p in self.pools), WORKER, MODEL]

    def __call__(self, packed: ev.Event) -> list[Message]:
        """What an event says, and to whom."""
        e = ev.listed(packed)
        if isinstance(e, ev.Queue):
            self.queued[e.op, e.gen] = e
        if isinstance(e, ev.Issue):
            return self._issue(e)
        source, to, text, kind = FORMS.get(type(e)) or _by_value(e)
        pool = pool_lane(getattr(e, "pool", ""))
        return [Message(source or pool, to or pool, text.format_map(_Fields(e, _DERIVED)), kind)]

    def _issue(self, e: ev.Issue) -> list[Message]:
        copy = self.queued.get((e.op, e.gen))
        issue = Message(SCHEDULER, WORKER, f"issue {copy.kind if copy else 'transfer'} {e.op}.{e.gen}")
        if copy is None:
            return [issue]
        text = f"copy {numbers(copy.src)} to {numbers(copy.dst)}"
        return [issue, Message(pool_lane(copy.src_pool), pool_lane(copy.dst_pool), text, "copy")]


def _by_value(e: ev.Event) -> Form:
    """The message of an event whose text or direction depends on what is in its fields."""
    match e:
        case ev.Lookup():
            return SCHEDULER, POOL, "promise {slots} to {req}" if e.external else "no hit for {req}", "call"
        case ev.Finish():
            aborted = e.why == "abort"
            ends: Form = (SCHEDULER, REQUESTS, "{why} {req}", "answer")
            return (REQUESTS, SCHEDULER, "{why} {req}", "call") if aborted else ends
        case ev.Dispatch():
            return SCHEDULER, MODEL, "step {step}: {reqs}", "call"
        case ev.Reset():
            return REQUESTS, SCHEDULER, "reset {pools}" if e.ok else "reset refused", "call"
        case ev.Reserve():
            text = f"rank {{rank}}: {'reserved' if e.ok else 'no room'} for {{op}}.{{gen}}"
            return WORKER, SCHEDULER, text, "answer"
        case ev.Register():
            return WORKER, POOL, f"rank {{rank}}: {{tag}} piece {{piece}}{'' if e.ok else ', failed'}", "call"
        case ev.Hostmem():
            return WORKER, POOL, f"rank {{rank}}: {'pinned' if e.pinned else 'not pinned'}", "call"
        case ev.Complete():
            text = f"{{op}}.{{gen}} is complete{'' if e.ok else ', and failed'}"
            return SCHEDULER, SCHEDULER, text, "note"
    return SCHEDULER, SCHEDULER, "{tag} {fields}" if fields_of(e) else "{tag}", "note"


def numbers(slots: Any) -> str:
    """Slots in a few characters."""
    listed = [int(s) for s in slots]
    more = len(listed) - MOST_SLOTS
    return f"[{', '.join(map(str, listed[:MOST_SLOTS]))}{f', … {more} more' if more > 0 else ''}]"


def tag_of(event: Any) -> str:
    """The name of an event."""
    return str(event.__struct_config__.tag)


_DERIVED: Final[dict[str, Callable[[Any], object]]] = {
    "tag": tag_of,
    "fields": fields_of,
    "outcome": lambda e: "done" if e.ok else "failed",
}
_SHOWN: Final[dict[str, Callable[[Any], object]]] = {
    "keys": len,
    "reqs": ", ".join,
    "pools": ", ".join,
    **dict.fromkeys(("slots", "src", "dst"), numbers),
}


@dataclass(frozen=True)
class _Fields:
    """The fields of an event as its message shows them: slots in brackets, keys by their number."""

    event: Any
    derived: Mapping[str, Callable[[Any], object]]

    def __getitem__(self, name: str) -> object:
        if name in self.derived:
            return self.derived[name](self.event)
        value = getattr(self.event, name)
        return _SHOWN[name](value) if name in _SHOWN else value


THREAD, STREAM, CHILD, GIVER = "thread", "stream", "child", "giver"
"""In the table of order events: the lane of a field, and that of the thread that put an item."""
ORDER_FORMS: Final[dict[type[Any], Form]] = {
    od.Kernel: (THREAD, STREAM, "{label} {accessed}", "call"),
    od.Copy: (THREAD, STREAM, "{label} {moved}", "call"),
    od.Record: (THREAD, STREAM, "record event {event}", "call"),
    od.Wait: (THREAD, STREAM, "wait for event {event}", "call"),
    od.Put: (THREAD, THREAD, "put item {item}", "note"),
    od.Get: (GIVER, THREAD, "item {item}", "call"),
    od.Spawn: (THREAD, CHILD, "start", "call"),
    od.Join: (CHILD, THREAD, "join", "answer"),
    od.SyncStream: (STREAM, THREAD, "all done", "answer"),
    od.SyncEvent: (THREAD, THREAD, "wait for event {event}", "note"),
    od.Query: (THREAD, THREAD, "event {event} {is_or_not} done", "note"),
}
_OTHER_ORDER_EVENT: Final[Form] = (THREAD, THREAD, "{tag} {fields}", "note")


class OrderSpeaker:
    """Turns order events into messages between threads and streams."""

    def __init__(self, header: od.Header) -> None:
        self.threads = list(header.threads)
        self.streams: dict[int, str] = {}
        self.regions: dict[int, od.Region] = {}
        self.put: dict[tuple[int, int], int] = {}
        self._declare(header)
        self._derived: dict[str, Callable[[Any], object]] = {
            **_DERIVED,
            "label": lambda e: e.name or tag_of(e),
            "accessed": self.accessed,
            "moved": self._moved,
            "is_or_not": lambda e: "is" if e.done else "not",
        }

    def _declare(self, declared: od.Header | od.Declare) -> None:
        self.streams.update({s.id: s.name or f"stream {s.id}" for s in declared.streams})
        self.regions.update({r.id: r for r in declared.regions})

    @property
    def lanes(self) -> list[str]:
        """All lanes, from left to right."""
        return [*(thread_lane(t) for t in self.threads), *self.streams.values()]

    def stream(self, stream: int) -> str:
        """The lane of a stream."""
        return self.streams.get(stream, f"stream {stream}")

    def _lane(self, name: str, e: Any) -> str:
        if name == STREAM:
            return self.stream(e.stream)
        if name == GIVER:
            return thread_lane(self.put.get((e.queue, e.item), e.thread))
        return thread_lane(getattr(e, name, 0))

    def __call__(self, e: od.OrderEvent) -> list[Message]:
        """What an event says, and to whom; nothing of a declaration."""
        if isinstance(e, od.Declare):
            self._declare(e)
        if isinstance(e, od.Declare | od.Own):
            return []
        if isinstance(e, od.Put):
            self.put[e.queue, e.item] = e.thread
        source, to, form, kind = ORDER_FORMS.get(type(e), _OTHER_ORDER_EVENT)
        text = form.format_map(_Fields(e, self._derived))
        return [Message(self._lane(source, e), self._lane(to, e), text, kind)]

    def accessed(self, e: Any) -> str:
        """What a kernel or a thread accesses, in words."""
        parts = (("writes", e.writes), ("reads", e.reads))
        return ", ".join(f"{verb} {self.ranges(ranges)}" for verb, ranges in parts if ranges)

    def _moved(self, e: od.Copy) -> str:
        order = "" if e.order == "stream" else f", order {e.order.upper()}"
        return f"{self.ranges(e.src)} to {self.ranges(e.dst)}{order}"

    def ranges(self, ranges: Sequence[od.Range]) -> str:
        """Byte ranges in words: by slot where the region has slots."""
        shown = []
        for region_id, offset, nbytes in list(ranges)[:MOST_SLOTS]:
            region = self.regions.get(region_id)
            name = (region.name if region else "") or f"region {region_id}"
            if region is not None and region.slot:
                first, last = offset // region.slot, (offset + nbytes - 1) // region.slot
                shown.append(f"{name}[{first}]" if first == last else f"{name}[{first}-{last}]")
            else:
                shown.append(f"{name}+{offset}")
        more = len(ranges) - MOST_SLOTS
        return " ".join(shown) + (f" and {more} more" if more > 0 else "")


def speaker_of(header: object) -> Speaker | OrderSpeaker:
    """What turns the events of a trace or an order trace into messages, by its header; None has no pools."""
    if isinstance(header, od.Header):
        return OrderSpeaker(header)
    return Speaker(header if isinstance(header, ev.Header) else ev.Header(producer="", pools=()))


def pool_lane(pool: str) -> str:
    """The lane of a pool."""
    return f"{pool} pool"


def thread_lane(thread: int) -> str:
    """The lane of a host thread."""
    return f"thread {thread}"
