"""What the steps of the loads machine look like as events: its field map.

Request ``r`` loads at most once. Its load is told block by block: that of block ``b`` is operation
``r * blocks + b``, and reads the CPU slot of that number, which has its content only for this.
"""

from collections.abc import Mapping

from kvfence.spec import events as ev
from kvfence.spec.language import View

FULL, PLACES = 2, 2  # tokens of a block, blocks of the prompt in each group
PROMPT = FULL * PLACES + 1


def header(sizes: Mapping[str, int]) -> ev.Header:
    """The header of a path's trace."""
    blocks = sizes["Block"]
    return ev.Header(
        producer="kvfence machine loads",
        pools=(ev.Pool("gpu", blocks), ev.Pool("cpu", sizes["Request"] * blocks)),
        groups=tuple(ev.Group("gpu", block_size=FULL) for _ in range(sizes["Group"])),
    )


class _Names:
    """What a state is called in traces."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.blocks = range(len(view.place))
        self.groups = sorted({g for _, g in view.in_group})

    def req(self, r: int) -> str:
        """Holder of the request's table."""
        return f"req:{r}.0"

    def group(self, b: int) -> int:
        """The group that the block is in."""
        return next(int(g) for g in self.groups if self.view.in_group[b, g])

    def table(self, r: int) -> list[int]:
        """The blocks of the request's table."""
        return [b for b in self.blocks if self.view.table[r, b]]

    def fills(self, r: int) -> list[int]:
        """The blocks that the request's load will fill."""
        return [b for b in self.blocks if self.view.fills[r, b]]

    def op(self, r: int, b: int) -> int:
        """The number of the operation that fills a block, and of the CPU slot that it reads."""
        return r * len(self.blocks) + b

    def keys(self, blocks: list[int]) -> list[int]:
        """The content keys of blocks: one for each place."""
        return [int(self.view.place[b]) + 1 for b in blocks]

    def requests(self) -> range:
        """All requests."""
        return range(len(self.view.status))


def _left(pre: View, post: View, *without: int) -> list[ev.Event]:
    """Blocks that requests let go of in a step."""
    was, now = _Names(pre), _Names(post)
    out: list[ev.Event] = []
    for q in was.requests():
        gone = sorted(set(was.table(q)) - set(now.table(q)))
        if gone and q not in without:
            out.append(ev.Free("gpu", was.req(q), gone))
    return out


def take(pre: View, post: View, r: int, b: int, i: int, g: int) -> list[ev.Event]:
    """A fresh block of the table."""
    return [ev.Alloc("gpu", _Names(pre).req(r), [b], group=g, at=i)]


def share(pre: View, post: View, r: int, b: int) -> list[ev.Event]:
    """A block of the table that somebody else fills or has filled."""
    n = _Names(pre)
    return [ev.Touch("gpu", n.req(r), [b], group=n.group(b), at=int(pre.place[b]))]


def abort(pre: View, post: View, r: int) -> list[ev.Event]:
    """The end of a request that was not admitted."""
    return [ev.Finish(f"{r}", 0, "abort", 0), *_left(pre, post), ev.Retire(f"{r}", 0)]


def admit(pre: View, post: View, r: int) -> list[ev.Event]:
    """The promise of the connector, admission, and a load of each block that has to be filled."""
    n = _Names(post)
    filled = n.fills(r)
    local = min((int(post.place[b]) for b in filled), default=PLACES) * FULL
    external = FULL * PLACES - local
    hit, slots = f"hit:{r}.0", [n.op(r, b) for b in filled]
    out: list[ev.Event] = []
    for b in filled:
        out += [
            ev.Alloc("cpu", hit, [n.op(r, b)]),
            ev.Label("cpu", [n.op(r, b)], n.keys([b]), group=n.group(b)),
        ]
    if external:
        out.append(ev.Lookup(f"{r}", 0, local, external, "cpu", slots))
    out.append(ev.Admit(f"{r}", 0, local, external, 1, PROMPT))
    for b in filled:
        op, at = n.op(r, b), int(post.place[b])
        out += [
            ev.Touch("gpu", f"op:{op}.0", [b]),
            ev.Touch("cpu", f"op:{op}.0", [op]),
            ev.Queue(op, 0, "load", "cpu", [op], "gpu", [b], n.keys([b]), f"{r}", 0, [at], n.group(b)),
            ev.Issue(op, 0),
        ]
    return [*out, *([ev.Free("cpu", hit, slots)] if slots else [])]


def fail(pre: View, post: View, r: int, b: int, c: int) -> list[ev.Event]:
    """A failure, as the connector tells it."""
    n = _Names(pre)
    return [ev.Failed(n.op(r, b), 0, 0, [c], n.group(b))]


def _over(pre: View, post: View, r: int) -> list[ev.Event]:
    """The end of a load, of each block."""
    n = _Names(pre)
    ends: list[ev.Event] = []
    frees: list[ev.Event] = []
    for b in n.fills(r):
        op, ok = n.op(r, b), not pre.failed[r, b]
        ends += [ev.Report(op, 0, 0, ok=ok), ev.Complete(op, 0, ok=ok)]
        if post.label[b] and not pre.label[b]:
            ends.append(ev.Label("gpu", [b], n.keys([b]), group=n.group(b), op=op))
        frees += [
            ev.Free("gpu", f"op:{op}.0", [b]),
            ev.Free("cpu", f"op:{op}.0", [op]),
            ev.Unlabel("cpu", [op], "it was made for this load"),
        ]
    return [*ends, *frees]


def complete(pre: View, post: View, r: int) -> list[ev.Event]:
    """The end of a load that has landed."""
    return _over(pre, post, r)


def roll_back(pre: View, post: View, r: int) -> list[ev.Event]:
    """The end of a load that has failed, and who computes again."""
    back = [
        ev.Rollback(
            f"{q}",
            0,
            FULL * int(post.counted[q]),
            ahead=FULL * (PLACES - int(post.counted[q]) - int(post.to_compute[q])),
        )
        for q in _Names(pre).requests()
        if post.counted[q] != pre.counted[q] or (q == r and pre.status[q] == "loading")
    ]
    return [*_over(pre, post, r), *back, *_left(pre, post)]


def give_up(pre: View, post: View, r: int) -> list[ev.Event]:
    """The end of a load that has failed, and of the requests that waited for it."""
    n = _Names(pre)
    ended = [q for q in n.requests() if post.status[q] == "gone" and pre.status[q] != "gone"]
    out = [*_over(pre, post, r), *_left(pre, post, *ended)]
    for q in ended:
        out += [
            *([ev.Rollback(f"{q}", 0, 0)] if pre.counted[q] else []),
            ev.Finish(f"{q}", 0, "error", 0),
            ev.Free("gpu", n.req(q), n.table(q)),
            ev.Retire(f"{q}", 0),
        ]
    return out


def compute(pre: View, post: View, r: int) -> list[ev.Event]:
    """A step fills the next block of each group."""
    n = _Names(pre)
    out: list[ev.Event] = [ev.Dispatch(ev.UNNUMBERED, [f"{r}"], [FULL]), ev.Process(ev.UNNUMBERED)]
    for g in n.groups:
        found = [b for b in n.table(r) if n.group(b) == g and post.label[b] and not pre.label[b]]
        if found:
            out.append(ev.Label("gpu", found, n.keys(found), group=g))
    return out


def finish(pre: View, post: View, r: int) -> list[ev.Event]:
    """The last token of the prompt is computed, and the request is gone; nothing of it is stored."""
    n = _Names(pre)
    return [
        ev.Dispatch(ev.UNNUMBERED, [f"{r}"], [1]),
        ev.Process(ev.UNNUMBERED),
        ev.Finish(f"{r}", 0, "stop", PROMPT),
        *(ev.Drop(f"{r}", 0, 0, PLACES, "off", g) for g in n.groups),
        ev.Free("gpu", n.req(r), n.table(r)),
        ev.Retire(f"{r}", 0),
    ]


def evict(pre: View, post: View, b: int) -> list[ev.Event]:
    """A free block loses its key."""
    return [ev.Evict("gpu", [b])]
