"""Numbers that a machine does not count are filled in when its path is written."""

from kvfence.spec import events as ev
from kvfence.spec.numbering import BEFORE, NOW, Numbering


def numbered(*events: ev.Event) -> list[ev.Event]:
    return list(Numbering()(events))


def test_steps_are_counted_from_0_and_end_in_order() -> None:
    assert numbered(
        ev.Dispatch(ev.UNNUMBERED, ["a"], [1]),
        ev.Dispatch(ev.UNNUMBERED, ["b"], [1]),
        ev.Process(ev.UNNUMBERED),
    ) == [
        ev.Dispatch(0, ["a"], [1]),
        ev.Dispatch(1, ["b"], [1]),
        ev.Process(0),
    ]


def test_a_request_gets_a_new_generation_when_it_is_preempted() -> None:
    events = (
        ev.Submit("a", NOW, 2),
        ev.Alloc("gpu", "req:a.now", [0]),
        ev.Preempt("a", NOW),
        ev.Free("gpu", "req:a.before", [0]),
        ev.Retire("a", BEFORE),
        ev.Alloc("gpu", "req:a.now", [1]),
        ev.Submit("b", NOW, 2),
    )
    assert numbered(*events) == [
        ev.Submit("a", 0, 2),
        ev.Alloc("gpu", "req:a.0", [0]),
        ev.Preempt("a", 0),
        ev.Free("gpu", "req:a.0", [0]),
        ev.Retire("a", 0),
        ev.Alloc("gpu", "req:a.1", [1]),
        ev.Submit("b", 0, 2),
    ]


def test_a_transfer_gets_a_new_generation_when_it_is_complete() -> None:
    queue = ev.Queue(7, NOW, "store", "gpu", [0], "cpu", [1], [5], "a", NOW)
    again = [queue, ev.Complete(7, NOW), ev.Free("cpu", "op:7.before", [1])]
    assert numbered(ev.Preempt("a", NOW), *again, *again)[1:] == [
        ev.Queue(7, 0, "store", "gpu", [0], "cpu", [1], [5], "a", 1),
        ev.Complete(7, 0),
        ev.Free("cpu", "op:7.0", [1]),
        ev.Queue(7, 1, "store", "gpu", [0], "cpu", [1], [5], "a", 1),
        ev.Complete(7, 1),
        ev.Free("cpu", "op:7.1", [1]),
    ]


def test_numbers_that_an_event_has_stay() -> None:
    events = [
        ev.Preempt("a", 4),
        ev.Alloc("gpu", "req:a.5", [0]),
        ev.Dispatch(3, ["a"], [1]),
        ev.Retire("a", 4),
    ]
    assert numbered(*events) == events


def test_a_copy_goes_on_from_the_same_count() -> None:
    first = Numbering()
    list(first([ev.Preempt("a", NOW), ev.Dispatch(ev.UNNUMBERED, ["a"], [1])]))
    second = first.copy()
    list(second([ev.Preempt("a", NOW)]))
    assert list(first([ev.Retire("a", NOW), ev.Dispatch(ev.UNNUMBERED, ["a"], [1])])) == [
        ev.Retire("a", 1),
        ev.Dispatch(1, ["a"], [1]),
    ]
    assert list(second([ev.Retire("a", NOW)])) == [ev.Retire("a", 2)]
