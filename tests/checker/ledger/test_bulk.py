"""Questions about many slots at once."""

from __future__ import annotations

import pytest

from kvfence.checker.ledger.state.bulk import named
from kvfence.checker.ledger.state.pool_state import PoolState
from kvfence.spec import events as ev


@pytest.mark.parametrize("beyond", [8, 9, 2**32, 2**64, -1])
def test_a_slot_that_a_pool_does_not_have_is_noticed_among_many(beyond: int) -> None:
    pool = PoolState(ev.Pool("gpu", 8), indexed=False, long_from=2, kernels=None)
    assert named(pool, [0, 7]) is not None
    assert named(pool, [0, beyond]) is None
