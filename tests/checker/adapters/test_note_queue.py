"""Notes that are judged later are judged as they would have been at once."""

from __future__ import annotations

import types
from typing import Any

import pytest

from kvfence.checker.adapters.vllm.notes.judge_thread import Judge
from kvfence.checker.adapters.vllm.notes.note_queue import FULL, MOST_ROWS, DeferredNoteQueue


class Emitted:
    """A stream that remembers what it is given."""

    def __init__(self) -> None:
        self.emitted: list[Any] = []
        self.troubles: list[Exception] = []

    def emit(self, what: Any) -> None:
        self.emitted.append(what)

    def gather(self) -> None:
        self.emitted.append("gather")

    def trouble(self, error: Exception) -> None:
        self.troubles.append(error)


@pytest.fixture
def stream() -> Emitted:
    return Emitted()


@pytest.fixture
def note_queue(stream: Emitted, monkeypatch: pytest.MonkeyPatch) -> DeferredNoteQueue:
    """The queue of ``stream``; only the test plays it."""
    monkeypatch.setattr(Judge, "wanted", lambda _: None)
    return DeferredNoteQueue(stream, Judge())


def play_all(note_queue: DeferredNoteQueue) -> None:
    """Judge everything that is noted."""
    note_queue.allow()
    note_queue.play()


def test_nothing_is_judged_before_the_engine_says_that_no_call_is_under_way(
    stream: Emitted, note_queue: DeferredNoteQueue
) -> None:
    note_queue.append((stream.emit, 1))
    note_queue.play()
    assert stream.emitted == []
    play_all(note_queue)
    assert stream.emitted == [1]


def test_a_call_begins_before_what_it_did(stream: Emitted, note_queue: DeferredNoteQueue) -> None:
    note_queue.append((stream.emit, "before"))
    mark = note_queue.begin()
    note_queue.append((stream.emit, "inside"))
    note_queue.end(mark, (stream.emit, "end"))
    play_all(note_queue)
    assert stream.emitted == ["before", "gather", "inside", "end"]


def test_rows_are_judged_in_their_order_and_are_not_kept(
    stream: Emitted, note_queue: DeferredNoteQueue
) -> None:
    for number in range(3 * FULL):
        note_queue.append((stream.emit, number))
        note_queue.allow()
        if note_queue.size() > note_queue.full:
            note_queue.turn()
    note_queue.play()
    assert stream.emitted == list(range(3 * FULL))
    assert len(note_queue.rows) == 1
    assert note_queue.row.since(0) == []


def test_an_engine_that_leaves_no_time_is_not_judged_further_and_that_is_reported(
    stream: Emitted, note_queue: DeferredNoteQueue
) -> None:
    for _ in range(MOST_ROWS + 1):
        note_queue.append((stream.emit, 0))
        note_queue.turn()
    assert "left no time" in str(stream.troubles[0])
    before = len(note_queue.row)
    note_queue.append((stream.emit, 0))
    assert len(note_queue.row) == before


def test_notes_of_a_queue_that_is_stopped_are_not_kept(
    stream: Emitted, note_queue: DeferredNoteQueue
) -> None:
    note_queue.append((stream.emit, 0))
    note_queue.stop()
    note_queue.append((stream.emit, 1))
    note_queue.play()
    assert stream.emitted == [0]
    assert note_queue.row.since(0) == []


def test_an_exception_while_judging_is_trouble_and_the_rest_is_judged(
    stream: Emitted, note_queue: DeferredNoteQueue
) -> None:
    note_queue.append((types.SimpleNamespace, 1, 2, 3))
    note_queue.append((stream.emit, "after"))
    play_all(note_queue)
    assert stream.emitted == ["after"]
    assert len(stream.troubles) == 1
