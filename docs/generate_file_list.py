"""Prints docs/files.md: each source file with the first sentence of its docstring or first comment.

``.venv/bin/python docs/generate_file_list.py > docs/files.md``
"""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("spec", "reference", "checker", "bench")
SUFFIXES = {".py", ".c", ".h", ".cu", ".cuh"}
HEAD = """# Every source file

Written by `docs/generate_file_list.py`. [ARCHITECTURE.md](../ARCHITECTURE.md) says which ones to read first.
"""


def sources() -> list[Path]:
    """The source files that git knows or would know, packages' ``__init__.py`` left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PARTS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = {
        ROOT / name for name in listed if Path(name).suffix in SUFFIXES and Path(name).name != "__init__.py"
    }
    return sorted((path for path in paths if path.exists()), key=lambda path: (path.parent, path.name))


def summary(path: Path) -> str:
    """The first sentence of the docstring of a file, or of the comment that it begins with."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        first = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
    else:
        comment = re.match(r"\s*(?:/\*+(.*?)\*/|((?://[^\n]*\n)+))", text, re.DOTALL)
        first = re.sub(r"^[ /*]+", "", (comment[1] or comment[2]) if comment else "", flags=re.MULTILINE)
        first = first.strip().partition("\n\n")[0]
    return re.split(r"(?<=[.:!?]) (?=[A-Z])", " ".join(first.split()))[0].replace("``", "`").rstrip(".:")


def file_list() -> str:
    """The page, a section for each folder."""
    lines = [HEAD]
    folder = None
    for path in sources():
        here = path.relative_to(ROOT)
        if here.parent != folder:
            folder = here.parent
            lines += ["", f"## {folder}/", ""]
        lines.append(f"* `{here}`: {summary(path)}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(file_list(), end="")
