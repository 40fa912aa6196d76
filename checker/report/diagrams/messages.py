"""Events as messages between lanes: what a sequence diagram draws for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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


class Speaker:
    """Turns the events of a trace into messages. Queued transfers are remembered, to tell what is copied."""

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
        match e:
            case ev.Alloc() | ev.Touch() | ev.Free():
                word = {"Alloc": "take", "Touch": "join", "Free": "leave"}[type(e).__name__]
                return [Message(SCHEDULER, pool_lane(e.pool), f"{word} {numbers(e.slots)}: {e.holder}")]
            case ev.Deny():
                return [Message(pool_lane(e.pool), SCHEDULER, f"{e.asked} for {e.holder}: no room", "answer")]
            case ev.Evict():
                return [Message(SCHEDULER, pool_lane(e.pool), f"evict {numbers(e.slots)}")]
            case ev.Label():
                return [Message(SCHEDULER, pool_lane(e.pool), f"index {numbers(e.slots)}")]
            case ev.Unlabel():
                return [Message(SCHEDULER, pool_lane(e.pool), f"unindex {numbers(e.slots)}: {e.why}")]
            case ev.Submit():
                return [Message(REQUESTS, SCHEDULER, f"request {e.req}, {e.prompt} tokens")]
            case ev.Lookup():
                what = f"promise {numbers(e.slots)} to {e.req}" if e.external else f"no hit for {e.req}"
                return [Message(SCHEDULER, pool_lane(e.pool), what)]
            case ev.Admit():
                text = f"admit {e.req}: {e.local} local + {e.external} loaded + {e.compute} computed"
                return [Message(SCHEDULER, REQUESTS, text, "answer")]
            case ev.Finish():
                toward = (REQUESTS, SCHEDULER) if e.why == "abort" else (SCHEDULER, REQUESTS)
                return [Message(*toward, f"{e.why} {e.req}", "call" if e.why == "abort" else "answer")]
            case ev.Queue():
                self.queued[e.op, e.gen] = e
                return [Message(SCHEDULER, SCHEDULER, f"queue {_transfer(e)}", "note")]
            case ev.Issue():
                copy = self.queued.get((e.op, e.gen))
                out = [
                    Message(SCHEDULER, WORKER, f"issue {copy.kind if copy else 'transfer'} {e.op}.{e.gen}")
                ]
                if copy is not None:
                    text = f"copy {numbers(copy.src)} to {numbers(copy.dst)}"
                    out.append(Message(pool_lane(copy.src_pool), pool_lane(copy.dst_pool), text, "copy"))
                return out
            case ev.Report():
                return [
                    Message(
                        WORKER,
                        SCHEDULER,
                        f"rank {e.rank}: {e.op}.{e.gen} {'done' if e.ok else 'failed'}",
                        "answer",
                    )
                ]
            case ev.Stale():
                return [Message(WORKER, SCHEDULER, f"rank {e.rank}: {e.op}.{e.gen} again, ignored", "answer")]
            case ev.Dispatch():
                return [Message(SCHEDULER, MODEL, f"step {e.step}: {', '.join(e.reqs)}")]
            case ev.Process():
                return [Message(MODEL, SCHEDULER, f"output of step {e.step}", "answer")]
            case ev.Reset():
                text = f"reset {', '.join(e.pools)}" if e.ok else "reset refused"
                return [Message(REQUESTS, SCHEDULER, text)]
        return self._rare(e) or [Message(SCHEDULER, SCHEDULER, _noted(e), "note")]

    def _rare(self, e: ev.Event) -> list[Message]:
        match e:
            case ev.Failed():
                text = f"rank {e.rank}: {e.op}.{e.gen} left {numbers(e.dst)} unfilled"
                return [Message(WORKER, SCHEDULER, text, "answer")]
            case ev.Reserve():
                text = f"rank {e.rank}: {'reserved' if e.ok else 'no room'} for {e.op}.{e.gen}"
                return [Message(WORKER, SCHEDULER, text, "answer")]
            case ev.Decide():
                return [Message(WORKER, WORKER, f"rank {e.rank}: {e.what} {e.op}.{e.gen}", "note")]
            case ev.Describe():
                return [
                    Message(WORKER, WORKER, f"rank {e.rank}: {e.op}.{e.gen} in buffer {e.buffer}", "note")
                ]
            case ev.Ask():
                return [
                    Message(
                        SCHEDULER, pool_lane(e.pool), f"question {e.ask} of {e.req}: {count(e.keys)} keys"
                    )
                ]
            case ev.Answer():
                return [Message(SCHEDULER, SCHEDULER, f"answer {e.ask} for {e.req}: {e.hits} hits", "note")]
            case ev.Stored() | ev.Removed():
                text = f"publish {tag_of(e)}: {count(e.keys)} keys"
                return [Message(pool_lane(e.pool), pool_lane(e.pool), text, "note")]
            case ev.Cleared() | ev.Published():
                return [Message(pool_lane(e.pool), pool_lane(e.pool), f"publish {tag_of(e)}", "note")]
            case ev.Register() | ev.Unregister():
                failed = "" if getattr(e, "ok", True) else ", failed"
                text = f"rank {e.rank}: {tag_of(e)} piece {e.piece}{failed}"
                return [Message(WORKER, pool_lane(e.pool), text)]
            case ev.Hostmem():
                text = f"rank {e.rank}: {'pinned' if e.pinned else 'not pinned'}"
                return [Message(WORKER, pool_lane(e.pool), text)]
            case ev.Zero():
                return [Message(SCHEDULER, MODEL, f"step {e.step} zeroes {e.pool} {numbers(e.slots)}")]
        return []


def _noted(e: ev.Event) -> str:
    """An event that only the scheduler is concerned with."""
    match e:
        case ev.Complete():
            return f"{e.op}.{e.gen} is complete{'' if e.ok else ', and failed'}"
        case ev.Preempt():
            return f"preempt {e.req}.{e.gen}"
        case ev.Retire():
            return f"{e.req}.{e.gen} is gone"
        case ev.Withdraw():
            return f"withdraw the promise to {e.req}.{e.gen}"
        case ev.Cursor():
            return f"store cursor of {e.req}.{e.gen} to {e.to}"
        case ev.Drop():
            return f"block {e.at} of {e.req}.{e.gen} is not stored: {e.why}"
        case ev.Rollback():
            return f"{e.req}.{e.gen} counts {e.computed} tokens only"
    return f"{tag_of(e)} {fields_of(e)}".strip()


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


def numbers(slots: Any) -> str:
    """Slots in a few characters."""
    listed = [int(s) for s in slots]
    more = len(listed) - MOST_SLOTS
    return f"[{', '.join(map(str, listed[:MOST_SLOTS]))}{f', … {more} more' if more > 0 else ''}]"


def count(of: Any) -> int:
    """How many slots or keys an event names; ``of`` is a list."""
    return len(of)


def tag_of(event: Any) -> str:
    """The name of an event."""
    return str(event.__struct_config__.tag)


def _transfer(e: ev.Queue) -> str:
    return f"{e.kind} {e.op}.{e.gen}: {e.src_pool} {numbers(e.src)} to {e.dst_pool} {numbers(e.dst)}"
