"""Where states go that leave the device: memory of the host, within a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvfence.checker.engines.gpu.device.search_device import Device, Words


class LevelStore(Protocol):
    """Copies of device memory on the host, each under a number. Addresses are the device's, sizes bytes."""

    def keep(self, address: int, nbytes: int) -> int | None:
        """Copy memory of the device, which may be given back afterwards. None where there is no room."""

    def copy_back(self, number: int, first: int, nbytes: int, address: int) -> None:
        """Copy a part to the device, before whatever is launched there next."""

    def look(self, number: int, first: int, nbytes: int) -> Words:
        """A part, as 64-bit words."""

    def drop(self, number: int) -> None:
        """Forget a copy."""

    def close(self) -> None:
        """Forget everything."""


MakeStore = Callable[[Device, int], LevelStore]
"""Makes the store of a device, for at most so many bytes."""


class PlainStore:
    """Copies in ordinary memory, of at most ``limit`` bytes together."""

    def __init__(self, device: Device, limit: int) -> None:
        self._device, self._limit = device, limit
        self._kept: dict[int, Words] = {}
        self._used = self._numbers = 0

    def keep(self, address: int, nbytes: int) -> int | None:
        """See ``LevelStore``."""
        if self._used + nbytes > self._limit:
            return None
        self._numbers += 1
        self._kept[self._numbers] = self._device.read(address, nbytes // 8)
        self._used += nbytes
        return self._numbers

    def copy_back(self, number: int, first: int, nbytes: int, address: int) -> None:
        """See ``LevelStore``."""
        self._device.write(address, self.look(number, first, nbytes))

    def look(self, number: int, first: int, nbytes: int) -> Words:
        """See ``LevelStore``."""
        found = self._kept[number][first // 8 : (first + nbytes) // 8]
        if found.nbytes != nbytes:
            raise IndexError(f"{nbytes} bytes from {first} on are not within what is kept")
        return found

    def drop(self, number: int) -> None:
        """See ``LevelStore``."""
        self._used -= self._kept.pop(number).nbytes

    def close(self) -> None:
        """See ``LevelStore``."""
        self._kept, self._used = {}, 0
