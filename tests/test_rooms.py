"""Folders are rooms: imports between them go one way, rooms have few entries and few doors."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("spec", "reference", "checker")
MOST_ARROWS = 50
MOST_ENTRIES = 9
MOST_FILES = 16
MARKERS = {"__init__.py", "py.typed", "__pycache__"}
SOURCES = {".py", ".c", ".h", ".cu", ".cuh"}

Edge = tuple[str, str]
"""A file that imports, and one that is imported."""


def edges(root: Path) -> list[Edge]:
    """Every import between files of the parts, those inside functions and for type checkers included."""
    files = {module_of(path, root): path for part in PARTS for path in (root / part).rglob("*.py")}
    found = []
    for path in files.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in imported(node):
                target = nearest(name, files)
                if target is not None and target != path:
                    found.append((str(path.relative_to(root)), str(target.relative_to(root))))
    return found


def module_of(path: Path, root: Path) -> str:
    return ".".join(("kvfence", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")


def imported(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def nearest(name: str, files: Mapping[str, Path]) -> Path | None:
    while name and name not in files:
        name = name.rpartition(".")[0]
    return files.get(name)


def folder(file: str) -> str:
    return str(Path(file).parent)


def room(file: str) -> str:
    """A part, or a folder of the checker."""
    names = Path(file).parts
    return names[0] if names[0] != "checker" or len(names) < 3 else "/".join(names[:2])


def between(found: Iterable[Edge], place: object) -> dict[Edge, list[Edge]]:
    arrows = defaultdict(list)
    for source, target in found:
        ends = place(source), place(target)  # type: ignore[operator]
        if ends[0] != ends[1]:
            arrows[ends].append((source, target))
    return arrows


def circle(arrows: Mapping[Edge, list[Edge]]) -> str:
    """The files that make a circle of folders, an import a line; empty if there is none."""
    graph = nx.DiGraph(arrows.keys())
    try:
        loop = nx.find_cycle(graph)
    except nx.NetworkXNoCycle:
        return ""
    return "\n".join(f"{source} imports {target}" for arrow in loop for source, target in arrows[arrow])


@pytest.fixture(scope="module")
def found() -> list[Edge]:
    return edges(ROOT)


@pytest.mark.parametrize("place", [room, folder])
def test_no_imports_between_folders_go_in_a_circle(found: list[Edge], place: object) -> None:
    assert not circle(between(found, place))


def test_there_are_few_arrows_between_rooms(found: list[Edge]) -> None:
    arrows = between(found, room)
    assert len(arrows) <= MOST_ARROWS, sorted(arrows)


def test_a_room_has_few_entries_and_a_folder_few_files() -> None:
    entries = {path.name for path in (ROOT / "checker").iterdir()} - MARKERS
    assert len(entries) <= MOST_ENTRIES, sorted(entries)
    for part in PARTS:
        for place in [ROOT / part, *(path for path in (ROOT / part).rglob("*") if path.is_dir())]:
            files = [path.name for path in place.iterdir() if path.suffix in SOURCES]
            assert len(files) <= MOST_FILES, f"{place.relative_to(ROOT)}: {sorted(files)}"


def test_the_rule_sees_a_circle_and_names_the_files(tmp_path: Path) -> None:
    for part in PARTS:
        (tmp_path / part / "a").mkdir(parents=True)
        (tmp_path / part / "b").mkdir()
    (tmp_path / "checker" / "a" / "one.py").write_text("def f():\n    from kvfence.checker.b import two\n")
    (tmp_path / "checker" / "b" / "two.py").write_text("from kvfence.checker.a.one import f\n")
    named = circle(between(edges(tmp_path), room))
    assert "checker/a/one.py imports checker/b/two.py" in named
    assert "checker/b/two.py imports checker/a/one.py" in named
