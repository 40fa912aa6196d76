"""What a search needs of a device: memory, copies, and the kernels of a machine."""

from __future__ import annotations

import ctypes
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kvfence.checker.engines.gpu.device.source import GpuSource, Program

U64 = ctypes.c_uint64
Words = NDArray[np.uint64]
Kernel = Literal[
    "expand_level",
    "enter_keys",
    "judge_level",
    "move_table",
    "sum_words",
    "trace_level",
    "list_steps",
    "walk",
]


KERNELS: dict[Program, tuple[Kernel, ...]] = {
    "search": ("expand_level", "enter_keys", "judge_level", "move_table", "sum_words"),
    "trace": ("trace_level",),
    "graph": ("list_steps",),
    "walk": ("walk",),
}


class NoGpu(Exception):  # noqa: N818 (a reason to search on the processor)
    """There is no usable GPU; the text says why, in one line."""


class OutOfMemory(Exception):  # noqa: N818 (a reason to stop)
    """The device has no such amount of memory left."""


class Table(ctypes.Structure):
    """``Table`` of lanes.cuh."""

    _fields_ = [(name, U64) for name in ("entries", "log2", "reach", "spill", "spill_log2")]


class Params(ctypes.Structure):
    """``Params`` of lanes.cuh; addresses are of the device."""

    _fields_ = [
        ("table", Table),
        ("old", Table),
        *(
            (name, U64)
            for name in (
                *("into", "in_count", "out", "out_limit", "slack", "counters", "sights", "closed", "round"),
                *("targets", "target_count", "target_filter"),
                *("rank", "ranks", "boxes", "box_room", "box_slack", "sent"),
                *("seed", "steps", "walks"),
                "block",
                *("worker", "workers"),
            )
        ),
    ]


class Device(Protocol):
    """One device, with the kernels of one machine. Calls come in order; ``read`` waits for them."""

    name: str
    lanes: int
    """States that are being expanded at the same time, at most."""

    def compile(self, source: GpuSource, program: Program) -> None:
        """Make the kernels of a program ready. NoGpu when they cannot be compiled."""

    def allocate(self, nbytes: int) -> int:
        """The address of new memory. OutOfMemory."""

    def free(self, address: int) -> None:
        """Give memory back."""

    def clear(self, address: int, nbytes: int, byte: int = 0) -> None:
        """Set every byte."""

    def write(self, address: int, data: NDArray[Any]) -> None:
        """Copy to the device."""

    def read(self, address: int, words: int) -> Words:
        """Copy 64-bit words from the device."""

    def launch(self, kernel: Kernel, params: Params, items: int) -> None:
        """Run a kernel over so many items."""

    def free_bytes(self) -> int:
        """Memory that is left."""

    def close(self) -> None:
        """Give everything back."""
