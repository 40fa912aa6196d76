"""Staged copy: small blocks on the device are gathered into one buffer (or scattered from it) that DMA moves.

Pays where the host side is contiguous and the device side is not: a tier that was just filled, for instance.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.kernel import Kernels, Shape, check_aligned
from kvfence.reference.copy.plan import CopyError, Plan, Segment, plan
from kvfence.reference.driver.driver import SRC_ANY, SRC_STREAM, Addresses
from kvfence.spec import events as ev
from kvfence.spec import order as od


class StagedCopy(CopyEngine):
    """Two staging buffers of ``room`` bytes on the device: while one fills or empties, the other one moves.

    The side stream that gathers and scatters begins where a transfer does, and the transfer ends after it.
    The source of a load is read at ANY time for the reasons given at :class:`BatchedDMA`; staging buffers
    are read in stream order, since the kernels before write them.
    """

    name: ClassVar[str] = "staged"
    merges: ClassVar[bool] = False

    def __init__(self, kernels: Kernels, room: int = 32 * 2**20, grid: int = 16) -> None:
        self._kernels = kernels
        self._driver = kernels.driver
        self._room = room
        self._shape = Shape(grid)
        self._staging = [self._driver.new_buffer(room) for _ in range(2)]
        self._side = self._driver.new_stream()
        self._moved = [self._driver.new_event() for _ in range(2)]
        self._ready = [self._driver.new_event() for _ in range(2)]
        self._edge = self._driver.new_event()

    def source_order(self, work: Plan) -> od.SourceOrder:
        """ANY for loads."""
        return "any" if work.kind == "load" else "stream"

    def plan(self, kind: ev.Kind, segments: Sequence[Segment]) -> Plan:
        """Pieces in the order of their host addresses, so that what is contiguous there moves as one."""
        work = plan(kind, self.name, segments, merge=False)
        order = host_order(work)
        return Plan(kind, self.name, segments, work.src[order], work.dst[order], work.nbytes[order])

    def launch(self, work: Plan, stream: torch.cuda.Stream) -> None:
        """Raises CopyError for blocks larger than the staging buffer, or no multiple of 16 bytes."""
        if not work.src.size:
            return
        check_aligned(work)
        if int(work.nbytes.max()) > self._room:
            raise CopyError(
                f"a block of {work.nbytes.max()} bytes is larger than the staging buffer of {self._room}: "
                "use the engine dma for these blocks"
            )
        edges = registration_edges(work)
        self._edge.record(stream)
        self._side.wait_event(self._edge)
        for number, (start, end) in enumerate(pairwise(fitting(work.nbytes, self._room))):
            part = work.part(start, end)
            if work.kind == "store":
                self._store(part, number % 2, stream, edges)
            else:
                self._load(part, number % 2, stream, edges)
        self._edge.record(self._side)
        stream.wait_event(self._edge)

    def _staged(self, part: Plan, turn: int) -> Addresses:
        """Where each piece lies in the staging buffer: one behind the other."""
        return np.uint64(self._staging[turn].data_ptr()) + np.cumsum(part.nbytes) - part.nbytes

    def _store(self, part: Plan, turn: int, here: torch.cuda.Stream, edges: Addresses) -> None:
        staged = self._staged(part, turn)
        # What any transfer staged here before has been moved. An event never recorded counts as complete.
        self._side.wait_event(self._moved[turn])
        self._by_kernel(Plan("store", "", (), part.src, staged, part.nbytes))
        self._ready[turn].record(self._side)
        here.wait_event(self._ready[turn])
        first = neighbour_starts(part.dst, part.nbytes, edges)
        self._by_dma(staged, part.dst, part.nbytes, first, SRC_STREAM, here)
        self._moved[turn].record(here)

    def _load(self, part: Plan, turn: int, here: torch.cuda.Stream, edges: Addresses) -> None:
        staged = self._staged(part, turn)
        here.wait_event(self._moved[turn])
        first = neighbour_starts(part.src, part.nbytes, edges)
        self._by_dma(part.src, staged, part.nbytes, first, SRC_ANY, here)
        self._ready[turn].record(here)
        self._side.wait_event(self._ready[turn])
        self._by_kernel(Plan("load", "", (), staged, part.dst, part.nbytes))
        self._moved[turn].record(self._side)

    def _by_kernel(self, part: Plan) -> None:
        self._kernels.stage(part, self._shape, self._side)()

    def _by_dma(
        self,
        src: Addresses,
        dst: Addresses,
        nbytes: Addresses,
        first: npt.NDArray[np.intp],
        order: int,
        here: torch.cuda.Stream,
    ) -> None:
        """One copy for each run of pieces; runs begin at the places ``first``."""
        sizes = np.add.reduceat(nbytes, first)
        self._driver.copy_batch(dst[first], src[first], sizes, order, here.cuda_stream)


def host_order(work: Plan) -> npt.NDArray[np.intp]:
    """The places of the pieces, in the order of their host addresses."""
    return np.argsort(work.dst if work.kind == "store" else work.src, kind="stable")


def registration_edges(work: Plan) -> Addresses:
    """Sorted host addresses at which the registrations of the transfer's host views begin.

    The system may map two pools side by side: contiguous addresses need not lie in one registration, and
    the driver refuses a copy across two.
    """
    views = [
        view
        for segment in work.segments
        for view in (segment.dst_views if work.kind == "store" else segment.src_views)
    ]
    if not views:
        raise CopyError("a staged copy needs the segments of its transfer: plan it with the engine staged")
    begins = [
        np.uint64(view.base)
        + np.arange(0, view.blocks, view.run or view.blocks, dtype=np.uint64) * np.uint64(view.stride)
        for view in views
    ]
    return np.unique(np.concatenate(begins))


def neighbour_starts(at: Addresses, nbytes: Addresses, edges: Addresses) -> npt.NDArray[np.intp]:
    """Places of the pieces that do not continue the piece before within one registration.

    ``at`` are the host addresses of the pieces, in ascending order.
    """
    breaks = np.append(True, at[:-1] + nbytes[:-1] != at[1:])
    places = np.searchsorted(at, edges)
    places = places[places < at.size]
    breaks[places[np.isin(at[places], edges)]] = True
    return np.flatnonzero(breaks)


def fitting(nbytes: Addresses, room: int) -> list[int]:
    """The edges of parts of at most ``room`` bytes, for pieces of ``nbytes``, each at most ``room``."""
    reached = np.cumsum(nbytes)
    edges = [0]
    while edges[-1] < nbytes.size:
        before = int(reached[edges[-1] - 1]) if edges[-1] else 0
        edges.append(int(np.searchsorted(reached, before + room, side="right")))
    return edges
