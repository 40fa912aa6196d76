"""What the engines are measured against: a loop of single copies, and torch's indexing."""

from typing import ClassVar

import torch

from kvfence.reference.copy.engine import CopyEngine
from kvfence.reference.copy.plan import CopyError, Plan
from kvfence.reference.driver.driver import Driver


class LoopedDMA(CopyEngine):
    """One cuMemcpyAsync a piece."""

    name: ClassVar[str] = "loop"

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def launch(self, work: Plan, stream: torch.cuda.Stream) -> None:
        """As many driver calls as there are pieces."""
        for dst, src, nbytes in zip(work.dst.tolist(), work.src.tolist(), work.nbytes.tolist(), strict=True):
            self._driver.copy(dst, src, nbytes, stream.cuda_stream)


class IndexCopy(CopyEngine):
    """``dst[i] = src[j]`` of torch, through a contiguous copy of the blocks. The views must have tensors.

    A store waits for its own end, since the host side is indexed on the CPU.
    """

    name: ClassVar[str] = "index"
    merges: ClassVar[bool] = False

    def launch(self, work: Plan, stream: torch.cuda.Stream) -> None:
        """Raises CopyError for views without tensors."""
        with torch.cuda.stream(stream):
            for segment in work.segments:
                src, dst = torch.from_numpy(segment.src), torch.from_numpy(segment.dst)
                for a, b in zip(segment.src_views, segment.dst_views, strict=True):
                    if a.tensor is None or b.tensor is None:
                        raise CopyError("the engine index copies between tensors, and a view has none")
                    if work.kind == "store":
                        b.tensor[dst] = a.tensor[src.to(a.tensor.device)].cpu()
                    else:
                        b.tensor[dst.to(b.tensor.device)] = a.tensor[src].to(
                            b.tensor.device, non_blocking=True
                        )
