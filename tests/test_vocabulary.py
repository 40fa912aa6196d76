"""One name, one thing: identifiers and module names use the words of docs/glossary.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("spec", "reference", "checker", "kvfence")

INSTEAD = {
    "tape": "note_queue",
    "books": "state (the ledger state)",
    "quick": "compiled (of hooks)",
    "teller": "emitter",
    "tell": "emit (an event), print or describe (text)",
    "tells": "emits",
    "telling": "emitting",
    "told": "emitted, reported or described",
}
"""Parts of identifiers that once meant something else, and what to write."""

ALLOWED = {
    "tell": "the method of files",
    "promise_sizes": "the former name of liveness_sizes, in machine files of users",
    "a_rank_that_failed_has_told_so": "a lemma; reports and proofs print its name",
    "a_question_that_is_over_has_told_its_verdict": "an invariant; reports and proofs print its name",
}
"""Identifiers that stay, each with the reason."""

LIVENESS = ("spec/language", "checker/engines", "checker/analysis/liveness", "checker/analysis/verify")
"""Where a liveness property could be called a promise, which is a pinned lookup hit."""

MARKERS = ("__init__", "__main__")
SUBJECTS = {
    "base": "the base classes of a folder",
    "engine": "the serving engine, and an engine that copies",
    "errors": "the exceptions of a package",
    "events": "events of a trace, and of CUDA",
    "exploration": "one run of a search, in C or on a GPU",
    "liveness": "liveness properties: the engine that judges them, and when it is asked",
    "messages": "messages between a parent and its child, and between the lanes of a diagram",
    "offloading": "vLLM's OffloadingConnector",
    "pool": "the block pool",
    "options": "the options of a command: of replay, and those that several have",
    "proofs": "proofs, as a review asks for them and as they are printed",
    "relations": "relations that machines share, and their events",
    "request": "a request",
    "search": "a search in progress, on a GPU or by z3",
    "runner": "the model runner",
    "scheduler": "the scheduler",
    "stats": "statistics for operators",
    "tables": "block tables",
    "transfer": "transfers",
    "transfers": "transfers",
    "worker": "the worker side of a connector",
    "workload": "the requests of a run",
    "host_memory": "HOSTMEM: pinned host memory",
    "geometry": "GEOMETRY: the machine, its lemmas, map, rule and faults",
    "ranks": "RANKS: the machine, its lemmas and faults; and the ranks of a search",
    "loads": "loads: the machine, its map and faults",
    "loads_verdicts": "lookup verdicts: the machine and its map",
    "scheduling": "scheduling: the machine, its lemmas, map, faults and what is accepted",
    "stream_order": "stream order: the machine, its lemmas and map",
    "tiers": "tiers below host memory: the machine, its map and faults",
}
"""Module names that occur more than once, since each of them is about the same thing."""


def sources() -> list[Path]:
    return [p for part in PARTS for p in sorted((ROOT / part).rglob("*.py")) if not p.is_symlink()]


def defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a file gives to something: functions, classes, arguments, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def parts(name: str) -> set[str]:
    """The words of an identifier in snake case or camel case."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def offences(text: str, banned: set[str]) -> Iterator[str]:
    for line, name in defined(ast.parse(text)):
        for word in sorted(parts(name) & banned):
            yield f"{line}: {name}: write {INSTEAD.get(word, 'liveness')}"


def test_no_identifier_uses_a_word_that_means_something_else() -> None:
    found = []
    for path in sources():
        where = path.relative_to(ROOT)
        banned = set(INSTEAD)
        if str(where).startswith(LIVENESS):
            banned |= {"promise", "promises", "promised"}
        found += [f"{where}:{each}" for each in offences(path.read_text(encoding="utf-8"), banned)]
    found = [each for each in found if each.split(": ")[1] not in ALLOWED]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text", ["def tell_all(): ...", "books = 1", "class QuickHook: ...", "def f(tape): ...", "self.told = 1"]
)
def test_the_rule_sees_such_a_word(text: str) -> None:
    assert list(offences(text, set(INSTEAD)))


def test_a_module_name_stands_for_one_thing() -> None:
    found = defaultdict(list)
    for path in sources():
        where = str(path.relative_to(ROOT))
        # commands are named as they are typed
        if not where.startswith(("kvfence/", "checker/cli/commands/")) and path.stem not in MARKERS:
            found[path.stem].append(where)
    twice = {name: paths for name, paths in found.items() if len(paths) > 1 and name not in SUBJECTS}
    assert not twice, "name the thing, or add it to SUBJECTS if it is the same thing"
    assert not [name for name in SUBJECTS if len(found[name]) < 2], "no longer used twice"


def test_the_glossary_has_no_word_twice() -> None:
    terms = re.findall(r"\*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    defined_twice = {term for term in terms if terms.count(term) > 1}
    assert not defined_twice
