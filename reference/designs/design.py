"""Which classes make up an engine: the sound ones, or some of them replaced by a faulty variant."""

from dataclasses import dataclass

from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.pool import BlockPool
from kvfence.reference.connector.disk_tier import DiskTier
from kvfence.reference.connector.host_memory import DescriptorBuffers, HostMemory
from kvfence.reference.connector.rank_votes import RankVotes
from kvfence.reference.connector.scheduler_side import OffloadScheduler
from kvfence.reference.connector.transfers import TransferTable
from kvfence.reference.scheduler.emitter import Emitter
from kvfence.reference.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Design:
    """The parts of an engine that a faulty design may replace."""

    gpu_pool: type[BlockPool] = BlockPool
    cpu_pool: type[BlockPool] = BlockPool
    manager: type[KVCacheManager] = KVCacheManager
    connector: type[OffloadScheduler] = OffloadScheduler
    scheduler: type[Scheduler] = Scheduler
    emitter: type[Emitter] = Emitter
    disk_pool: type[BlockPool] = BlockPool
    disk: type[DiskTier] = DiskTier
    host_memory: type[HostMemory] = HostMemory
    descriptors: type[DescriptorBuffers] = DescriptorBuffers
    votes: type[RankVotes] = RankVotes


def with_table(table: type[TransferTable]) -> type[OffloadScheduler]:
    """A connector that keeps its open transfers in such a table."""
    return type(table.__name__, (OffloadScheduler,), {"table_type": table})


SOUND = Design()
