"""Content keys and KV-cache groups of vLLM's blocks, read from their hashes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FEW: Final = 16
"""Up to here a list is faster than an array."""
GROUP_BYTES: Final = 4
"""A block's hash in vLLM is the hash of the prefix followed by the number of the group."""
UNKNOWN_KEY: Final = 1 << 63


def packed_keys(keys: npt.NDArray[np.uint64] | list[int]) -> Any:
    """``keys`` in the form in which an event takes them fastest."""
    if isinstance(keys, list):
        return keys if len(keys) <= FEW else array("Q", keys)
    return keys.tolist() if len(keys) <= FEW else keys


def key_of(block_hash: bytes) -> int:
    """The content key: the first 8 bytes of the prefix' hash."""
    return int.from_bytes(block_hash[:8], "little")


def group_of(block_hash: bytes) -> int:
    """The KV-cache group that a block's hash belongs to."""
    return int.from_bytes(block_hash[-GROUP_BYTES:], "big")


def keys_and_groups(
    hashes: Sequence[bytes | None], slots: Sequence[int]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Content keys and group numbers of blocks with these hashes.

    A block without a hash gets a key of its own, so that it is equal to no other, and group 0.
    """
    count = len(hashes)
    try:
        joined = b"".join(hashes)  # type: ignore[arg-type]  # None is what the exception is for
        width = len(joined) // count if count else 0
        if width * count == len(joined) and width >= 8 + GROUP_BYTES and len(hashes[0] or b"") == width:
            table = np.frombuffer(joined, dtype=np.uint8).reshape(count, width)
            keys = np.ascontiguousarray(table[:, :8]).view("<u8").ravel()
            groups = np.ascontiguousarray(table[:, -GROUP_BYTES:]).view(">u4").ravel()
            return keys.astype(np.uint64, copy=False), groups.astype(np.uint32)
    except TypeError:
        pass
    each = [
        (UNKNOWN_KEY + slot, 0) if found is None else (key_of(found), group_of(found))
        for found, slot in zip(hashes, slots, strict=True)
    ]
    return (
        np.array([key for key, _ in each], dtype=np.uint64),
        np.array([group for _, group in each], dtype=np.uint32),
    )
