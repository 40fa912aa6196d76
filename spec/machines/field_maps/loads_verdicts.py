"""What the steps of the verdicts machine look like as events: its field map.

The tier has one slot. Request ``r`` computes or loads into slot ``r`` of the GPU. A question and the load
that follows it have the same number, one for each generation of each request.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvfence.spec.events import (
    Admit,
    Alloc,
    Answer,
    Ask,
    Complete,
    Drop,
    Event,
    Evict,
    Finish,
    Free,
    Group,
    Header,
    Issue,
    Label,
    Lookup,
    Pool,
    Queue,
    Quiesce,
    Report,
    Retire,
    Rollback,
    Touch,
    Unlabel,
    Withdraw,
)
from kvfence.spec.language import View

FULL, KEY, SLOT = 2, 1, 0  # tokens of a block, the one key, and the tier's one slot
STORE = 1000  # stores are numbered from here, loads from 0


def header(sizes: Mapping[str, int]) -> Header:
    """The header of a path's trace."""
    return Header(
        producer="kvfence machine verdicts",
        pools=(Pool("gpu", sizes["Request"] + 1), Pool("cpu", 1)),
        groups=(Group("gpu", block_size=FULL),),
    )


def number(r: int, g: int) -> int:
    """Of the question that request ``r`` asks in generation ``g``, and of its load."""
    return 2 * r + g


def _hit(r: int, g: int) -> str:
    return f"hit:{r}.{g}"


def _asked(r: int, g: int) -> str:
    return f"ask:{number(r, g)}.0"


def store(pre: View, post: View) -> list[Event]:
    """A store from a slot of the GPU beside those of the requests, told as a whole."""
    op, source = STORE + post.stores, len(pre.status)
    holder = f"op:{op}.0"
    return [
        Alloc("gpu", holder, [source]),
        Label("gpu", [source], [KEY]),
        Alloc("cpu", holder, [SLOT]),
        Queue(op, 0, "store", "gpu", [source], "cpu", [SLOT], [KEY]),
        Issue(op, 0),
        Report(op, 0, 0),
        Complete(op, 0),
        Label("cpu", [SLOT], [KEY], op=op),
        Free("cpu", holder, [SLOT]),
        Free("gpu", holder, [source]),
        Evict("gpu", [source]),
    ]


def evict(pre: View, post: View) -> list[Event]:
    """The tier gives up the key."""
    return [Evict("cpu", [SLOT])]


def ask(pre: View, post: View, r: int) -> list[Event]:
    """A question to the tier."""
    g = pre.gen[r]
    return [Ask(number(r, g), f"{r}", g, "cpu", [KEY])]


def look(pre: View, post: View, r: int, g: int) -> list[Event]:
    """A hit is pinned for the question; a miss is not seen from outside."""
    return [Touch("cpu", _asked(r, g), [SLOT])] if post.pin[r, g] and not pre.pin[r, g] else []


def answer(pre: View, post: View, r: int, g: int, q: int) -> list[Event]:
    """The answer to a question, applied to a request."""
    says = Answer(number(r, g), f"{q}", pre.gen[q], hits=int(pre.says_hit[r, g]))
    if not pre.pin[r, g]:
        return [says]
    return [
        says,
        Touch("cpu", _hit(r, g), [SLOT]),
        Free("cpu", _asked(r, g), [SLOT]),
        Lookup(f"{q}", pre.gen[q], 0, FULL, "cpu", [SLOT]),
    ]


def promised(view: View, r: int) -> bool:
    """Whether the request waits with a promise."""
    return bool(view.status[r] == "waiting" and view.verdict[r] == "hit")


def _unpinned(pre: View, post: View) -> list[Event]:
    """The promises and pins that a step gives up; the pins of loads are the loads'."""
    given_up: list[Event] = [
        Withdraw(f"{r}", pre.gen[r])
        for r in range(len(pre.status))
        if promised(pre, r) and not promised(post, r)
    ]
    for (r, g), yes in pre.pin.items():
        present = pre.gen[r] == g
        if yes and not post.pin[r, g] and not (present and pre.status[r] == "loading"):
            holder = _hit(r, g) if present and promised(pre, r) else _asked(r, g)
            given_up.append(Free("cpu", holder, [SLOT]))
    return given_up


def drop(pre: View, post: View) -> list[Event]:
    """An answer that nobody waits for."""
    return _unpinned(pre, post)


def load(pre: View, post: View, r: int) -> list[Event]:
    """The promise is consumed by a load."""
    g = pre.gen[r]
    op = number(r, g)
    return [
        Alloc("gpu", f"req:{r}.{g}", [r]),
        Admit(f"{r}", g, 0, FULL, 0, FULL),
        Touch("gpu", f"op:{op}.0", [r]),
        Touch("cpu", f"op:{op}.0", [SLOT]),
        Queue(op, 0, "load", "cpu", [SLOT], "gpu", [r], [KEY], f"{r}", g, [0]),
        Free("cpu", _hit(r, g), [SLOT]),
        Issue(op, 0),
    ]


def _let_go(r: int, op: int) -> list[Event]:
    return [Free("gpu", f"op:{op}.0", [r]), Free("cpu", f"op:{op}.0", [SLOT])]


def land(pre: View, post: View, r: int) -> list[Event]:
    """The load is complete."""
    op = number(r, pre.gen[r])
    return [Report(op, 0, 0), Complete(op, 0), *_let_go(r, op)]


def fail(pre: View, post: View, r: int) -> list[Event]:
    """The load is complete, and failed: its source cannot be found any more."""
    g = pre.gen[r]
    op = number(r, g)
    return [
        Report(op, 0, 0, ok=False),
        Complete(op, 0, ok=False),
        Rollback(f"{r}", g, 0),
        *_unpinned(pre, post),
        *([Unlabel("cpu", [SLOT], "a load from it failed")] if pre.stored else []),
        *_let_go(r, op),
    ]


def compute(pre: View, post: View, r: int) -> list[Event]:
    """Admission without a hit."""
    g = pre.gen[r]
    return [Alloc("gpu", f"req:{r}.{g}", [r]), Admit(f"{r}", g, 0, 0, FULL, FULL)]


def abort(pre: View, post: View, r: int) -> list[Event]:
    """The end of a waiting request."""
    g = pre.gen[r]
    return [Finish(f"{r}", g, "abort", 0), *_unpinned(pre, post), Retire(f"{r}", g)]


def finish(pre: View, post: View, r: int) -> list[Event]:
    """The end of a running request; what it computes is not looked at."""
    g, loaded = pre.gen[r], pre.verdict[r] == "hit"
    return [
        Finish(f"{r}", g, "abort", FULL if loaded else 0),
        *([Drop(f"{r}", g, 0, 1, "aborted")] if loaded else []),
        Free("gpu", f"req:{r}.{g}", [r]),
        Retire(f"{r}", g),
    ]


def come_again(pre: View, post: View) -> list[Event]:
    """A request with an id that was used before: its next event has the new generation."""
    return []


def rest(pre: View, post: View) -> list[Event]:
    """Nothing is left to do."""
    return [Quiesce()]
