"""What the adapter for vLLM tells of tokens, of transfers that begin, and of hashes that change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvfence.checker.adapters.vllm.hooks.pool import _relabels
from kvfence.checker.adapters.vllm.stream.lifecycle import EngineStream
from kvfence.checker.adapters.vllm.stream.pool_events import PoolTap
from kvfence.checker.adapters.vllm.stream.transfers import Tier


@pytest.mark.parametrize(("computed", "in_flight", "emitted"), [(5, 3, 2), (7, 0, 7), (2, 3, 0)])
def test_tokens_of_steps_under_way_are_not_confirmed(computed: int, in_flight: int, emitted: int) -> None:
    stream: Any = SimpleNamespace(tiers=["cpu"], loaded_whole=set(), in_flight=lambda _: in_flight)
    state: Any = SimpleNamespace(id="1", open_loads=0, local=0)
    assert EngineStream.confirmed(stream, state, computed) == emitted


def test_how_much_is_free_is_reported_when_the_last_transfer_holds_its_slots() -> None:
    emitted: list[tuple[str, int]] = []
    events: list[Any] = []
    tier: Any = SimpleNamespace(
        stream=SimpleNamespace(emit=events.append),
        tap=SimpleNamespace(name="cpu"),
        touch_gpu=lambda transfer, free: emitted.append((transfer.holder, free)),
    )
    transfers: list[Any] = [SimpleNamespace(holder=f"op:{n}.0", cpu_pack=[n]) for n in range(3)]
    Tier.hold(tier, transfers, "touch", 4, 7)
    assert emitted == [("op:0.0", -1), ("op:1.0", -1), ("op:2.0", 7)]
    assert [(event.holder, event.free) for event in events] == [("op:0.0", -1), ("op:1.0", -1), ("op:2.0", 4)]


@pytest.mark.parametrize(
    ("was", "now", "emitted"),
    [
        (None, 1, [(PoolTap.labelled, [1])]),
        (1, 1, []),
        (1, 2, [(PoolTap.labelled, [2])]),
        (1, None, [(PoolTap.unlabelled, "moved")]),
        (None, None, []),
    ],
)
def test_a_hash_is_reported_when_it_changes(was: int | None, now: int | None, emitted: list[Any]) -> None:
    note_queue: list[Any] = []
    block = SimpleNamespace(block_id=3, _block_hash=was)

    def change(_: Any, changed: Any) -> None:
        changed._block_hash = now

    method = _relabels(lambda args, _: list(args))(change)
    method(SimpleNamespace(_kvfence_tap=SimpleNamespace(note_queue=note_queue)), block)
    assert [(item[0], item[-1]) for item in note_queue] == emitted
