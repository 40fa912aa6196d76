"""What the steps of the verdicts machine look like as events: its field map.

The tier has one slot. Request ``r`` computes or loads into slot ``r`` of the GPU. A question and the load
that follows it have the same number, one for each generation of each request.
"""

from collections.abc import Mapping

from kvfence.spec import events as ev
from kvfence.spec.language import View

FULL, KEY, SLOT = 2, 1, 0  # tokens of a block, the one key, and the tier's one slot
STORE = 1000  # stores are numbered from here, loads from 0


def header(sizes: Mapping[str, int]) -> ev.Header:
    """The header of a path's trace."""
    return ev.Header(
        producer="kvfence machine verdicts",
        pools=(ev.Pool("gpu", sizes["Request"] + 1), ev.Pool("cpu", 1)),
        groups=(ev.Group("gpu", block_size=FULL),),
    )


def number(r: int, g: int) -> int:
    """Of the question that request ``r`` asks in generation ``g``, and of its load."""
    return 2 * r + g


def _hit(r: int, g: int) -> str:
    return f"hit:{r}.{g}"


def _asked(r: int, g: int) -> str:
    return f"ask:{number(r, g)}.0"


def store(pre: View, post: View) -> list[ev.Event]:
    """A store from a slot of the GPU beside those of the requests, told as a whole."""
    op, source = STORE + post.stores, len(pre.status)
    holder = f"op:{op}.0"
    return [
        ev.Alloc("gpu", holder, [source]),
        ev.Label("gpu", [source], [KEY]),
        ev.Alloc("cpu", holder, [SLOT]),
        ev.Queue(op, 0, "store", "gpu", [source], "cpu", [SLOT], [KEY]),
        ev.Issue(op, 0),
        ev.Report(op, 0, 0),
        ev.Complete(op, 0),
        ev.Label("cpu", [SLOT], [KEY], op=op),
        ev.Free("cpu", holder, [SLOT]),
        ev.Free("gpu", holder, [source]),
        ev.Evict("gpu", [source]),
    ]


def evict(pre: View, post: View) -> list[ev.Event]:
    """The tier gives up the key."""
    return [ev.Evict("cpu", [SLOT])]


def ask(pre: View, post: View, r: int) -> list[ev.Event]:
    """A question to the tier."""
    g = pre.gen[r]
    return [ev.Ask(number(r, g), f"{r}", g, "cpu", [KEY])]


def look(pre: View, post: View, r: int, g: int) -> list[ev.Event]:
    """A hit is pinned for the question; a miss is not seen from outside."""
    return [ev.Touch("cpu", _asked(r, g), [SLOT])] if post.pin[r, g] and not pre.pin[r, g] else []


def answer(pre: View, post: View, r: int, g: int, q: int) -> list[ev.Event]:
    """The answer to a question, applied to a request."""
    says = ev.Answer(number(r, g), f"{q}", pre.gen[q], hits=int(pre.says_hit[r, g]))
    if not pre.pin[r, g]:
        return [says]
    return [
        says,
        ev.Touch("cpu", _hit(r, g), [SLOT]),
        ev.Free("cpu", _asked(r, g), [SLOT]),
        ev.Lookup(f"{q}", pre.gen[q], 0, FULL, "cpu", [SLOT]),
    ]


def promised(view: View, r: int) -> bool:
    """Whether the request waits with a promise."""
    return bool(view.status[r] == "waiting" and view.verdict[r] == "hit")


def _unpinned(pre: View, post: View) -> list[ev.Event]:
    """The promises and pins that a step gives up; the pins of loads are the loads'."""
    given_up: list[ev.Event] = [
        ev.Withdraw(f"{r}", pre.gen[r])
        for r in range(len(pre.status))
        if promised(pre, r) and not promised(post, r)
    ]
    for (r, g), yes in pre.pin.items():
        present = pre.gen[r] == g
        if yes and not post.pin[r, g] and not (present and pre.status[r] == "loading"):
            holder = _hit(r, g) if present and promised(pre, r) else _asked(r, g)
            given_up.append(ev.Free("cpu", holder, [SLOT]))
    return given_up


def drop(pre: View, post: View) -> list[ev.Event]:
    """An answer that nobody waits for."""
    return _unpinned(pre, post)


def load(pre: View, post: View, r: int) -> list[ev.Event]:
    """The promise is consumed by a load."""
    g = pre.gen[r]
    op = number(r, g)
    return [
        ev.Alloc("gpu", f"req:{r}.{g}", [r]),
        ev.Admit(f"{r}", g, 0, FULL, 0, FULL),
        ev.Touch("gpu", f"op:{op}.0", [r]),
        ev.Touch("cpu", f"op:{op}.0", [SLOT]),
        ev.Queue(op, 0, "load", "cpu", [SLOT], "gpu", [r], [KEY], f"{r}", g, [0]),
        ev.Free("cpu", _hit(r, g), [SLOT]),
        ev.Issue(op, 0),
    ]


def _let_go(r: int, op: int) -> list[ev.Event]:
    return [ev.Free("gpu", f"op:{op}.0", [r]), ev.Free("cpu", f"op:{op}.0", [SLOT])]


def land(pre: View, post: View, r: int) -> list[ev.Event]:
    """The load is complete."""
    op = number(r, pre.gen[r])
    return [ev.Report(op, 0, 0), ev.Complete(op, 0), *_let_go(r, op)]


def fail(pre: View, post: View, r: int) -> list[ev.Event]:
    """The load is complete, and failed: its source cannot be found any more."""
    g = pre.gen[r]
    op = number(r, g)
    return [
        ev.Report(op, 0, 0, ok=False),
        ev.Complete(op, 0, ok=False),
        ev.Rollback(f"{r}", g, 0),
        *_unpinned(pre, post),
        *([ev.Unlabel("cpu", [SLOT], "a load from it failed")] if pre.stored else []),
        *_let_go(r, op),
    ]


def compute(pre: View, post: View, r: int) -> list[ev.Event]:
    """Admission without a hit."""
    g = pre.gen[r]
    return [ev.Alloc("gpu", f"req:{r}.{g}", [r]), ev.Admit(f"{r}", g, 0, 0, FULL, FULL)]


def abort(pre: View, post: View, r: int) -> list[ev.Event]:
    """The end of a waiting request."""
    g = pre.gen[r]
    return [ev.Finish(f"{r}", g, "abort", 0), *_unpinned(pre, post), ev.Retire(f"{r}", g)]


def finish(pre: View, post: View, r: int) -> list[ev.Event]:
    """The end of a running request; what it computes is not looked at."""
    g, loaded = pre.gen[r], pre.verdict[r] == "hit"
    return [
        ev.Finish(f"{r}", g, "abort", FULL if loaded else 0),
        *([ev.Drop(f"{r}", g, 0, 1, "aborted")] if loaded else []),
        ev.Free("gpu", f"req:{r}.{g}", [r]),
        ev.Retire(f"{r}", g),
    ]
