"""The block pool keeps its counts, its holders and its prefix index together."""

import numpy as np
import pytest

from kvfence.checker.ledger.ledger import Ledger
from kvfence.reference.blocks.errors import NotHeld, OutOfBlocks
from kvfence.reference.blocks.pool import BlockPool
from kvfence.spec import events as ev


def pool(slots: int = 6, groups: int = 1) -> BlockPool:
    return BlockPool(
        "gpu", slots, 0, groups, Ledger(ev.Header(producer="test", pools=(ev.Pool("gpu", slots, null=0),)))
    )


@pytest.fixture
def gpu() -> BlockPool:
    return pool()


def keys(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


def test_the_null_slot_is_never_given_away(gpu: BlockPool) -> None:
    assert sorted(gpu.get_new_blocks("req:1.0", 5).tolist()) == [1, 2, 3, 4, 5]


def test_a_refusal_says_who_holds_what_and_changes_nothing(gpu: BlockPool) -> None:
    gpu.get_new_blocks("req:1.0", 3)
    gpu.get_new_blocks("op:2.0", 1)
    with pytest.raises(OutOfBlocks) as caught:
        gpu.get_new_blocks("req:3.0", 2)
    error = caught.value
    assert (error.pool, error.asked, error.free) == ("gpu", 2, 1)
    assert error.held_by == {"req:1.0": 3, "op:2.0": 1}
    assert "req:1.0 holds 3" in str(error)
    assert gpu.num_free == 1
    assert not gpu.held("req:3.0")


def test_a_slot_stays_as_long_as_anybody_holds_it(gpu: BlockPool) -> None:
    slots = gpu.get_new_blocks("req:1.0", 2)
    gpu.cache_full_blocks(slots, keys(11, 12))
    gpu.touch("op:1.0", slots)
    gpu.free_blocks("req:1.0", slots)
    assert gpu.num_free == 3
    gpu.free_blocks("op:1.0", slots)
    assert gpu.num_free == 5


def test_nobody_frees_what_it_does_not_hold(gpu: BlockPool) -> None:
    slots = gpu.get_new_blocks("req:1.0", 2)
    with pytest.raises(NotHeld, match=r"req:2\.0 frees slots"):
        gpu.free_blocks("req:2.0", slots)
    assert gpu.num_free == 3


def test_a_prefix_survives_longest_when_its_tail_is_freed_first(gpu: BlockPool) -> None:
    slots = gpu.get_new_blocks("req:1.0", 3)
    gpu.cache_full_blocks(slots, keys(11, 12, 13))
    gpu.free_blocks("req:1.0", slots[::-1])
    gpu.get_new_blocks("req:2.0", 3)
    assert gpu.longest_prefix([11, 12, 13]) == slots[:2].tolist()


def test_a_hit_revives_a_free_slot_and_an_evicted_one_is_no_hit() -> None:
    gpu = pool(3)
    slots = gpu.get_new_blocks("req:1.0", 2)
    gpu.cache_full_blocks(slots, keys(11, 12))
    gpu.free_blocks("req:1.0", slots[::-1])
    gpu.touch("req:2.0", slots[:1])
    gpu.get_new_blocks("req:3.0", 1)
    assert gpu.get_cached_block(11) == slots[0]
    assert gpu.get_cached_block(12) is None
    assert gpu.evicted == 1


def test_two_slots_with_one_content_are_found_one_after_the_other(gpu: BlockPool) -> None:
    first, second = gpu.get_new_blocks("req:1.0", 1), gpu.get_new_blocks("req:2.0", 1)
    gpu.cache_full_blocks(first, keys(11))
    gpu.cache_full_blocks(second, keys(11))
    gpu.uncache(first, "test")
    assert gpu.get_cached_block(11) == second[0]
    gpu.uncache(second, "test")
    assert gpu.get_cached_block(11) is None


def test_groups_do_not_share_content() -> None:
    gpu = pool(groups=2)
    slots = gpu.get_new_blocks("req:1.0", 1)
    gpu.cache_full_blocks(slots, keys(11), group=1)
    assert gpu.get_cached_block(11, 0) is None
    assert gpu.get_cached_block(11, 1) == slots[0]


def test_a_reset_forgets_labels_and_keeps_holders() -> None:
    gpu = BlockPool("gpu", 4)
    slots = gpu.get_new_blocks("req:1.0", 2)
    gpu.cache_full_blocks(slots, keys(11, 12))
    gpu.reset_prefix_cache()
    assert gpu.longest_prefix([11, 12]) == []
    assert gpu.held("req:1.0") == set(slots.tolist())
