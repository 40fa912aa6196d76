"""Events as messages between lanes: what a sequence diagram draws for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
FORMS: Final[dict[type[Any], Form]] = {
    ev.Alloc: (SCHEDULER, POOL, "take {slots}: {holder}", "call"),
    ev.Touch: (SCHEDULER, POOL, "join {slots}: {holder}", "call"),
    ev.Free: (SCHEDULER, POOL, "leave {slots}: {holder}", "call"),
    ev.Deny: (POOL, SCHEDULER, "{asked} for {holder}: no room", "answer"),
    ev.Evict: (SCHEDULER, POOL, "evict {slots}", "call"),
    ev.Label: (SCHEDULER, POOL, "index {slots}", "call"),
    ev.Unlabel: (SCHEDULER, POOL, "unindex {slots}: {why}", "call"),
    ev.Submit: (REQUESTS, SCHEDULER, "request {req}, {prompt} tokens", "call"),
    ev.Admit: (
        SCHEDULER,
        REQUESTS,
        "admit {req}: {local} local + {external} loaded + {compute} computed",
        "answer",
    ),
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
        return [Message(source or pool, to or pool, text.format_map(_Fields(e)), kind)]

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

    def __getitem__(self, name: str) -> object:
        if name in _DERIVED:
            return _DERIVED[name](self.event)
        value = getattr(self.event, name)
        return _SHOWN[name](value) if name in _SHOWN else value


class OrderSpeaker:
    """Turns order events into messages between threads and streams."""

    def __init__(self, header: od.Header) -> None:
        self.threads = list(header.threads)
        self.streams = {s.id: s.name or f"stream {s.id}" for s in header.streams}
        self.regions = {r.id: r for r in header.regions}
        self.put: dict[tuple[int, int], int] = {}

    @property
    def lanes(self) -> list[str]:
        """All lanes, from left to right."""
        return [*(thread_lane(t) for t in self.threads), *self.streams.values()]

    def stream(self, stream: int) -> str:
        """The lane of a stream."""
        return self.streams.get(stream, f"stream {stream}")

    def __call__(self, e: od.OrderEvent) -> list[Message]:
        """What an event says, and to whom."""
        thread = thread_lane(getattr(e, "thread", 0))
        match e:
            case od.Declare():
                self.streams.update({s.id: s.name or f"stream {s.id}" for s in e.streams})
                self.regions.update({r.id: r for r in e.regions})
                return []
            case od.Own():
                return []
            case od.Kernel():
                return [Message(thread, self.stream(e.stream), f"{e.name or 'kernel'} {self.accessed(e)}")]
            case od.Copy():
                order = "" if e.order == "stream" else f", order {e.order.upper()}"
                text = f"{e.name or 'copy'} {self.ranges(e.src)} to {self.ranges(e.dst)}{order}"
                return [Message(thread, self.stream(e.stream), text)]
            case od.Record():
                return [Message(thread, self.stream(e.stream), f"record event {e.event}")]
            case od.Wait():
                return [Message(thread, self.stream(e.stream), f"wait for event {e.event}")]
            case od.Put():
                self.put[e.queue, e.item] = e.thread
                return [Message(thread, thread, f"put item {e.item}", "note")]
            case od.Get():
                giver = thread_lane(self.put.get((e.queue, e.item), e.thread))
                return [Message(giver, thread, f"item {e.item}")]
            case od.Spawn():
                return [Message(thread, thread_lane(e.child), "start")]
            case od.Join():
                return [Message(thread_lane(e.child), thread, "join", "answer")]
            case od.SyncStream():
                return [Message(self.stream(e.stream), thread, "all done", "answer")]
            case od.SyncEvent():
                return [Message(thread, thread, f"wait for event {e.event}", "note")]
            case od.Query():
                return [Message(thread, thread, f"event {e.event} {'is' if e.done else 'not'} done", "note")]
        return [Message(thread, thread, f"{tag_of(e)} {fields_of(e)}", "note")]

    def accessed(self, e: Any) -> str:
        """What a kernel or a thread accesses, in words."""
        parts = []
        if e.writes:
            parts.append(f"writes {self.ranges(e.writes)}")
        if e.reads:
            parts.append(f"reads {self.ranges(e.reads)}")
        return ", ".join(parts)

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


def pool_lane(pool: str) -> str:
    """The lane of a pool."""
    return f"{pool} pool"


def thread_lane(thread: int) -> str:
    """The lane of a host thread."""
    return f"thread {thread}"
