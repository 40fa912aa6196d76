"""The guard: it judges as the ledger does, tells each fault once, and never harms its host."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from twins import header

from kvfence.checker.ledger.guard.guard import BURST, MOST_ERRORS, Guard, GuardMode
from kvfence.checker.ledger.state.violation import InvariantViolation, Violation
from kvfence.spec import events as ev

HEADER = header(ev.Group("gpu", 16), gpu=64, cpu=64, ranks=2)
SOUND: list[ev.Event] = [
    ev.Alloc("gpu", "req:1.0", [1, 2], free=61),
    ev.Free("gpu", "req:1.0", [2, 1], free=63),
]
FAULT = ev.Evict("gpu", [3])


class Broken:
    """A rule with a mistake of ours in it."""

    def __call__(self, event: ev.Event) -> None:  # noqa: ARG002
        raise RuntimeError("a bug of kvfence")


def broken(guard: Guard) -> Guard:
    """``guard`` with a bug in its rule for evictions."""
    assert guard._ledger is not None
    guard._ledger._rules[ev.Evict] = Broken()
    return guard


# Modes.


def test_in_mode_raise_a_violation_leaves_the_call_and_the_guard_goes_on() -> None:
    guard = Guard("raise", HEADER)
    with pytest.raises(InvariantViolation, match="CONSERVE violated by event 0"):
        guard(FAULT)
    guard.batch(SOUND)
    assert guard.events == 3


def test_in_mode_raise_all_events_of_a_batch_are_judged_before_the_first_violation_is_raised() -> None:
    guard = Guard("raise", HEADER)
    with pytest.raises(InvariantViolation) as raised:
        guard.batch([SOUND[0], FAULT, ev.Evict("gpu", [4]), SOUND[1]])
    assert raised.value.violation.slots == (3,)
    assert guard.facts().held == {"gpu": 0, "cpu": 0}


def test_in_mode_log_each_fault_is_logged_once_and_nothing_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = Guard("log", HEADER)
    with caplog.at_level(logging.INFO, "kvfence"):
        for _ in range(3):
            guard(FAULT)
        guard(ev.Evict("gpu", [4]))
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert guard.facts().violations == {"CONSERVE": 4}
    assert guard.facts().faults == {"CONSERVE": 2}


def test_in_mode_count_nothing_is_logged_and_whoever_asked_is_told_of_each_fault_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Violation] = []
    guard = Guard("count", HEADER, on_violation=told.append)
    with caplog.at_level(logging.INFO, "kvfence"):
        for _ in range(3):
            guard(FAULT)
    assert not caplog.records
    assert [violation.condition for violation in told] == ["an evicted slot carries a key"]
    assert guard.verdict == "violated"


def test_in_mode_off_nothing_happens() -> None:
    guard = Guard("off", HEADER)
    guard(FAULT)
    guard.batch([FAULT])
    assert (guard.events, guard.on, guard.verdict) == (0, False, "undetermined")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode 'strict' is none of raise, log, count, off"):
        Guard("strict")  # type: ignore[arg-type]


# What a fault tells.


def test_a_fault_tells_condition_values_holders_and_the_last_events_of_its_slots() -> None:
    guard = Guard("count")
    guard(HEADER)
    guard.batch([ev.Alloc("gpu", "req:1.0", [1]), ev.Label("gpu", [1], [7]), ev.Evict("gpu", [1])])
    (fault,) = guard.faults
    assert fault.condition == "an evicted slot has no holder"
    assert fault.values["slot"] == 1
    assert fault.holders == {1: ("req:1.0",)}
    assert [number for number, _ in fault.history[1]] == [0, 1]


def test_many_different_faults_at_a_time_are_counted_and_some_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = Guard("log", HEADER)
    with caplog.at_level(logging.INFO, "kvfence"):
        guard.batch(ev.Evict("gpu", [slot]) for slot in range(1, 61))
    assert BURST <= len(caplog.records) <= BURST + 1
    facts = guard.facts()
    assert facts.faults == {"CONSERVE": 60}
    assert facts.unreported == 60 - len(caplog.records)


# After a fault: the state that was observed is taken over, so that nothing is told again.

STORE: list[ev.Event] = [
    ev.Alloc("gpu", "req:1.0", [1]),
    ev.Touch("gpu", "op:0.0", [1]),
    ev.Alloc("cpu", "op:0.0", [2]),
    ev.Queue(0, 0, "store", "gpu", [1], "cpu", [2], [11]),
    ev.Issue(0, 0),
]
ENDS: list[ev.Event] = [
    ev.Label("cpu", [2], [11], op=0),
    ev.Free("gpu", "op:0.0", [1]),
    ev.Free("cpu", "op:0.0", [2]),
]
ONCE: list[tuple[str, list[ev.Event], str]] = [
    (
        "a store that ends before the last rank reports, and then gets the report",
        [*STORE, ev.Report(0, 0, 0), ev.Complete(0, 0), *ENDS, ev.Report(0, 0, 1)],
        "RANKS",
    ),
    (
        "a slot that is given away under a store",
        [
            *STORE,
            ev.Alloc("cpu", "req:9.0", [2]),
            ev.Report(0, 0, 0),
            ev.Report(0, 0, 1),
            ev.Complete(0, 0),
            ev.Free("gpu", "op:0.0", [1]),
            ev.Free("cpu", "op:0.0", [2]),
            ev.Free("cpu", "req:9.0", [2]),
        ],
        "FREEZE",
    ),
    (
        "a request that runs before its load has landed",
        [
            ev.Alloc("cpu", "op:9.0", [2]),
            ev.Label("cpu", [2], [11]),
            ev.Alloc("gpu", "req:1.0", [1]),
            ev.Queue(0, 0, "load", "cpu", [2], "gpu", [1], [11], "1"),
            ev.Issue(0, 0),
            *(event for step in range(4) for event in (ev.Dispatch(step, ["1"], [1]), ev.Process(step))),
        ],
        "USE-READY",
    ),
    (
        "more steps ahead than the header says",
        [
            ev.Dispatch(0, [], []),
            *(event for n in range(5) for event in (ev.Dispatch(n + 1, [], []), ev.Process(n))),
        ],
        "ONCE",
    ),
    (
        "a pool that counts one free slot too few",
        [
            ev.Alloc("gpu", "req:1.0", [1], free=61),
            *(ev.Alloc("gpu", "req:1.0", [n], free=63 - n) for n in (3, 4)),
        ],
        "CONSERVE",
    ),
    (
        "a slot that a transfer holds twice, and leaves twice",
        [
            ev.Alloc("gpu", "req:1.0", [1]),
            ev.Touch("gpu", "op:0.0", [1, 1]),
            ev.Free("gpu", "op:0.0", [1, 1]),
            ev.Free("gpu", "req:1.0", [1]),
        ],
        "UNIQUE",
    ),
    (
        "a pinned slot that is evicted and given away",
        [
            ev.Alloc("cpu", "op:9.0", [2]),
            ev.Label("cpu", [2], [11]),
            ev.Touch("cpu", "hit:1.0", [2]),
            ev.Free("cpu", "op:9.0", [2]),
            ev.Evict("cpu", [2]),
            ev.Alloc("cpu", "op:1.0", [2]),
            ev.Free("cpu", "hit:1.0", [2]),
            ev.Free("cpu", "op:1.0", [2]),
        ],
        "PIN",
    ),
    ("steps that go wrong again and again", [ev.Process(5)] * 1 + [ev.Dispatch(0, [], [])] * 3, "ONCE"),
]


@pytest.mark.parametrize(("events", "invariant"), [row[1:] for row in ONCE], ids=[row[0] for row in ONCE])
def test_a_fault_is_told_once_and_its_consequences_are_not(events: list[ev.Event], invariant: str) -> None:
    guard = Guard("count", HEADER)
    guard.batch(events)
    assert guard.facts().faults == {invariant: 1}, [str(fault) for fault in guard.faults]


# No harm.


@pytest.mark.parametrize("mode", ["log", "count"])
def test_no_error_of_the_guard_leaves_it(mode: GuardMode) -> None:
    guard = broken(Guard(mode, HEADER))
    guard(ev.Evict("gpu", [1]))
    guard.batch([ev.Evict("gpu", [1]), *SOUND])
    assert (guard.internal_errors, guard.verdict, guard.on) == (2, "undetermined", True)


NONSENSE: list[Callable[[], Any]] = [
    lambda: ev.Alloc("disk", "req:1.0", [1]),
    lambda: ev.Alloc("gpu", "req:1.0", b"12345"),
    lambda: ev.Alloc("gpu", "req:1.0", ["one"]),  # type: ignore[list-item]
    lambda: ev.Alloc("gpu", None, [1]),  # type: ignore[arg-type]
    lambda: ev.Label("gpu", [1, 2], [1]),
    lambda: ev.Dispatch(0, ["1"], []),
    lambda: None,
    lambda: "an event",
    object,
]


@pytest.mark.parametrize("make", NONSENSE)
def test_an_event_that_makes_no_sense_is_counted_and_does_not_leave(make: Callable[[], Any]) -> None:
    guard = Guard("count", HEADER)
    guard(make())
    assert guard.internal_errors == 1
    assert guard.verdict == "undetermined"
    guard.batch(SOUND)
    assert guard.facts().violations == {}


def test_in_mode_raise_an_event_that_makes_no_sense_is_named() -> None:
    with pytest.raises(ValueError, match=r"makes no sense: pool 'disk' \(the header names gpu, cpu\)"):
        Guard("raise", HEADER)(ev.Alloc("disk", "req:1.0", [1]))


def test_an_event_before_the_header_is_counted_and_does_not_leave() -> None:
    guard = Guard("count")
    guard(FAULT)
    assert guard.internal_errors == 1


def test_after_too_many_errors_the_guard_switches_itself_off_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = broken(Guard("count", HEADER))
    with caplog.at_level(logging.INFO, "kvfence"):
        for _ in range(3 * MOST_ERRORS):
            guard(ev.Evict("gpu", [1]))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "switches itself off after 10 internal errors" in caplog.text
    assert (guard.internal_errors, guard.on, guard.verdict) == (MOST_ERRORS, False, "undetermined")


def test_what_was_found_before_the_first_error_stands() -> None:
    guard = Guard("count", HEADER)
    guard(ev.Evict("gpu", [1]))
    for _ in range(MOST_ERRORS):
        broken(guard)(ev.Evict("gpu", [1])) if guard.on else None
    assert (guard.on, guard.verdict) == (False, "violated")


def test_what_is_found_after_an_error_may_be_its_consequence() -> None:
    guard = Guard("count", HEADER)
    guard(ev.Alloc("disk", "req:1.0", [1]))
    guard(FAULT)
    assert guard.facts().violations == {"CONSERVE": 1}
    assert guard.verdict == "undetermined"


def test_an_observer_that_raises_does_no_harm() -> None:
    def fail(_: Violation) -> None:
        raise OSError("no connection")

    guard = Guard("count", HEADER, on_violation=fail)
    guard(FAULT)
    assert guard.internal_errors == 1
    assert guard.verdict == "violated"


def test_what_was_not_checked_is_never_passed() -> None:
    guard = Guard("count", HEADER)
    guard.batch(SOUND)
    assert guard.verdict == "holds"
    guard.not_checked("worker: the hook launch_copy is missing")
    assert guard.verdict == "undetermined"
    assert guard.facts().gaps == ("worker: the hook launch_copy is missing",)


def test_a_second_header_begins_anew_and_what_was_counted_stays() -> None:
    guard = Guard("count", HEADER)
    guard.batch([SOUND[0], FAULT, HEADER, SOUND[0]])
    assert guard.facts().violations == {"CONSERVE": 1}
    assert guard.facts().held == {"gpu": 2, "cpu": 0}
    assert guard.events == 3


# Threads.


def test_many_threads_may_call_at_once() -> None:
    guard = Guard("count", HEADER)

    def use(slot: int) -> None:
        for number in range(300):
            guard(ev.Alloc("gpu", f"req:{slot}-{number}.0", [slot]))
            guard.batch([ev.Free("gpu", f"req:{slot}-{number}.0", [slot])])

    threads = [threading.Thread(target=use, args=(slot,)) for slot in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (guard.verdict, guard.events) == ("holds", 8 * 300 * 2)


def test_an_event_in_the_middle_of_a_judgement_is_judged_after_it() -> None:
    """A finaliser, or a log handler, may run connector code at any time."""

    def answer(_: Violation) -> None:
        guard(ev.Free("gpu", "req:1.0", [1]))

    guard = Guard("count", HEADER, on_violation=answer)
    guard.batch([ev.Alloc("gpu", "req:1.0", [1]), FAULT])
    assert guard.facts().held == {"gpu": 0, "cpu": 0}
    assert guard.events == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    guard = Guard("count", HEADER)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with guard._lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        guard(SOUND[0])
        os._exit(guard.events)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 1


def test_submissions_of_the_same_request_are_told_apart_by_what_they_are() -> None:
    guard = Guard("count", HEADER)
    guard.batch([ev.Submit("1", 0, 8), ev.Submit("1", 0, 8), ev.Submit("2", 0, 8), ev.Submit("2", 0, 8)])
    assert guard.facts().faults == {"ONCE": 2}
