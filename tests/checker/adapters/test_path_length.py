"""One note of a hook crosses few files on its way to the verdict, so that a stranger can follow it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fake_pool import ObservedPool

from kvfence.checker.ledger.guard.guard import Guard
from kvfence.checker.ledger.kernels.kernels import kernels
from kvfence.checker.ledger.state.violation import InvariantViolation

ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds the source files of the project."""


def files_crossed(call: Any) -> list[str]:
    """The project's source files whose code runs during ``call``, in the order in which they are entered."""
    found: dict[str, None] = {}

    def enter(frame: FrameType, what: str, called: Any) -> None:
        if what == "call":
            path = Path(frame.f_code.co_filename).resolve()
            if any(path.is_relative_to(ROOT / folder) for folder in ("checker", "spec", "reference")):
                found[str(path.relative_to(ROOT))] = None
        elif what == "c_call" and any(called is kernel for kernel in kernels() or ()):
            found["checker/ledger/kernels/kernels.c"] = None

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


@pytest.fixture
def pool() -> Any:
    """A pool under observation whose engine has begun, judged in mode ``raise``."""
    observed = ObservedPool(9, lambda header: Guard("raise", header))
    stream = observed.stream
    stream.sink = stream.open_sink(stream.header())
    return observed.pool


def test_new_blocks_cross_at_most_six_files(pool: Any) -> None:
    pool.get_new_blocks(1)
    guard = pool._kvfence_tap.stream.sink
    before = guard.events
    crossed = files_crossed(lambda: pool.get_new_blocks(2))
    assert guard.events == before + 1
    assert guard.verdict == "holds"
    assert crossed[:4] == [
        "checker/adapters/vllm/hooks/pool.py",
        "checker/adapters/vllm/stream/pool_events.py",
        "checker/ledger/guard/guard.py",
        "checker/ledger/ledger.py",
    ]
    assert len(crossed) <= 6, crossed


def test_the_first_blocks_of_a_holder_cross_the_files_of_the_ledger_state_too(pool: Any) -> None:
    crossed = files_crossed(lambda: pool.get_new_blocks(2))
    state = [name for name in crossed if name.startswith("checker/ledger/state/")]
    assert len(crossed) - len(state) <= 6, crossed
    assert len(state) <= 2, state


def test_a_violation_is_raised_from_the_call_that_shows_it(pool: Any) -> None:
    pool.get_new_blocks(2)
    pool.free.pop()
    with pytest.raises(InvariantViolation, match="CONSERVE"):
        pool.get_new_blocks(1)
