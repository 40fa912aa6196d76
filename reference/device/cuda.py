"""The CUDA device: blocks in GPU memory and in registered host memory, copied beside the compute."""

import weakref
from collections.abc import Mapping
from functools import partial

import torch

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.connector.transfers import TransferReport
from kvfence.reference.copy.auto import open_auto
from kvfence.reference.copy.plan import Segment, View
from kvfence.reference.device.copy_thread import CopyThread
from kvfence.reference.device.metrics import TransferMetrics
from kvfence.reference.device.order_tap import OrderObserver, OrderTap
from kvfence.reference.device.protocol import CopyJob
from kvfence.reference.driver.driver import open_driver
from kvfence.reference.driver.host_pool import HostPool


class CudaDevice:
    """One GPU, which stands for the only rank. ``compute`` is the stream of the model; copies give way to it.

    Pool ``gpu`` lies in GPU memory, every other pool in registered host memory. Raises NoDevice,
    HostMemoryRefused, and OptionsError where the environment names an engine that there is not (see
    :func:`open_auto`).

    ``order`` receives the order events, from both threads, one at a time.
    """

    def __init__(self, pools: Mapping[str, int], block_size: int, order: OrderObserver | None = None) -> None:
        driver = open_driver()
        self.card = driver.card
        self.metrics = TransferMetrics()
        self.memory: dict[str, torch.Tensor] = {}
        self._views: dict[str, View] = {}
        self._host: list[HostPool] = []
        self._written: dict[str, list[Slots]] = {name: [] for name in pools}
        self._reports: list[TransferReport] = []
        device = torch.device("cuda", driver.ordinal)
        self.compute = torch.cuda.Stream(device, -1)
        try:
            for name, slots in pools.items():
                if name == "gpu":
                    self.memory[name] = torch.zeros((slots, block_size), dtype=torch.int64, device=device)
                    self._views[name] = View.of(self.memory[name])
                else:
                    host = HostPool(driver, slots, 8 * block_size)
                    self._host.append(host)
                    flat = torch.from_numpy(host.array()).view(torch.int64)
                    self.memory[name] = flat.view(slots, block_size)
                    self._views[name] = View.of(self.memory[name], host.chunk // (8 * block_size))
            torch.cuda.synchronize(device)
            self.tap = OrderTap(order, self.memory) if order is not None else None
            # The thread must not keep the device: one that is dropped ends its thread.
            segment = partial(_segment, self._views)
            self._copies = CopyThread(open_auto(driver), segment, device, self.tap)
            weakref.finalize(self, self._copies.end)
        except BaseException:
            self._free()
            raise

    def submit(self, job: CopyJob) -> None:
        """Start a copy behind the compute that was launched before this call."""
        self._copies.submit(job, self.compute)

    def advance(self) -> None:
        """Take note of the copies that ended."""
        for copy in self._copies.finished():
            job = copy.job
            self._written[job.dst_pool].append(job.dst)
            self._reports.append(TransferReport(job.op, job.generation, 0))
            self.metrics.transfer(copy.kind, copy.nbytes, copy.seconds)
            self._copies.recycle(copy)

    def poll(self) -> list[TransferReport]:
        """Ends of copies since the last call, as of the last :meth:`advance`."""
        reports, self._reports = self._reports, []
        return reports

    def written(self, pool: str) -> list[Slots]:
        """Slots of ``pool`` that copies wrote since the last call."""
        written, self._written[pool] = self._written[pool], []
        return written

    def flush(self) -> None:
        """Wait until every copy submitted so far has landed, and take note of it."""
        self._copies.flush()
        self.advance()

    def close(self) -> None:
        """Wait for the copies, end the thread, and give the memory back."""
        self._copies.close()
        torch.cuda.synchronize(self.compute.device)
        self._free()

    def _free(self) -> None:
        self.memory.clear()
        self._views.clear()
        for host in self._host:
            host.close()


def _segment(views: Mapping[str, View], job: CopyJob) -> Segment:
    return Segment([views[job.src_pool]], job.src, [views[job.dst_pool]], job.dst)
