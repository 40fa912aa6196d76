"""Ends of stores, in the forms in which connectors tell of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvfence.checker.audit.rig_stores import Stores


def simple(*events: int) -> Any:
    return SimpleNamespace(completed_store_events=dict.fromkeys(events, 1))


def jobs(*done: int) -> Any:
    return SimpleNamespace(completed_jobs=dict.fromkeys(done, 1))


def told(stores: tuple[int, ...], loads: tuple[int, ...] = ()) -> Any:
    return SimpleNamespace(store_jobs=dict.fromkeys(stores), load_jobs=dict.fromkeys(loads))


def several(*parts: Any) -> Any:
    return SimpleNamespace(metadata=parts)


def test_a_store_counts_once_however_many_workers_tell_of_it() -> None:
    stores = Stores()
    assert stores.ended(simple(0, 1)) == 2
    assert stores.ended(simple(1, 2)) == 1
    assert stores.ended(None) == 0


def test_loads_that_are_told_like_stores_are_not_counted() -> None:
    stores = Stores()
    stores.begun(told((0, 2), (1,)))
    assert stores.ended(jobs(0, 1)) == 1
    assert stores.ended(jobs(0, 1, 2)) == 1


def test_connectors_behind_one_count_apart() -> None:
    stores = Stores()
    stores.begun(several(told((0,)), None, told((0, 1))))
    assert stores.ended(several(jobs(0), simple(0), jobs(0))) == 3
    assert stores.ended(several(None, simple(0), jobs(1))) == 1
