"""Three tiers, ranks that are late or refuse, files that get lost: all is served to the end."""

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_traffic import SAMPLE

from kvfence.checker.adapters.reference import replay
from kvfence.checker.ledger.check import check_trace
from kvfence.checker.ledger.ledger import Ledger
from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.blocks.workload import conversations
from kvfence.reference.device.files import LASTS, FileStore
from kvfence.reference.engine import header
from kvfence.reference.replay import run
from kvfence.reference.scheduler.options import Options
from kvfence.spec import events as ev
from kvfence.spec.catalog import INVARIANTS

SMALL = Options(
    block_size=4, gpu_blocks=200, cpu_blocks=120, disk_blocks=2000, window=24, token_budget=64, max_running=8,
    store_batch=3, tiers=3, ranks=4, late_rank=5, fail_rate=0.05, lose_rate=0.5, refuse_rate=0.05,
    refusing_ranks=1, publish=True, zero_fill=True,
)  # fmt: skip
GROUPS: list[dict[str, Any]] = [
    {},
    {"groups": "full+sliding"},
    {"groups": "full+recurrent", "block_sizes": (4, 12), "gpu_blocks": 300},
    {"groups": "full+sliding+chunked+recurrent", "block_sizes": (4, 8, 4, 8), "gpu_blocks": 600},
]


def events_of(options: Options, requests: int = 60) -> list[ev.Event]:
    seen: list[ev.Event] = []
    assert run(conversations(requests, options.seed), options, seen.append).complete
    return seen


@pytest.mark.parametrize(
    ("mode", "depth", "on_failure"), list(product(["eager", "lazy"], [1, 2], ["recompute", "fail"]))
)
@pytest.mark.parametrize("groups", GROUPS, ids=lambda groups: groups.get("groups", "full"))
def test_every_request_ends_and_nothing_is_held(
    groups: dict[str, Any], mode: Any, depth: int, on_failure: Any
) -> None:
    more = {"abort_rate": 0.2} if depth == 1 else {"reset_every": 97}
    options = replace(SMALL, mode=mode, async_depth=depth, on_failure=on_failure, **groups, **more)
    ledger = Ledger(header(options))
    report = run(conversations(50, depth), options, ledger)
    assert report.complete
    assert report.stats.finished.total() == 50
    assert ledger.held() == {"gpu": 0, "cpu": 0, "disk": 0}


def test_the_traffic_reaches_what_it_is_meant_to_reach() -> None:
    options = replace(SMALL, groups="full+sliding")
    seen: list[ev.Event] = []
    stats = run(conversations(200, 1), options, seen.append).stats
    assert min(stats.failed_loads, stats.partial_loads, stats.failed_fetches, stats.lost_files) > 0
    assert min(stats.disk_stored_blocks, stats.fetched_blocks) > 0
    kinds = Counter(type(event) for event in seen)
    for kind in (ev.Answer, ev.Ask, ev.Decide, ev.Failed, ev.Hostmem, ev.Round, ev.Stored, ev.Zero):
        assert kinds[kind] > 0, kind


def test_each_invariant_that_the_catalogue_calls_asserted_is_asserted() -> None:
    options = replace(SMALL, groups="full+sliding", reset_every=97)
    ledger = Ledger(header(options))
    assert run(conversations(60, 2), options, ledger).complete
    checks = ledger.checks_by_invariant()
    assert [row.id for row in INVARIANTS if row.asserted and not checks[row.id]] == []


def test_the_last_rank_reports_last() -> None:
    order: dict[tuple[int, int], list[int]] = {}
    for event in events_of(replace(SMALL, refuse_rate=0.0)):
        if isinstance(event, ev.Report):
            order.setdefault((event.op, event.gen), []).append(event.rank)
    assert order
    assert all(ranks[-1] == 3 for ranks in order.values())


def test_a_request_whose_load_failed_ends_with_an_error_if_that_is_the_policy() -> None:
    options = replace(SMALL, tiers=2, fail_rate=0.5, on_failure="fail", gpu_blocks=135, cpu_blocks=400)
    seen = events_of(options)
    rolled_back = [event for event in seen if isinstance(event, ev.Rollback)]
    assert rolled_back
    failed = [event for event in seen if isinstance(event, ev.Finish) and event.why == "error"]
    assert {event.req for event in failed} == {event.req for event in rolled_back}


def test_ranks_that_cannot_register_make_all_ranks_go_without_pinned_memory() -> None:
    def pinned(refusing: int) -> list[bool]:
        seen = events_of(replace(SMALL, refusing_ranks=refusing), 1)
        return [event.pinned for event in seen if isinstance(event, ev.Hostmem)]

    assert pinned(0) == [True] * 4
    assert pinned(1) == [False] * 4


def test_what_goes_to_files_and_comes_back_is_emitted_as_transfers_between_pools() -> None:
    moves = {
        (event.kind, event.src_pool, event.dst_pool)
        for event in events_of(SMALL)
        if isinstance(event, ev.Queue)
    }
    assert moves == {
        ("store", "gpu", "cpu"),
        ("load", "cpu", "gpu"),
        ("store", "cpu", "disk"),
        ("load", "disk", "cpu"),
    }


def test_a_recorded_run_is_accepted_by_check(tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    options = {
        "gpu_blocks": 4096, "cpu_blocks": 4096, "disk_blocks": 16384, "tiers": 3, "ranks": 4, "late_rank": 5,
        "fail_rate": 0.05, "lose_rate": 0.2, "publish": True, "zero_fill": True,
        "groups": "full+sliding", "limit": 20,
    }  # fmt: skip
    found = replay(SAMPLE, options, record=trace)
    assert found.verdict == "holds"
    report = check_trace(trace)
    assert (report.verdict, report.events, report.quiesced) == ("holds", found.events, True)
    assert all(report.verdicts[row] == "holds" for row in ("GEOMETRY", "HOSTMEM", "EVENTS", "LOAD-ORDER"))


# Files.


def test_blocks_come_back_from_files_as_they_were_written() -> None:
    store = FileStore(8, 4, lose_rate=0.0, seed=0)
    content = np.arange(12, dtype=np.int64).reshape(3, 4)
    store.write(np.array([5, 1, 3]), content)
    store.write(np.array([1]), content[:1])
    found, there = store.read(np.array([3, 1, 5, 0]))
    assert there.tolist() == [True, True, True, False]
    assert found[:3].tolist() == [content[2].tolist(), content[0].tolist(), content[0].tolist()]
    store.close()


def test_a_file_goes_with_the_last_of_its_blocks_and_all_go_when_the_store_is_closed() -> None:
    store = FileStore(4, 2, lose_rate=0.0, seed=0)
    folder = Path(store._folder.name)
    rows = np.zeros((2, 2), np.int64)
    store.write(np.array([0, 1]), rows)
    store.write(np.array([0]), rows[:1])
    assert len(list(folder.iterdir())) == 2
    store.write(np.array([1]), rows[:1])
    assert len(list(folder.iterdir())) == 2
    store.close()
    assert not folder.exists()


def test_lost_files_cannot_be_read() -> None:
    store = FileStore(4, 2, lose_rate=1.0, seed=0)
    store.write(np.array([2]), np.ones((1, 2), np.int64))
    assert store.read(np.array([2]))[1].all()
    for _ in range(LASTS):
        store.advance()
    assert store.lost == 1
    assert not store.read(np.array([2]))[1].any()
    store.close()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"tiers": 4}, "tiers is 4; choose from 2, 3"),
        ({"lose_rate": 2.0}, "lose_rate is 2.0; a rate lies between 0 and 1"),
        ({"late_rank": -1}, "late_rank is -1"),
        ({"refusing_ranks": 2}, "refusing_ranks is 2; there are 1 ranks"),
        ({"on_failure": "retry"}, "on_failure is 'retry'; choose from recompute, fail"),
        ({"device": "cuda", "tiers": 3}, "tiers is 3; on the CUDA device it can be 2 only"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_line(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionsError, match=problem):
        Options(**wrong)
