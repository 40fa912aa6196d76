"""The device that a replay runs on, and the model runner that computes there."""

from kvfence.reference.blocks.errors import OptionsError
from kvfence.reference.blocks.runner import ModelRunner
from kvfence.reference.device.files import FileStore
from kvfence.reference.device.order_tap import OrderObserver
from kvfence.reference.device.protocol import Device
from kvfence.reference.device.virtual import VirtualDevice
from kvfence.reference.device.virtual_order import OrderedModelRunner, OrderedVirtualDevice
from kvfence.reference.scheduler.options import Options


def open_platform(options: Options, order: OrderObserver | None = None) -> tuple[Device, ModelRunner]:
    """The device that ``options`` name, with the pools ``gpu`` and ``cpu``.

    ``order`` receives the device's order events. Raises NoDevice, HostMemoryRefused.
    """
    groups, rows = options.group_specs, options.max_running
    if options.device == "cuda":
        # Imported when asked for: everything else works where CUDA's packages are missing.
        from kvfence.reference.device.cuda import CudaDevice
        from kvfence.reference.device.cuda_runner import CudaModelRunner

        cuda = CudaDevice(options.two_pools, options.block_size, order=order)
        return cuda, CudaModelRunner(cuda.memory["gpu"], groups, rows, cuda.compute, cuda.tap)
    if order is not None:
        if options.tiers > 2:
            raise OptionsError(
                f"tiers is {options.tiers}; the order of accesses is emitted for two tiers only"
            )
        ordered = OrderedVirtualDevice(options, order)
        return ordered, OrderedModelRunner(order, ordered.memory["gpu"], groups, rows)
    files = None
    if options.tiers > 2:
        files = FileStore(options.disk_blocks, options.slot_tokens, options.lose_rate, options.seed)
    virtual = VirtualDevice(options, files)
    return virtual, ModelRunner(virtual.memory["gpu"], groups, rows)
