"""Each faulty design is caught: by the ledger before damage is done, and where it garbles content by the
oracle too.
"""

from typing import Any

import pytest
from small_traffic import FAILING, SLIDING_AHEAD, SMALL, TIGHT

from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.violation import InvariantViolation
from kvfence.reference.blocks import errors
from kvfence.reference.blocks.workload import conversations
from kvfence.reference.designs.faulty import FAULTS, design_named
from kvfence.reference.engine import header
from kvfence.reference.replay import run
from kvfence.reference.scheduler.options import Options
from kvfence.spec.designs import DESIGNS

IMPATIENT = {"gpu_blocks": 135, "cpu_blocks": 600, "abort_rate": 0.8, "max_delay": 20, "token_budget": 16}
CROWDED = {"gpu_blocks": 80, "cpu_blocks": 400, "max_delay": 20}
FILES = {"gpu_blocks": 80, "cpu_blocks": 100, "disk_blocks": 1000, "tiers": 3, "max_delay": 20}
RANKS = {**TIGHT, "ranks": 3, "fail_rate": 0.1, "repeat_rate": 0.3}
SLIDING = {"groups": "full+sliding"}
TWO_SIZES = {**SLIDING, "block_sizes": (4, 8), "gpu_blocks": 300}
PARTLY = {**TIGHT, **SLIDING, "fail_rate": 0.3}
SAVED = {"gpu_blocks": 135, "cpu_blocks": 100, "disk_blocks": 1000, "tiers": 3, "publish": True}
LOSING = {**SAVED, "lose_rate": 0.9, "max_waiting": 30}
RESETTING = {**SAVED, "reset_every": 37, "max_delay": 60}
LEAVING = {"cpu_blocks": 150, "max_waiting": 30, "max_delay": 60, "abort_rate": 0.9}
SHARING = {**TIGHT, "share_loads": True, "fail_rate": 0.3, "max_delay": 20}
UNPINNED = {"ranks": 2, "refusing_ranks": 1}

TRAFFIC: dict[str, tuple[dict[str, Any], str]] = {
    "over_pop": ({}, "UNIQUE"),
    "allocate_unchecked": ({"groups": "full+sliding"}, "CONSERVE"),
    "double_release": ({}, "CONSERVE"),
    "unpinned_lookup": ({}, "PIN"),
    "evict_pinned": ({"gpu_blocks": 135, "cpu_blocks": 60}, "PIN"),
    "pins_added_not_replaced": ({}, "PURE"),
    "pin_leak_on_abort": ({**TIGHT, "max_waiting": 30, "abort_rate": 0.5}, "NO-LEAK"),
    "count_promised": (TIGHT, "COUNT"),
    "leak_on_abort": (IMPATIENT, "NO-LEAK"),
    "free_before_processed": (SLIDING_AHEAD, "FREEZE"),
    "duplicate_in_store_list": ({}, "UNIQUE"),
    "duplicate_in_flight_store": ({}, "UNIQUE"),
    "no_flush_on_finish": ({}, "FLUSH"),
    "late_flush": ({}, "FREEZE"),
    "cursor_not_rewound": ({}, "CURSOR"),
    "cursor_before_queue": ({"gpu_blocks": 135, "cpu_blocks": 30}, "CURSOR"),
    "free_on_preempt": (TIGHT, "FREEZE"),
    "free_on_abort": (IMPATIENT, "FREEZE"),
    "unpinned_destination": ({}, "FREEZE"),
    "ignore_generation": (FAILING, "ONCE"),
    "complete_on_first_rank": (FAILING, "RANKS"),
    "lost_completion": ({}, "ONCE"),
    "register_before_landing": ({}, "USE-READY"),
    "keep_label_on_failure": (FAILING, "FAIL-CLOSED"),
    "reset_ignores_in_flight": (FAILING, "RESET"),
    "reset_one_tier": (FAILING, "RESET"),
    "head_blocks_holder": (CROWDED, "PROGRESS"),
    "blockless_head": (FILES, "PROGRESS"),
    "fenced_victim_spin": ({**TIGHT, "async_depth": 2}, "PROGRESS"),
    "free_fenced_victim": ({**TIGHT, "async_depth": 2}, "FREEZE"),
    "placeholder_not_rolled_back": ({**TIGHT, "fail_rate": 0.3}, "PROGRESS"),
    "preempt_beside_parked": (CROWDED, "PROGRESS"),
    "one_rank_enough": (RANKS, "RANKS"),
    "decide_alone": ({**RANKS, "refuse_rate": 0.2}, "RANKS"),
    "repeat_counts": (RANKS, "ONCE"),
    "failure_after_completion": (RANKS, "FAIL-CLOSED"),
    "noop_flush_on_one_rank": (RANKS, "FREEZE"),
    "dropped_leader_slot": ({**RANKS, "late_rank": 5}, "ONCE"),
    "null_blocks_counted": (SLIDING, "GEOMETRY"),
    "other_groups_block_size": (TWO_SIZES, "GEOMETRY"),
    "aligned_window_bound": (SLIDING, "GEOMETRY"),
    "eagle_marks_every_group": (SLIDING, "GEOMETRY"),
    "writer_keeps_too_little": ({**SLIDING, "cpu_blocks": 400}, "GEOMETRY"),
    "promise_longer_than_acceptable": ({**SLIDING, "cpu_blocks": 400}, "GEOMETRY"),
    "block_ids_unique_only_in_group": (PARTLY, "FAIL-CLOSED"),
    "partial_load_counted_whole": (PARTLY, "FAIL-CLOSED"),
    "invalid_in_one_group_only": (PARTLY, "FAIL-CLOSED"),
    "count_not_rolled_back": (PARTLY, "COUNT"),
    "sharer_not_rolled_back": (SHARING, "FAIL-CLOSED"),
    "shared_before_landing": (SHARING, "USE-READY"),
    "unpinned_verdict": ({**SAVED, "max_waiting": 30}, "PIN"),
    "dropped_answer_keeps_pin": ({**SAVED, **LEAVING}, "NO-LEAK"),
    "verdict_kept_after_failure": ({**TIGHT, "fail_rate": 0.3}, "FAIL-CLOSED"),
    "answers_by_key": ({**SAVED, "max_waiting": 30}, "ONCE"),
    "answer_on_its_way_kept": (LOSING, "FAIL-CLOSED"),
    "mirror_pins_starve": ({"cpu_blocks": 60}, "PROGRESS"),
    "events_before_landing": (SAVED, "EVENTS"),
    "removed_not_published": (SAVED, "EVENTS"),
    "lost_file_still_listed": (LOSING, "EVENTS"),
    "reset_not_published": (RESETTING, "EVENTS"),
    "lost_file_still_found": (LOSING, "FAIL-CLOSED"),
    "promotion_during_reset": (RESETTING, "RESET"),
    "store_resurrects_key": (RESETTING, "RESET"),
    "reset_skips_a_tier": (RESETTING, "RESET"),
    "reset_forgets_transfers": ({**TIGHT, "reset_every": 37}, "ONCE"),
    "ranks_disagree_on_pinning": (UNPINNED, "HOSTMEM"),
    "partial_registration_kept": (UNPINNED, "HOSTMEM"),
    "descriptor_reused_early": ({"ranks": 2, "gpu_blocks": 135}, "HOSTMEM"),
}
"""Design -> traffic on which its fault shows, and the invariant that the first violation names."""

SEEDS = range(3)


def serve(design: str, extra: dict[str, Any], seed: int, *, judged: bool) -> None:
    options = Options(**{**SMALL, **extra}, seed=seed, design=design)
    run(conversations(100, seed), options, Ledger(header(options)) if judged else None)


def first_violation(design: str, extra: dict[str, Any]) -> str | None:
    for seed in SEEDS:
        try:
            serve(design, extra, seed, judged=True)
        except InvariantViolation as caught:
            return caught.violation.invariant
    return None


def test_every_named_design_has_a_faulty_implementation_and_traffic_for_it() -> None:
    # What breaks the order of streams is no fault of the bookkeeping: the virtual device executes it.
    named = {name for name, row in DESIGNS.items() if row.breaks and row.machines != ("stream_order",)}
    assert set(TRAFFIC) == set(FAULTS)
    assert named == set(FAULTS)


def test_each_fault_is_one_of_its_own() -> None:
    variants = list(FAULTS.values())
    assert len(set(variants)) == len(variants)


@pytest.mark.parametrize("design", TRAFFIC)
def test_the_ledger_names_the_invariant_that_the_design_breaks(design: str) -> None:
    extra, invariant = TRAFFIC[design]
    assert first_violation(design, extra) == invariant


@pytest.mark.parametrize(
    "extra",
    [
        {},
        TIGHT,
        FAILING,
        IMPATIENT,
        SLIDING_AHEAD,
        CROWDED,
        FILES,
        RANKS,
        TWO_SIZES,
        PARTLY,
        LOSING,
        RESETTING,
        SHARING,
        {**SHARING, **SLIDING, "on_failure": "fail"},
        {"cpu_blocks": 60},
    ],
    ids="+".join,
)
def test_the_sound_design_passes_on_the_same_traffic(extra: dict[str, Any]) -> None:
    assert first_violation("sound", extra) is None


OUTCOMES: dict[str, tuple[dict[str, Any], type[errors.OffloadError]]] = {
    "over_pop": ({}, errors.OverPopped),
    "duplicate_in_store_list": ({}, errors.OverPopped),
    "allocate_unchecked": ({"groups": "full+sliding"}, errors.GarbledBlock),
    "count_promised": (TIGHT, errors.GarbledBlock),
    "free_before_processed": (SLIDING_AHEAD, errors.GarbledBlock),
    "late_flush": ({**SLIDING_AHEAD, "gpu_blocks": 160, "token_budget": 128}, errors.GarbledBlock),
    "free_on_preempt": (TIGHT, errors.GarbledBlock),
    "free_on_abort": ({**IMPATIENT, "max_delay": 60}, errors.GarbledBlock),
    "unpinned_destination": ({"gpu_blocks": 135, "cpu_blocks": 60}, errors.GarbledBlock),
    "ignore_generation": (FAILING, errors.GarbledBlock),
    "complete_on_first_rank": (FAILING, errors.GarbledBlock),
    "register_before_landing": (TIGHT, errors.GarbledBlock),
    "lost_completion": ({}, errors.Stalled),
}
"""Design -> traffic, and what becomes of it when the invariants are not asserted."""


@pytest.mark.parametrize("design", OUTCOMES)
def test_without_the_ledger_the_fault_ends_in_garbled_output_a_crash_or_a_stall(design: str) -> None:
    extra, outcome = OUTCOMES[design]
    outcomes: list[type[errors.OffloadError]] = []
    for seed in SEEDS:
        try:
            serve(design, extra, seed, judged=False)
        except (errors.GarbledBlock, errors.OverPopped, errors.OutOfBlocks, errors.Stalled) as caught:
            outcomes.append(type(caught))
            if outcome in outcomes:
                break
    assert outcome in outcomes


def test_an_unknown_design_is_refused_with_the_names_to_choose_from() -> None:
    with pytest.raises(errors.OptionsError, match=r"'soundish'; choose from sound, aligned_window_bound"):
        design_named("soundish")
