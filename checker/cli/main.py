"""The installed `kvfence` command: watches for Ctrl-C before it imports the rest."""

from __future__ import annotations

import os
import sys

from kvfence.checker.core import interrupts


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    interrupts.watch()
    _open_closed_streams()
    sys.exit(_exit_code(sys.argv[1:]))


def _open_closed_streams() -> None:
    """Opens the null device for standard streams that the caller closed, for which Python has None.

    Otherwise the next file that is opened takes the descriptor of one, and receives what libraries print.
    """
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def _exit_code(arguments: list[str]) -> int:
    try:
        from kvfence.checker.cli.app import run
    except BaseException as error:
        from kvfence.checker.cli import failures
        from kvfence.checker.core import exit_codes
        from kvfence.checker.core.terminal_text import print_err

        if isinstance(error, ModuleNotFoundError) and not (error.name or "kvfence").startswith("kvfence"):
            print_err(f"kvfence needs {error.name}, which is not installed: run pip install kvfence again")
            return exit_codes.CANNOT_RUN
        print_err(failures.failure_line(error, arguments))
        return exit_codes.FAILED
    code = run(arguments)
    interrupts.ignore()
    return code


if __name__ == "__main__":
    main()
