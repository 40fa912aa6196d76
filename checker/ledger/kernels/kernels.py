"""The compiled fast paths of the ledger (``kernels.c``, ``numbers.h``), if a C compiler can make them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple

from kvfence.checker.core.c_build import PATIENCE_SERVING, CannotCompile, library
from kvfence.checker.ledger.kernels import slot_bits as words

ODD: Final = -1
"""Something is out of the ordinary; nothing was changed."""
ROOM: Final = -2
"""The key table must grow before; nothing was changed."""
FEWER: Final = -3
"""The holder leaves only some of its slots; nothing was changed."""
LOW: Final = (1 << 32) - 1
"""The bits of an answer that count the slots; above them is what else the kernel counted."""


class Kernels(NamedTuple):
    """The kernels by name; ``kernels.c`` says what each does. All take integers and numbers, in order."""

    change: Callable[..., int]
    touch: Callable[..., int]
    leave: Callable[..., int]
    label: Callable[..., int]
    queue: Callable[..., int]
    release: Callable[..., int]
    tally: Callable[..., int]
    counted: Callable[..., int]
    rebuild: Callable[..., int]
    run: Callable[..., int]
    consecutive: Callable[..., int]


@cache
def kernels() -> Kernels | None:
    """The compiled kernels; None where they cannot be had, and numpy has to do."""
    if sys.implementation.name != "cpython" or sys.byteorder != "little":
        return None
    names = [name for name in vars(words) if name.isupper()]
    bits = "".join(f"#define {name} {_literal(getattr(words, name))}\n" for name in names)
    folder = resources.files(__package__)
    text = [folder.joinpath(name).read_text(encoding="utf-8") for name in ("numbers.h", "kernels.c")]
    try:
        loaded = library(bits + "".join(text), patience=PATIENCE_SERVING)
        # A kernel works on Python objects: it must be called with the interpreter's lock, which PyDLL keeps.
        make = ctypes.PyDLL(loaded._name, handle=loaded._handle).kernels
    except (CannotCompile, OSError, AttributeError):
        return None
    make.restype = ctypes.py_object
    found: Any = {function.__name__: function for function in make()}
    return Kernels(**found)


def _literal(value: int) -> str:
    return f"INT64_C({value})" if value < 1 << 63 else f"UINT64_C({value})"
