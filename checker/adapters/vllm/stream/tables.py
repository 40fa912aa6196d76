"""Block tables: which holder, group and place the slots that a request takes have."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from kvfence.checker.adapters.vllm.stream.live_request import RequestState
from kvfence.checker.adapters.vllm.stream.pool_events import ALLOC, FREE, TOUCH, Item
from kvfence.checker.adapters.vllm.stream.stream import Stream

Tables: TypeAlias = tuple[tuple[int, int, list[Any]], ...]
"""Of each table of a request, as noted: its group, the index of the first block noted, blocks to the end."""

APPENDING: Final = frozenset({"FullAttentionManager", "SlidingWindowManager", "ChunkedLocalAttentionManager"})
"""vLLM's kinds of tables to which blocks of a running request are only ever appended."""


class TableReader:
    """Copies what the tables of a request look like, in the engine's thread."""

    __slots__ = ("appending", "tables")

    def __init__(self, manager: Any) -> None:
        singles = manager.coordinator.single_type_managers
        self.tables: list[Any] = [single.req_to_blocks for single in singles]
        self.appending = all(type(single).__name__ in APPENDING for single in singles)
        """Whether a running request's new blocks are at the ends of its tables."""

    def read(self, id_: str, most: int | None) -> Tables:
        """The last ``most`` blocks of each table of the request; all, if None."""
        found = []
        for group, tables in enumerate(self.tables):
            table = tables.get(id_)
            if table is not None:
                start = 0 if most is None else max(len(table) - most, 0)
                found.append((group, start, table[start:]))
        return tuple(found)


def emit_table(stream: Stream, state: RequestState, items: list[Item], tables: Tables = ()) -> None:
    """Emit ``items`` as done by the block table of ``state``."""
    for item in items:
        if item.kind in {ALLOC, TOUCH} and item.tap is stream.gpu:
            group, at = place(state, item.slots, tables)
            state.enter(group, at, item.slots)
            stream.emit_item(item, state.table, group, at)
        else:
            if item.kind == FREE and item.tap is stream.gpu:
                state.freed.update(item.slots)
            stream.emit_item(item, state.table)


def place(state: RequestState, slots: list[int], tables: Tables) -> tuple[int, int]:
    """The group in whose table ``slots`` lie in a row, and the index of the first.

    Looks where the table was last seen to end; failing that, anywhere.
    """
    first, last, count = slots[0], slots[-1], len(slots)
    for group, start, table in tables:
        at = max(state.lengths.get(group, 0) - start, 0)
        while at < len(table) and table[at].is_null:
            at += 1
        end = at + count
        if end <= len(table) and table[at].block_id == first and table[end - 1].block_id == last:
            return group, start + at
    for group, start, table in tables:
        for at in range(len(table) - 1, -1, -1):
            if table[at].block_id == first:
                return group, start + at
    return 0, 0
