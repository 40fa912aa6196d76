"""The order of a short trace as a graph: why two accesses have none, and a schedule that shows it.

Written apart from the vector clocks, from the same rules: each call is a node, and so is each thing that a
device does; an edge says what comes before what, whatever the timing. networkx finds the paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, permutations
from typing import Any, Final

import msgspec

from kvfence.checker.order.races import Race
from kvfence.spec import order as od
from kvfence.spec.errors import CannotRun
from kvfence.spec.order_steps import step_named

Node = str
"""A step by its name; ``t0.3:begin`` and ``t0.3:end``: begin and end of an operation on its stream."""

AROUND: Final = 400
"""Events before the first access that an explanation looks at."""
_ORDERS: Final = 24
"""Orders of threads that are tried for a schedule."""


class FarApart(CannotRun):
    """The two accesses of a race are too far apart in the trace for an explanation."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing orders the two accesses of a race.

    ``common`` is the last thing that surely comes before both, if there is one, and the paths lead from there
    to either access; each item tells one event. ``witnesses`` are schedules of ``program`` (an excerpt of the
    trace around the race) that let the second access come first, and the first one first.
    """

    common: str | None
    to_first: tuple[str, ...]
    to_second: tuple[str, ...]
    header: od.Header
    program: tuple[od.OrderEvent, ...]
    witnesses: tuple[tuple[str, ...], tuple[str, ...]]


class OrderGraph:
    """The graph of ``events``, all of which must be there from the threads' start on.

    With ``as_called``, what two threads call has the order of ``events``: the graph then says what comes
    before what if the calls are made in just this order.
    """

    def __init__(
        self, header: od.Header, events: Sequence[od.OrderEvent], *, as_called: bool = False
    ) -> None:
        self._header = header
        self._as_called = as_called
        self.graph: Any = _networkx().DiGraph()
        """A networkx.DiGraph of nodes by name."""
        self.number: dict[Node, int] = {}
        """The event that each node belongs to."""
        self.events = events
        self._streams: dict[int, od.Stream] = {}
        self._regions: dict[int, od.Region] = {}
        self._before: dict[Node, int] = {}
        """All nodes that come before a node, and itself, as a set of bits."""
        self._bit: dict[Node, int] = {}
        self._next: dict[int, list[Node]] = {thread: [] for thread in header.threads}
        """By thread: what comes before its next call."""
        self._calls: dict[int, int] = {}
        self._launched: dict[int, dict[int, list[tuple[Node, Node]]]] = {}
        """By stream and thread: the call and the end of each operation."""
        self._records: dict[int, list[tuple[Node, Node]]] = {}
        self._items: dict[tuple[int, int], Node] = {}
        self._declare(header)
        for number, event in enumerate(events):
            self._add(number, event)

    # Building.

    def _declare(self, what: od.Header | od.Declare) -> None:
        self._streams.update({stream.id: stream for stream in what.streams})
        self._regions.update({region.id: region for region in what.regions})

    def _node(self, node: Node, number: int, before: Iterable[Node]) -> Node:
        graph = self.graph
        graph.add_node(node)
        known = self._bit[node] = 1 << len(self._bit)
        for other in before:
            graph.add_edge(other, node)
            known |= self._before[other]
        self._before[node] = known
        self.number[node] = number
        return node

    def comes_before(self, one: Node, other: Node) -> bool:
        """Whether ``one`` surely comes before ``other``."""
        return one != other and bool(self._before[other] & self._bit[one])

    def _known_at(self, launch: Node, call: Node) -> bool:
        """Whether the one call surely comes before the other, later one."""
        return self._as_called or self.comes_before(launch, call)

    def _add(self, number: int, event: od.OrderEvent) -> None:
        if isinstance(event, od.Declare):
            self._declare(event)
        if isinstance(event, od.Declare | od.Own):
            return
        thread = event.thread
        at = self._calls.get(thread, 0)
        self._calls[thread] = at + 1
        before = self._next.get(thread, [])
        if isinstance(event, od.Get) and (event.queue, event.item) in self._items:
            before = [*before, self._items.pop((event.queue, event.item))]
        if isinstance(event, od.Join):
            before = [*before, *self._next.get(event.child, [])]
        call = self._node(f"t{thread}.{at}", number, before)
        self._next[thread] = [call]
        match event:
            case od.Kernel() | od.Copy() | od.Record() | od.Wait():
                self._launch(event, call, number)
            case od.Put():
                self._items[event.queue, event.item] = call
            case od.Spawn():
                self._next[event.child] = [call]
            case od.SyncEvent() | od.Query():
                if not isinstance(event, od.Query) or event.done:
                    self._next[thread] += self._bound(event.event, call)
            case od.SyncStream():
                self._next[thread] += self._known(event.stream, call)
            case od.SyncDevice():
                for stream in self._streams.values():
                    if stream.device == event.device:
                        self._next[thread] += self._known(stream.id, call)

    def _known(self, stream: int, call: Node) -> list[Node]:
        """The last operations of ``stream``, by thread, whose launch surely comes before ``call``."""
        last = (
            next((end for launch, end in reversed(operations) if self._known_at(launch, call)), None)
            for operations in self._launched.get(stream, {}).values()
        )
        return [end for end in last if end is not None]

    def _bound(self, event: int, call: Node) -> list[Node]:
        """After a wait for ``event``: what all records that it may be for have in common."""
        records = self._records.get(event, [])
        known = [at for at, (launch, _) in enumerate(records) if self._known_at(launch, call)]
        if not known:
            return []
        ends = [end for _, end in records[known[-1] :]]
        if len(ends) == 1:
            return ends
        common = self._before[ends[0]]
        for end in ends[1:]:
            common &= self._before[end]
        return [node for node, bit in self._bit.items() if common & bit]

    def _launch(self, event: od.Kernel | od.Copy | od.Record | od.Wait, call: Node, number: int) -> None:
        before = [call]
        mine = self._streams[event.stream]
        for stream in self._streams.values():
            legacy = stream.device == mine.device and {stream.kind, mine.kind} == {"legacy", "blocking"}
            if stream.id == mine.id or legacy:
                before += self._known(stream.id, call)
        if isinstance(event, od.Wait):
            before += self._bound(event.event, call)
        end = f"{call}:end"
        if isinstance(event, od.Kernel):
            end = self._node(f"{call}:run", number, before)
        elif isinstance(event, od.Copy):
            self._copy(event, call, number, before)
        else:
            self._node(end, number, before)
        self._launched.setdefault(event.stream, {}).setdefault(event.thread, []).append((call, end))
        if isinstance(event, od.Record):
            self._records.setdefault(event.event, []).append((call, end))

    def _copy(self, event: od.Copy, call: Node, number: int, before: list[Node]) -> None:
        begin = self._node(f"{call}:begin", number, before)
        parts = range(len(event.src))
        start = begin if event.order == "stream" else call
        reads = [self._node(f"{call}:read{part}", number, [start]) for part in parts]
        writes = [self._node(f"{call}:write{part}", number, [begin, reads[part]]) for part in parts]
        self._node(f"{call}:end", number, writes)
        if event.order == "call":
            self._next[event.thread] += reads

    # Asking.

    def node_of(self, number: int, write: bool, span: tuple[int, int]) -> Node:
        """The node that accesses some of the addresses ``span`` in event ``number``."""
        nodes = [node for node, of in self.number.items() if of == number]
        event = self.events[number]
        if isinstance(event, od.Kernel):
            return next(node for node in nodes if node.endswith(":run"))
        if isinstance(event, od.Copy):
            ranges, kind = (event.dst, "write") if write else (event.src, "read")
            part = next(part for part, where in enumerate(ranges) if self._overlap(where, span))
            return next(node for node in nodes if node.endswith(f":{kind}{part}"))
        return nodes[0]

    def _overlap(self, where: od.Range, span: tuple[int, int]) -> bool:
        start = self._regions[where[0]].at + where[1]
        return start < span[1] and span[0] < start + where[2]

    def schedule(self, first: Node, then: Node) -> tuple[str, ...]:
        """A legal order of all steps in which ``first`` comes as early as it can, and so before ``then``.

        Both must have no order. Which of two calls comes first where that is a matter of timing is tried in
        several ways.
        """
        for calls in self._call_orders(first):
            events = [self.events[self.number[call]] for call in calls]
            graph = OrderGraph(self._declared(), events, as_called=True)
            if not graph.comes_before(then, first):
                break
        early = graph._before[first]
        order = [node for node in graph._bit if graph._bit[node] & early]
        order += [node for node in graph._bit if not graph._bit[node] & early]
        return tuple(node for node in order if _is_step(node))

    def _declared(self) -> od.Header:
        streams, regions = tuple(self._streams.values()), tuple(self._regions.values())
        return msgspec.structs.replace(self._header, streams=streams, regions=regions)

    def _call_orders(self, first: Node) -> Iterable[list[Node]]:
        """Orders of all calls in which those that surely come before ``first`` are the first ones."""
        calls = [node for node in self._bit if ":" not in node]
        early = self._before[first] | self._bit[first.partition(":")[0]]
        needed = [call for call in calls if self._bit[call] & early]
        rest = [call for call in calls if not self._bit[call] & early]
        threads = sorted({self.events[self.number[call]].thread for call in needed})  # type: ignore[union-attr]
        yield needed + rest
        for ahead in islice(permutations(threads), _ORDERS):
            yield self._ahead(needed, ahead) + rest

    def _ahead(self, calls: list[Node], threads: tuple[int, ...]) -> list[Node]:
        """``calls`` in an order that lets the earlier ones of ``threads`` go on as far as they can."""
        of = {call: self.events[self.number[call]].thread for call in calls}  # type: ignore[union-attr]
        left = {thread: [call for call in calls if of[call] == thread] for thread in threads}
        order: list[Node] = []
        while any(left.values()):
            waiting = [call for some in left.values() for call in some]
            for some in left.values():
                if some and not any(self.comes_before(other, some[0]) for other in waiting):
                    order.append(some.pop(0))
                    break
        return order

    def common(self, one: Node, other: Node) -> Node | None:
        """The last node, in the order of the trace, that comes before both."""
        both = self._before[one] & self._before[other]
        return next((node for node in reversed(self._bit) if self._bit[node] & both), None)

    def path(self, start: Node | None, end: Node) -> list[Node]:
        """A shortest path."""
        nodes: list[Node] = [end] if start is None else _networkx().shortest_path(self.graph, start, end)
        return nodes

    def described(self, node: Node) -> str:
        """A node in a line."""
        number = self.number[node]
        event = self.events[number]
        fields = []
        for field in msgspec.structs.fields(event):
            value = getattr(event, field.name)
            if value != field.default and not isinstance(value, list | tuple):
                fields.append(f"{field.name}={value}")
        part = node.partition(":")[2]
        return f"{event.__struct_config__.tag}{f' ({part})' if part else ''} {' '.join(fields)}"


def _is_step(node: Node) -> bool:
    try:
        step_named(node)
    except ValueError:
        return False
    return True


def explain(header: od.Header, events: Sequence[od.OrderEvent], race: Race, offset: int = 0) -> Explanation:
    """Explain ``race``, found in a trace of which ``events`` are those from number ``offset`` on.

    Only the events up to the second access count. CannotRun if networkx is missing, FarApart if the first
    access is not among ``events``.
    """
    one, other = race.first.number - offset, race.second.number - offset
    if not 0 <= one <= other < len(events):
        raise FarApart(
            f"events {race.first.number} and {race.second.number} are not both among those looked at, which "
            f"are {offset} to {offset + len(events) - 1}"
        )
    header, kept, numbers = excerpt(header, events[: other + 1])
    graph = OrderGraph(header, kept)
    region = next(
        region for region in header.regions if (region.name or f"region {region.id}") == race.region
    )
    start = region.at + race.offset
    span = (start, start + race.bytes)
    first = graph.node_of(numbers.index(one), race.first.write, span)
    second = graph.node_of(numbers.index(other), race.second.write, span)
    common = graph.common(first, second)
    paths = [
        tuple(
            f"event {numbers[graph.number[node]] + offset}: {graph.described(node)}"
            for node in graph.path(common, end)
        )
        for end in (first, second)
    ]
    return Explanation(
        common=None if common is None else paths[0][0],
        to_first=paths[0][common is not None :],
        to_second=paths[1][common is not None :],
        header=header,
        program=tuple(kept),
        witnesses=(graph.schedule(second, first), graph.schedule(first, second)),
    )


def excerpt(
    header: od.Header, events: Sequence[od.OrderEvent]
) -> tuple[od.Header, list[od.OrderEvent], list[int]]:
    """``events`` as a program of their own, with the numbers that they have in ``events``.

    What begins before them is left out: items that were put, threads that were started. All that is declared
    goes into the header.
    """
    declared: list[od.Header | od.Declare] = [header]
    declared += [event for event in events if isinstance(event, od.Declare)]
    put: set[tuple[int, int]] = set()
    spawned: set[int] = set()
    kept: list[od.OrderEvent] = []
    numbers: list[int] = []
    threads: dict[int, None] = {}
    for number, event in enumerate(events):
        if isinstance(event, od.Declare | od.Own):
            continue
        if isinstance(event, od.Get) and (event.queue, event.item) not in put:
            continue
        if isinstance(event, od.Join) and event.child not in spawned | threads.keys():
            continue
        if isinstance(event, od.Put):
            put.add((event.queue, event.item))
        if isinstance(event, od.Spawn):
            spawned.add(event.child)
        if event.thread not in spawned:
            threads[event.thread] = None
        kept.append(event)
        numbers.append(number)
    streams = {stream.id: stream for some in declared for stream in some.streams}
    regions = {region.id: region for some in declared for region in some.regions}
    own = msgspec.structs.replace(
        header, threads=tuple(threads), streams=tuple(streams.values()), regions=tuple(regions.values())
    )
    return own, kept, numbers


def _networkx() -> Any:
    try:
        import networkx
    except ImportError as error:
        raise CannotRun(
            "explaining a race needs networkx, which is not installed: run pip install 'kvfence[order]'"
        ) from error
    return networkx
