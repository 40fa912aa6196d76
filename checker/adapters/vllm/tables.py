"""Block tables: which holder, group and place the slots that a request takes have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvfence.checker.adapters.vllm.stream import ALLOC, FREE, TOUCH, Item, RequestState, Stream


def table_handler(stream: Stream, state: RequestState) -> Callable[[list[Item]], None]:
    """Tells items as done by the block table of ``state``."""

    def handle(items: list[Item]) -> None:
        for item in items:
            if item.kind in {ALLOC, TOUCH} and item.tap is stream.gpu:
                group, at = place(stream, state, item.slots)
                stream.tell(item, state.table, group, at)
            elif item.kind == FREE:
                stream.tell(item, state.table)
            else:
                stream.tell(item, state.table)

    return handle


def place(stream: Stream, state: RequestState, slots: list[int]) -> tuple[int, int]:
    """The group in whose table ``slots`` lie in a row, and the index of the first.

    Looks where the table was last seen to end; failing that, anywhere.
    """
    tables = tables_of(stream, state.id)
    first, last, count = slots[0], slots[-1], len(slots)
    for group, table in tables:
        at = state.lengths.get(group, 0)
        while at < len(table) and table[at].is_null:
            at += 1
        end = at + count
        if end <= len(table) and table[at].block_id == first and table[end - 1].block_id == last:
            state.lengths[group] = end
            return group, at
    for group, table in tables:
        for at in range(len(table) - 1, -1, -1):
            if table[at].block_id == first:
                state.lengths[group] = max(state.lengths.get(group, 0), at + count)
                return group, at
    return 0, 0


def tables_of(stream: Stream, id_: str) -> list[tuple[int, list[Any]]]:
    """The tables of a request by group: vLLM's lists of blocks."""
    manager = stream.table_manager
    if manager is None:
        return []
    return [
        (group, single.req_to_blocks[id_])
        for group, single in enumerate(manager.coordinator.single_type_managers)
        if id_ in single.req_to_blocks
    ]
