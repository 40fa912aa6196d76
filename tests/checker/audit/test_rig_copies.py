"""Ends of copies, in the forms in which connectors report them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvfence.checker.audit.rig.copies import Copies


def simple(*events: int) -> Any:
    return SimpleNamespace(completed_store_events=dict.fromkeys(events, 1))


def jobs(*done: int) -> Any:
    return SimpleNamespace(completed_jobs=dict.fromkeys(done, 1))


def begun(stores: tuple[int, ...], loads: tuple[int, ...] = (), sync: bool = False) -> Any:
    load = SimpleNamespace(sync=sync)
    return SimpleNamespace(store_jobs=dict.fromkeys(stores), load_jobs=dict.fromkeys(loads, load))


def several(*parts: Any) -> Any:
    return SimpleNamespace(metadata=parts)


def test_a_store_counts_once_however_many_workers_report_it() -> None:
    copies = Copies()
    assert copies.ended(simple(0, 1)) == (2, 0)
    assert copies.ended(simple(1, 2)) == (1, 0)
    assert copies.ended(None) == (0, 0)


def test_loads_that_are_reported_like_stores_are_not_counted() -> None:
    copies = Copies()
    copies.begun(begun((0, 2), (1,)))
    assert copies.ended(jobs(0, 1)) == (1, 0)
    assert copies.ended(jobs(0, 1, 2)) == (1, 0)


def test_loads_within_a_step_are_counted_since_nothing_else_reports_them() -> None:
    copies = Copies()
    copies.begun(begun((0,), (1, 2), sync=True))
    assert copies.ended(jobs(0, 1)) == (1, 1)
    assert copies.ended(jobs(1, 2)) == (0, 1)


def test_connectors_behind_one_count_apart() -> None:
    copies = Copies()
    copies.begun(several(begun((0,)), None, begun((0, 1))))
    assert copies.ended(several(jobs(0), simple(0), jobs(0))) == (3, 0)
    assert copies.ended(several(None, simple(0), jobs(1))) == (1, 0)
