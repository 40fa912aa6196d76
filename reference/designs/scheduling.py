"""Faulty designs of the scheduler: some stop where they could go on, one goes on at once. None is right."""

from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.request import Request, State
from kvfence.reference.connector.transfers import TransferReport
from kvfence.reference.designs.design import Design
from kvfence.reference.scheduler.scheduler import DEFERRED, Scheduler, StepOutput


class _StopsAtHead(Scheduler):
    """Looks at the head of the queue first, and at no other request as long as that does not fit."""

    def _stops(self, request: Request) -> bool:
        return self._needed(request) > self.manager.pool.num_free

    def _needed(self, request: Request) -> int:
        if not request.needed:
            hit = self.manager.get_computed_blocks(request)
            request.needed = self.manager.blocks_wanted(request, hit, 0)
        return request.needed

    def _admit(self, budget: int) -> list[tuple[Request, int]]:
        if self.ready and self.waiting and self._stops(self.waiting[0]):
            return []
        return super()._admit(budget)


class _StopsAtDeferred(_StopsAtHead):
    """The same, but only for a request that had to wait for blocks from files."""

    def _admit_one(self, request: Request, budget: int, alone: bool) -> int | None:
        share = super()._admit_one(request, budget, alone)
        if share == DEFERRED:
            self.__dict__.setdefault("_deferred", set()).add(request.holder)
        return share

    def _stops(self, request: Request) -> bool:
        return request.holder in self.__dict__.get("_deferred", set()) and super()._stops(request)


class _PreemptsOneAfterAnother(Scheduler):
    """Takes the blocks of a preempted request for free ones, and the next request when they are not."""

    def _make_room(self) -> bool:
        if not self.running and not self.ready:
            return False
        self._preempted_at = self._round
        self._preempt(self.running[-1] if self.running else self.ready[-1], "room")
        return True


class _FreesAtOnce(KVCacheManager):
    """A request that is preempted gives its blocks back, whatever is in flight."""

    def _last_use(self, request: Request) -> int:
        return super()._last_use(request) if request.state is State.ENDED else -1


class _KeepsPlaceholders(Scheduler):
    """Rolls a request back after a failed load, and still waits for the tokens that it would have sampled."""

    def update_from_output(self, output: StepOutput | None, reports: list[TransferReport]) -> None:
        """Count what was never dispatched as on its way."""
        parked = dict(self.parked)
        super().update_from_output(output, reports)
        for request in parked.values():
            row = request.row
            if request.state is State.READY and self.tables.computed[row] < request.local + request.external:
                self.tables.computed[row] = self.tables.limit[row] + 1

    def _admit(self, budget: int) -> list[tuple[Request, int]]:
        return [(request, tokens) for request, tokens in super()._admit(budget) if tokens > 0]


class _SparesReady(Scheduler):
    """Preempts running requests only: one that holds blocks and does not run yet is no victim."""

    def _make_room(self) -> bool:
        return bool(self.running) and super()._make_room()


FAULTS: dict[str, Design] = {
    "head_blocks_holder": Design(scheduler=_StopsAtHead),
    "blockless_head": Design(scheduler=_StopsAtDeferred),
    "fenced_victim_spin": Design(scheduler=_PreemptsOneAfterAnother),
    "free_fenced_victim": Design(manager=_FreesAtOnce),
    "placeholder_not_rolled_back": Design(scheduler=_KeepsPlaceholders),
    "preempt_beside_parked": Design(scheduler=_SparesReady),
}
"""Faulty designs of the scheduler by name."""
