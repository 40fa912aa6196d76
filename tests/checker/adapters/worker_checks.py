"""The hooks on worker sides, tried on a release whose workers run on the audit's virtual device.

    python worker_checks.py

Prints one JSON object: by scenario, the races that the hooks found while it ran (``online``), those that the
race checker finds in what they emitted (``told``), those of the virtual device itself (``device``), and
what was not checked.
"""

from __future__ import annotations

import functools
import json
from typing import Any
from unittest import mock

from kvfence.checker.adapters.vllm.hooks.instrument import instrument
from kvfence.checker.audit.cases.case import Case, Hold, Reset, Setup, Step, Submit
from kvfence.checker.audit.rig.rig import Ask, Rig
from kvfence.checker.order.races import OrderChecker, Race
from kvfence.spec import order as od

SETUP = Setup(gpu_blocks=24, cpu_blocks=40)
ACTIONS = (
    Submit(20, 8, 0, 16),
    Step(3),
    Submit(24, 5, 0, 16),
    Submit(24, 5, 1, 16),
    Hold(4),
    Step(9),
    Submit(30, 4, 2, 30),
    Submit(26, 4, 3, 26),
    Step(12),
    Reset(False, False),
    Submit(24, 5, 0, 16),
    Submit(30, 4, 2, 30),
)
AHEAD = Setup(gpu_blocks=24, cpu_blocks=40, depth=2)
SIMPLE = "SimpleCPUOffloadConnector"
OFFLOADING = "OffloadingConnector"
HYBRID = Setup(gpu_blocks=40, cpu_blocks=40, windows=(0, 8))
TWICE = Setup(gpu_blocks=24, cpu_blocks=40, second_connector=True)
CROWDED = Case(
    Setup(block_size=4, gpu_blocks=10, cpu_blocks=27, token_budget=8, second_connector=True),
    (Submit(8, 1, 2, 8), Submit(20, 1), Submit(9, 1), Submit(10, 3, 2, 14)),
)
"""Blocks are loaded by one of two connectors soon after the other began to store what was in them."""
DISK = Setup(gpu_blocks=24, cpu_blocks=40, tier="disk", block_size=4)


def kinds(races: list[Race]) -> list[list[str]]:
    """Which invariants and which accesses, each once."""
    return sorted({(race.invariant, race.first.name, race.second.name) for race in races})  # type: ignore[misc]


def tried(rig: Rig, setup: Setup, connector: str = SIMPLE, case: Case | None = None) -> dict[str, Any]:
    """One case under the hooks; the one with ACTIONS if none is given."""
    online: list[Race] = []
    emitted: list[Race] = []
    unchecked: list[str] = []
    checkers: list[OrderChecker] = []
    made: list[Any] = []

    def sink(event: Any) -> None:
        if isinstance(event, od.Header):
            checkers.append(OrderChecker(event, on_race=emitted.append))
        else:
            checkers[-1](event)

    def hooked(events: Any) -> Any:
        hooks = instrument(events, order_sink=sink, on_race=online.append, not_checked=unchecked.append)
        made.append(hooks)
        return hooks

    rig.instrument = hooked
    try:
        outcome = rig.run(Ask(case=case or Case(setup, ACTIONS), connector=connector))
    except Exception as error:
        return {"refused": str(error)}
    hooks = made[0]
    return {
        "refused": outcome.refused,
        "online": kinds(online),
        "first": str(online[0]) if online else "",
        "told": kinds(emitted),
        "device": sorted({s.invariant for s in outcome.sightings if s.evidence == "race"}),
        "content": sorted({s.invariant for s in outcome.sightings if s.evidence == "content"}),
        "unchecked": unchecked,
        "coverage": {hook: state for hook, state in hooks.coverage.items() if state != "checked"},
        "events": hooks.workers.events,
        "counts": outcome.counts,
    }


def without_waiting() -> Any:
    """Stores are launched without anything to wait for, as long as this is entered."""
    from vllm.v1.simple_kv_offload.copy_backend import DmaCopyBackend

    original = DmaCopyBackend.launch_copy

    @functools.wraps(original)
    def launch_copy(
        self: Any, src_blocks: Any, dst_blocks: Any, is_store: Any, event_idx: Any, events_list: Any, **_: Any
    ) -> Any:
        return original(self, src_blocks, dst_blocks, is_store, event_idx, events_list)

    return mock.patch.object(DmaCopyBackend, "launch_copy", launch_copy)


def offloading_without_waiting() -> Any:
    """Transfers wait for an empty stream instead of the one of the steps, as long as this is entered."""
    from vllm.v1.kv_offload.cpu.gpu_worker import SingleDirectionOffloadingHandler as Handler

    from kvfence.checker.adapters.vllm.worker.observed_cuda import stream_class
    from kvfence.checker.audit.cuda_stub.streams import VirtualStream

    original, waiting = Handler.transfer_async, VirtualStream.wait_stream
    observed = stream_class(VirtualStream)
    emitted = observed.wait_stream

    @functools.wraps(original)
    def transfer_async(self: Any, job_id: Any, src_spec: Any, dst_spec: Any) -> Any:
        observed.wait_stream = VirtualStream.wait_stream = lambda *_: None
        try:
            return original(self, job_id, src_spec, dst_spec)
        finally:
            observed.wait_stream, VirtualStream.wait_stream = emitted, waiting

    return mock.patch.object(Handler, "transfer_async", transfer_async)


def offloading(rig: Rig) -> dict[str, Any]:
    """Scenarios of OffloadingConnector, in releases in which the rig can drive it."""
    found = {
        "offloading": tried(rig, SETUP, OFFLOADING),
        "offloading ahead": tried(rig, AHEAD, OFFLOADING),
        "offloading hybrid": tried(rig, HYBRID, OFFLOADING),
        "offloading twice": tried(rig, TWICE, OFFLOADING),
        "offloading crowded": tried(rig, CROWDED.setup, OFFLOADING, CROWDED),
    }
    if found["offloading"]["refused"]:
        return found
    with offloading_without_waiting():
        found["offloading no wait"] = tried(rig, AHEAD, OFFLOADING)
        found["offloading no wait in step"] = tried(rig, SETUP, OFFLOADING)
    found["offloading again"] = tried(rig, AHEAD, OFFLOADING)
    return found


def main() -> None:
    """Runs all scenarios."""
    rig = Rig()
    found = {
        "plain": tried(rig, SETUP),
        "ahead": tried(rig, AHEAD),
        "disk": tried(rig, DISK),
        "twice": tried(rig, TWICE),
    }
    with without_waiting():
        found["no wait"] = tried(rig, AHEAD)
    found["again"] = tried(rig, AHEAD)
    found |= offloading(rig)
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
