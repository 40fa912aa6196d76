"""What the steps of the scheduling machine look like in a trace: its field map.

The machine does not count how often a request was preempted, nor how often a host slot was used, so its
generations are numbered when a path is written. A request's load is transfer ``r``, from a remote pool with
two slots for each request; the copy to host slot ``h`` is transfer ``COPIES + h``.
"""

from kvfence.spec import events as ev
from kvfence.spec.language import View
from kvfence.spec.language.sizes import Sizes
from kvfence.spec.machines.field_maps.relations import related
from kvfence.spec.numbering import BEFORE, NOW

COPIES = 100
REMOTE = 200
ROUNDS = 3  # that find the same, until a reader may take it that nothing more happens
TOKENS = 2


def header(sizes: Sizes) -> ev.Header:
    """The pools; no groups, since what a block has of a prompt is not said here."""
    return ev.Header(
        producer="kvfence machine scheduling",
        pools=(
            ev.Pool("gpu", sizes["Block"]),
            ev.Pool("host", sizes["Host"]),
            ev.Pool("remote", 2 * sizes["Request"]),
        ),
        depth=2,
        tier="host",
    )


def _cached(view: View) -> set[int]:
    """Blocks that are known by their keys: wanted in the host tier, or in it."""
    wanted = {b for b, yes in view.wanted.items() if yes}
    return wanted | {b for (_, b), yes in view.mirrors.items() if yes}


def _forgotten(pre: View, post: View) -> list[ev.Event]:
    """The keys of blocks that are not cached any more."""
    lost = sorted(_cached(pre) - _cached(post))
    return [ev.Evict("gpu", lost)] if lost else []


def _key(b: int) -> int:
    return 1 + b


def submit(pre: View, post: View, r: int) -> list[ev.Event]:
    """The request enters the queue."""
    return [ev.Submit(f"{r}", NOW, TOKENS)]


def admit(pre: View, post: View, r: int) -> list[ev.Event]:
    """It gets its blocks and will compute all of its tokens."""
    blocks = related(post, "table", r)
    return [
        *_forgotten(pre, post),
        ev.Alloc("gpu", f"req:{r}.now", blocks),
        ev.Admit(f"{r}", NOW, 0, 0, TOKENS, TOKENS),
    ]


def park(pre: View, post: View, r: int) -> list[ev.Event]:
    """A hit in the remote pool, which somebody stored there before; its blocks, and their load."""
    blocks = related(post, "table", r)
    sources = [2 * r + k for k in range(len(blocks))]
    keys = [1000 + s for s in sources]
    stored: list[ev.Event] = [
        ev.Alloc("remote", f"op:{REMOTE + r}.now", sources),
        ev.Label("remote", sources, keys),
        ev.Free("remote", f"op:{REMOTE + r}.now", sources),
    ]
    return [
        *_forgotten(pre, post),
        *stored,
        ev.Touch("remote", f"hit:{r}.now", sources),
        ev.Lookup(f"{r}", NOW, 0, 1, "remote", sources),
        ev.Alloc("gpu", f"req:{r}.now", blocks),
        ev.Admit(f"{r}", NOW, 0, 1, TOKENS - 1, TOKENS),
        ev.Touch("gpu", f"op:{r}.now", blocks),
        ev.Touch("remote", f"op:{r}.now", sources),
        ev.Queue(r, NOW, "load", "remote", sources, "gpu", blocks, keys, f"{r}", NOW),
        ev.Issue(r, NOW),
        ev.Free("remote", f"hit:{r}.now", sources),
    ]


def land(pre: View, post: View, r: int) -> list[ev.Event]:
    """The load is complete, and the remote pool forgets what it had."""
    blocks = related(pre, "table", r)
    sources = [2 * r + k for k in range(len(blocks))]
    return [
        ev.Report(r, NOW, 0),
        ev.Complete(r, NOW),
        ev.Free("gpu", f"op:{r}.before", blocks),
        ev.Free("remote", f"op:{r}.before", sources),
        ev.Evict("remote", sources),
    ]


def defer(pre: View, post: View, r: int) -> list[ev.Event]:
    """A question to the remote pool."""
    return [ev.Ask(r, f"{r}", NOW, "remote", [1000 + 2 * r])]


def answer(pre: View, post: View, r: int) -> list[ev.Event]:
    """It does not have it."""
    return [ev.Answer(r, f"{r}", NOW, 0)]


def dispatch(pre: View, post: View, r: int) -> list[ev.Event]:
    """A step of one token."""
    return [ev.Dispatch(ev.UNNUMBERED, [f"{r}"], [1])]


def process(pre: View, post: View, r: int) -> list[ev.Event]:
    """The step's output, and the end of the fence after the last step of a preempted request."""
    lifted = [b for b in related(pre, "fence", r) if not post.fence[r, b]]
    over: list[ev.Event] = (
        [ev.Free("gpu", f"req:{r}.before", lifted), ev.Retire(f"{r}", BEFORE)] if lifted else []
    )
    return [ev.Process(ev.UNNUMBERED), *over]


def process_failed_load(pre: View, post: View, r: int) -> list[ev.Event]:
    """The step's output, and that nothing counts as computed."""
    return [ev.Process(ev.UNNUMBERED), ev.Rollback(f"{r}", NOW, 0, ahead=int(post.placeholders[r]))]


def grow(pre: View, post: View, r: int, b: int) -> list[ev.Event]:
    """The second block of the table."""
    return [*_forgotten(pre, post), ev.Alloc("gpu", f"req:{r}.now", [b], at=1)]


def preempt(pre: View, post: View, v: int) -> list[ev.Event]:
    """The blocks come free at once if no step in flight uses them."""
    freed = [b for b in related(pre, "table", v) if not post.fence[v, b]]
    gone: list[ev.Event] = (
        [ev.Free("gpu", f"req:{v}.before", freed), ev.Retire(f"{v}", BEFORE)] if freed else []
    )
    return [ev.Preempt(f"{v}", NOW, why="room"), *gone]


def finish(pre: View, post: View, r: int) -> list[ev.Event]:
    """The blocks stay cached."""
    blocks = related(pre, "table", r)
    return [
        ev.Finish(f"{r}", NOW, "stop", TOKENS),
        ev.Label("gpu", blocks, [_key(b) for b in blocks]),
        ev.Free("gpu", f"req:{r}.now", blocks),
        ev.Retire(f"{r}", NOW),
    ]


def backup(pre: View, post: View, b: int, h: int) -> list[ev.Event]:
    """A store of one block."""
    op, holder = COPIES + h, f"op:{COPIES + h}.now"
    return [
        *_forgotten(pre, post),
        ev.Touch("gpu", holder, [b]),
        ev.Alloc("host", holder, [h]),
        ev.Queue(op, NOW, "store", "gpu", [b], "host", [h], [_key(b)]),
        ev.Issue(op, NOW),
    ]


def acknowledge(pre: View, post: View, h: int) -> list[ev.Event]:
    """The store is complete."""
    op, holder = COPIES + h, f"op:{COPIES + h}.before"
    return [
        ev.Report(op, NOW, 0),
        ev.Complete(op, NOW),
        ev.Free("gpu", holder, related(pre, "mirrors", h)),
        ev.Free("host", holder, [h]),
    ]


def stalled(view: View) -> list[ev.Event]:
    """What the scheduler finds, again and again, when it can do nothing more."""
    count = dict.fromkeys(("running", "landed", "parked", "waiting", "answered"), 0)
    for status in view.status.values():
        if status in count:
            count[status] += 1
    waiting = [r for r, status in view.status.items() if status in ("waiting", "answered")]
    needed = min((2 if view.need[r] == "long" else 1 for r in waiting), default=-1)
    found = ev.Round(
        running=count["running"],
        ready=count["landed"],
        parked=count["parked"],
        waiting=len(waiting),
        needed=needed,
    )
    return [found] * ROUNDS
