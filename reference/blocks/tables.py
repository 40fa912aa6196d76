"""Block tables and progress of the requests that hold blocks: one row a request, one array a quantity."""

from dataclasses import dataclass
from math import lcm

import numpy as np
import numpy.typing as npt

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.request import Request
from kvfence.spec import events as ev

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A KV-cache group: ``block_size`` in tokens; what a token reads of it, by its kind.

    ``full``: all tokens before it. ``sliding``: ``window`` tokens, itself included. ``chunked``: those since
    the last multiple of ``window``. ``recurrent``: the state behind the token before it. All but the first
    forget.
    """

    block_size: int
    window: int = 0
    kind: ev.GroupKind = "full"

    @property
    def forgets(self) -> bool:
        """Whether blocks are of no use any more some time."""
        return self.kind != "full"

    @property
    def reach(self) -> int:
        """Tokens that a token reads at most; only of a group that forgets."""
        return self.window if self.window else 1

    @property
    def most_read(self) -> int:
        """Blocks that a token right behind a block reads at most; only of a group that forgets."""
        return max(1, -(-(self.window - 1) // self.block_size) + 1) if self.window else 1

    def first_token(self, computed: int) -> int:
        """First token that the one after ``computed`` tokens still reads."""
        if self.kind == "full":
            return 0
        if self.kind == "chunked":
            return computed - computed % self.window
        return max(computed - self.reach + (self.kind == "sliding"), 0)

    def first_tokens(self, computed: Rows) -> Rows:
        """The same for many requests."""
        if self.kind == "full":
            return np.zeros_like(computed)
        if self.kind == "chunked":
            return computed - computed % self.window
        return np.maximum(computed - self.reach + (self.kind == "sliding"), 0)

    def first_block(self, computed: int) -> int:
        """First block that the token after ``computed`` tokens still reads."""
        return self.first_token(computed) // self.block_size

    def first_blocks(self, computed: Rows) -> Rows:
        """The same for many requests."""
        return self.first_tokens(computed) // self.block_size


def common_blocks(groups: tuple[GroupSpec, ...]) -> int:
    """Tokens of which a hit is a multiple: it ends with a block of each group."""
    return lcm(*(group.block_size for group in groups))


class BlockTables:
    """Arrays by row, so that a decode step over all rows is a few array operations.

    ``slots[group][row, i]`` is block ``i`` of the request (the null slot where it has none, outside a
    window), and ``blocks[group, row]`` the table's length. Token counts: ``computed`` are dispatched,
    ``confirmed`` processed.
    """

    def __init__(self, groups: tuple[GroupSpec, ...], rows: int, null: int) -> None:
        self.groups = groups
        self.null = null
        self._free_rows = list(range(rows - 1, -1, -1))
        self.requests: list[Request | None] = [None] * rows
        self.slots = [np.full((rows, 64), null, np.int64) for _ in groups]
        self.keys = [np.zeros((rows, 64), np.int64) for _ in groups]
        self.blocks = np.zeros((len(groups), rows), np.int64)
        self.first = np.zeros((len(groups), rows), np.int64)
        """First block not given back yet because it slid out of the window."""
        self.cursor = np.zeros((len(groups), rows), np.int64)
        """Store cursor: blocks below it are stored, queued or dropped."""
        self.cached = np.zeros(rows, np.int64)
        """Tokens up to which full blocks are in the prefix index already."""
        self.computed = np.zeros(rows, np.int64)
        self.confirmed = np.zeros(rows, np.int64)
        self.total = np.zeros(rows, np.int64)
        self.target = np.zeros(rows, np.int64)
        self.limit = np.zeros(rows, np.int64)
        """Tokens that the scheduler may dispatch as far as it can know."""
        self.last_step = np.full(rows, -1, np.int64)
        self.ticket = np.zeros(rows, np.int64)
        """Grows whenever a row changes hands: distinguishes a step's output from its successor's."""

    @property
    def rows_free(self) -> int:
        """Rows without a request."""
        return len(self._free_rows)

    def open_row(self, request: Request, depth: int) -> int:
        """Give ``request`` a row with empty tables."""
        row = self._free_rows.pop()
        self._widen(max(keys.size for keys in request.keys_of) + 1 + depth)
        self.requests[row] = request
        for mine, keys in zip(self.keys, request.keys_of, strict=False):
            mine[row, : keys.size] = keys
        self.blocks[:, row] = 0
        self.first[:, row] = 0
        self.cursor[:, row] = 0
        self.cached[row] = 0
        self.computed[row] = self.confirmed[row] = 0
        self.total[row] = request.total
        self.target[row] = request.target
        self.limit[row] = request.target + (depth if request.stops_unannounced else 0)
        self.last_step[row] = -1
        self.ticket[row] += 1
        request.row = row
        return row

    def close_row(self, request: Request) -> None:
        """The request holds blocks no more (or only behind a fence)."""
        self.requests[request.row] = None
        self._free_rows.append(request.row)
        self.ticket[request.row] += 1
        request.row = -1

    def table(self, row: int, group: int) -> Slots:
        """A view of the request's table in ``group``."""
        return self.slots[group][row, : self.blocks[group, row]]

    def _widen(self, width: int) -> None:
        have = self.keys[0].shape[1]
        if width <= have:
            return
        more = max(width, 2 * have) - have
        self.slots = [np.pad(slots, ((0, 0), (0, more)), constant_values=self.null) for slots in self.slots]
        self.keys = [np.pad(keys, ((0, 0), (0, more))) for keys in self.keys]
