"""From block lists to addresses: what a transfer moves, piece by piece, with runs of blocks merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kvfence.reference.blocks.errors import OffloadError
from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.driver.driver import Addresses
from kvfence.spec import events as ev


class CopyError(OffloadError, ValueError):
    """A transfer that cannot be a copy: names the blocks or the sizes that do not fit."""


@dataclass(frozen=True, slots=True)
class View:
    """The blocks of one tensor of a pool, such as the keys of one layer.

    Block ``i`` has the ``nbytes`` bytes at ``base + i * stride``.

    ``run``: after so many blocks a registration of host memory ends, and no copy may go across; 0: never.
    """

    base: int
    stride: int
    nbytes: int
    blocks: int
    run: int = 0
    tensor: torch.Tensor | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, tensor: torch.Tensor, run: int = 0) -> View:
        """Blocks are the first dimension of ``tensor``; each must be dense. Raises CopyError."""
        if not tensor.numel() or not tensor[0].is_contiguous():
            raise CopyError(
                f"a pool tensor of shape {list(tensor.shape)} has no blocks that are dense in memory"
            )
        item = tensor.element_size()
        return cls(
            tensor.data_ptr(), tensor.stride(0) * item, tensor[0].numel() * item, tensor.shape[0], run, tensor
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Block ``src[i]`` of each source view goes to block ``dst[i]`` of the view in the same place of
    ``dst_views``.

    A KV-cache group is a segment: its layers have their blocks in the same places.
    """

    src_views: Sequence[View]
    src: Slots
    dst_views: Sequence[View]
    dst: Slots

    def check(self) -> None:
        """Raises CopyError for block numbers and sizes that do not fit."""
        if self.src.size != self.dst.size:
            raise CopyError(f"{self.src.size} source blocks for {self.dst.size} destination blocks")
        if len(self.src_views) != len(self.dst_views):
            raise CopyError(
                f"{len(self.src_views)} source tensors for {len(self.dst_views)} destination tensors"
            )
        for a, b in zip(self.src_views, self.dst_views, strict=True):
            if a.nbytes != b.nbytes:
                raise CopyError(
                    f"source blocks of {a.nbytes} bytes for destination blocks of {b.nbytes} bytes"
                )
        for side, numbers, views in (
            ("source", self.src, self.src_views),
            ("destination", self.dst, self.dst_views),
        ):
            least = min((view.blocks for view in views), default=0)
            if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < least:
                raise CopyError(f"{side} blocks {numbers.min()} .. {numbers.max()} of a pool of {least}")


@dataclass(frozen=True, slots=True)
class Plan:
    """A transfer as addresses: ``nbytes[i]`` bytes from ``src[i]`` to ``dst[i]``, in contiguous arrays."""

    kind: ev.Kind
    engine: str
    """Who made the plan, and carries it out."""
    segments: Sequence[Segment]
    src: Addresses
    dst: Addresses
    nbytes: Addresses

    @property
    def total(self) -> int:
        """Bytes moved."""
        return int(self.nbytes.sum())

    def part(self, start: int, end: int) -> Plan:
        """Only the pieces ``start`` .. ``end - 1``."""
        return Plan(
            self.kind, self.engine, (), self.src[start:end], self.dst[start:end], self.nbytes[start:end]
        )


def plan(kind: ev.Kind, engine: str, segments: Sequence[Segment], merge: bool) -> Plan:
    """The pieces of a transfer, one for each block and view. Raises CopyError.

    With ``merge``, blocks that are neighbours on both sides become one piece.
    """
    parts: list[tuple[Addresses, Addresses, Addresses]] = []
    for segment in segments:
        segment.check()
        if segment.src.size:
            parts.extend(
                _pieces(segment, a, b, merge)
                for a, b in zip(segment.src_views, segment.dst_views, strict=True)
            )
    if not parts:
        empty = np.zeros(0, np.uint64)
        return Plan(kind, engine, segments, empty, empty, empty)
    if len(parts) == 1:
        return Plan(kind, engine, segments, *parts[0])
    src, dst, nbytes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Plan(kind, engine, segments, src, dst, nbytes)


def _pieces(segment: Segment, a: View, b: View, merge: bool) -> tuple[Addresses, Addresses, Addresses]:
    src, dst = segment.src, segment.dst
    dense = a.stride == a.nbytes and b.stride == b.nbytes
    if merge and dense and src.size > 1:
        first = run_starts(src, dst, a.run, b.run)
        lengths = np.diff(first, append=src.size)
        src, dst = src[first], dst[first]
        nbytes = (lengths * a.nbytes).astype(np.uint64)
    else:
        nbytes = np.full(src.size, a.nbytes, np.uint64)
    return _at(a, src), _at(b, dst), nbytes


def _at(view: View, blocks: Slots) -> Addresses:
    return np.uint64(view.base) + blocks.astype(np.uint64) * np.uint64(view.stride)


def run_starts(src: Slots, dst: Slots, src_run: int = 0, dst_run: int = 0) -> npt.NDArray[np.intp]:
    """Places at which a run begins: not the block after the one before on both sides, or in a new
    registration.
    """
    breaks = np.empty(src.size, bool)
    breaks[0] = True
    np.not_equal(np.diff(src), 1, out=breaks[1:])
    breaks[1:] |= np.diff(dst) != 1
    for blocks, run in ((src, src_run), (dst, dst_run)):
        if run:
            breaks |= blocks % run == 0
    return np.flatnonzero(breaks)
