"""Faulty designs of block pools, block tables and the two-phase lookup. Nothing here is right."""

import numpy as np

from kvfence.reference.blocks.errors import HitVanished
from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.pool import BlockPool, Keys
from kvfence.reference.blocks.request import Request, State
from kvfence.reference.blocks.tables import Rows
from kvfence.reference.connector.scheduler_side import Hit, OffloadScheduler
from kvfence.reference.connector.transfers import Transfer
from kvfence.reference.designs.design import Design
from kvfence.reference.designs.geometry import PromisesWholePrompt
from kvfence.reference.scheduler.emitter import Emitter
from kvfence.reference.scheduler.scheduler import Scheduler

# Pools.


class _ListsEachSlotTwice(OffloadScheduler):
    """Lists each block of a store a second time; the pool takes and gives back each entry of the list."""

    def _store(self, src: Slots, keys: Keys, group: int, at: Slots, request: Request | None) -> None:
        src, keys = np.concatenate([src, src]), np.concatenate([keys, keys])
        super()._store(src, keys, group, np.concatenate([at, at]), request)


class _TakesHeldSlots(BlockPool):
    """Does not compare what is asked with what is free, and pops on."""

    def _short(self, n: int) -> bool:
        return n > self.usable

    def _take(self, n: int) -> Slots:
        free = self.free_queue.pop(min(n, self.num_free))
        held = np.flatnonzero((self.ref > 0) & (self.group_of < 0))[: n - free.size]
        return np.concatenate([free, held])


class _AsksForEachGroup(KVCacheManager):
    """Each group compares its own demand with the free count of the pool that all of them share."""

    def _demand(self, asked: list[int]) -> int:
        return max(asked)


class ForgivesDoubleFree(BlockPool):
    """Does not look whether the holder has the slots it frees."""

    def _forget(self, holder: str, slots: list[int]) -> None:
        self.holders.get(holder, set()).difference_update(slots)


class _ReleasesTailTwice(OffloadScheduler):
    """Two code paths give back the tail of a load's sources."""

    def _release_source(self, load: Transfer) -> None:
        super()._release_source(load)
        self.tier.free_blocks(load.holder, load.src[-1:])


# Promises.


class _DoesNotPin(OffloadScheduler):
    """Finds a hit and lets go of it; the allocation looks it up again and trusts that it is still there."""

    def _pin(self, request: Request, slots: Slots) -> None:
        pass

    def _unpin(self, request: Request, hit: Hit) -> None:
        pass

    def update_state_after_alloc(self, request: Request, num_external_tokens: int) -> None:
        """Look the hit up a second time."""
        if num_external_tokens:
            local = int(self.manager.tables.computed[request.row])
            again = self._find(request, local)
            if again.tokens < num_external_tokens:
                raise HitVanished(
                    f"request {request.id}: expected {num_external_tokens} hit tokens, got {again.tokens}"
                )
        super().update_state_after_alloc(request, num_external_tokens)


class _EvictsPinned(BlockPool):
    """Takes slots that only a promise holds first: nothing moves them yet."""

    def _take(self, n: int) -> Slots:
        pinned = [
            slot for holder, slots in self.holders.items() if holder.startswith("hit:") for slot in slots
        ]
        idle = [slot for slot in pinned if self.ref[slot] == 1][:n]
        return np.concatenate([np.array(idle, np.int64), super()._take(n - len(idle))])


class _AddsPins(OffloadScheduler):
    """Pins once more whenever it is asked."""

    def _promise(self, request: Request, hit: Hit) -> None:
        if hit.tokens:
            self._pin(request, hit.slots)
            self.promises[request.hit_holder] = hit


class _ForgetsPinOnAbort(OffloadScheduler):
    """An abort drops the record of the promise, pins included."""

    def request_finished(self, request: Request, aborted: bool) -> bool:
        """Forget the pins of an aborted request."""
        if aborted:
            self.promises.pop(request.hit_holder, None)
        return super().request_finished(request, aborted)


class _PromisesAll(PromisesWholePrompt):
    """Promises the last block too, and counts all of it when the accepted part has landed."""

    def _load(self, request: Request, hit: Hit, tokens: int) -> None:
        super()._load(request, hit, tokens)
        self.loading[request.holder].tokens = hit.tokens


class _CountsPromised(Emitter):
    """Counts what was promised, not what it accepted."""

    def _count_external(self, accepted: int, promised: int) -> int:
        del accepted
        return promised


# Ends.


class _FreesByDispatchedTokens(KVCacheManager):
    """Takes what was dispatched for what is over."""

    def _passed(self, rows: Rows) -> Rows:
        return self.tables.computed[rows]

    def _last_use(self, request: Request) -> int:
        del request
        return -1


class _AwaitsLoadThatIsOver(Scheduler):
    """An aborted request with a load gives its blocks back when the load is over, even if that was before."""

    def abort_request(self, request: Request) -> bool:
        """Leak the table of a request whose load was over when it was aborted."""
        self._keeps = request.state is State.READY
        return super().abort_request(request)

    def _release(self, request: Request) -> None:
        if request.state is State.ENDED and getattr(self, "_keeps", False):
            self._keeps = False
            return
        super()._release(request)


FAULTS: dict[str, Design] = {
    "over_pop": Design(
        connector=_ListsEachSlotTwice, gpu_pool=ForgivesDoubleFree, cpu_pool=ForgivesDoubleFree
    ),
    "allocate_unchecked": Design(manager=_AsksForEachGroup, gpu_pool=_TakesHeldSlots),
    "double_release": Design(connector=_ReleasesTailTwice, cpu_pool=ForgivesDoubleFree),
    "unpinned_lookup": Design(connector=_DoesNotPin),
    "evict_pinned": Design(cpu_pool=_EvictsPinned),
    "pins_added_not_replaced": Design(connector=_AddsPins),
    "pin_leak_on_abort": Design(connector=_ForgetsPinOnAbort),
    "count_promised": Design(connector=_PromisesAll, emitter=_CountsPromised),
    "leak_on_abort": Design(scheduler=_AwaitsLoadThatIsOver),
    "free_before_processed": Design(manager=_FreesByDispatchedTokens),
}
"""Faulty designs of pools, tables and promises by name."""
