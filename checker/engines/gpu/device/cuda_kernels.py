"""A CUDA device through cuda-python: kernels compiled by NVRTC and kept in the user's cache folder.

Nothing of CUDA is imported before a ``CudaDevice`` is made.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.core.user_cache import Folder, forget, keep, kept
from kvfence.checker.engines.gpu.device.search_device import (
    KERNELS,
    Kernel,
    NoGpu,
    OutOfMemory,
    Params,
    Words,
)
from kvfence.checker.engines.gpu.device.source import BLOCKS, THREADS, GpuSource, Program

_OUT_OF_MEMORY = 2
_STREAM_NON_BLOCKING = 1
KEPT = 200  # compiled programs in the cache folder


class CudaDevice:
    """One GPU. ``threads`` of a block, and ``blocks`` on a multiprocessor."""

    def __init__(self, ordinal: int = 0, *, threads: int = THREADS, blocks: int = BLOCKS) -> None:
        try:
            from cuda.bindings import driver, nvrtc
        except ImportError:
            raise NoGpu("cuda-python is not installed (pip install 'kvfence[gpu]')") from None
        self._cu, self._nvrtc = driver, nvrtc
        try:
            (status,) = driver.cuInit(0)
        except RuntimeError:
            raise NoGpu("there is no NVIDIA driver") from None
        if int(status):
            raise NoGpu(f"the NVIDIA driver finds no GPU ({_name(status)})")
        status, count = driver.cuDeviceGetCount()
        if int(status) or ordinal >= count:
            raise NoGpu(f"there is no GPU number {ordinal}")
        self.ordinal = ordinal
        self._device = self._call("cuDeviceGet", ordinal)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxSetCurrent", self._context)
        self.stream = self._call("cuStreamCreate", _STREAM_NON_BLOCKING)
        self.threads, self.blocks = threads, blocks
        self.name = self._call("cuDeviceGetName", 128, self._device).split(b"\0")[0].decode()
        self.processors = self._attribute("MULTIPROCESSOR_COUNT")
        self.capability = (
            self._attribute("COMPUTE_CAPABILITY_MAJOR"),
            self._attribute("COMPUTE_CAPABILITY_MINOR"),
        )
        self.lanes = self.processors * blocks * threads
        self._kernels: dict[str, Any] = {}
        self._shared: dict[str, int] = {}
        self._sizes: dict[int, int] = {}
        self._libraries: list[Any] = []
        held = (driver, self._device, self._context, self.stream, self._sizes, self._libraries, os.getpid())
        self.close = weakref.finalize(self, _give_back, *held)
        """See ``Device``; a device that is dropped gives everything back too."""

    def compile(self, source: GpuSource, program: Program) -> None:
        """See ``Device``."""
        image = self._image(source.text(program, threads=self.threads, blocks=self.blocks))
        library = self._call("cuModuleLoadData", image)
        self._libraries.append(library)
        for name in KERNELS[program]:
            kernel = self._call("cuModuleGetFunction", library, name.encode())
            shared = source.shared_bytes(self.threads) if name != "judge_level" else 0
            if shared > 48 << 10:
                most = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._call("cuFuncSetAttribute", kernel, most, shared)
            self._kernels[name], self._shared[name] = kernel, shared

    def _image(self, text: str) -> bytes:
        status, major, minor = self._nvrtc.nvrtcVersion()
        if int(status):
            raise NoGpu("NVRTC, CUDA's compiler library, does not load")
        options = [
            f"--gpu-architecture=sm_{self.capability[0]}{self.capability[1]}".encode(),
            b"--std=c++17",
            b"-w",
        ]
        key = "\n".join([f"{major}.{minor}", *(o.decode() for o in options), text]).encode()
        with Folder("native") as folder:
            path = folder / f"{hashlib.sha256(key).hexdigest()[:32]}.cubin"
            image = kept(path, key)
            if image is None:
                image = self._compile(text, options)
                with suppress(OSError):  # it serves this process even where it cannot be kept
                    keep(path, key, image)
                    forget(folder, "*.cubin", KEPT)
            return image

    def _compile(self, text: str, options: list[bytes]) -> bytes:
        nvrtc = self._nvrtc
        _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"machine.cu", 0, [], [])
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status):
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            lines = log.decode(errors="replace").splitlines()
            first = next((line for line in lines if "error" in line), "no reason given")
            raise NoGpu(f"NVRTC does not compile the machine: {first.strip()}")
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        image = b" " * size
        nvrtc.nvrtcGetCUBIN(program, image)
        nvrtc.nvrtcDestroyProgram(program)
        return bytes(image)

    def allocate(self, nbytes: int) -> int:
        """See ``Device``."""
        status, address = self._cu.cuMemAlloc(max(nbytes, 8))
        if int(status) == _OUT_OF_MEMORY:
            raise OutOfMemory
        self._check("cuMemAlloc", status)
        self._sizes[int(address)] = nbytes
        return int(address)

    def free(self, address: int) -> None:
        """See ``Device``."""
        self._call("cuStreamSynchronize", self.stream)
        self._call("cuMemFree", address)
        del self._sizes[address]

    def clear(self, address: int, nbytes: int, byte: int = 0) -> None:
        """See ``Device``."""
        self._call("cuMemsetD8Async", address, byte, nbytes, self.stream)

    def write(self, address: int, data: NDArray[Any]) -> None:
        """See ``Device``."""
        data = np.ascontiguousarray(data)
        self._call("cuMemcpyHtoDAsync", address, data.ctypes.data, data.nbytes, self.stream)
        self._call("cuStreamSynchronize", self.stream)

    def read(self, address: int, words: int) -> Words:
        """See ``Device``."""
        out = np.empty(words, np.uint64)
        self._call("cuMemcpyDtoHAsync", out.ctypes.data, address, out.nbytes, self.stream)
        self._call("cuStreamSynchronize", self.stream)
        return out

    def launch(self, kernel: Kernel, params: Params, items: int) -> None:
        """See ``Device``."""
        needed = -(-items // self.threads)
        # a block of expand_level takes work until there is none; the others stride over theirs
        most = self.processors * (self.blocks if kernel == "expand_level" else 8)
        grid = max(1, min(needed, most))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        self._call(
            "cuLaunchKernel",
            self._kernels[kernel],
            *(grid, 1, 1, self.threads, 1, 1),
            self._shared[kernel],
            self.stream,
            ctypes.addressof(arguments),
            0,
        )

    def free_bytes(self) -> int:
        """See ``Device``."""
        free, _ = self._call("cuMemGetInfo")
        return int(free)

    def driver_version(self) -> str:
        """The newest CUDA version that the driver serves."""
        version = self._call("cuDriverGetVersion")
        return f"{version // 1000}.{version % 1000 // 10}"

    def _attribute(self, name: str) -> int:
        which = getattr(self._cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", which, self._device))

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *results = getattr(self._cu, name)(*arguments)
        self._check(name, status)
        return results[0] if len(results) == 1 else results

    def _check(self, name: str, status: Any) -> None:
        if int(status):
            raise RuntimeError(f"{name} failed: {_name(status)}")


def _give_back(
    cu: Any, device: Any, context: Any, stream: Any, sizes: dict[int, int], libraries: list[Any], process: int
) -> None:
    """Give back what the driver holds, in whichever thread. Nothing can be done about what it refuses."""
    if os.getpid() != process:
        return
    cu.cuCtxPushCurrent(context)
    cu.cuStreamSynchronize(stream)
    while sizes:
        cu.cuMemFree(sizes.popitem()[0])
    while libraries:
        cu.cuModuleUnload(libraries.pop())
    cu.cuStreamDestroy(stream)
    cu.cuCtxPopCurrent()
    cu.cuDevicePrimaryCtxRelease(device)


def _name(status: Any) -> str:
    return str(getattr(status, "name", status))
