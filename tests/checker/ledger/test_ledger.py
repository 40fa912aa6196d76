"""What a ledger does about a violation, what it tells, and what it costs."""

import logging
import tracemalloc

import msgspec
import pytest

from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state import ledger_state as state
from kvfence.checker.ledger.state.declared import RULES
from kvfence.checker.ledger.state.violation import InvariantViolation, Violation
from kvfence.spec import events as ev

HEADER = ev.Header(producer="test", pools=(ev.Pool("gpu", 8, null=0), ev.Pool("cpu", 6)))
OPEN_STORE: list[ev.Event] = [
    ev.Alloc("gpu", "req:1.0", [1], free=6),
    ev.Touch("gpu", "op:0.0", [1], free=6),
    ev.Alloc("cpu", "op:0.0", [2], free=5),
    ev.Queue(0, 0, "store", "gpu", [1], "cpu", [2], [11]),
]
END_STORE: list[ev.Event] = [ev.Issue(0, 0), ev.Report(0, 0, 0), ev.Complete(0, 0)]


def judge(ledger: Ledger, events: list[ev.Event]) -> list[str]:
    return [violation.invariant for event in events if (violation := ledger.apply(event)) is not None]


# Modes.


def test_raising_stops_the_caller_and_says_why() -> None:
    ledger = Ledger(HEADER)
    with pytest.raises(InvariantViolation, match=r"CONSERVE violated by event 0: .*slot=0") as raised:
        ledger(ev.Alloc("gpu", "req:1.0", [0]))
    assert raised.value.violation.slots == (0,)


def test_logging_goes_on_and_keeps_what_was_found(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(HEADER, "log")
    with caplog.at_level(logging.ERROR, "kvfence.ledger"):
        for event in (ev.Alloc("gpu", "req:1.0", [1]), ev.Evict("gpu", [1]), ev.Quiesce()):
            ledger(event)
    assert [violation.invariant for violation in ledger.violations] == ["PIN", "NO-LEAK"]
    assert len(caplog.records) == 2


def test_counting_only_counts() -> None:
    ledger = Ledger(HEADER, "count")
    for slot in (1, 2, 3):
        ledger(ev.Evict("gpu", [slot]))
    assert ledger.violation_counts == {"CONSERVE": 3}
    assert ledger.violations == []


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(TypeError, match="not an event"):
        Ledger(HEADER).apply("alloc")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="disk"):
        Ledger(HEADER).apply(ev.Alloc("disk", "req:1.0", [1]))


@pytest.mark.parametrize(
    "header",
    [
        ev.Header(producer="test", pools=()),
        ev.Header(producer="test", pools=(ev.Pool("gpu", 0),)),
        ev.Header(producer="test", pools=(ev.Pool("gpu", 4, null=4),)),
        ev.Header(producer="test", pools=(ev.Pool("gpu", 4), ev.Pool("gpu", 4))),
        ev.Header(producer="test", pools=(ev.Pool("gpu", 4),), ranks=0),
        ev.Header(producer="test", pools=(ev.Pool("gpu", 4),), depth=0),
    ],
)
def test_impossible_sizes_are_refused(header: ev.Header) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Ledger(header)


# What a violation tells.


def test_a_violation_tells_who_holds_the_slot_and_what_happened_to_it() -> None:
    ledger = Ledger(HEADER)
    assert judge(ledger, [*OPEN_STORE, ev.Alloc("gpu", "req:2.0", [3])]) == []
    violation = ledger.apply(ev.Free("cpu", "op:0.0", [2]))
    assert violation is not None
    assert (violation.invariant, violation.number, violation.pool) == ("FREEZE", 5, "cpu")
    assert violation.values["transfers"] == ["store 0.0"]
    assert violation.holders == {2: ("op:0.0",)}
    assert [number for number, _ in violation.history[2]] == [2, 3]


def test_history_tells_how_a_transfer_of_the_slot_went() -> None:
    ledger = Ledger(HEADER)
    assert judge(ledger, [*OPEN_STORE, *END_STORE, ev.Free("cpu", "op:0.0", [2])]) == []
    violation = ledger.apply(ev.Free("cpu", "op:0.0", [2]))
    assert violation is not None
    kinds = [type(event) for _, event in violation.history[2]]
    assert kinds == [ev.Alloc, ev.Queue, ev.Issue, ev.Report, ev.Complete, ev.Free]


def test_a_violation_can_be_written_and_read() -> None:
    ledger = Ledger(HEADER)
    judge(ledger, OPEN_STORE)
    violation = ledger.apply(ev.Free("cpu", "op:0.0", [2]))
    assert msgspec.json.decode(msgspec.json.encode(violation), type=Violation) == violation


# Each fault is reported once.


FAULTS: dict[str, tuple[list[ev.Event], str, list[ev.Event]]] = {
    "a slot freed during a transfer is free": (
        [*OPEN_STORE, ev.Free("cpu", "op:0.0", [2], free=6)],
        "FREEZE",
        [ev.Alloc("cpu", "op:1.0", [2], free=5), *END_STORE, ev.Free("cpu", "op:1.0", [2], free=6)],
    ),
    "a slot given away twice has two holders": (
        [ev.Alloc("gpu", "req:1.0", [1], free=6), ev.Alloc("gpu", "req:2.0", [1], free=5)],
        "CONSERVE",
        [
            ev.Alloc("gpu", "req:3.0", [2], free=4),
            ev.Free("gpu", "req:2.0", [1]),
            ev.Free("gpu", "req:1.0", [1]),
        ],
    ),
    "a wrong count stays off by as much": (
        [ev.Alloc("gpu", "req:1.0", [1], free=3)],
        "CONSERVE",
        [ev.Alloc("gpu", "req:1.0", [2], free=2), ev.Free("gpu", "req:1.0", [1, 2], free=4)],
    ),
    "what leaked stays leaked": (
        [ev.Alloc("gpu", "req:1.0", [1], free=6), ev.Retire("1", 0)],
        "NO-LEAK",
        [ev.Alloc("gpu", "req:2.0", [2], free=5), ev.Free("gpu", "req:2.0", [2], free=6), ev.Quiesce()],
    ),
    "a slot labelled too early is labelled": (
        [*OPEN_STORE, ev.Label("cpu", [2], [11])],
        "USE-READY",
        [*END_STORE, ev.Free("cpu", "op:0.0", [2], free=6), ev.Evict("cpu", [2])],
    ),
    "a transfer whose id was taken is over": (
        [*OPEN_STORE, ev.Queue(0, 1, "store", "gpu", [1], "cpu", [2], [12])],
        "ONCE",
        [ev.Issue(0, 1), ev.Report(0, 1, 0), ev.Complete(0, 1), ev.Free("cpu", "op:0.0", [2], free=6)],
    ),
}


@pytest.mark.parametrize(("faulty", "invariant", "after"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_reported_once(faulty: list[ev.Event], invariant: str, after: list[ev.Event]) -> None:
    assert judge(Ledger(HEADER), [*faulty, *after]) == [invariant]


# Copies, counts and cost.


def test_a_copy_goes_its_own_way() -> None:
    ledger = Ledger(HEADER)
    judge(ledger, OPEN_STORE)
    copy = ledger.copy()
    assert judge(copy, [*END_STORE, ev.Free("cpu", "op:0.0", [2]), ev.Free("gpu", "op:0.0", [1])]) == []
    assert judge(ledger, [ev.Free("cpu", "op:0.0", [2])]) == ["FREEZE"]
    assert copy.violation_counts == {}
    assert judge(copy, [ev.Free("gpu", "req:1.0", [1]), ev.Quiesce()]) == []


def test_judgements_are_counted_by_invariant() -> None:
    ledger = Ledger(HEADER)
    judge(ledger, OPEN_STORE)
    checks = ledger.checks_by_invariant()
    assert {name: count for name, count in checks.items() if count} == {
        "CONSERVE": 4,
        "FREEZE": 3,
        "PIN": 2,  # of the two that are allocated: a store does not read what was promised
        "UNIQUE": 2,  # of the transfer that joins a slot, and of the store
        "ONCE": 1,
        "USE-READY": 1,
        "FAIL-CLOSED": 1,
    }
    assert ledger.checks == sum(checks.values())
    assert ledger.events == 4
    assert ledger.slot_transitions == 5
    assert ledger.held() == {"gpu": 1, "cpu": 1}


def test_each_event_of_the_format_has_a_rule() -> None:
    kinds = set(ev.Event.__args__)  # type: ignore[attr-defined]
    assert set(RULES) == kinds
    assert set(Ledger(HEADER)._rules) == kinds


def test_memory_does_not_grow_with_the_number_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "RING", 1000)
    monkeypatch.setattr(state, "REMEMBERED", 1000)
    header = ev.Header(producer="test", pools=(ev.Pool("gpu", 1024),))
    ledger = Ledger(header)

    def serve(start: int, count: int) -> None:
        for number in range(start, start + count):
            ledger(ev.Submit(str(number), 0, 32))
            slots = [number % 1000, number % 1000 + 1]
            ledger(ev.Alloc("gpu", f"req:{number}.0", slots))
            ledger(ev.Free("gpu", f"req:{number}.0", slots))
            ledger(ev.Finish(str(number), 0, "stop", 0))
            ledger(ev.Retire(str(number), 0))

    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        serve(0, 2000)
        filled = tracemalloc.get_traced_memory()[1] - before
        serve(2000, 8000)
        later = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert later < 1.5 * filled


def test_long_events_do_not_fill_the_memory() -> None:
    """The ring remembers many small events, or few with thousands of slots."""
    header = ev.Header(producer="test", pools=(ev.Pool("gpu", 100_000),))
    ledger = Ledger(header)
    for number in range(30):
        slots = list(range(number, number + 50_000))
        ledger(ev.Alloc("gpu", f"req:{number}.0", slots))
        ledger(ev.Free("gpu", f"req:{number}.0", slots))
    assert sum(len(event.slots) for event in ledger.state.ring) < 2_500_000  # type: ignore[union-attr]
    violation = ledger.apply(ev.Evict("gpu", [29]))
    assert violation is not None
    assert violation.history[29]
