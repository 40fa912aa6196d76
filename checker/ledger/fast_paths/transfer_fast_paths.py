"""Fast paths for transfers: with no slot and no key out of the ordinary, none needs to be looked at alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvfence.checker.ledger.kernels.slot_bits import BAD, BUSY, FILLING, LABEL, REFS
from kvfence.checker.ledger.rules.transfer import TransferRules
from kvfence.checker.ledger.state.bulk import Named, add, all_have, distinct, named
from kvfence.checker.ledger.state.ledger_state import Op
from kvfence.checker.ledger.state.pool_state import PoolState
from kvfence.checker.ledger.state.tags import Tag


class TransferFastPaths(TransferRules):
    """The rules of transfers with fast paths in front."""

    def take(self, op: Op, src: PoolState, dst: PoolState) -> int | None:
        """Plain: held slots with content, each once, and keys that are new to the destination of a store."""
        event = op.event
        sources, destinations = named(src, event.src), named(dst, event.dst)
        if (
            sources is None
            or destinations is None
            or not len(sources)
            or not len(sources) == len(destinations) == len(tags := self.tags(op))
            or not all_have(src, sources, REFS, FILLING | BAD)
            or not all_have(dst, destinations, REFS, FILLING | BAD)
            or not distinct(src, sources)
            or not distinct(dst, destinations)
        ):
            return None
        if op.load:
            if not _labelled_so(src, sources, tags):
                return None
        else:
            if not dst.index().store_fresh(tags):
                return None
            op.stored = tags
        op.plain, op.named_src, op.named_dst = True, sources, destinations
        add(src, sources, BUSY)
        add(dst, destinations, BUSY | FILLING)
        return len(sources)

    def give_back(self, op: Op, src: PoolState, dst: PoolState) -> None:
        """The slots are as :meth:`take` found them, but for what others did to them."""
        add(src, op.named_src, -BUSY)
        add(dst, op.named_dst, -(BUSY | FILLING))
        if not op.load:
            dst.index().unstore(op.stored)


def _labelled_so(pool: PoolState, slots: Named, tags: Sequence[Tag]) -> bool:
    """Whether each slot that has a label has its tag."""
    if isinstance(slots, np.ndarray):
        labelled = (pool.array[slots] & LABEL) != 0
        return not (labelled & (pool.tags[slots] != np.array(tags, np.uint64))).any()
    return all(pool.label_of(slot) in (None, tag) for slot, tag in zip(slots, tags, strict=True))
