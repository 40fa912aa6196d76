"""Changes of block tables since the last step, for the model runner."""

from typing import NamedTuple, TypeAlias

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.request import Request


class Opened(NamedTuple):
    """``request`` got row ``row``, with empty tables."""

    row: int
    request: Request


class Added(NamedTuple):
    """Blocks ``at``, ``at + 1``, ... of a table are in ``slots``."""

    row: int
    group: int
    at: int
    slots: Slots


class Cut(NamedTuple):
    """Blocks ``start`` .. ``end - 1`` (None: to the end) left a table."""

    row: int
    group: int
    start: int
    end: int | None


class Closed(NamedTuple):
    """The row has no request any more."""

    row: int


Change: TypeAlias = Opened | Added | Cut | Closed
