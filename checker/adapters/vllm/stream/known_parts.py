"""Which parts of a connector the hooks know, and which they do not: what is not seen must be said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

SCHEDULER_SIDE: Final = "SimpleCPUOffloadScheduler"
WORKER_SIDES: Final = frozenset({"SimpleCPUOffloadWorker"})
GAPS: Final = "_kvfence_gaps"
"""Attribute of a class of other worker sides that are observed: what of them is not, in words."""


def parts(connector: Any) -> Iterator[Any]:
    """The connectors within ``connector`` that wrap no others; itself, if it wraps none."""
    inside = connector.__dict__.get("_connectors")
    if inside is None and "_inner_connector" in connector.__dict__:
        inside = [connector.__dict__["_inner_connector"]]
    if not inside:
        yield connector
        return
    for each in inside:
        yield from parts(each)


def unseen_tiers(connector: Any, bound: Callable[[Any], bool] = lambda _: True) -> list[str]:
    """What of the scheduler side of ``connector`` is not judged, in words.

    ``bound``: whether a scheduler side that the hooks know was bound to the GPU's pool.
    """
    found = []
    for part in parts(connector):
        manager = getattr(part, "scheduler_manager", None)
        if SCHEDULER_SIDE not in _names(manager):
            found.append(f"{type(part).__name__}: its own tier is not judged: lookups, transfers and FLUSH")
        elif not bound(manager):
            found.append(f"{type(part).__name__}: it was not told of the GPU's pool, so it is not judged")
    return list(dict.fromkeys(found))


def unseen_orders(connector: Any) -> list[str]:
    """What of the worker side of ``connector`` is not judged, in words."""
    found = []
    for part in parts(connector):
        message = f"{type(part).__name__}: the order of its streams is not judged"
        gaps = [getattr(value, GAPS, None) for value in vars(part).values()]
        known = [each for each in gaps if each is not None]
        if known:
            found += [f"{message}: {each}" for each in known if each]
        elif not any(_names(value) & WORKER_SIDES for value in vars(part).values()):
            found.append(message)
    return list(dict.fromkeys(found))


def _names(thing: Any) -> frozenset[str]:
    """The names of the classes of ``thing``."""
    return frozenset(kind.__name__ for kind in type(thing).__mro__)
