"""Unpacks zstd data of which every frame carries a checksum, piece by piece, in little memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

MAGIC: Final = b"\x28\xb5\x2f\xfd"
_HEAD: Final = 5  # bytes: the magic number and the descriptor
_CHECKSUM: Final = 0x04
_DICTIONARY: Final = 0x03
_ENOUGH: Final = 2**16  # bytes handed on at a time, at least
_SLICE: Final = 2**11  # a zstd block grows up to 32768-fold: 2 KiB stay below 64 MiB


class DamagedError(Exception):
    """The data is not what was packed, or it cannot be known: what is wrong, and the way out."""


class EndsEarlyError(Exception):
    """The data ends within a frame."""


def unpacked(chunks: Iterator[bytes], zstandard: Any) -> Iterator[bytes]:
    """The text of the frames in ``chunks``, in pieces of 64 KiB to 64 MiB.

    It may come from damaged data until the iterator is exhausted: the checksum comes last. Raises
    DamagedError for a checksum that differs, for frames without one or with a dictionary, and for whatever is
    no frame; EndsEarlyError where the last frame is not whole.
    """
    frame: Any = None
    head = b""
    pieces: list[bytes] = []
    size = 0
    for chunk in chunks:
        for start in range(0, len(chunk), _SLICE):
            more = chunk[start : start + _SLICE]
            while more:
                if frame is None:
                    head += more
                    if len(head) < _HEAD and MAGIC.startswith(head[:4]):
                        break
                    frame, more, head = _begun(head, zstandard), head, b""
                try:
                    pieces.append(frame.decompress(more))
                except zstandard.ZstdError as error:
                    raise DamagedError(f"is damaged ({error}); copy it again") from error
                size += len(pieces[-1])
                more, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
                if size >= _ENOUGH:
                    yield b"".join(pieces)
                    pieces.clear()
                    size = 0
    if size:
        yield b"".join(pieces)
    if frame is not None or head:
        raise EndsEarlyError


def _begun(head: bytes, zstandard: Any) -> Any:
    """What unpacks the frame that begins with ``head``."""
    if not head.startswith(MAGIC):
        raise DamagedError("is damaged (something that is no zstd frame follows one); copy it again")
    if not head[4] & _CHECKSUM:
        raise DamagedError(
            "is compressed without a checksum, so that damage would go unnoticed; "
            "unpack it with zstd -d, or compress it with zstd, which adds one"
        )
    if head[4] & _DICTIONARY:
        raise DamagedError("is compressed with a dictionary; unpack it with zstd -d -D DICTIONARY")
    return zstandard.ZstdDecompressor().decompressobj()
