"""The CUDA driver, as far as copies need it: registration of host memory, kernels, and the batched copy.

Nothing of CUDA is imported before :func:`open_driver`. Without a GPU, its driver or the packages that reach
it, this raises NoDevice, which names the way out.
"""

import ctypes
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from kvfence.reference.blocks.errors import OffloadError

Addresses = npt.NDArray[np.uint64]

WAY_OUT: Final = "the virtual device (--device virtual) needs no GPU"

BATCH_SINCE: Final = 12080
"""CUDA version whose driver has cuMemcpyBatchAsync; the signature without ``failIdx`` came with 13000."""

SRC_STREAM: Final = 1
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: the source is read in stream order."""
SRC_ANY: Final = 3
"""CU_MEMCPY_SRC_ACCESS_ORDER_ANY: the source may be read before earlier work of the stream, and at any later
time until the copy is over.
"""


class NoDevice(OffloadError):  # noqa: N818 - the name says what happened
    """There is no usable CUDA device; says why, and what works without one."""

    def __init__(self, why: str) -> None:
        super().__init__(f"no CUDA device: {why}; {WAY_OUT}")


class DriverError(OffloadError):
    """A call of the CUDA driver failed."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed: {name} ({code})")
        self.call = call
        self.code = code
        self.name = name


class HostMemory(Protocol):
    """The part of the driver that a host pool needs."""

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock host memory and map it for the GPU. Raises DriverError."""

    def unregister(self, address: int) -> None:
        """Undo :meth:`register`, in any thread. Raises DriverError."""

    def synchronize(self) -> None:
        """Wait, in any thread, for all work of the device. Raises DriverError."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the order of source accesses, two location hints that only managed memory uses,
    flags.
    """

    _fields_ = [("order", ctypes.c_int), ("hints", ctypes.c_int * 4), ("flags", ctypes.c_uint)]


@dataclass(frozen=True, slots=True)
class Card:
    """What a measurement is of."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    driver: str
    """The newest CUDA version that the driver serves, for instance 13.0."""


class Function:
    """A kernel of a loaded module, which is unloaded with the last reference to this."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle


class Driver:
    """Calls of the CUDA driver on one device, through cuda-python. Raises DriverError."""

    def __init__(self, cu: Any, ordinal: int, version: int) -> None:
        self._cu = cu
        self.ordinal = ordinal
        self.version = version
        self._batch, self._fails_at = self._find_batch()
        self._attributes = {order: _Attributes(order, (0, 0, 0, 0), 0) for order in (SRC_STREAM, SRC_ANY)}
        self._zero = ctypes.c_size_t(0)
        self._context = self._call("cuCtxGetCurrent")

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call ``name``; its results without the status."""
        status, *results = getattr(self._cu, name)(*arguments)
        if int(status):
            raise DriverError(name, int(status), getattr(status, "name", str(status)))
        return results[0] if len(results) == 1 else results

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The device's context in this thread: a finalizer runs wherever the last reference is dropped."""
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        with self._current():
            self._call("cuCtxSynchronize")

    # The device.

    def attribute(self, name: str) -> int:
        """A ``CU_DEVICE_ATTRIBUTE_...`` of the device."""
        which = getattr(self._cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", which, self._device()))

    def _device(self) -> Any:
        return self._call("cuDeviceGet", self.ordinal)

    @property
    def card(self) -> Card:
        """Name, capability and driver of the device."""
        name = self._call("cuDeviceGetName", 128, self._device())
        text = name.split(b"\0")[0].decode()
        capability = (
            self.attribute("COMPUTE_CAPABILITY_MAJOR"),
            self.attribute("COMPUTE_CAPABILITY_MINOR"),
        )
        version = f"{self.version // 1000}.{self.version % 1000 // 10}"
        return Card(text, capability, self.attribute("MULTIPROCESSOR_COUNT"), version)

    # Host memory.

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock host memory, for all contexts, and map it for the GPU."""
        flags = self._cu.CU_MEMHOSTREGISTER_PORTABLE | self._cu.CU_MEMHOSTREGISTER_DEVICEMAP
        self._call("cuMemHostRegister", address, nbytes, flags)

    def unregister(self, address: int) -> None:
        """Undo :meth:`register`."""
        with self._current():
            self._call("cuMemHostUnregister", address)

    @property
    def maps_host_memory(self) -> bool:
        """Whether kernels reach registered host memory under its own address."""
        return bool(self.attribute("CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM"))

    # Copies.

    @property
    def has_batched_copy(self) -> bool:
        """Whether the driver has cuMemcpyBatchAsync."""
        return self._batch is not None

    def _find_batch(self) -> tuple[Any, bool]:
        """The entry point of cuMemcpyBatchAsync, and whether it has the parameter ``failIdx``.

        Called directly, since the binding makes an object of each of the thousands of addresses.
        """
        if self.version < BATCH_SINCE:
            return None, False
        wanted = 13000 if self.version >= 13000 else BATCH_SINCE
        address, _ = self._call("cuGetProcAddress", b"cuMemcpyBatchAsync", wanted, 0)
        if not address:
            return None, False
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        more = (pointer,) if wanted < 13000 else ()
        signature = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, pointer, pointer, size, pointer, pointer, size, *more, pointer
        )
        return signature(int(address)), bool(more)

    def copy_batch(self, dst: Addresses, src: Addresses, nbytes: Addresses, order: int, stream: int) -> None:
        """Start the copies as one operation of ``stream``, which must not be the default stream.

        ``order`` is SRC_STREAM or SRC_ANY. The three arrays are contiguous and may be
        changed after the call.
        """
        if not dst.size:
            return
        failed = (ctypes.byref(ctypes.c_size_t(0)),) if self._fails_at else ()
        status = self._batch(
            dst.ctypes.data,
            src.ctypes.data,
            nbytes.ctypes.data,
            dst.size,
            ctypes.byref(self._attributes[order]),
            ctypes.byref(self._zero),
            1,
            *failed,
            stream,
        )
        if status:
            raise DriverError("cuMemcpyBatchAsync", status, str(self._cu.CUresult(status).name))

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """Start one copy in the order of ``stream``."""
        self._call("cuMemcpyAsync", dst, src, nbytes, stream)

    # Streams, events and buffers are torch's, so that torch's own work can be ordered with them.

    def new_stream(self) -> Any:
        """A stream of the lowest priority, which gives way to compute."""
        import torch

        return torch.cuda.Stream(self.ordinal, 0)

    def new_event(self) -> Any:
        """An event without timing."""
        import torch

        return torch.cuda.Event()

    def new_pinned(self, count: int) -> Any:
        """A small page-locked tensor of ``count`` 64-bit integers."""
        import torch

        return torch.empty(count, dtype=torch.int64, pin_memory=True)

    def new_buffer(self, nbytes: int) -> Any:
        """Device memory of ``nbytes`` bytes, as a tensor. Any stream may use it at once."""
        import torch

        buffer = torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", self.ordinal))
        # Torch may hand out memory that earlier work of the current stream still uses.
        torch.cuda.current_stream(self.ordinal).synchronize()
        return buffer

    # Kernels.

    def compile(self, source: str, name: str) -> Function:
        """The kernel ``name`` of CUDA C++ ``source``. Raises NoDevice without NVRTC."""
        module = self._call("cuModuleLoadData", compile_cuda(source, self.card.capability))
        function = Function(self._call("cuModuleGetFunction", module, name.encode()))
        weakref.finalize(function, self._unload, module, os.getpid())
        return function

    def _unload(self, module: Any, process: int) -> None:
        if os.getpid() == process:
            with suppress(DriverError), self._current():
                self._call("cuCtxSynchronize")
                self._call("cuModuleUnload", module)

    def launch(
        self,
        function: Function,
        grid: int,
        threads: int,
        stream: int,
        arguments: Sequence[int],
        types: Sequence[Any],
    ) -> None:
        """Launch ``function`` on ``grid`` thread blocks of ``threads`` threads."""
        parameters = (tuple(arguments), tuple(types))
        self._call("cuLaunchKernel", function.handle, grid, 1, 1, threads, 1, 1, 0, stream, parameters, 0)


def compile_cuda(source: str, capability: tuple[int, int], defines: Sequence[str] = ()) -> bytes:
    """Machine code of CUDA C++ for a device of ``capability``, by NVRTC. Raises NoDevice, DriverError."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise NoDevice(f"{error.name} is missing: run pip install 'kvfence[reference]'") from error

    def call(name: str, *arguments: Any) -> Any:
        status, *results = getattr(nvrtc, name)(*arguments)
        if int(status):
            raise DriverError(name, int(status), status.name)
        return results[0] if results else None

    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}".encode(), b"--std=c++17"]
    options += [f"-D{define}".encode() for define in defines]
    try:
        program = call("nvrtcCreateProgram", source.encode(), b"kvfence.cu", 0, [], [])
    except RuntimeError as error:
        raise NoDevice(f"NVRTC, CUDA's run-time compiler, cannot be loaded ({error})") from error
    try:
        call("nvrtcCompileProgram", program, len(options), options)
    except DriverError as error:
        log = bytearray(call("nvrtcGetProgramLogSize", program))
        call("nvrtcGetProgramLog", program, log)
        raise OffloadError(f"the copy kernels do not compile: {log.decode()}") from error
    image = bytearray(call("nvrtcGetCUBINSize", program))
    call("nvrtcGetCUBIN", program, image)
    return bytes(image)


@cache
def open_driver(ordinal: int = 0) -> Driver:
    """The driver, on the context that torch uses on device ``ordinal``. Raises NoDevice."""
    try:
        import torch
        from cuda.bindings import driver as cu
    except ImportError as error:
        raise NoDevice(f"{error.name} is missing: run pip install 'kvfence[reference]'") from error
    try:
        (status,) = cu.cuInit(0)
    except RuntimeError as error:
        raise NoDevice("no NVIDIA driver is installed") from error
    if int(status):
        raise NoDevice(f"the NVIDIA driver does not start ({status.name})")
    status, version = cu.cuDriverGetVersion()
    if torch.version.cuda is None:
        raise NoDevice("this torch is a CPU build; install one for CUDA")
    built = [int(part) for part in torch.version.cuda.split(".")]
    if int(version) // 1000 < built[0]:
        has = f"{int(version) // 1000}.{int(version) % 1000 // 10}"
        raise NoDevice(
            f"the NVIDIA driver serves CUDA {has} and torch was built for {torch.version.cuda}: "
            "install a newer driver, or torch for an older CUDA"
        )
    count = torch.cuda.device_count()
    if ordinal >= count:
        raise NoDevice(f"device {ordinal} was asked for and there are {count}")
    try:
        torch.cuda.set_device(ordinal)
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        raise NoDevice(str(error).partition("\n")[0]) from error
    return Driver(cu, ordinal, int(version))
