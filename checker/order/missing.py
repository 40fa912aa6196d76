"""What a race means: which invariant it breaks, and which order is missing, in words."""

from __future__ import annotations

from kvfence.checker.order.clocks import Clock, Clocks, Thread
from kvfence.checker.order.ranges import Site, What
from kvfence.spec import order as od


def invariant_broken(first: Site, second: Site, memory: od.RegionKind) -> str:
    """Id of the invariant that two accesses without order break; ``first`` was recorded first. "" : none."""
    return broken_by(first.what, first.write, second.what, second.write, memory)


def broken_by(
    first: What, first_writes: bool, second: What, second_writes: bool, memory: od.RegionKind
) -> str:
    """The same, of what the accesses are."""
    stored = memory == "device"
    if first == "copy" and first_writes:
        if second_writes:
            return "FREEZE" if second != "copy" else "LOAD-ORDER"
        return "USE-READY"
    if first == "copy" and second_writes:
        return "FREEZE"
    if second == "copy":
        if second_writes:
            return "LOAD-ORDER" if stored else "FREEZE"
        return "STORE-READY" if stored else "USE-READY"
    return "FREEZE" if "release" in (first, second) else ""


def described(site: Site, clocks: Clocks) -> str:
    """An access in a few words: ``the read of copy 'store' (stream 2, event 7)``."""
    name = f" '{site.name}'" if site.name else ""
    where = f"thread {site.thread}" if site.stream < 0 else stream_described(site.stream, clocks)
    verb = "write" if site.write else "read"
    what = "the release" if site.what == "release" else f"the {verb} of {site.what}{name}"
    return f"{what} ({where}, event {site.number - 1})"


def stream_described(stream: int, clocks: Clocks) -> str:
    """A stream's number, with its name if it has one."""
    name = clocks.streams[stream].name
    return f"stream {stream} ({name})" if name else f"stream {stream}"


def missing_edge(first: Site, second: Site, clock: Clock, clocks: Clocks) -> str:
    """Why nothing puts ``first`` before ``second``, whose ``clock`` is, and what would."""
    if first.number == second.number:
        return "the parts of one copy have no order: give what depends on another part a copy of its own"
    one, other = described(first, clocks), described(second, clocks)
    thread = clocks.threads[second.thread]
    loose = second.order if second.what == "copy" and not second.write else "stream"
    if loose != "stream" and thread.lanes[second.stream].clock[first.lane] >= first.number:
        word = "ANY" if loose == "any" else "DURING_API_CALL"
        return (
            f"{one} comes before the copy in stream order, but source access order {word} takes the read out "
            f"of stream order: use STREAM, or wait for {one} on the host before the copy is launched"
        )
    if first.stream < 0:
        return _from_host(first, one, other, thread)
    return _from_stream(first, second, one, other, loose, clock, clocks)


def _from_host(first: Site, one: str, other: str, thread: Thread) -> str:
    if first.order == "call" and first.what == "copy":
        one = f"the call of {one.removeprefix('the read of ')}"
    return (
        f"no path from {one} to {other}: after it, thread {first.thread} has to hand something over to "
        f"thread {thread.id} (a queue item, a join), which takes it before its call"
    )


def _from_stream(
    first: Site, second: Site, one: str, other: str, loose: str, clock: Clock, clocks: Clocks
) -> str:
    thread, launcher = clocks.threads[second.thread], clocks.owners[first.lane]
    unknown = launcher is not thread and thread.clock[launcher.index] < first.number
    at = stream_described(first.stream, clocks)
    if second.stream < 0 or loose != "stream":
        before = "the access" if second.stream < 0 else "the copy is launched"
        way = f"record an event on {at} after it and wait for the event on the host before {before}"
    elif first.stream == second.stream:
        way = "the stream keeps the order of the launches"
    else:
        where = stream_described(second.stream, clocks)
        way = f"record an event on {at} after it and make {where} wait for the event before the {second.what}"
    text = f"no path from {one} to {other}: "
    if unknown:
        text += (
            f"it is a matter of timing whether thread {launcher.id} launches the former before thread "
            f"{thread.id} makes its call: let thread {launcher.id} hand something over (a queue item) after "
            f"the launch, which thread {thread.id} takes before (or the other way round, if that is meant); "
            "then "
        )
    text += way
    known = clock[first.lane]
    if known:
        text += f"; what the latter waits for on {at} ends with event {known - 1}, before the former"
    if loose == "any":
        text += "; a wait on the copy's own stream would not do, since source access order ANY ignores it"
    return text
