"""The `kvfence` command as it is installed: it watches for Ctrl-C before it imports all the rest."""

from __future__ import annotations

import sys

from kvfence.checker import interrupts


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    interrupts.watch()
    sys.exit(_code(sys.argv[1:]))


def _code(arguments: list[str]) -> int:
    try:
        from kvfence.checker.cli import run
    except BaseException as error:
        from kvfence.checker import exit_codes, failures
        from kvfence.checker.shown import tell

        if isinstance(error, ModuleNotFoundError) and not (error.name or "kvfence").startswith("kvfence"):
            tell(f"kvfence needs {error.name}, which is not installed: run pip install kvfence again")
            return exit_codes.CANNOT_RUN
        tell(failures.told(error, arguments))
        return exit_codes.FAILED
    code = run(arguments)
    interrupts.ignore()
    return code


if __name__ == "__main__":
    main()
