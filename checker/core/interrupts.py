"""Ctrl-C: noted whenever it comes, also where an import or a library swallows the exception it raises.

An engine that catches KeyboardInterrupt keeps what it found; the command line asks :func:`pressed` for the
exit code. While kvfence is being imported there is nothing to keep, and the process ends at once.
"""

from __future__ import annotations

import os
import signal  # nothing else is imported here: until this module is there, Ctrl-C shows a traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130
AT_ONCE = f"interrupted (exit code {INTERRUPTED})"

_IMPORTING, _RUNNING, _ENDING = range(3)


class _Now:
    phase = _IMPORTING
    pressed = False


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _Now.pressed = True
    if _Now.phase == _IMPORTING:
        os.write(2, f"kvfence: {AT_ONCE}\n".encode())
        os._exit(INTERRUPTED)
    if _Now.phase == _RUNNING:
        raise KeyboardInterrupt


def watch() -> bool:
    """Watches for Ctrl-C, which ends the process until a command runs; whether that is new.

    Not where somebody else sees to Ctrl-C or ignores it (``nohup``), nor outside of the main thread.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, _on_signal)
    except ValueError:
        return False
    return True


class Watched:
    """While this lasts, Ctrl-C is noted, and raises KeyboardInterrupt from :func:`begin` to :func:`over`."""

    def __enter__(self) -> None:
        self._before = _Now.phase
        _Now.pressed, _Now.phase = False, _ENDING
        self._ours = watch()

    def __exit__(self, *_: object) -> None:
        if self._ours:  # the program that called goes on
            _Now.phase = self._before
            signal.signal(signal.SIGINT, signal.default_int_handler)


def begin() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt; at once if it was pressed before."""
    _Now.phase = _RUNNING
    if _Now.pressed:
        raise KeyboardInterrupt


def over() -> None:
    """From here on Ctrl-C is noted only: what was found is being told."""
    _Now.phase = _ENDING


def ignore() -> None:
    """The verdict is told; nothing is left that Ctrl-C could end early."""
    if signal.getsignal(signal.SIGINT) is _on_signal:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def pressed() -> bool:
    """Whether Ctrl-C was pressed since the command began."""
    return _Now.pressed


def seen() -> KeyboardInterrupt:
    """The exception for a Ctrl-C that a library noticed in place of Python (z3 does, while it solves)."""
    _Now.pressed = True
    return KeyboardInterrupt()


def raise_again() -> None:
    """Raises KeyboardInterrupt a little later in the main thread: it came where Python can only ignore it."""
    from threading import Timer

    timer = Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
