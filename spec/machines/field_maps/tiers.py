"""What the steps of the tiers machine look like as events: its field map.

Each tier is a pool with a slot for each key; a key that can be looked up is the slot's label. Operation ``o``
stores from slot ``o`` of the GPU, which holds the key only for it.
"""

from collections.abc import Mapping
from typing import Literal

from kvfence.spec import events as ev
from kvfence.spec.language import View
from kvfence.spec.machines.field_maps.relations import related


def header(sizes: Mapping[str, int]) -> ev.Header:
    """The header of a path's trace."""
    tiers = [ev.Pool(_pool(t), sizes["Key"]) for t in range(sizes["Tier"])]
    return ev.Header(
        producer="kvfence machine tiers", pools=(ev.Pool("gpu", sizes["Operation"]), *tiers), tier=_pool(0)
    )


def _pool(t: int) -> str:
    return f"tier{t}"


def _op(view: View, o: int) -> tuple[int, str]:
    """The generation of the operation's present use, and its name as a holder."""
    gen = view.uses[o] - 1
    return gen, f"op:{o}.{gen}"


def _keys(view: View) -> list[tuple[int, int]]:
    """Every tier with every key."""
    return list(view.listed)


def findable(view: View, t: int, k: int) -> bool:
    """Whether tier ``t`` can look up key ``k``."""
    return all(yes for (u, j, _), yes in view.part.items() if (u, j) == (t, k))


def _published(pre: View, post: View) -> list[ev.Event]:
    """What is published in a step, and that it was all, for each tier with a change."""
    out: list[ev.Event] = []
    tiers = []
    for t, k in _keys(pre):
        if post.listed[t, k] and not pre.listed[t, k]:
            out.append(ev.Stored(_pool(t), [k + 1]))
        if pre.listed[t, k] and not post.listed[t, k]:
            out.append(ev.Removed(_pool(t), [k + 1]))
        changed = findable(pre, t, k) != findable(post, t, k) or pre.listed[t, k] != post.listed[t, k]
        if changed and t not in tiers:
            tiers.append(t)
    return [*out, *(ev.Published(_pool(t)) for t in tiers)]


def _lost(pre: View, post: View, *, held: bool) -> list[ev.Event]:
    """Labels of keys that cannot be looked up any more."""
    out: list[ev.Event] = []
    for t, k in _keys(pre):
        if findable(pre, t, k) and not findable(post, t, k):
            out.append(ev.Unlabel(_pool(t), [k], "a part is lost") if held else ev.Evict(_pool(t), [k]))
    return out


def store(pre: View, post: View, o: int, t: int, k: int) -> list[ev.Event]:
    """A store from the GPU."""
    gen, op = _op(post, o)
    return [
        ev.Alloc("gpu", op, [o]),
        ev.Label("gpu", [o], [k + 1]),
        ev.Alloc(_pool(t), op, [k]),
        ev.Queue(o, gen, "store", "gpu", [o], _pool(t), [k], [k + 1]),
        ev.Issue(o, gen),
        ev.Unlabel("gpu", [o], "the request is gone"),
        *_published(pre, post),
    ]


def promote(pre: View, post: View, o: int, a: int, t: int, k: int) -> list[ev.Event]:
    """A load from one tier into another."""
    gen, op = _op(post, o)
    return [
        ev.Touch(_pool(a), op, [k]),
        ev.Alloc(_pool(t), op, [k]),
        ev.Queue(o, gen, "load", _pool(a), [k], _pool(t), [k], [k + 1]),
        ev.Issue(o, gen),
        *_published(pre, post),
    ]


def _end(pre: View, post: View, o: int, *, ok: bool) -> list[ev.Event]:
    gen, op = _op(pre, o)
    sources, targets = related(pre, "source", o), related(pre, "target", o)
    own: list[ev.Event] = [] if sources else [ev.Free("gpu", op, [o])]
    found = [(t, k) for t, k in _keys(pre) if findable(post, t, k) and not findable(pre, t, k)]
    return [
        ev.Report(o, gen, 0, ok=ok),
        ev.Complete(o, gen, ok=ok),
        *(ev.Label(_pool(t), [k], [k + 1], op=o, gen=gen) for t, k in found),
        *_lost(pre, post, held=True),
        *own,
        *(ev.Free(_pool(t), op, [k]) for t, k in (*sources, *targets)),
        *_published(pre, post),
    ]


def complete(pre: View, post: View, o: int) -> list[ev.Event]:
    """The end of a transfer."""
    return _end(pre, post, o, ok=True)


def complete_failed(pre: View, post: View, o: int) -> list[ev.Event]:
    """The end of a transfer that could not read its source."""
    return _end(pre, post, o, ok=False)


def evict(pre: View, post: View) -> list[ev.Event]:
    """The first part that goes takes the key out of the index."""
    return [*_lost(pre, post, held=False), *_published(pre, post)]


def look_up(pre: View, post: View, t: int, k: int) -> list[ev.Event]:
    """A promise, pinned and withdrawn."""
    return [
        ev.Touch(_pool(t), "hit:0.0", [k]),
        ev.Lookup("0", 0, 0, 1, _pool(t), [k]),
        ev.Withdraw("0", 0),
        ev.Free(_pool(t), "hit:0.0", [k]),
    ]


def clear(pre: View, post: View, t: int) -> list[ev.Event]:
    """A tier becomes empty; slots under a transfer keep their holder and lose their key."""
    keys = [k for u, k in _keys(pre) if u == t and findable(pre, t, k)]
    held = {(u, k) for (_, u, k), yes in pre.pin.items() if yes}
    out: list[ev.Event] = [
        ev.Unlabel(_pool(t), [k], "a reset") if (t, k) in held else ev.Evict(_pool(t), [k]) for k in keys
    ]
    silent = any(post.listed[u, k] for u, k in _keys(pre) if u == t)
    return [*out, *([] if silent else [ev.Cleared(_pool(t))]), ev.Published(_pool(t))]


def end_reset(pre: View, post: View) -> list[ev.Event]:
    """The answer names the pools that were cleared."""
    pools = [_pool(t) for t, yes in pre.cleared.items() if yes]
    ok: Literal[True] = True
    return [ev.Reset(ok, ("gpu", *pools))]
