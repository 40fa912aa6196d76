"""Runs the measurements of this folder one by one: ``python -m bench [NAME ...]``; ``--list`` names them.

Each file is one measurement and runs on its own, too: ``python bench/NAME.py --help`` lists its options.
"""

from __future__ import annotations

import ast
import subprocess
import sys

from bench._measure import HERE, NOT_MEASURED, arguments


def measurements() -> dict[str, str]:
    """Name of each measurement and the first line of its docstring."""
    found = {}
    for path in sorted(HERE.glob("[!_]*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = docstring.partition("\n")[0]
    return found


def main() -> int:
    """Exit code: 0 when none failed, 1 when one did, 2 for a name that is not there.

    A measurement that needs a device that is not there is named, and does not count as failed.
    """
    known = measurements()
    parser = arguments(__doc__)
    parser.prog = "python -m bench"
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(known)}")
    parser.add_argument("--list", action="store_true", help="name the measurements and stop")
    wanted = parser.parse_args()
    unknown = [name for name in wanted.names if name not in known]
    if unknown:
        parser.error(f"there is no measurement {unknown[0]}: there is {', '.join(known)}")
    if wanted.list:
        print("\n".join(f"{name}: {text}" for name, text in known.items()))
        return 0
    failed, left = [], []
    for name in wanted.names or known:
        print(f"\n{name}: {known[name]}", flush=True)
        code = subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode
        if code == NOT_MEASURED:
            left.append(name)
        elif code != 0:
            failed.append(name)
    for what, names in (("not measured here", left), ("failed", failed)):
        if names:
            print(f"\n{what}: {', '.join(names)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
