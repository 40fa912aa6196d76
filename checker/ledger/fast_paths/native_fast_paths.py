"""The fast paths as compiled code: one pass over the slots of an event, however many.

They accept what ``pool_fast_paths`` and ``transfer_fast_paths`` accept, and leave the rest to the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvfence.checker.ledger.fast_paths.pool_fast_paths import PoolFastPathsBase, trusted
from kvfence.checker.ledger.kernels.kernels import FEWER, LOW, ROOM, Kernels
from kvfence.checker.ledger.kernels.slot_bits import LABEL, REF
from kvfence.checker.ledger.rules.transfer import TransferRules
from kvfence.checker.ledger.state.ledger_state import LONG, LedgerState, Op
from kvfence.checker.ledger.state.pool_state import Holder, PoolState
from kvfence.checker.ledger.state.request_state import LAST_STEP
from kvfence.checker.ledger.state.tags import mix_of
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec import events as ev
from kvfence.spec.packed import WIDE, ints


def _kernels(state: LedgerState) -> Kernels:
    assert state.kernels is not None, "the fast paths were compiled"
    return state.kernels


class NativePoolFastPaths(PoolFastPathsBase):
    """The rules of pools with compiled fast paths in front."""

    def __init__(self, state: LedgerState) -> None:
        super().__init__(state)
        kernels = _kernels(state)
        self._change, self._touch, self._leave = kernels.change, kernels.touch, kernels.leave
        self._label = kernels.label
        self._judged = state.judged

    def alloc(self, event: ev.Alloc) -> Violation | None:
        """Ordinary: nothing at all is known about the slots."""
        pool = self.pools[event.pool]
        holder = pool.holders.get(event.holder) or self.state.holder(pool, event.holder)
        count = self._change(pool.native, event.slots, 0, REF)
        if count <= 0:
            return super().alloc(event)
        pool.free -= count
        holder.parts.append(event.slots)
        holder.in_parts += count
        if holder.kind == "req" or count >= LONG or event.free != pool.free or pool.drift:
            return self.joined(pool, holder, event, count)
        self.state.slots += count
        return None

    def touch(self, event: ev.Touch) -> Violation | None:
        """Ordinary: held or cached slots with content, which the holder does not have yet."""
        pool = self.pools[event.pool]
        holder = pool.holders.get(event.holder) or self.state.holder(pool, event.holder)
        if holder.count and not holder.slots.isdisjoint(ints(event.slots)):
            return super().touch(event)
        count = self._touch(pool.native, event.slots)
        if count <= 0:
            return super().touch(event)
        pool.free -= count >> 32
        kind = holder.kind
        if kind == "op":  # as joins_once does, at the cost of most transfers
            self._judged["UNIQUE"] += 1
        elif kind == "hit":
            self._judged["PURE"] += 1
        count &= LOW
        holder.parts.append(event.slots)
        holder.in_parts += count
        return self.joined(pool, holder, event, count)

    def free(self, event: ev.Free) -> Violation | None:
        """Ordinary: slots that the holder holds, and that nothing expects or uses once nobody holds them."""
        pool = self.pools[event.pool]
        holder = pool.holders.get(event.holder)
        if holder is None:
            return super().free(event)
        request = holder.request
        if request is not None:  # as may_protect does
            needed = (
                request.progress[LAST_STEP] > self.state.processed
                if holder.kind == "req"
                else request.promise is not None
            )
            if needed:
                return super().free(event)
        own, parts = holder.own, holder.parts
        left = self._leave(pool.native, event.slots, len(own) + holder.in_parts, parts, own)
        if left > 0:
            self.left(pool, holder)
        elif left == FEWER:
            left = self._leave_some(pool, holder, ints(event.slots))
        if left <= 0:
            return super().free(event)
        return self.freed(pool, event, left & LOW, left >> 32)

    def _leave_some(self, pool: PoolState, holder: Holder, slots: Sequence[int]) -> int:
        """``holder`` leaves only some of its slots; answers as the kernel does."""
        own = holder.slots
        if not own.issuperset(slots):
            return FEWER
        left = self._leave(pool.native, slots, len(slots), [slots], ())
        if left >= 0:
            own.difference_update(slots)
            holder.forget_reach(slots)
            if not own:
                self.left(pool, holder)
        return left

    def evict(self, event: ev.Evict) -> Violation | None:
        """Ordinary: the label is all that is known about the slots."""
        pool = self.pools[event.pool]
        count = self._change(pool.native, event.slots, LABEL, 0)
        if count <= 0:
            return super().evict(event)
        pool.labelled -= count
        state = self.state
        state.slots += count
        if count >= LONG:
            state.count_long(count)
        return None

    def label(self, event: ev.Label) -> Violation | None:
        """Ordinary: held slots without a label, and whatever filled them went well in this epoch."""
        pool = self.pools[event.pool]
        if pool.stale if event.op < 0 else not trusted(self.state, pool, event):
            return super().label(event)
        mix = mix_of(event.group) if event.group else 0
        count = self._label(pool.native, event.slots, event.keys, mix)
        if count == ROOM:
            pool.index().make_room(len(ints(event.keys, WIDE)))
            count = self._label(pool.native, event.slots, event.keys, mix)
        if count <= 0:
            return super().label(event)
        pool.labelled += count
        state = self.state
        if event.op >= 0:  # as filled does
            self._judged["ONCE"] += 1
            if pool.epoch:
                self._judged["RESET"] += 1
        state.slots += count
        if count >= LONG:
            state.count_long(count)
        return None


class NativeTransferFastPaths(TransferRules):
    """The rules of transfers with compiled fast paths in front."""

    def __init__(self, state: LedgerState) -> None:
        super().__init__(state)
        kernels = _kernels(state)
        self._queue, self._release, self._consecutive = kernels.queue, kernels.release, kernels.consecutive

    def take(self, op: Op, src: PoolState, dst: PoolState) -> int | None:
        """Plain: held slots with content, each once, and keys that are new to the destination of a store."""
        event = op.event
        group = event.group
        mix = mix_of(group) if group else 0
        store = not op.load
        count = self._queue(src.native, event.src, dst.native, event.dst, event.keys, mix, store)
        if count == ROOM:
            dst.index().make_room(len(ints(event.keys, WIDE)))
            count = self._queue(src.native, event.src, dst.native, event.dst, event.keys, mix, store)
        if count <= 0:
            return None
        op.plain = True
        return count

    def give_back(self, op: Op, src: PoolState, dst: PoolState) -> None:
        """The slots are as :meth:`take` found them, but for what others did to them."""
        event = op.event
        mix = mix_of(event.group) if event.group else 0
        self._release(src.native, event.src, dst.native, event.dst, event.keys, mix, not op.load)

    def blocks(self, event: ev.Queue) -> Sequence[int]:
        """``at``: a range, if each is one more than the one before."""
        row = self._consecutive(event.at)
        if row < 0:
            return super().blocks(event)
        first = row >> 32
        return range(first, first + (row & LOW))
