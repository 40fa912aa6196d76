"""The free queue against a plain list."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvfence.reference.blocks.errors import OverPopped
from kvfence.reference.blocks.free_queue import FreeQueue

SLOTS = 12


class QueueAndList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = FreeQueue(SLOTS)
        self.model: list[int] = []

    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        out = [slot for slot in range(SLOTS) if slot not in self.model]
        slots = data.draw(st.lists(st.sampled_from(out), unique=True)) if out else []
        self.queue.push(np.array(slots, np.int64))
        self.model += slots

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.sampled_from(self.model), unique=True))
        self.queue.remove(np.array(slots, np.int64))
        self.model = [slot for slot in self.model if slot not in slots]

    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, len(self.model)))
        assert self.queue.pop(n).tolist() == self.model[:n]
        del self.model[:n]

    @rule()
    def too_much_is_refused_and_changes_nothing(self) -> None:
        with pytest.raises(IndexError):
            self.queue.pop(len(self.model) + 1)

    @invariant()
    def same_order(self) -> None:
        assert self.queue.in_order().tolist() == self.model
        assert len(self.queue) == len(self.model)
        assert [slot in self.queue for slot in range(SLOTS)] == [slot in self.model for slot in range(SLOTS)]


TestQueueAndList = QueueAndList.TestCase
TestQueueAndList.settings = settings(stateful_step_count=60)


def test_a_scan_sees_each_free_slot_once_and_goes_on_where_it_stopped() -> None:
    queue = FreeQueue(8)
    queue.push(np.arange(6))
    queue.remove(np.array([1]))
    seen, position = queue.scan(0, 4)
    assert seen.tolist() == [0, 2, 3]
    queue.push(np.array([7]))
    seen, _ = queue.scan(position, 100)
    assert seen.tolist() == [4, 5, 7]


def test_a_slot_pushed_twice_is_found_out_when_more_is_popped_than_there_is() -> None:
    queue = FreeQueue(8)
    queue.push(np.array([3]))
    queue.push(np.array([3]))
    assert len(queue) == 2
    with pytest.raises(OverPopped, match="2 slots popped, 1 found"):
        queue.pop(2)
