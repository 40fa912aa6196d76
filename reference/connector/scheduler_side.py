"""The connector's scheduler side: promises hits, decides stores and loads, and accounts for their ends.

The methods that the engine calls have the names of vLLM's ``KVConnectorBase_V1``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.pool import BlockPool, Observer
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.stats import Stats
from kvfence.reference.blocks.tables import Rows
from kvfence.reference.connector.disk_tier import DiskTier
from kvfence.reference.connector.shared_loads import SharedLoads, Sharing
from kvfence.reference.connector.stores import ConnectorMetadata, StorePlanner
from kvfence.reference.connector.transfers import Transfer, TransferReport
from kvfence.spec import events as ev


@dataclass(slots=True)
class Hit:
    """A promise: for each group the tier's slots, from block ``at`` of the request on."""

    tokens: int
    parts: list[tuple[int, Slots]]

    @property
    def slots(self) -> Slots:
        """All promised slots."""
        return np.concatenate([slots for _, slots in self.parts])


@dataclass(slots=True)
class Loading:
    """The loads of one request generation; they count only together."""

    request: Request
    generation: int
    local: int
    tokens: int
    waiting: int = 0
    done: list[Transfer] = field(default_factory=list)


class OffloadScheduler(StorePlanner):
    """Scheduler side of GPU/CPU offload.

    * A hit is pinned from the lookup that promises it until its load holds the slots, or it is given up.
    * Each transfer holds its sources and destinations under its own name until all ranks have reported.
    * What a request's end finds unstored is stored then, or dropped with a reason.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        tier: BlockPool,
        lazy: bool = False,
        ranks: int = 1,
        store_batch: int = 8,
        lazy_horizon: int = 1024,
        stats: Stats | None = None,
        observer: Observer | None = None,
        disk: DiskTier | None = None,
        share_loads: bool = False,
    ) -> None:
        super().__init__(manager, tier, lazy, ranks, store_batch, lazy_horizon, stats, observer)
        self.disk = disk
        self.failed: set[str] = set()
        """Holders of requests whose loads failed and for which this was not yet reported."""
        self.promises: dict[str, Hit] = {}
        """Hit holder -> the hit that is pinned under this name."""
        self.loading: dict[str, Loading] = {}
        """Request holder -> its loads that are not over."""
        self.shared = SharedLoads(self.gpu) if share_loads else None
        if self.shared is not None:
            manager.hits = self.shared

    # Hits.

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens the tier has beyond ``num_computed_tokens``, and whether they come asynchronously. Pins
        them. None: more are on their way to the tier, ask again.

        Asking again replaces the promise; nothing else changes.
        """
        if self.disk is not None and self.disk.is_fetching(request):
            return None, False
        hit = self._find(request, num_computed_tokens)
        self._emit_promise(request, num_computed_tokens, hit)
        if self.disk is not None and self.disk.fetch(self, request, num_computed_tokens, hit.tokens):
            return None, False
        return hit.tokens, hit.tokens > 0

    def _emit_promise(self, request: Request, num_computed_tokens: int, hit: Hit) -> None:
        self._promise(request, hit)
        if self.observer is not None:
            by_group = hit.tokens and len(hit.parts) > 1
            self.observer(
                ev.Lookup(
                    req=request.id,
                    gen=request.generation,
                    local=num_computed_tokens,
                    external=hit.tokens,
                    pool=self.tier.name,
                    slots=hit.slots if hit.tokens else (),
                    counts=[slots.size for _, slots in hit.parts] if by_group else (),
                )
            )

    def _find(self, request: Request, num_computed_tokens: int) -> Hit:
        most = max(num_computed_tokens, self._most_tokens(request))
        end, parts = self.manager.longest_hit(self.tier, request, num_computed_tokens, most)
        return Hit(end - num_computed_tokens, parts)

    def _most_tokens(self, request: Request) -> int:
        """Tokens worth promising, the local hit included: at least one is computed, and a shorter hit would
        need another window.
        """
        return (request.total - 1) // self.manager.unit * self.manager.unit

    def _promise(self, request: Request, hit: Hit) -> None:
        """Pin ``hit`` in place of what was promised before."""
        old = self.promises.get(request.hit_holder)
        if old is not None:
            if hit.tokens and np.array_equal(old.slots, hit.slots):
                return
            self.withdraw(request)
        if hit.tokens:
            self._pin(request, hit.slots)
            self.promises[request.hit_holder] = hit

    def _pin(self, request: Request, slots: Slots) -> None:
        self.tier.touch(request.hit_holder, slots)

    def _unpin(self, request: Request, hit: Hit) -> None:
        self.tier.free_blocks(request.hit_holder, hit.slots[::-1])

    def withdraw(self, request: Request) -> None:
        """Withdraw the promise, if there is one, and release its pins."""
        hit = self.promises.pop(request.hit_holder, None)
        if hit is not None:
            if self.observer is not None:
                self.observer(ev.Withdraw(req=request.id, gen=request.generation))
            self._unpin(request, hit)

    def update_state_after_alloc(self, request: Request, num_external_tokens: int) -> None:
        """The engine allocated blocks for ``num_external_tokens`` of the promise: load them; the pins end
        here.
        """
        hit = self.promises.pop(request.hit_holder, None)
        if hit is None:
            return
        if num_external_tokens:
            self._load(request, hit, num_external_tokens)
        self._unpin(request, hit)

    # Loads.

    def _load(self, request: Request, hit: Hit, tokens: int) -> None:
        local = int(self.manager.tables.computed[request.row])
        loading = Loading(request, request.generation, local, tokens)
        for group, (at, slots) in enumerate(hit.parts):
            src = slots[: max(0, (local + tokens) // self.manager.groups[group].block_size - at)]
            if not src.size:
                continue
            dst = self.manager.tables.table(request.row, group)[at : at + src.size].copy()
            keys = request.keys_of[group][at : at + src.size]
            blocks = np.arange(at, at + src.size)
            transfer = self._transfer("load", src, dst, keys, group, blocks, request)
            self.tier.touch(transfer.holder, src)
            self._hold_destination(transfer)
            self.transfers.add(transfer)
            self.to_issue.loads.append(transfer)
            loading.waiting += 1
            if self.shared is not None:
                self.shared.begin(request.holder, transfer)
            self.stats.loads += 1
            self.stats.loaded_blocks += src.size
        self.loading[request.holder] = loading

    def _hold_destination(self, transfer: Transfer) -> None:
        self.gpu.touch(transfer.holder, transfer.dst)

    def _load_over(self, transfer: Transfer) -> list[Request]:
        """One load is over. Returns the request when all of its loads are, if it still waits for them, and
        who shares its blocks.
        """
        request = transfer.request
        assert request is not None
        holder = f"req:{request.id}.{transfer.request_generation}"
        loading = self.loading[holder]
        loading.done.append(transfer)
        loading.waiting -= 1
        if not transfer.ok:
            self.stats.failed_loads += 1
            self._distrust(transfer)
        if loading.waiting:
            return []
        del self.loading[holder]
        waits = request.generation == loading.generation and request.row >= 0
        failed = [load for load in loading.done if not load.ok]
        if waits and not failed:
            self._loads_landed(request, loading)
        for load in loading.done:
            self._release_source(load)
            self._release_destination(load)
            self.transfers.forget(load)
        if waits and failed:
            self.failed.add(request.holder)
            self._roll_back(request, loading)
        over = [request] if waits else []
        if self.shared is not None:
            for sharing in self.shared.over(holder, loading.done):
                if sharing.some_failed:
                    self._roll_back_sharer(sharing)
                over.append(sharing.request)
        return over

    def _release_source(self, load: Transfer) -> None:
        self.tier.free_blocks(load.holder, load.src[::-1])

    def _release_destination(self, load: Transfer) -> None:
        self.gpu.free_blocks(load.holder, load.dst[::-1])

    def _loads_landed(self, request: Request, loading: Loading) -> None:
        """Only now do the loaded blocks count: as the request's computed tokens, and for others to share."""
        tables = self.manager.tables
        for load in loading.done:
            if load.epoch == self.epoch:
                self._register_loaded(load)
        valid = loading.local + loading.tokens
        tables.computed[request.row] = tables.confirmed[request.row] = valid
        tables.cached[request.row] = valid

    def _register_loaded(self, load: Transfer) -> None:
        self.gpu.cache_full_blocks(load.dst, load.keys, load.group, load.op, load.generation)

    def _distrust(self, load: Transfer) -> None:
        """The tier's copy could not be read: it becomes a miss, for all requests."""
        places = load.failed_blocks()
        src = load.src[places]
        same = self.tier.key[src] == load.keys[places]
        cached = src[same & (self.tier.group_of[src] == load.group)]
        if cached.size:
            self.tier.uncache(cached, "load failed")

    def _roll_back(self, request: Request, loading: Loading) -> None:
        """Policy after a failed load: compute from the first block on that some group misses."""
        valid = self._valid_tokens(loading)
        self.stats.partial_loads += valid > loading.local
        tables = self.manager.tables
        tables.computed[request.row] = tables.confirmed[request.row] = valid
        self.manager.truncate(request, valid)
        self._emit_rollback(request, valid, loading)

    def _emit_rollback(self, request: Request, valid: int, loading: Loading) -> None:
        del loading
        if self.observer is not None:
            self.observer(ev.Rollback(req=request.id, gen=request.generation, computed=valid, ahead=0))

    def _valid_tokens(self, loading: Loading) -> int:
        """The greatest number of tokens behind which everything that is read has landed."""
        groups, unit, local = self.manager.groups, self.manager.unit, loading.local
        landed: list[set[int]] = [set() for _ in groups]
        for load in loading.done:
            landed[load.group].update(np.delete(load.at, load.failed_blocks()).tolist())
        for tokens in range(local + loading.tokens, local, -unit):
            read = [
                range(max(spec.first_block(tokens), local // spec.block_size), tokens // spec.block_size)
                for spec in groups
            ]
            if self._all_groups([there.issuperset(b) for there, b in zip(landed, read, strict=True)]):
                return tokens
        return local

    def _all_groups(self, landed: list[bool]) -> bool:
        return all(landed)

    # Loads of others.

    def filled_by(self, parts: Iterable[tuple[int, Slots]]) -> set[str]:
        """Holders of the requests whose loads fill blocks of a hit in the GPU pool."""
        return set() if self.shared is None else self.shared.owners(parts)

    def share(self, request: Request, owners: set[str]) -> None:
        """The request has such blocks in its table, and waits for those loads."""
        assert self.shared is not None
        self.shared.share(request, owners)

    def _roll_back_sharer(self, sharing: Sharing) -> None:
        """A load has failed of which the request shares blocks: like the owner, it counts what is valid."""
        request, tables, groups = sharing.request, self.manager.tables, self.manager.groups
        self.failed.add(request.holder)
        counted = int(tables.computed[request.row])

        def is_valid(tokens: int) -> bool:
            for group, spec in enumerate(groups):
                table = tables.table(request.row, group)
                read = table[spec.first_block(tokens) : tokens // spec.block_size]
                # A shorter hit has another window, which may not be in the table.
                if (read == tables.null).any() or not sharing.failed.isdisjoint(read.tolist()):
                    return False
            return True

        valid = next((n for n in range(counted, 0, -self.manager.unit) if is_valid(n)), 0)
        tables.computed[request.row] = tables.confirmed[request.row] = valid
        tables.cached[request.row] = valid
        self.manager.truncate(request, valid)
        if self.observer is not None:
            self.observer(ev.Rollback(req=request.id, gen=request.generation, computed=valid, ahead=0))

    def take_failure(self, request: Request) -> bool:
        """Whether the load of the request, which is over, failed. True once for each failure."""
        failed = request.holder in self.failed
        self.failed.discard(request.holder)
        return failed

    def still_needs(self, holder: str) -> bool:
        """Whether the generation called ``holder`` has business with the connector that is not over."""
        return holder in self.loading

    def has_open_loads(self, request: Request) -> bool:
        """Whether a load that the request's present generation waits for is not over."""
        shares = self.shared is not None and request.holder in self.shared.waiting
        return shares or request.holder in self.loading

    # Steps and ends.

    def build_connector_meta(self, rows: Rows) -> ConnectorMetadata:
        """Decide what to store now (``rows``: the running requests), and hand over what was decided since
        the last call.
        """
        if not self.lazy:
            self._store_due(rows)
        else:
            self._store_before_eviction()
        if self.disk is not None:
            self.disk.save_before_eviction(self)
        meta, self.to_issue = self.to_issue, ConnectorMetadata()
        for transfer in (*meta.loads, *meta.stores):
            self.transfers.issue(transfer)
        return meta

    def update_connector_output(self, reports: list[TransferReport]) -> list[Request]:
        """Take the workers' reports into account. Returns the requests whose loads are over (good or bad)."""
        over: list[Request] = []
        for report in reports:
            transfer = self.transfers.report(report)
            self.stats.stale_reports = self.transfers.stale
            if transfer is None:
                continue
            if self.disk is not None and self.disk.owns(transfer):
                self.disk.over(self, transfer)
            elif transfer.kind == "store":
                self._store_over(transfer)
            else:
                over += self._load_over(transfer)
        return over

    def request_finished(self, request: Request, aborted: bool) -> bool:
        """The request ended, its table is still there: store what is left, or say why not.

        Returns whether the engine must keep the blocks for the connector: never, since transfers hold their
        own.
        """
        self.withdraw(request)
        self._forget(request)
        if request.row >= 0:
            confirmed = int(self.manager.tables.confirmed[request.row])
            for group, spec in enumerate(self.manager.groups):
                self._settle(request, group, confirmed // spec.block_size, aborted)
        return False

    def request_preempted(self, request: Request) -> None:
        """The request is about to lose its table: store its full blocks now; they hold their slots
        themselves.
        """
        self.withdraw(request)
        # Asked before it is forgotten what the request waits for: those blocks are not there yet.
        waits = self.has_open_loads(request)
        self._forget(request)
        if not self.lazy and not waits:
            confirmed = int(self.manager.tables.confirmed[request.row])
            for group, spec in enumerate(self.manager.groups):
                full = confirmed // spec.block_size
                if self.manager.tables.cursor[group, request.row] < full:
                    self._store_blocks(request, group, full)

    def _forget(self, request: Request) -> None:
        """The generation is over."""
        self.failed.discard(request.holder)
        if self.disk is not None:
            self.disk.forget(request.holder)
        if self.shared is not None:
            self.shared.forget(request.holder)

    def reset_cache(self) -> bool:
        """Forget the tier's labels and begin an epoch; transfers in flight will not register."""
        self.epoch += 1
        self.tier.reset_prefix_cache()
        if self.disk is not None:
            self.disk.reset()
        if self.shared is not None:
            self.shared.reset()
        self._scanned = (-1, 0)
        return True

    @property
    def tiers(self) -> list[BlockPool]:
        """The pools behind the GPU's."""
        return [self.tier] if self.disk is None else [self.tier, self.disk.pool]

    def uses_gpu(self) -> bool:
        """Whether a transfer from or to the GPU is not over."""
        return any(self.gpu.name in (t.src_pool, t.dst_pool) for t in self.transfers.open.values())

    def has_pending_transfers(self) -> bool:
        """Whether a transfer is not over."""
        return bool(self.transfers.open or self.loading)
