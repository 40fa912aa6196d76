"""Names of a machine that are words of TLA+, Promela or Mermaid, or that are alike there, are renamed."""

import re

import pytest

from kvfence.checker.report.export import tla as tla_export
from kvfence.checker.report.export.mermaid import labelled, moves, state_diagram
from kvfence.checker.report.export.promela import promela
from kvfence.checker.report.export.tla import module_name, tla
from kvfence.spec.language import Enum, Expr, ForAll, Int, Machine, State


def awkward() -> Machine:
    m = Machine("a machine */ MODULE", doc="Words.")
    block = m.sort("Nat")
    other = m.sort("größe")
    phase = Enum("end", "end state größe label_0 note")
    m.function("Cardinality", block, value=phase, init=phase.end)
    m.function("b_0", value=Int(0, 2), init=0)
    m.function("größe", other, value=Int(0, 2), init=0)
    m.relation("WF_x")
    m.relation("vars")
    m.relation("NatSet")

    @m.action(b=block)
    def queue_store(s: State, b: Expr) -> None:
        """The first.
        The second line."""
        s.require(s.Cardinality[b] == phase.end)
        s.Cardinality[b] = phase.größe
        s.b_0 = 1

    @m.action(b=block, fair="weak")
    def QueueStore(s: State, b: Expr) -> None:  # noqa: N802
        s.require(s.Cardinality[b] == phase.größe)
        s.Cardinality[b] = phase.label_0
        s.vars = True

    @m.action()
    def init(s: State) -> None:
        s.require(s.b_0 == 1)
        s.b_0 = 2

    @m.invariant("PIN")
    def next(s: State) -> Expr:
        """Two
        lines."""
        return ForAll(block, lambda b: (s.b_0 >= 0) | (s.Cardinality[b] == phase.note))

    @m.goal
    def spec(s: State) -> Expr:
        """x"""
        return s.b_0 == 2

    m.eventually("in_range", lambda s: s.b_0 == 2)
    return m


def test_tla_has_identifiers_of_its_own_each_defined_once() -> None:
    m = awkward()
    module, configuration = tla(m)
    words = tla_export._RESERVED - {"Init", "InRange", "Next", "Spec", "vars"}
    defined = re.findall(r"^(\w+)(?:\([^)]*\))? ==", module, re.MULTILINE)
    (variables,) = re.findall(r"^VARIABLES (.*)$", module, re.MULTILINE)
    (constants,) = re.findall(r"^CONSTANTS (.*)$", module, re.MULTILINE)
    bound = re.findall(r"(\w+) \\in ", module)
    names = [*defined, *variables.split(", "), *constants.split(", ")]
    assert len(names) == len(set(names))
    assert not words & {*names, *bound}
    assert "x_b_0" in bound  # the parameter b: a field is called b_0
    assert module.isascii()
    assert not [n for n in names if not re.fullmatch(r"[A-Za-z]\w*|_+[A-Za-z]\w*", n) or n.startswith("WF_")]
    for line in configuration.splitlines():
        if line.startswith(("INVARIANT ", "PROPERTY ")):
            assert line.split()[1] in defined
    assert re.match(rf"---- MODULE {module_name(m)} ----\n", module)
    assert re.fullmatch(r"\w+", module_name(m))
    bodies = [line for line in module.splitlines() if "lines." in line or "second line" in line]
    assert bodies
    assert all(line.startswith("\\* ") for line in bodies)


def test_tla_labels_stay_apart() -> None:
    module, _ = tla(awkward())
    labels = re.findall(r'"(\w+)"', module)
    assert {"end", "state", "gr_f6__df_e", "label_0", "note"} >= set(labels)


def test_mermaid_gets_no_word_of_its_own_as_a_state() -> None:
    m = awkward()
    (field,) = labelled(m)
    text = state_diagram(field, moves(m)[field.name])
    states = set(re.findall(r"(\w+) -->|--> (\w+)", text))
    plain = {name for pair in states for name in pair if name}
    assert not plain & {"end", "state", "note", "größe"}
    assert 'state "end" as label_0_2' in text  # another label is called label_0
    assert "label_0: QueueStore" in text


@pytest.mark.parametrize("name", ["x */ y", "größe"])
def test_promela_comments_end_where_they_should(name: str) -> None:
    m = awkward()
    m.name = name
    text = promela(m)
    for line in text.splitlines():
        assert line.count("/*") == line.count("*/") or line.startswith(("/* Machine", "   spin"))
    assert text.count("/*") == text.count("*/")
