"""The device that a replay runs on, and the model runner that computes there."""

from collections.abc import Callable

from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.blocks.runner import ModelRunner
from kvfence.reference.device.files import FileStore
from kvfence.reference.device.protocol import Device
from kvfence.reference.device.virtual import VirtualDevice
from kvfence.reference.device.virtual_order import OrderedModelRunner, OrderedVirtualDevice
from kvfence.reference.scheduler.options import Options
from kvfence.spec import order as od


def open_platform(
    options: Options, order: Callable[[od.OrderEvent], None] | None = None
) -> tuple[Device, ModelRunner]:
    """The device that ``options`` name, with the pools ``gpu`` and ``cpu``.

    ``order`` receives the device's order events. Raises NoDevice, HostMemoryRefused.
    """
    pools = {"gpu": options.gpu_blocks, "cpu": options.cpu_blocks}
    groups, rows = options.group_specs, options.max_running
    if options.device == "cuda":
        # Imported when asked for: everything else works where CUDA's packages are missing.
        from kvfence.reference.device.cuda import CudaDevice
        from kvfence.reference.device.cuda_runner import CudaModelRunner

        cuda = CudaDevice(pools, options.block_size, order=order)
        return cuda, CudaModelRunner(cuda.memory["gpu"], groups, rows, cuda.compute, cuda.tap)
    settings = (
        pools,
        options.slot_tokens,
        options.ranks,
        options.seed,
        options.max_delay,
        options.fail_rate,
        options.fail_stores,
        options.repeat_rate,
        2 * options.late_rank,
    )
    if order is not None:
        if options.tiers > 2:
            raise OptionsError(
                f"tiers is {options.tiers}; the order of accesses is emitted for two tiers only"
            )
        ordered = OrderedVirtualDevice(order, *settings)
        return ordered, OrderedModelRunner(order, ordered.memory["gpu"], groups, rows)
    files = None
    if options.tiers > 2:
        files = FileStore(options.disk_blocks, options.slot_tokens, options.lose_rate, options.seed)
    virtual = VirtualDevice(*settings, files=files)
    return virtual, ModelRunner(virtual.memory["gpu"], groups, rows)
