"""Numbers that a machine does not count are filled in when its path is written."""

from kvfence.spec.events import (
    UNNUMBERED,
    Alloc,
    Complete,
    Dispatch,
    Event,
    Free,
    Preempt,
    Process,
    Queue,
    Retire,
    Submit,
)
from kvfence.spec.numbering import BEFORE, NOW, Numbering


def numbered(*events: Event) -> list[Event]:
    return list(Numbering()(events))


def test_steps_are_counted_from_0_and_end_in_order() -> None:
    assert numbered(
        Dispatch(UNNUMBERED, ["a"], [1]), Dispatch(UNNUMBERED, ["b"], [1]), Process(UNNUMBERED)
    ) == [
        Dispatch(0, ["a"], [1]),
        Dispatch(1, ["b"], [1]),
        Process(0),
    ]


def test_a_request_gets_a_new_generation_when_it_is_preempted() -> None:
    events = (
        Submit("a", NOW, 2),
        Alloc("gpu", "req:a.now", [0]),
        Preempt("a", NOW),
        Free("gpu", "req:a.before", [0]),
        Retire("a", BEFORE),
        Alloc("gpu", "req:a.now", [1]),
        Submit("b", NOW, 2),
    )
    assert numbered(*events) == [
        Submit("a", 0, 2),
        Alloc("gpu", "req:a.0", [0]),
        Preempt("a", 0),
        Free("gpu", "req:a.0", [0]),
        Retire("a", 0),
        Alloc("gpu", "req:a.1", [1]),
        Submit("b", 0, 2),
    ]


def test_a_transfer_gets_a_new_generation_when_it_is_complete() -> None:
    queue = Queue(7, NOW, "store", "gpu", [0], "cpu", [1], [5], "a", NOW)
    again = [queue, Complete(7, NOW), Free("cpu", "op:7.before", [1])]
    assert numbered(Preempt("a", NOW), *again, *again)[1:] == [
        Queue(7, 0, "store", "gpu", [0], "cpu", [1], [5], "a", 1),
        Complete(7, 0),
        Free("cpu", "op:7.0", [1]),
        Queue(7, 1, "store", "gpu", [0], "cpu", [1], [5], "a", 1),
        Complete(7, 1),
        Free("cpu", "op:7.1", [1]),
    ]


def test_numbers_that_an_event_has_stay() -> None:
    events = [Preempt("a", 4), Alloc("gpu", "req:a.5", [0]), Dispatch(3, ["a"], [1]), Retire("a", 4)]
    assert numbered(*events) == events


def test_a_copy_goes_on_from_the_same_count() -> None:
    first = Numbering()
    list(first([Preempt("a", NOW), Dispatch(UNNUMBERED, ["a"], [1])]))
    second = first.copy()
    list(second([Preempt("a", NOW)]))
    assert list(first([Retire("a", NOW), Dispatch(UNNUMBERED, ["a"], [1])])) == [
        Retire("a", 1),
        Dispatch(1, ["a"], [1]),
    ]
    assert list(second([Retire("a", NOW)])) == [Retire("a", 2)]
