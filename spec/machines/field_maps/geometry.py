"""What the steps of the geometry machine look like as events: its field map.

A trace names its groups in its header, and this machine chooses them step by step: the header names every
group that there can be, and an event names the one that a group of the machine has become. Request 0 writes,
request 1 reads. The table of each has a slot for each block of each group.
"""

from collections.abc import Callable, Mapping

from kvfence.spec import events as ev
from kvfence.spec.language import View
from kvfence.spec.numbering import BEFORE, NOW

WRITER, READER = "0", "1"
NULL = 0
KINDS: tuple[ev.GroupKind, ...] = ("full", "sliding", "chunked", "recurrent")
PROMPT = 1  # tokens of each; what else there is was sampled
OF = {"full": "full", "window": "sliding", "chunked": "chunked", "recurrent": "recurrent"}


def _index(kind: str, size: int, reach: int) -> int:
    """The place in the header of a group with blocks of ``size`` tokens: all pairs in diagonals."""
    diagonal = size + reach
    pair = diagonal * (diagonal + 1) // 2 + reach
    return pair * len(KINDS) + KINDS.index(kind)


def header(sizes: Mapping[str, int]) -> ev.Header:
    """All groups that there can be. A window counts the reading token, too."""
    longest, furthest = sizes["Token"], sizes["Token"] + sizes["Ahead"]
    groups = [ev.Group("gpu", 1)] * (_index("full", 0, longest + furthest + 1))
    for size in range(1, longest + 1):
        for reach in range(furthest + 1):
            window = {"sliding": reach + 1, "chunked": max(1, reach)}
            for kind in KINDS:
                groups[_index(kind, size, reach)] = ev.Group("gpu", size, window.get(kind), kind)
    return ev.Header(
        producer="kvfence machine geometry",
        pools=(ev.Pool("gpu", 1 + 2 * sizes["Group"] * (furthest + 1), null=NULL),),
        groups=tuple(groups),
    )


class _Tables:
    """The tables of a state."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.groups = range(len(view.size))

    def group(self, g: int) -> int:
        """The number of group ``g`` in the header."""
        view = self.view
        return _index(OF[str(view.kind[g])], int(view.size[g]), int(view.reach[g]))

    def slots(self, g: int, who: str, begin: int, end: int) -> list[int]:
        """Blocks ``begin`` .. ``end - 1`` of a table."""
        of_both = 2 * len(self.groups)
        return [1 + of_both * block + 2 * g + int(who) for block in range(begin, end)]

    def written(self, g: int) -> int:
        """Blocks that the writer has begun."""
        return int(self.view.at_blocks[g]) + (int(self.view.at_offset[g]) > 0)

    def kept(self, g: int) -> list[int]:
        """The writer's table: null blocks stand for what was let go."""
        first = int(self.view.kept[g])
        return [NULL] * first + self.slots(g, WRITER, first, self.written(g))

    def hit(self, g: int) -> list[int]:
        """The reader's table."""
        first, end = int(self.view.hit_from[g]), int(self.view.hit_blocks[g])
        return [NULL] * min(first, end) + self.slots(g, READER, first, end)


def _place(view: View) -> int:
    """Tokens of the longest hit that a reader can get."""
    return int(view.before if view.ahead else view.last)


def begin(pre: View, post: View) -> list[ev.Event]:
    """The writer comes, and the reader waits."""
    return [ev.Submit(WRITER, NOW, PROMPT), ev.Submit(READER, NOW, PROMPT)]


def write(aligned: bool) -> Callable[[View, View], list[ev.Event]]:
    """A token is computed. ``aligned``: the bound is reckoned as if a window began with a block."""

    def events(pre: View, post: View) -> list[ev.Event]:
        was, now, out = _Tables(pre), _Tables(post), list[ev.Event]()
        length = int(post.length)
        for g in now.groups:
            fresh = now.slots(g, WRITER, was.written(g), now.written(g))
            if fresh:
                out.append(ev.Alloc("gpu", f"req:{WRITER}.now", fresh))
            for tokens in (length, _place(post)):
                out.append(ev.Geometry(WRITER, NOW, now.group(g), tokens, slots=now.kept(g)))
            out += _bound(post, g, length, aligned)
        return out

    return events


def _bound(view: View, g: int, length: int, aligned: bool) -> list[ev.Event]:
    """The most blocks that reach and lookahead take, told when they take so many.

    What is read and what is reserved ahead is one window of so many tokens.
    """
    kind, size, ahead = str(view.kind[g]), int(view.size[g]), int(view.ahead)
    if kind == "full":
        return []
    most = int(view.reach[g]) + ahead
    whole = int(view.reach_blocks[g]) + int(view.ahead_blocks[g])
    rest = most - whole * size
    more = (rest > 0) + (rest > size) if aligned else 1 + (rest > 1) + (rest > size + 1)
    first = int(view.first_blocks[g]) * size + int(view.first_offset[g])
    window = length + ahead - first
    touched = -(-(length + ahead) // size) - first // size
    if touched < -(-(size - 1 + window) // size):
        return []
    return [ev.Geometry(WRITER, NOW, _index("sliding", size, window), length + ahead, bound=whole + more)]


def slide(pre: View, post: View, g: int) -> list[ev.Event]:
    """The writer lets go of a block; a reader will want what is read at the last place."""
    now = _Tables(post)
    return [
        ev.Free("gpu", f"req:{WRITER}.now", now.slots(g, WRITER, int(pre.kept[g]), int(post.kept[g]))),
        ev.Geometry(WRITER, NOW, now.group(g), _place(post), slots=now.kept(g)),
    ]


def look_up(pre: View, post: View) -> list[ev.Event]:
    """How many blocks the reader needs of each group, by the connector's reckoning."""
    now = _Tables(post)
    tokens = max(_place(post), int(post.hit))
    return [
        ev.Geometry(READER, NOW, now.group(g), tokens, needed=int(post.hit_blocks[g]) - int(post.hit_from[g]))
        for g in now.groups
    ]


def accept(pre: View, post: View) -> list[ev.Event]:
    """The reader gets the blocks of its hit."""
    now, hit, out = _Tables(post), int(post.hit), list[ev.Event]()
    for g in now.groups:
        slots = now.slots(g, READER, int(post.hit_from[g]), int(post.hit_blocks[g]))
        if slots:
            out.append(ev.Alloc("gpu", f"req:{READER}.now", slots))
    out.append(ev.Admit(READER, NOW, hit, 0, int(post.to_compute), int(post.length)))
    return [*out, *(ev.Geometry(READER, NOW, now.group(g), hit, slots=now.hit(g)) for g in now.groups)]


def allocate(pre: View, post: View, g: int, h: int) -> list[ev.Event]:
    """How many blocks the scheduler asked for."""
    now, claim = _Tables(post), int(post.claim[g])
    return [ev.Geometry(READER, NOW, now.group(g), int(post.hit), slots=now.hit(g), held=claim, needed=claim)]


def leave(pre: View, post: View) -> list[ev.Event]:
    """The reader gives its blocks back, and waits for another turn."""
    was = _Tables(pre)
    held = [
        slot
        for g in was.groups
        for slot in was.slots(g, READER, int(pre.hit_from[g]), int(pre.hit_blocks[g]))
    ]
    return [
        ev.Preempt(READER, NOW),
        *([ev.Free("gpu", f"req:{READER}.before", held)] if held else []),
        ev.Retire(READER, BEFORE),
    ]
