"""What code of a user may not do: end the process. It becomes an error that names the place."""

from __future__ import annotations

from kvfence.checker.core import interrupts
from kvfence.spec.errors import CannotRun, named


class ForeignExit(Exception):  # noqa: N818 - it stands for an exit
    """Code of a user did what would end the process: SystemExit, KeyboardInterrupt, an endless recursion."""


def refused(error: BaseException, where: str) -> Exception:
    """What to raise for an ``error`` that code of a user raised ``where`` it was called.

    Raises KeyboardInterrupt if it is one of Ctrl-C.
    """
    if isinstance(error, KeyboardInterrupt) and interrupts.pressed():
        raise error
    if not isinstance(error, Exception) or isinstance(error, RecursionError | MemoryError):
        return ForeignExit(f"{where}: {named(error)}; nothing was judged")
    return CannotRun(f"{where}: {named(error)}")
