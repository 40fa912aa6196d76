"""Three public reports with their own numbers: faulty designs fail as reported, the sound one does not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.violation import InvariantViolation
from kvfence.reference.blocks.errors import HitVanished, OverPopped
from kvfence.reference.blocks.kv_cache_manager import KVCacheManager, LocalHit
from kvfence.reference.blocks.pool import BlockPool
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.tables import BlockTables
from kvfence.reference.blocks.workload import RequestSpec, synthetic
from kvfence.reference.connector.scheduler_side import OffloadScheduler
from kvfence.reference.designs.design import SOUND, Design
from kvfence.reference.designs.faulty import design_named
from kvfence.reference.engine import header
from kvfence.reference.replay import run
from kvfence.reference.scheduler.options import Options
from kvfence.spec import events as ev

NO_HIT = LocalHit(0, ((0, np.empty(0, np.int64)),))

# vllm#39702: a hit of 19,264 tokens is evicted between the two phases of the lookup.

HIT_TOKENS = 19_264
HIT_BLOCKS = HIT_TOKENS // 16


class TwoPhases:
    """The tier holds 19,264 tokens of one request, and 50 more slots; another request has 200 blocks to
    store.
    """

    def __init__(self, design: Design, observer: Callable[[ev.Event], None] | None = None) -> None:
        groups = Options(block_size=16).group_specs
        self.gpu = design.gpu_pool("gpu", 2000, 0, 1, observer)
        self.cpu = design.cpu_pool("cpu", HIT_BLOCKS + 50, None, 1, observer)
        tables = BlockTables(groups, 4, null=0)
        self.manager = design.manager(self.gpu, tables)
        self.connector = design.connector(self.manager, self.cpu, observer=observer)
        self.request = Request.arriving(synthetic(1, HIT_TOKENS + 100, 1, family=1), 16)
        slots = self.cpu.get_new_blocks("op:999.0", HIT_BLOCKS)
        self.cpu.cache_full_blocks(slots, self.request.keys[:HIT_BLOCKS])
        self.cpu.free_blocks("op:999.0", slots)

    def look_up(self) -> int:
        promised, _ = self.connector.get_num_new_matched_tokens(self.request, 0)
        return promised

    def store_for_another(self) -> int:
        other = Request.arriving(synthetic(2, 200 * 16, 1, family=2), 16)
        self.manager.admit(other, NO_HIT, 0, 200 * 16)
        self.manager.tables.confirmed[other.row] = 200 * 16
        meta = self.connector.build_connector_meta(np.array([other.row]))
        return sum(store.src.size for store in meta.stores)

    def allocate(self) -> int:
        self.manager.admit(self.request, NO_HIT, HIT_TOKENS, 0)
        self.connector.update_state_after_alloc(self.request, HIT_TOKENS)
        return sum(load.src.size for load in self.connector.to_issue.loads)


def two_pools() -> ev.Header:
    return ev.Header(producer="test", pools=(ev.Pool("gpu", 2000, null=0), ev.Pool("cpu", HIT_BLOCKS + 50)))


def test_an_unpinned_hit_of_19264_tokens_is_gone_when_the_blocks_are_allocated() -> None:
    case = TwoPhases(design_named("unpinned_lookup"))
    assert case.look_up() == HIT_TOKENS
    assert case.store_for_another() == 200
    with pytest.raises(HitVanished, match="expected 19264 hit tokens, got 0"):
        case.allocate()


def test_the_ledger_objects_to_the_unpinned_hit_before_anything_is_evicted() -> None:
    case = TwoPhases(design_named("unpinned_lookup"), Ledger(two_pools()))
    with pytest.raises(InvariantViolation) as caught:
        case.look_up()
    assert caught.value.violation.invariant == "PIN"


def test_a_pinned_hit_of_19264_tokens_is_loaded_whole_and_the_other_store_takes_what_is_left() -> None:
    case = TwoPhases(SOUND, Ledger(two_pools()))
    assert case.look_up() == HIT_TOKENS
    assert case.store_for_another() == 50
    assert case.allocate() == HIT_BLOCKS
    assert not case.cpu.held(case.request.hit_holder)


# vllm#42085: two prompts of 90,000 tokens, one after the other, on a pool of 145,274 tokens.

LONG_PROMPTS = Options(
    block_size=256, gpu_blocks=145_274 // 256 + 1, cpu_blocks=2048, token_budget=16_384, max_delay=800, seed=1
)


def two_long_prompts() -> list[RequestSpec]:
    return [synthetic(uid, 90_000, 2, family=uid, span=256) for uid in range(2)]


def long_prompts(design: str) -> Options:
    return replace(LONG_PROMPTS, design=design)


def test_a_second_90000_token_prompt_waits_for_the_stores_of_the_first_and_then_runs() -> None:
    events: list[ev.Event] = []
    ledger = Ledger(header(LONG_PROMPTS))

    def observe(event: ev.Event) -> None:
        events.append(event)
        ledger(event)

    report = run(two_long_prompts(), LONG_PROMPTS, observe)
    assert report.complete
    assert report.stats.finished == {"length": 1, "stop": 1}
    gone = events.index(ev.Retire(req="0", gen=0))
    admitted = next(i for i, event in enumerate(events) if isinstance(event, ev.Admit) and event.req == "1")
    assert gone < admitted
    free = [event.free for event in events[:gone] if isinstance(event, ev.Free) and event.holder == "req:0.0"]
    assert free[-1] < 90_000 // 256
    returned = [
        event for event in events[gone:admitted] if isinstance(event, ev.Free) and event.pool == "gpu"
    ]
    assert returned
    assert all(event.holder.startswith("op:") for event in returned)


def test_a_store_list_that_names_slots_twice_makes_the_second_90000_token_prompt_pop_too_much() -> None:
    with pytest.raises(OverPopped):
        run(two_long_prompts(), long_prompts("over_pop"))


def test_the_ledger_objects_to_the_first_list_that_names_a_slot_twice() -> None:
    options = long_prompts("over_pop")
    with pytest.raises(InvariantViolation) as caught:
        run(two_long_prompts(), options, Ledger(header(options)))
    assert caught.value.violation.invariant == "UNIQUE"


# vllm#41704: the last full block is completed by the step that finishes the request.


def finish_then_extend() -> list[RequestSpec]:
    """32 tokens get their KV, the last of them in the last step; others sweep the GPU; a longer prompt
    begins with the 32.
    """
    first = RequestSpec(0, 20, 13, np.array([11, 12, 13]), known=33, span=16)
    sweep = synthetic(1, 64, 4, family=7)
    longer = RequestSpec(2, 40, 1, np.array([11, 12, 99]), known=40, span=16)
    return [first, sweep, longer]


def one_at_a_time(design: str) -> Options:
    return Options(
        block_size=16, gpu_blocks=6, cpu_blocks=64, max_running=1, max_waiting=1, store_batch=1, design=design
    )


@pytest.mark.parametrize(("design", "tokens"), [("sound", 32), ("no_flush_on_finish", 16)])
def test_the_extended_prompt_hits_the_last_full_block_only_if_it_was_flushed(
    design: str, tokens: int
) -> None:
    events: list[ev.Event] = []
    assert run(finish_then_extend(), one_at_a_time(design), events.append).complete
    hits = [
        (event.local, event.external) for event in events if isinstance(event, ev.Admit) and event.req == "2"
    ]
    assert hits == [(0, tokens)]


def test_the_ledger_misses_the_block_that_was_not_flushed() -> None:
    run(finish_then_extend(), one_at_a_time("sound"), Ledger(header(one_at_a_time("sound"))))
    options = one_at_a_time("no_flush_on_finish")
    with pytest.raises(InvariantViolation) as caught:
        run(finish_then_extend(), options, Ledger(header(options)))
    assert caught.value.violation.invariant == "FLUSH"


def test_the_sound_parts_are_the_classes_under_their_own_names() -> None:
    assert (SOUND.gpu_pool, SOUND.manager, SOUND.connector) == (BlockPool, KVCacheManager, OffloadScheduler)
