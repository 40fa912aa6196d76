"""What is counted as checked: a rule declares what it raises, raises what it declares, and counts no more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from twins import header

from kvfence.checker.ledger.guard.guard import Guard, GuardMode
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.rules.base import Rules
from kvfence.checker.ledger.state.declared import RULES, Declared, UndeclaredError, judges
from kvfence.spec import events as ev
from kvfence.spec.catalog import BY_ID

LEDGER = Path(__file__).parents[3] / "checker" / "ledger"
HEADER = header(ev.Group("gpu", 4), ranks=2)
STORE: list[ev.Event] = [
    ev.Alloc("gpu", "req:1.0", [1], free=6),
    ev.Alloc("cpu", "op:0.0", [3]),
    ev.Touch("gpu", "op:0.0", [1]),
    ev.Queue(0, 0, "store", "gpu", [1], "cpu", [3], [11]),
    ev.Issue(0, 0),
    ev.Report(0, 0, 0),
]


# By reading the rules.


class Code:
    """The functions of the ledger's modules: which ids each mentions in a call, and whom it calls."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.functions: dict[tuple[str, str], ast.FunctionDef] = {}
        """By class (or module, for a function of its own) and name."""
        self.bases: dict[str, list[str]] = {}
        self.names: dict[str, dict[str, tuple[str, str]]] = {}
        """By class or module: the functions that its module imports, or has."""
        self.conditions: dict[str, ast.expr] = {}
        """Invariants with their sentences that a module names, as they are given to ``fail(*NAME, ...)``."""
        for module, source in sources.items():
            names: dict[str, tuple[str, str]] = {}
            for node in ast.parse(source).body:
                if isinstance(node, ast.ImportFrom):
                    of = (node.module or "").rpartition(".")[2]
                    names |= {one.asname or one.name: (of, one.name) for one in node.names}
                elif isinstance(node, ast.FunctionDef):
                    names[node.name] = module, node.name
                    self.functions[module, node.name] = node
                    self.names[module] = names
                elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper():
                    name = ast.unparse(node.targets[0])
                    assert self.conditions.setdefault(name, node.value) is node.value or name == "T", name
                elif isinstance(node, ast.ClassDef):
                    self.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                    self.names[node.name] = names
                    for one in node.body:
                        if isinstance(one, ast.FunctionDef):
                            self.functions[node.name, one.name] = one

    def rules(self) -> Iterator[tuple[str, str, str]]:
        """Class, method and event of each method marked with ``judges``."""
        for (owner, name), node in self.functions.items():
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "judges":
                    assert isinstance(mark.args[0], ast.Attribute)
                    yield owner, name, mark.args[0].attr

    def ids(self, owner: str, name: str, what: str) -> set[str]:
        """Ids given to ``what`` (``fail``, ``judge``, ``not_judged``) by a method and all that it calls."""
        found: set[str] = set()
        todo, seen = [(owner, name)], set[tuple[str, str]]()
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            for kin in self.versions(*at):
                node = self.functions[kin]
                for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
                    called = call.func
                    bare = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                    if bare == what:
                        given = call.args[:1] if what == "fail" else call.args
                        given = [
                            self.conditions[one.value.id]
                            if isinstance(one, ast.Starred) and isinstance(one.value, ast.Name)
                            else one
                            for one in given
                        ]
                        found |= {i for one in given for i in self.constants(node, one)}
                    elif isinstance(called, ast.Name):
                        todo.append(self.names[kin[0]].get(bare, ("", "")))
                    elif isinstance(called.value, ast.Name) and called.value.id == "self":
                        todo.append((kin[0], bare))
                    elif bare in {"request", "close_promise"} and ast.unparse(called.value).endswith("state"):
                        todo.append(("LedgerState", bare))
                    elif isinstance(called.value, ast.Call):  # super()
                        todo += [(base, bare) for base in self.bases.get(kin[0], [])]
        return found

    def versions(self, owner: str, name: str) -> Iterator[tuple[str, str]]:
        """The method itself, in the class or one above it, and what replaces it below."""
        line, at = [owner], owner
        while at and (at, name) not in self.functions and self.bases.get(at):
            at = self.bases[at][0]
            line.append(at)
        line += [below for below, bases in self.bases.items() if owner and owner in bases]
        yield from ((one, name) for one in line if (one, name) in self.functions)

    @staticmethod
    def constants(function: ast.FunctionDef, given: ast.expr) -> set[str]:
        """The ids in an expression, or in what a name in it stands for."""
        parts: list[ast.AST] = [given]
        if isinstance(given, ast.Name):
            parts = [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and given.id in {getattr(t, "id", "") for t in node.targets}
            ]
        found = {n.value for p in parts for n in ast.walk(p) if isinstance(n, ast.Constant)} & BY_ID.keys()
        assert found, f"{function.name} raises what cannot be read: {ast.unparse(given)}"
        return found


def sources() -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in LEDGER.rglob("*.py")}


@cache
def code() -> Code:
    return Code(sources())


def declared(event: str) -> Declared:
    return next(row for kind, row in RULES.items() if kind.__name__ == event)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("owner", "rule", "event"), sorted(code().rules()))
def test_a_rule_declares_what_it_can_raise_and_nothing_else(owner: str, rule: str, event: str) -> None:
    assert code().ids(owner, rule, "fail") == declared(event).ids


@pytest.mark.parametrize(("owner", "rule", "event"), sorted(code().rules()))
def test_a_rule_counts_itself_exactly_what_it_does_not_judge_each_event_by(
    owner: str, rule: str, event: str
) -> None:
    row = declared(event)
    counted = code().ids(owner, rule, "judge")
    assert row.ids - set(row.each) <= counted <= row.ids
    assert code().ids(owner, rule, "not_judged") <= set(row.each)


def test_all_that_is_raised_is_raised_by_a_rule() -> None:
    """No call is hidden from the tests above: each place that raises is reached from a rule."""
    rules = {name for owner, method, _ in code().rules() for name in reached(owner, method)}
    for owner, name in code().functions:
        body = ast.unparse(code().functions[owner, name])
        if "fail(" in body.replace("def fail(", "") and owner != "Ledger":
            assert (owner, name) in rules, (owner, name)


def reached(owner: str, name: str) -> set[tuple[str, str]]:
    """The functions that raise, reached from a rule."""
    found = set()
    original = Code.constants

    def spy(function: ast.FunctionDef, given: ast.expr) -> set[str]:
        found.add(next(key for key, node in code().functions.items() if node is function))
        return original(function, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Code, "constants", staticmethod(spy))
        code().ids(owner, name, "fail")
    return found


@pytest.mark.parametrize(
    ("file", "old", "new", "raised"),
    [
        ("rank", '@judges(ev.Reserve, "ONCE", "RANKS")', '@judges(ev.Reserve, "ONCE")', {"ONCE", "RANKS"}),
        (
            "transfer",
            '"ONCE", "a transfer is issued once"',
            '"PURE", "a transfer is issued once"',
            {"ONCE", "PURE"},
        ),
    ],
)
def test_the_reading_sees_a_planted_fault(file: str, old: str, new: str, raised: set[str]) -> None:
    """Controls: a declaration that is dropped, and an id raised by mistake, are told from the code alone."""
    text = sources()
    assert old in text[file]
    planted = Code({**text, file: text[file].replace(old, new)})
    ((owner, rule, _),) = (
        (o, r, e) for o, r, e in planted.rules() if e == ("Reserve" if file == "rank" else "Issue")
    )
    assert planted.ids(owner, rule, "fail") == raised
    if file == "transfer":
        assert raised != declared("Issue").ids


# By running them.


def counts(before: list[ev.Event], event: ev.Event, header: ev.Header = HEADER) -> dict[str, int]:
    """What ``event`` is counted for, after the events ``before`` of the same trace."""
    ledger = Ledger(header, "count")
    for one in before:
        ledger.apply(one)
    first = ledger.checks_by_invariant()
    ledger.apply(event)
    return {name: n - first[name] for name, n in ledger.checks_by_invariant().items() if n != first[name]}


def once(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 1)


CACHED: list[ev.Event] = [
    ev.Alloc("cpu", "op:9.0", [2]),
    ev.Label("cpu", [2], [11]),
    ev.Touch("cpu", "hit:1.0", [2]),
]
PLACED = ev.Geometry("1", 0, 0, 4)
REPORTED = [*STORE, ev.Report(0, 0, 1)]
ENDED = [*REPORTED, ev.Complete(0, 0)]
ADMITTED: list[ev.Event] = [ev.Admit("1", 0, 4, 0, 0, 4)]
IDLE = ev.Round(0, 1, 0, 0, 0, 0, "gpu")
JUDGED = once("CONSERVE", "UNIQUE", "FAIL-CLOSED", "USE-READY")
QUEUED = once("ONCE", "UNIQUE", "CONSERVE", "FREEZE", "USE-READY", "FAIL-CLOSED")
LABEL = ev.Label("cpu", [3], [11], op=0)


@pytest.mark.parametrize(
    ("before", "event", "expected"),
    [
        ([], ev.Alloc("gpu", "req:1.0", [1]), once("CONSERVE", "FREEZE", "PIN")),
        ([], ev.Alloc("gpu", "req:1.0", []), {}),
        ([], ev.Alloc("gpu", "req:1.0", [], free=7), once("CONSERVE")),
        ([], ev.Alloc("gpu", "req:1.0", [99]), once("CONSERVE")),
        (STORE[:2], ev.Touch("gpu", "op:0.0", [1]), once("CONSERVE", "UNIQUE")),
        (STORE[:2], ev.Touch("gpu", "hit:2.0", [1]), once("CONSERVE", "PURE")),
        (STORE[:2], ev.Touch("gpu", "req:2.0", [1]), once("CONSERVE")),
        (STORE[:2], ev.Free("gpu", "req:1.0", [1]), once("CONSERVE", "FREEZE", "PIN")),
        (STORE[:3], ev.Free("gpu", "req:1.0", [1]), once("CONSERVE")),
        (STORE[:3], ev.Free("gpu", "req:1.0", []), {}),
        ([], ev.Evict("gpu", []), {}),
        ([], ev.Unlabel("gpu", [], "test"), {}),
        (CACHED[:1], CACHED[1], JUDGED),
        ([], ev.Label("cpu", [], []), {}),
        (ENDED, LABEL, JUDGED | once("ONCE")),
        ([*ENDED, ev.Reset(True, ["gpu", "cpu"])], LABEL, once("RESET", "ONCE")),
        (STORE[:3], STORE[3], QUEUED),
        ([], ev.Queue(0, 0, "load", "cpu", [], "gpu", [], []), once("ONCE")),
        (
            [*CACHED, ev.Alloc("gpu", "req:1.0", [1])],
            ev.Queue(0, 0, "load", "cpu", [2], "gpu", [1], [11]),
            QUEUED | once("PIN"),
        ),
        (STORE[:5], STORE[5], once("ONCE")),
        (STORE, ev.Complete(0, 0), once("RANKS")),
        ([*STORE, ev.Complete(0, 0)], ev.Report(0, 0, 1), {}),
        (REPORTED, ev.Complete(0, 0), once("ONCE", "RANKS", "FAIL-CLOSED")),
        (STORE, ev.Reserve(0, 0, 1), once("ONCE", "RANKS")),
        (STORE, ev.Decide(0, 0, 1, "commit"), once("ONCE", "RANKS")),
        (STORE, ev.Describe(0, 0, 0, 0), once("ONCE")),
        ([], ev.Lookup("1", 0, 0, 0), once("ONCE", "COUNT")),
        (CACHED, ev.Lookup("1", 0, 0, 4, "cpu", [2]), once("ONCE", "COUNT", "PIN", "CONSERVE", "PURE")),
        ([], ev.Admit("1", 0, 0, 0, 4, 4), once("ONCE", "COUNT")),
        ([], ev.Rollback("1", 0, 4), once("ONCE")),
        (ADMITTED, ev.Rollback("1", 0, 4, ahead=0), once("ONCE", "FAIL-CLOSED", "COUNT")),
        ([], ev.Finish("1", 0, "stop", 4), once("ONCE")),
        (ADMITTED, ev.Finish("1", 0, "stop", 4), once("ONCE", "COUNT")),
        (
            [ev.Admit("1", 0, 3, 0, 0, 3), ev.Finish("1", 0, "stop", 3)],
            ev.Retire("1", 0),
            once("ONCE", "NO-LEAK"),
        ),
        ([*ADMITTED, ev.Finish("1", 0, "stop", 4)], ev.Retire("1", 0), once("FLUSH")),
        ([], ev.Preempt("1", 0, "room"), once("ONCE")),
        ([], ev.Dispatch(0, [], []), once("ONCE")),
        ([], ev.Dispatch(0, ["1"], [1]), once("ONCE", "USE-READY", "FAIL-CLOSED")),
        ([], ev.Process(3), {}),
        ([], ev.Reset(False, []), {}),
        ([], ev.Reset(True, ["cpu", "gpu"]), once("RESET")),
        ([], ev.Quiesce(), once("NO-LEAK")),
        ([ev.Hostmem("cpu", 0, True), ev.Hostmem("cpu", 1, True)], ev.Quiesce(), once("NO-LEAK", "HOSTMEM")),
        ([], PLACED, once("ONCE")),
        ([], ev.Geometry("1", 0, 0, 4, needed=1), once("ONCE", "GEOMETRY")),
        ([], ev.Geometry("1", 0, 0, 4, bound=1), once("ONCE")),
        ([], ev.Stored("gpu", []), {}),
        ([], ev.Removed("gpu", []), {}),
        ([ev.Ask(0, "1", 0, "cpu", [11])], ev.Answer(0, "1", 0, 1), once("ONCE")),
        ([ev.Dispatch(0, [], [])], ev.Zero(0, "gpu", []), once("ONCE")),
        ([ev.Dispatch(0, [], [])], ev.Zero(0, "gpu", [1]), once("ONCE", "LOAD-ORDER")),
        ([], ev.Round(1, 1, 0, 0, 0, 0, "gpu"), once("PROGRESS")),
        ([], ev.Round(0, 0, 0, 0, 0, 0, "gpu"), {}),
        ([], IDLE, {}),
        ([IDLE] * 2, IDLE, once("PROGRESS")),
        ([], ev.Submit("1", 0, 4), once("ONCE")),
    ],
)
def test_an_event_counts_for_what_it_was_judged_by(
    before: list[ev.Event], event: ev.Event, expected: dict[str, int]
) -> None:
    assert counts(before, event) == expected


def test_an_event_that_makes_no_sense_is_not_counted() -> None:
    ledger = Ledger(HEADER)
    with pytest.raises(ValueError, match="one key for each slot"):
        ledger.apply(ev.Label("gpu", [1], []))
    with pytest.raises(KeyError):
        ledger.apply_until_violation(iter([ev.Free("nowhere", "req:1.0", [1])]))
    assert ledger.checks == 0


def test_a_report_alone_says_nothing_of_ranks() -> None:
    """Two ranks, one report, no end: whether an end waits for all ranks did not come up."""
    ledger = Ledger(HEADER)
    for event in STORE:
        assert ledger.apply(event) is None
    assert ledger.checks_by_invariant()["RANKS"] == 0


@pytest.fixture
def undeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of ``issue`` does not declare what it raises."""
    monkeypatch.setitem(RULES, ev.Issue, Declared(ev.Issue, ("PURE",), frozenset({"PURE"})))


@pytest.mark.usefixtures("undeclared")
def test_to_raise_what_is_not_declared_is_an_error() -> None:
    said = "the rule of Issue raised ONCE, which it does not declare: not true that only an open transfer"
    with pytest.raises(UndeclaredError, match=said):
        Ledger(HEADER, "count").apply(ev.Issue(0, 0))


@pytest.mark.usefixtures("undeclared")
@pytest.mark.parametrize("mode", ["log", "count"])
def test_in_a_serving_process_it_is_told_as_the_violation_that_it_is(mode: GuardMode) -> None:
    guard = Guard(mode)
    guard(HEADER)
    guard(ev.Issue(0, 0))
    facts = guard.facts()
    assert (facts.verdict, facts.violations, facts.internal_errors) == ("violated", {"ONCE": 1}, 0)
    assert (facts.checks["ONCE"], facts.checks["PURE"]) == (1, 0)


def test_a_kind_of_event_has_one_rule() -> None:
    with pytest.raises(ValueError, match="Issue has a rule already"):
        judges(ev.Issue, "ONCE")(lambda event: event)
    assert all("_marked" in vars(part) for part in Rules.__subclasses__())
