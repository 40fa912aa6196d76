"""What the hooks note is told later as it would have been told at once."""

from __future__ import annotations

import types
from typing import Any

import pytest

from kvfence.checker.adapters.vllm.notes.behind import Judge
from kvfence.checker.adapters.vllm.notes.tape import FULL, MOST_ROWS, Later


class Told:
    """A stream that remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.troubles: list[Exception] = []

    def tell(self, what: Any) -> None:
        self.told.append(what)

    def gather(self) -> None:
        self.told.append("gather")

    def trouble(self, error: Exception) -> None:
        self.troubles.append(error)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    monkeypatch.setattr(Judge, "wanted", lambda _: None)
    return Judge()


def test_nothing_is_told_before_the_engine_says_that_no_call_is_under_way(judge: Judge) -> None:
    stream = Told()
    tape = Later(stream, judge)
    tape.append((stream.tell, 1))
    tape.play()
    assert stream.told == []
    tape.allow()
    tape.play()
    assert stream.told == [1]


def test_a_call_is_told_to_begin_before_what_it_did(judge: Judge) -> None:
    stream = Told()
    tape = Later(stream, judge)
    tape.append((stream.tell, "before"))
    mark = tape.begin()
    tape.append((stream.tell, "inside"))
    tape.end(mark, (stream.tell, "end"))
    tape.allow()
    tape.play()
    assert stream.told == ["before", "gather", "inside", "end"]


def test_rows_are_told_in_their_order_and_are_not_kept(judge: Judge) -> None:
    stream = Told()
    tape = Later(stream, judge)
    for number in range(3 * FULL):
        tape.append((stream.tell, number))
        tape.allow()
        if tape.size() > tape.full:
            tape.turn()
    tape.play()
    assert stream.told == list(range(3 * FULL))
    assert len(tape.rows) == 1
    assert tape.row.since(0) == []


def test_an_engine_that_leaves_no_time_is_not_judged_further_and_that_is_told(judge: Judge) -> None:
    stream = Told()
    tape = Later(stream, judge)
    for _ in range(MOST_ROWS + 1):
        tape.append((stream.tell, 0))
        tape.turn()
    assert "left no time" in str(stream.troubles[0])
    before = len(tape.row)
    tape.append((stream.tell, 0))
    assert len(tape.row) == before


def test_notes_of_a_tape_that_is_stopped_are_not_kept(judge: Judge) -> None:
    stream = Told()
    tape = Later(stream, judge)
    tape.append((stream.tell, 0))
    tape.stop()
    tape.append((stream.tell, 1))
    tape.play()
    assert stream.told == [0]
    assert tape.row.since(0) == []


def test_an_exception_while_telling_is_trouble_and_the_rest_is_told(judge: Judge) -> None:
    stream = Told()
    tape = Later(stream, judge)
    tape.append((types.SimpleNamespace, 1, 2, 3))
    tape.append((stream.tell, "after"))
    tape.allow()
    tape.play()
    assert stream.told == ["after"]
    assert len(stream.troubles) == 1
