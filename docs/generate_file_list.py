"""Writes the file list of ARCHITECTURE.md: each source file with the first line of its docstring.

``.venv/bin/python docs/generate_file_list.py``
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
PARTS = ("spec", "reference", "checker", "bench")
BEGIN, END = "<!-- docs/generate_file_list.py writes from here -->\n", "<!-- to here -->\n"


def sources() -> list[Path]:
    """The source files that git knows or would know, packages' ``__init__.py`` left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PARTS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = {ROOT / name for name in listed if name.endswith(".py") and not name.endswith("__init__.py")}
    return sorted((path for path in paths if path.exists()), key=lambda path: (path.parent, path.name))


def summary(path: Path) -> str:
    """The first line of the docstring of a file."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].replace("``", "`").rstrip(".")


def file_list() -> str:
    """The list, a section for each part."""
    lines = []
    for part in PARTS:
        lines += [f"### {part}/", ""]
        names = [path for path in sources() if path.relative_to(ROOT).parts[0] == part]
        lines += [f"* `{path.relative_to(ROOT)}`: {summary(path)}." for path in names]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Replaces the list between its two marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{file_list()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
