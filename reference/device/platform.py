"""The device that a replay runs on, and the model runner that computes there."""

from __future__ import annotations

from kvfence.reference.device.protocol import Device
from kvfence.reference.device.virtual import VirtualDevice
from kvfence.reference.options import Options
from kvfence.reference.runner import ModelRunner


def open_platform(options: Options) -> tuple[Device, ModelRunner]:
    """The device that ``options`` name, with the pools ``gpu`` and ``cpu``. Raises NoDevice,
    HostMemoryRefused.
    """
    pools = {"gpu": options.gpu_blocks, "cpu": options.cpu_blocks}
    groups, rows = options.group_specs, options.max_running
    if options.device == "cuda":
        # Imported when asked for: everything else works where CUDA's packages are missing.
        from kvfence.reference.device.cuda import CudaDevice
        from kvfence.reference.device.cuda_runner import CudaModelRunner

        cuda = CudaDevice(pools, options.block_size)
        return cuda, CudaModelRunner(cuda.memory["gpu"], groups, rows, cuda.compute)
    virtual = VirtualDevice(
        pools,
        options.block_size,
        options.ranks,
        options.seed,
        options.max_delay,
        options.fail_rate,
        options.fail_stores,
        options.repeat_rate,
    )
    return virtual, ModelRunner(virtual.memory["gpu"], groups, rows)
