"""Faulty designs of how blocks are counted, group by group. Nothing here is right."""

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.tables import GroupSpec
from kvfence.reference.connector.scheduler_side import Hit, OffloadScheduler
from kvfence.reference.designs.design import Design
from kvfence.reference.scheduler.emitter import Emitter


class _CountsNullBlocks(Emitter):
    """Takes the length of a table for the number of its blocks."""

    def _first_emitted(self, spec: GroupSpec, tokens: int) -> int:
        del spec, tokens
        return 0

    def _count_held(self, slots: Slots) -> int:
        return int(slots.size)


class _CountsInBlocksOfFirstGroup(Emitter):
    """Counts the blocks of each group by the block size of the first."""

    def _count_needed(self, spec: GroupSpec, tokens: int) -> int:
        size = self.manager.groups[0].block_size
        return tokens // size - spec.first_token(tokens) // size


class _BoundsAlignedWindow(Emitter):
    """Expects a window to begin with a block."""

    def _bound(self, spec: GroupSpec) -> int:
        return -(-spec.reach // spec.block_size) if spec.kind == "sliding" else super()._bound(spec)


class _GivesUpLastBlocks(Emitter):
    """Gives up the last block of each group for a drafter's sake, also where there is no drafter."""

    def _count_needed(self, spec: GroupSpec, tokens: int) -> int:
        return max(0, super()._count_needed(spec, tokens) - 1)


class _KeepsTooLittle(OffloadScheduler):
    """Keeps one block less of each window than its reader needs, and promises all the same."""

    def _find(self, request: Request, num_computed_tokens: int) -> Hit:
        hit = super()._find(request, num_computed_tokens)
        parts = [
            (at + 1, slots[1:]) if spec.forgets and slots.size else (at, slots)
            for spec, (at, slots) in zip(self.manager.groups, hit.parts, strict=True)
        ]
        return Hit(hit.tokens if sum(slots.size for _, slots in parts) else 0, parts)


class PromisesWholePrompt(OffloadScheduler):
    """Promises the last block, too, which cannot be accepted: behind a shorter hit another window is read."""

    def _most_tokens(self, request: Request) -> int:
        unit = self.manager.unit
        return request.total // unit * unit


FAULTS: dict[str, Design] = {
    "null_blocks_counted": Design(emitter=_CountsNullBlocks),
    "other_groups_block_size": Design(emitter=_CountsInBlocksOfFirstGroup),
    "aligned_window_bound": Design(emitter=_BoundsAlignedWindow),
    "eagle_marks_every_group": Design(emitter=_GivesUpLastBlocks),
    "writer_keeps_too_little": Design(connector=_KeepsTooLittle),
    "promise_longer_than_acceptable": Design(connector=PromisesWholePrompt),
}
"""Faulty designs of block counts by name."""
