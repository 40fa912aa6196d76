"""Twins: after the same events, an event that a rule accepts, and one that it rejects for an invariant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import pytest

from kvfence.checker.ledger.ledger import Ledger
from kvfence.spec import events as ev

Twin: TypeAlias = tuple[str, list[ev.Event], ev.Event | None, ev.Event | None, str]
"""The rule in words, the events before, the accepted event, the rejected one, and the invariant it breaks."""


def accepted(twins: Sequence[Twin]) -> pytest.MarkDecorator:
    """Parametrise a test by ``before`` and ``sound``: all events that are accepted."""
    cases = [pytest.param(before, sound, id=name) for name, before, sound, _, _ in twins if sound is not None]
    return pytest.mark.parametrize(("before", "sound"), cases)


def rejected(twins: Sequence[Twin]) -> pytest.MarkDecorator:
    """Parametrise a test by ``before``, ``faulty`` and ``invariant``: all events that are rejected."""
    cases = [
        pytest.param(before, bad, inv, id=name) for name, before, _, bad, inv in twins if bad is not None
    ]
    return pytest.mark.parametrize(("before", "faulty", "invariant"), cases)


def invariants(events: Sequence[ev.Event], header: ev.Header, **options: Any) -> list[str]:
    """The invariants that ``events`` violate, in order."""
    ledger = Ledger(header, **options)
    return [violation.invariant for event in events if (violation := ledger.apply(event)) is not None]


def header(*groups: ev.Group, gpu: int = 8, cpu: int = 6, **more: Any) -> ev.Header:
    """A GPU pool of ``gpu`` slots with a null block, and a CPU tier of ``cpu`` slots."""
    pools = (ev.Pool("gpu", gpu, null=0), ev.Pool("cpu", cpu))
    return ev.Header(producer="test", pools=pools, groups=groups, **more)


# Events of request 1 in its first generation.
geometry = partial(ev.Geometry, "1", 0)
lookup = partial(ev.Lookup, "1", 0)
admit = partial(ev.Admit, "1", 0)
drop = partial(ev.Drop, "1", 0)
cursor = partial(ev.Cursor, "1", 0)
rollback = partial(ev.Rollback, "1", 0)
finish = partial(ev.Finish, "1", 0)
# Events of transfer 0 in its first generation.
issue = partial(ev.Issue, 0, 0)
report = partial(ev.Report, 0, 0)
failed = partial(ev.Failed, 0, 0)
complete = partial(ev.Complete, 0, 0)
stale = partial(ev.Stale, 0, 0)
decide = partial(ev.Decide, 0, 0)


def step(number: int, tokens: int, *requests: str) -> ev.Dispatch:
    """A step of ``tokens`` tokens for each of ``requests``, which is request 1 if none is named."""
    names = list(requests or ("1",))
    return ev.Dispatch(number, names, [tokens] * len(names))


def empty(number: int) -> ev.Dispatch:
    """A step of no request."""
    return ev.Dispatch(number, [], [])


def store(op: int, src: list[int], dst: list[int], keys: list[int], gen: int = 0, **whose: Any) -> ev.Queue:
    """A store from gpu to cpu."""
    return ev.Queue(op, gen, "store", "gpu", src, "cpu", dst, keys, **whose)


def load(op: int, src: list[int], dst: list[int], keys: list[int], gen: int = 0, **whose: Any) -> ev.Queue:
    """A load from cpu to gpu."""
    return ev.Queue(op, gen, "load", "cpu", src, "gpu", dst, keys, **whose)
