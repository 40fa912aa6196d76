"""The kernels as C++ on the processor: how they are tested without a GPU. Not fast, and not meant to be."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.core.c_build import PATIENCE, CannotCompile, compiled, loaded, none_found, working
from kvfence.checker.engines.gpu.device.search_device import (
    KERNELS,
    Kernel,
    NoGpu,
    OutOfMemory,
    Params,
    Words,
)
from kvfence.checker.engines.gpu.device.source import GpuSource, Program

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O1", "-fwrapv", "-fno-strict-aliasing", "-w", "-shared", "-fPIC")


class HostDevice:
    """Kernels run by ``threads`` threads at once, each a warp of one lane, in ``room`` bytes of memory."""

    name = "host"

    def __init__(self, threads: int = 1, room: int = 1 << 30) -> None:
        self.threads, self.room = threads, room
        self.lanes = threads
        self._kernels: dict[str, Callable[[Params], None]] = {}
        self._memory: dict[int, NDArray[np.uint8]] = {}

    def compile(self, source: GpuSource, program: Program) -> None:
        """See ``Device``."""
        library = _library(source.text(program, host=True))
        for name in KERNELS[program]:
            function = getattr(library, name)
            function.argtypes, function.restype = [Params], None
            self._kernels[name] = function

    def allocate(self, nbytes: int) -> int:
        """See ``Device``."""
        if nbytes > self.free_bytes():
            raise OutOfMemory
        made = np.empty(nbytes + 64, np.uint8)
        address = (made.ctypes.data + 63) & ~63
        self._memory[address] = made
        return address

    def free(self, address: int) -> None:
        """See ``Device``."""
        del self._memory[address]

    def clear(self, address: int, nbytes: int, byte: int = 0) -> None:
        """See ``Device``."""
        ctypes.memset(address, byte, nbytes)

    def write(self, address: int, data: NDArray[Any]) -> None:
        """See ``Device``."""
        data = np.ascontiguousarray(data)
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def read(self, address: int, words: int) -> Words:
        """See ``Device``."""
        out = np.empty(words, np.uint64)
        ctypes.memmove(out.ctypes.data, address, out.nbytes)
        return out

    def launch(self, kernel: Kernel, params: Params, items: int) -> None:
        """See ``Device``."""
        function = self._kernels[kernel]
        workers = min(self.threads, max(1, items))
        calls = []
        for k in range(workers):
            own = Params.from_buffer_copy(params)
            own.worker, own.workers = k, workers
            calls.append(threading.Thread(target=function, args=(own,)) if workers > 1 else own)
        for call in calls:
            if isinstance(call, threading.Thread):
                call.start()
            else:
                function(call)
        for call in calls:
            if isinstance(call, threading.Thread):
                call.join()

    def free_bytes(self) -> int:
        """See ``Device``."""
        return self.room - sum(len(m) for m in self._memory.values())

    def close(self) -> None:
        """See ``Device``."""
        self._memory.clear()


@cache
def _library(text: str) -> ctypes.CDLL:
    """The text as a loaded library; kept while the program runs."""
    reasons = []
    for command, _ in working("CXX", COMPILERS):
        try:
            return loaded(compiled(command, text, ("-x", "c++", "-", *FLAGS), None, PATIENCE), None)
        except (CannotCompile, OSError) as why:
            reasons.append(str(why))
    raise NoGpu(reasons[0] if reasons else none_found("C++", "CXX", COMPILERS))
