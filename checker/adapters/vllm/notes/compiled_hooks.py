"""Compiled hooks (``compiled_*.c``): the same notes as hooks in Python, in a fraction of the time.

vLLM's steps take tens to hundreds of microseconds, and call some of the hooks once for each request. What is
not compiled, because there is no compiler, no header files of Python, or ``KVFENCE_COMPILE=0`` is set, is
done by the hooks in Python that each compiled one has beside it.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple

from kvfence.checker.adapters.vllm.notes.note_queue import DeferredNoteQueue
from kvfence.checker.core.c_build import PATIENCE_SERVING, CannotCompile, library

SOURCES: Final = (
    "compiled_notes.c",
    "compiled_hook.c",
    "compiled_pools.c",
    "compiled_stores.c",
    "compiled_steps.c",
)
"""One text to the compiler, in this order."""
SWITCH: Final = "KVFENCE_COMPILE"
"""Environment variable; ``0``: compile nothing in this process."""


class CompiledHooks(NamedTuple):
    """What the C files make."""

    note_queue: type[Any]
    """Base class of note queues to which compiled hooks can add notes."""
    row: Callable[[], Any]
    """Makes a row for them: see :class:`note_queue.Row`."""
    hook: Callable[..., Any]
    moved: Callable[[dict[str, Any], dict[str, int], dict[str, int]], list[tuple[str, list[int], int]]]
    """See ``moved`` in ``transfers.py``."""


class Compiled(NamedTuple):
    """What a compiled hook needs beside the method that it observes and the hook in Python."""

    kind: str
    calls: Sequence[Callable[..., Any]] = ()
    """What its notes begin with, or what it calls when it is needed: the C file says which is which."""
    arguments: Sequence[str] = ()
    """Names of the arguments that it looks at."""


@cache
def compiled_hooks() -> CompiledHooks | None:
    """The compiled hooks; None where they cannot be compiled."""
    if os.environ.get(SWITCH) == "0" or sys.implementation.name != "cpython":
        return None
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None  # They rely on the interpreter's lock.
    here = resources.files(__package__)
    source = "".join(f'#line 1 "{name}"\n{here.joinpath(name).read_text("utf-8")}' for name in SOURCES)
    try:
        # Short code, since the processor's caches may have lost it between two steps.
        loaded = library(
            source,
            f"-I{sysconfig.get_paths()['include']}",
            f"-DPYTHON={_python()}",
            "-Os",
            "-fno-plt",
            patience=PATIENCE_SERVING,
        )
        # The hooks are Python's objects: they are made with the interpreter's lock, which PyDLL keeps.
        make = ctypes.PyDLL(loaded._name, handle=loaded._handle).compiled_hooks
    except (CannotCompile, OSError, AttributeError):
        return None
    make.restype = ctypes.py_object
    return CompiledHooks(*make())


def _python() -> str:
    """What the code is compiled for: a cache folder may be shared by several interpreters."""
    return f"{sys.hexversion}_{sysconfig.get_config_var('SOABI') or ''}".replace("-", "_")


def deferred_note_queue(stream: Any, judge: Any) -> DeferredNoteQueue:
    """A note queue that is judged later, to which compiled hooks can add where there are any."""
    made = compiled_hooks()
    return DeferredNoteQueue(stream, judge) if made is None else _compiled_note_queue(made)(stream, judge)


@cache
def _compiled_note_queue(made: CompiledHooks) -> type[DeferredNoteQueue]:
    return type(
        "CompiledNoteQueue", (made.note_queue, DeferredNoteQueue), {"new_row": staticmethod(made.row)}
    )


def hook(compiled: Compiled, original: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled hook in front of ``plain``; ``plain`` itself where it cannot be compiled."""
    made = compiled_hooks()
    parameters = inspect.signature(original).parameters
    if made is None or not set(compiled.arguments) <= set(parameters):
        return plain
    arguments = []
    for place, (name, parameter) in enumerate(parameters.items()):
        if name in compiled.arguments:
            by_place = parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
            otherwise = () if parameter.default is parameter.empty else (parameter.default,)
            arguments.append((name, place if by_place else sys.maxsize, *otherwise))
    arguments.sort(key=lambda known: compiled.arguments.index(known[0]))
    made_hook: Callable[..., Any] = made.hook(
        compiled.kind, original, plain, tuple(compiled.calls), tuple(arguments)
    )
    return made_hook
