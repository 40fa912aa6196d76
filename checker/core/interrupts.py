"""Ctrl-C: recorded whenever it comes, even where an import or a library swallows the exception it raises.

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


class _State:
    """The phase of the process, and whether Ctrl-C was pressed."""

    phase = _IMPORTING
    pressed = False


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _State.pressed = True
    if _State.phase == _IMPORTING:
        os.write(2, f"kvfence: {AT_ONCE}\n".encode())
        os._exit(INTERRUPTED)
    if _State.phase == _RUNNING:
        raise KeyboardInterrupt


def watch() -> bool:
    """Installs the handler of Ctrl-C, which ends the process until a command runs; whether it was installed.

    It is not where another handler is set or Ctrl-C is ignored (``nohup``), nor outside of the main thread.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, _on_signal)
    except ValueError:
        return False
    return True


class Watched:
    """Records Ctrl-C, which raises KeyboardInterrupt from :func:`start_raising` to :func:`stop_raising`."""

    def __enter__(self) -> None:
        self._before = _State.phase
        _State.pressed, _State.phase = False, _ENDING
        self._ours = watch()

    def __exit__(self, *_: object) -> None:
        if self._ours:  # the calling program continues
            _State.phase = self._before
            signal.signal(signal.SIGINT, signal.default_int_handler)


def start_raising() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt; at once if it was pressed before."""
    _State.phase = _RUNNING
    if _State.pressed:
        raise KeyboardInterrupt


def stop_raising() -> None:
    """From here on Ctrl-C is only recorded: the report is being printed."""
    _State.phase = _ENDING


def ignore() -> None:
    """Ignores Ctrl-C from here on: the verdict is printed, and nothing is left to end early."""
    if signal.getsignal(signal.SIGINT) is _on_signal:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def pressed() -> bool:
    """Whether Ctrl-C was pressed since the command began."""
    return _State.pressed


def from_library() -> KeyboardInterrupt:
    """The exception for a Ctrl-C that a library caught in place of Python, as z3 does while it solves."""
    _State.pressed = True
    return KeyboardInterrupt()


def raise_again() -> None:
    """Raises KeyboardInterrupt in the main thread a moment later: it came where Python can only ignore it."""
    from threading import Timer

    timer = Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
