"""Which classes make up an engine: the sound ones, or some of them replaced by a faulty variant."""

from __future__ import annotations

from dataclasses import dataclass

from kvfence.reference.disk_tier import DiskTier
from kvfence.reference.host_memory import DescriptorBuffers, HostMemory
from kvfence.reference.kv_cache_manager import KVCacheManager
from kvfence.reference.pool import BlockPool
from kvfence.reference.rank_votes import RankVotes
from kvfence.reference.scheduler import Scheduler
from kvfence.reference.scheduler_side import OffloadScheduler


@dataclass(frozen=True, slots=True)
class Design:
    """The parts of an engine that a faulty design may replace."""

    gpu_pool: type[BlockPool] = BlockPool
    cpu_pool: type[BlockPool] = BlockPool
    manager: type[KVCacheManager] = KVCacheManager
    connector: type[OffloadScheduler] = OffloadScheduler
    scheduler: type[Scheduler] = Scheduler
    disk_pool: type[BlockPool] = BlockPool
    disk: type[DiskTier] = DiskTier
    host_memory: type[HostMemory] = HostMemory
    descriptors: type[DescriptorBuffers] = DescriptorBuffers
    votes: type[RankVotes] = RankVotes


SOUND = Design()
