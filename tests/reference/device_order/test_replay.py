"""A replay on the virtual device emits its order events, and they have an order."""

from pathlib import Path
from typing import Any

import pytest
from small_traffic import FAILING, SAMPLE, SLIDING_AHEAD, SMALL, TIGHT

from kvfence.checker.cli import app as cli
from kvfence.checker.order.races import OrderChecker
from kvfence.reference.blocks.errors import GarbledBlock
from kvfence.reference.blocks.workload import conversations
from kvfence.reference.device.virtual_order import replay_header
from kvfence.reference.replay import ReplayReport, run
from kvfence.reference.scheduler.options import Options
from kvfence.spec import order as od


def served(design: str, extra: dict[str, Any], seed: int = 0) -> tuple[Options, list[od.OrderEvent]]:
    options = Options(**{**SMALL, **extra}, seed=seed, design=design)
    events: list[od.OrderEvent] = []
    try:
        run(conversations(60, seed), options, order=events.append)
    except GarbledBlock:
        assert design != "sound"
    return options, events


def judged(options: Options, events: list[od.OrderEvent]) -> OrderChecker:
    checker = OrderChecker(replay_header(options))
    checker.apply_all(events)
    return checker


@pytest.mark.parametrize("extra", [{}, TIGHT, FAILING, SLIDING_AHEAD, {"mode": "lazy"}], ids=str)
def test_every_conflict_of_the_sound_reference_has_an_order(extra: dict[str, Any]) -> None:
    options, events = served("sound", extra)
    checker = judged(options, events)
    assert checker.races == []
    assert checker.complete
    assert {od.Copy, od.Kernel} <= {type(event) for event in events}


@pytest.mark.parametrize(
    ("design", "extra"),
    [("late_flush", {}), ("free_on_preempt", TIGHT), ("complete_on_first_rank", FAILING)],
)
def test_designs_that_use_slots_too_early_race(design: str, extra: dict[str, Any]) -> None:
    checker = judged(*served(design, extra))
    assert {race.invariant for race in checker.races} & {"FREEZE", "USE-READY"}
    assert all(race.first.by or race.second.by for race in checker.races)


def test_stores_that_do_not_wait_for_the_compute_race() -> None:
    options, events = served("sound", {})
    checker = judged(options, [event for event in events if not isinstance(event, od.SyncEvent)])
    assert "STORE-READY" in {race.invariant for race in checker.races}


def test_emitting_order_events_changes_nothing() -> None:
    options = Options(**SMALL)
    reports: list[ReplayReport] = [
        run(conversations(60, 0), options, order=order) for order in (None, [].append)
    ]
    assert reports[0].stats == reports[1].stats
    assert reports[0].oracle == reports[1].oracle


def test_a_recorded_replay_is_judged_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "order.jsonl"
    arguments = ["--requests", "10", "--gpu-blocks", "8192", "--cpu-blocks", "8192"]
    assert cli.run(["replay", str(SAMPLE), *arguments, "--record-order", str(path)]) == 0
    capsys.readouterr()
    assert cli.run(["races", str(path)]) == 0
    assert "holds" in capsys.readouterr().out
