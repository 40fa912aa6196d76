"""Groups of every kind and of different block sizes over one pool: served to the end, contents compared."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from kvfence.checker.ledger.ledger import Ledger
from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.blocks.tables import GroupSpec, common_blocks
from kvfence.reference.blocks.workload import conversations
from kvfence.reference.engine import header
from kvfence.reference.replay import run
from kvfence.reference.scheduler.options import Options

SMALL = Options(
    block_size=4, gpu_blocks=280, cpu_blocks=400, window=22, token_budget=64, max_running=8, store_batch=3,
    abort_rate=0.1, fail_rate=0.1, ranks=2, reset_every=97,
)  # fmt: skip
GROUPS: list[tuple[Any, tuple[int, ...]]] = [
    ("full+sliding", (4, 8)),
    ("full+sliding", (4, 6)),
    ("full+chunked", ()),
    ("full+chunked", (8, 4)),
    ("full+recurrent", ()),
    ("full+recurrent", (4, 12)),
    ("full+sliding+chunked+recurrent", (4, 8, 4, 8)),
]


@pytest.mark.parametrize(("mode", "depth"), list(product(["eager", "lazy"], [1, 2])))
@pytest.mark.parametrize(("groups", "block_sizes"), GROUPS)
def test_every_request_ends_with_every_kind_of_group(
    groups: Any, block_sizes: tuple[int, ...], mode: Any, depth: int
) -> None:
    more = {"gpu_blocks": 600} if len(block_sizes) == 4 else {}
    window = 20 + 2 * depth  # 24 is a whole number of blocks, 22 is not
    options = replace(
        SMALL, groups=groups, block_sizes=block_sizes, mode=mode, async_depth=depth, window=window, **more
    )
    report = run(conversations(50, depth), options, Ledger(header(options)))
    assert report.complete
    assert report.stats.finished.total() == 50
    assert min(report.stats.local_hit_tokens, report.stats.external_hit_tokens) > 0


def test_a_hit_that_ends_with_a_chunk_needs_nothing_of_the_chunked_group() -> None:
    chunked = GroupSpec(4, 24, "chunked")
    assert [chunked.first_block(tokens) for tokens in (24, 25, 47, 48)] == [6, 6, 6, 12]


def test_a_recurrent_group_keeps_the_block_of_the_last_token() -> None:
    recurrent = GroupSpec(4, kind="recurrent")
    assert [recurrent.first_block(tokens) for tokens in (0, 1, 4, 5, 8)] == [0, 0, 0, 1, 1]


def test_a_hit_ends_with_a_block_of_each_group() -> None:
    assert common_blocks((GroupSpec(4), GroupSpec(6, 22, "sliding"))) == 12


@pytest.mark.parametrize("sizes", [(4,), (4, 0), (4, 4, 4)])
def test_block_sizes_are_one_for_each_group(sizes: tuple[int, ...]) -> None:
    with pytest.raises(OptionsError, match=r"block_sizes is .* for each of 2 groups"):
        Options(groups="full+sliding", block_sizes=sizes)
