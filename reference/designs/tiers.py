"""Faulty designs of several tiers: resets, lost files, published keys, host memory. Nothing here is right."""

import numpy as np

from kvfence.reference.blocks.pool import BlockPool
from kvfence.reference.blocks.tables import Rows
from kvfence.reference.connector.disk_tier import DiskTier, Owner
from kvfence.reference.connector.host_memory import DescriptorBuffers, HostMemory
from kvfence.reference.connector.scheduler_side import OffloadScheduler
from kvfence.reference.connector.stores import ConnectorMetadata
from kvfence.reference.connector.transfers import Transfer
from kvfence.reference.designs.design import Design
from kvfence.reference.scheduler.scheduler import Scheduler
from kvfence.spec import events as ev

# What is published.


class _PublishesQueued(OffloadScheduler):
    """Publishes a block as stored when its store is decided."""

    def _queue_store(self, transfer: Transfer) -> None:
        super()._queue_store(transfer)
        if self.observer is not None:
            self.observer(ev.Stored(pool=self.tier.name, keys=transfer.keys.tolist(), group=transfer.group))


class _PublishesNoRemoval(BlockPool):
    """Publishes what comes and not what goes."""

    def _publish(self, event: ev.Event) -> None:
        if not isinstance(event, ev.Removed):
            super()._publish(event)


class _PublishesNoLoss(DiskTier):
    """Forgets a lost file, and does not say so."""

    def _distrust(self, transfer: Transfer) -> None:
        publishes, self.pool.publishes = self.pool.publishes, False
        super()._distrust(transfer)
        self.pool.publishes = publishes


class _PublishesNoReset(BlockPool):
    """Does not say that it was reset."""

    def publish_cleared(self) -> None:
        """Say nothing."""


# What a tier keeps.


class _KeepsMirrors(OffloadScheduler):
    """Keeps a slot of the tier as long as the GPU pool has the block that it mirrors."""

    def _store_over(self, transfer: Transfer) -> None:
        super()._store_over(transfer)
        kept = self.__dict__.setdefault("_kept", {})
        for slot, key in zip(transfer.dst.tolist(), transfer.keys.tolist(), strict=True):
            if self.tier.index[transfer.group].get(key) == slot and slot not in kept:
                kept[slot] = transfer.group, key
                self.tier.touch(f"mirror:{slot}.0", np.array([slot]))

    def build_connector_meta(self, rows: Rows) -> ConnectorMetadata:
        """Give up mirrors of what the GPU pool has not any more, once the tier is full."""
        kept: dict[int, tuple[int, int]] = self.__dict__.get("_kept", {})
        if not self.tier.num_free:
            for slot, (group, key) in list(kept.items()):
                if key not in self.gpu.index[group]:
                    del kept[slot]
                    self.tier.free_blocks(f"mirror:{slot}.0", np.array([slot]))
        return super().build_connector_meta(rows)


# Files.


class _KeepsLostFiles(DiskTier):
    """Finds a lost file again and again."""

    def _distrust(self, transfer: Transfer) -> None:
        pass


class _FetchesAcrossReset(DiskTier):
    """Does not ask whether there was a reset while blocks were on their way from files."""

    def _may_register(self, owner: Owner, transfer: Transfer) -> bool:
        return transfer.kind == "load" or super()._may_register(owner, transfer)


class _SavesAcrossReset(DiskTier):
    """Does not ask whether there was a reset while blocks were on their way to files."""

    def _may_register(self, owner: Owner, transfer: Transfer) -> bool:
        return transfer.kind == "store" or super()._may_register(owner, transfer)


# Resets.


class _ResetsMemoryOnly(Scheduler):
    """Clears both memories and calls it a reset."""

    def _reset_tiers(self) -> list[str]:
        disk, self.connector.disk = self.connector.disk, None
        names = super()._reset_tiers()
        self.connector.disk = disk
        return names


class _ForgetsTransfers(OffloadScheduler):
    """A reset drops the records of what is in flight."""

    def reset_cache(self) -> bool:
        """Forget it all."""
        self.transfers.open.clear()
        return super().reset_cache()


# Host memory.


class _EachRankForItself(HostMemory):
    """Pins what it could register, whatever the others could."""

    def _agreed(self, registered: list[int]) -> bool | None:
        del registered
        return None


class _KeepsPieces(HostMemory):
    """Goes on without pinned memory, and keeps the pieces that were registered."""

    def _take_back(self, pool: str, rank: int, pieces: int) -> None:
        pass


class _OneBuffer(DescriptorBuffers):
    """Writes the descriptors of every copy into the same buffer."""

    def take(self, op: int, generation: int) -> int:
        """The one buffer."""
        self._idle = [0]
        return super().take(op, generation)


FAULTS: dict[str, Design] = {
    "events_before_landing": Design(connector=_PublishesQueued),
    "removed_not_published": Design(
        gpu_pool=_PublishesNoRemoval, cpu_pool=_PublishesNoRemoval, disk_pool=_PublishesNoRemoval
    ),
    "lost_file_still_listed": Design(disk=_PublishesNoLoss),
    "reset_not_published": Design(cpu_pool=_PublishesNoReset),
    "mirror_pins_starve": Design(connector=_KeepsMirrors),
    "lost_file_still_found": Design(disk=_KeepsLostFiles),
    "promotion_during_reset": Design(disk=_FetchesAcrossReset),
    "store_resurrects_key": Design(disk=_SavesAcrossReset),
    "reset_skips_a_tier": Design(scheduler=_ResetsMemoryOnly),
    "reset_forgets_transfers": Design(connector=_ForgetsTransfers),
    "ranks_disagree_on_pinning": Design(host_memory=_EachRankForItself),
    "partial_registration_kept": Design(host_memory=_KeepsPieces),
    "descriptor_reused_early": Design(descriptors=_OneBuffer),
}
"""Faulty designs of tiers by name."""
