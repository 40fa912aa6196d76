"""The sound engine serves any mix of options to the end, with every invariant asserted and contents
compared.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from small_traffic import SAMPLE

from kvfence.checker.ledger.ledger import Ledger
from kvfence.reference.blocks.errors import GarbledBlock, OptionsError
from kvfence.reference.blocks.workload import conversations, synthetic
from kvfence.reference.engine import Engine, header
from kvfence.reference.replay import ReplayReport, replay, run
from kvfence.reference.scheduler.options import Options
from kvfence.spec import events as ev

SMALL = Options(
    block_size=4, gpu_blocks=135, cpu_blocks=400, window=24, token_budget=64, max_running=8, store_batch=3
)
TROUBLE: dict[str, dict[str, Any]] = {
    "quiet": {},
    "aborts": {"abort_rate": 0.3},
    "failing loads": {"fail_rate": 0.3},
    "two ranks, failing stores": {"ranks": 2, "fail_rate": 0.2, "fail_stores": True},
    "resets": {"reset_every": 37},
    "all of it, tiny tier": {
        "abort_rate": 0.2, "fail_rate": 0.2, "fail_stores": True, "ranks": 2, "repeat_rate": 0.2,
        "reset_every": 37, "cpu_blocks": 20, "max_delay": 20,
    },
}  # fmt: skip


def serve(options: Options, requests: int = 80) -> ReplayReport:
    return run(conversations(requests, options.seed), options, Ledger(header(options)))


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize(
    ("mode", "groups", "depth"), list(product(["eager", "lazy"], ["full", "full+sliding"], [1, 2]))
)
def test_every_request_ends_and_nothing_is_held(trouble: str, mode: Any, groups: Any, depth: int) -> None:
    options = replace(SMALL, mode=mode, groups=groups, async_depth=depth, **TROUBLE[trouble])
    report = serve(options)
    assert report.complete
    assert report.stats.finished.total() == report.stats.requests == 80


@pytest.mark.parametrize("groups", ["full", "full+sliding"])
def test_requests_that_come_again_share_loads_and_end(groups: Any) -> None:
    sharing = {"share_loads": True, "resend_rate": 0.5, "fail_rate": 0.3, "max_delay": 20}
    report = serve(replace(SMALL, groups=groups, **sharing), 80)
    assert report.complete
    assert report.stats.failed_loads
    assert report.stats.finished.total() == report.stats.requests > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_every_request_ends_whatever_the_seed(seed: int) -> None:
    for trouble, mode, groups, depth in product(
        TROUBLE.values(), ["eager", "lazy"], ["full", "full+sliding"], [1, 2]
    ):
        options = replace(SMALL, mode=mode, groups=groups, async_depth=depth, seed=seed, **trouble)
        assert serve(options).complete


def test_the_traffic_reaches_what_it_is_meant_to_reach() -> None:
    eager = serve(
        replace(SMALL, ranks=2, fail_rate=0.2, repeat_rate=0.2, abort_rate=0.1, reset_every=37), 200
    )
    stats = eager.stats
    assert min(stats.preemptions, stats.loads, stats.stores, stats.failed_loads, stats.stale_reports) > 0
    assert min(stats.resets, stats.resets_refused, stats.finished["abort"], stats.refusals) > 0
    assert min(eager.evicted.values()) > 0
    assert min(eager.oracle.in_full, eager.oracle.sampled) > 0
    assert set(stats.drops) >= {"resident", "in_flight"}
    lazy = serve(replace(SMALL, mode="lazy", abort_rate=0.3)).stats
    assert min(lazy.external_hit_tokens, lazy.drops["lazy"], lazy.drops["aborted"]) > 0
    window = serve(replace(SMALL, groups="full+sliding")).stats
    assert min(window.external_hit_tokens, window.drops["window"]) > 0
    tiny = serve(replace(SMALL, cpu_blocks=20, fail_stores=True, fail_rate=0.2)).stats
    assert min(tiny.drops["tier_full"], tiny.drops["failed"], tiny.failed_stores) > 0


def test_equal_seeds_give_equal_events_and_other_seeds_give_others() -> None:
    def events(seed: int) -> list[ev.Event]:
        seen: list[ev.Event] = []
        run(conversations(60, 0), replace(SMALL, seed=seed, abort_rate=0.2, fail_rate=0.2), seen.append)
        return [ev.listed(event) for event in seen]

    assert events(1) == events(1)
    assert events(1) != events(2)


def test_an_observer_changes_nothing_in_the_run() -> None:
    seen: list[ev.Event] = []
    options = replace(SMALL, abort_rate=0.2, fail_rate=0.2)
    assert run(conversations(60, 3), options).stats == run(conversations(60, 3), options, seen.append).stats
    assert seen


def test_what_failed_of_a_load_becomes_a_miss_and_its_request_computes_from_there() -> None:
    seen: list[ev.Event] = []
    options = replace(SMALL, fail_rate=1.0)
    report = run(conversations(80, 0), options, seen.append)
    assert report.complete
    loads = [event for event in seen if isinstance(event, ev.Queue) and event.kind == "load"]
    assert loads
    assert report.stats.failed_loads == len(loads)
    rollbacks = [event for event in seen if isinstance(event, ev.Rollback)]
    assert len(rollbacks) == len(loads)
    assert sum(event.computed > 0 for event in rollbacks) >= report.stats.partial_loads > 0
    distrusted = {slot for event in seen if isinstance(event, ev.Unlabel) for slot in event.slots}
    assert distrusted == {slot for event in loads for slot in event.src[len(event.src) // 2 :]}


def test_a_request_that_can_never_fit_ends_with_an_error_and_the_others_are_served() -> None:
    giant = synthetic(0, 135 * 4, 1, family=0)
    report = run([giant, synthetic(1, 40, 2, family=1)], SMALL, Ledger(header(SMALL)))
    assert report.stats.finished == {"error": 1, "stop": 1}


def test_production_requests_replay_with_every_invariant_asserted() -> None:
    options = Options(gpu_blocks=8192, cpu_blocks=8192, limit=60)
    reported: list[int] = []
    report = replay(SAMPLE, options, Ledger(header(options)), lambda done, _seconds: reported.append(done))
    assert report.complete
    assert report.stats.finished.total() == 60
    assert reported
    assert report.as_dict()["hit_rates"] == report.hit_rates


def test_ctrl_c_keeps_what_was_done_and_says_that_it_is_not_all() -> None:
    def interrupt(event: ev.Event) -> None:
        if isinstance(event, ev.Queue):
            raise KeyboardInterrupt

    report = run(conversations(60, 0), SMALL, interrupt)
    assert not report.complete
    assert report.stats.steps > 0


def test_a_flipped_bit_in_a_block_that_is_read_is_reported_with_its_place() -> None:
    engine = Engine(SMALL, iter([synthetic(7, 60, 30, family=0)]))
    rounds = engine.rounds()
    for _ in range(5):
        next(rounds)
    slots = np.array(sorted(engine.gpu.held("req:7.0")))
    engine.device.memory["gpu"][int(slots[0]), 0] ^= 1
    engine.runner.memory_written([slots[:1]])
    with pytest.raises(GarbledBlock, match=r"request 7 reads block \d+ of group 0 in slot") as caught:
        list(rounds)
    assert caught.value.slot == slots[0]


def test_without_a_hint_a_sample_finds_the_flipped_bit_sooner_or_later() -> None:
    engine = Engine(SMALL, iter([synthetic(7, 20, 39, family=0)]))
    rounds = engine.rounds()
    for _ in range(5):
        next(rounds)
    engine.device.memory["gpu"][1:, :] ^= 1
    with pytest.raises(GarbledBlock):
        list(rounds)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"gpu_blocks": 1}, "gpu_blocks is 1; it must be at least 2"),
        ({"cpu_blocks": -5}, "cpu_blocks is -5"),
        ({"async_depth": 3}, "async_depth is 3; choose from 1, 2"),
        ({"groups": "sliding"}, "groups is 'sliding'; choose from full, full\\+sliding"),
        ({"mode": "sometimes"}, "mode is 'sometimes'; choose from eager, lazy"),
        ({"abort_rate": 1.5}, "abort_rate is 1.5; a rate lies between 0 and 1"),
        ({"cpu_blocks": 2**40}, "cpu_blocks x block_size is .* at most"),
        ({"limit": 0}, "limit is 0"),
        ({"ranks": 0}, "ranks is 0"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_line(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionsError, match=problem):
        Options(**wrong)
