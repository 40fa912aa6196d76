"""A block pool with the methods of vLLM's, for tests without vLLM."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

from kvfence.checker.adapters.vllm.hooks.engine import Engines
from kvfence.checker.adapters.vllm.hooks.patching import Patches
from kvfence.checker.adapters.vllm.hooks.pool import hook_pool
from kvfence.checker.adapters.vllm.notes.hook_coverage import Coverage


class Block:
    def __init__(self, number: int) -> None:
        self.block_id = number
        self.ref_cnt = 0
        self._block_hash: bytes | None = None
        self.is_null = number == 0


def block_pool() -> Any:
    """A module with a class like vLLM's BlockPool."""

    class BlockPool:
        def __init__(self, count: int) -> None:
            self.blocks = [Block(number) for number in range(count)]
            self.null_block = self.blocks[0]
            self.free = list(self.blocks[1:])
            self.free_block_queue = types.SimpleNamespace(num_free_blocks=count - 1)

        def _count(self) -> None:
            self.free_block_queue.num_free_blocks = len(self.free)

        def get_new_blocks(self, num_blocks: int) -> list[Block]:
            if num_blocks > len(self.free):
                raise ValueError("Cannot get so many blocks")
            taken = [self.free.pop(0) for _ in range(num_blocks)]
            for block in taken:
                block.ref_cnt, block._block_hash = 1, None
            self._count()
            return taken

        def touch(self, blocks: Iterable[Block]) -> None:
            for block in blocks:
                if block.ref_cnt == 0 and not block.is_null:
                    self.free.remove(block)
                block.ref_cnt += 1
            self._count()

        def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
            for block in ordered_blocks:
                block.ref_cnt -= 1
                if block.ref_cnt == 0 and not block.is_null:
                    self.free.append(block)
            self._count()

        def cache_full_blocks(
            self,
            request: Any,  # noqa: ARG002 - as in vLLM
            blocks: list[Block],
            num_cached_blocks: int,
            num_full_blocks: int,
            block_size: int,  # noqa: ARG002
            kv_cache_group_id: int,
        ) -> None:
            for number, block in enumerate(blocks[num_cached_blocks:num_full_blocks]):
                block._block_hash = bytes([number]) * 32 + kv_cache_group_id.to_bytes(4, "big")

        def evict_blocks(self, block_ids: set[int]) -> None:
            for number in block_ids:
                self.blocks[number]._block_hash = None

        def reset_prefix_cache(self) -> bool:
            for block in self.blocks:
                block._block_hash = None
            return True

    return types.SimpleNamespace(BlockPool=BlockPool)


def hooked(module: Any, compiled: bool = False) -> Patches:
    """The hooks on the pools of ``module``."""
    patches = Patches(Coverage(), compiled=compiled)
    hook_pool(patches, module)
    return patches


class ObservedPool:
    """A pool under observation; ``engines`` are the arguments of its Engines."""

    def __init__(
        self, count: int, open_sink: Callable[[Any], Any], *engines: Any, compiled: bool = False
    ) -> None:
        self.module = block_pool()
        self.patches = hooked(self.module, compiled)
        self.engines = Engines(open_sink, "test", *engines)
        self.pool = self.module.BlockPool(count)
        self.stream = self.engines.stream_for(self.pool)
