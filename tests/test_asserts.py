"""What must be so at run time is not said by an `assert` statement: `python -O` leaves these out."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATES_TESTS = {"checker/audit/test_file.py"}


def narrows(test: ast.expr) -> bool:
    """Whether a condition only tells the type checker what is known: no verdict depends on it."""
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name):
        return test.func.id in {"isinstance", "callable"}
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)


def test_assert_statements_only_narrow_types() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for folder in ("checker", "spec", "reference")
        for path in (ROOT / folder).rglob("*.py")
        if str(path.relative_to(ROOT)) not in GENERATES_TESTS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and not narrows(node.test)
    ]
    assert found == []
