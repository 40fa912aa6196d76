"""What differs between two specifications: lines, and parts of the traced machine."""

from pathlib import Path

import pytest
import two_tier

from kvfence.checker.analysis.named_specs import named_spec
from kvfence.checker.analysis.review import differences
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import ForAll, Implies, Int, Machine, Not
from kvfence.spec.machines import MACHINES

SPEC = Path(two_tier.__file__)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_machine_built_twice_is_the_same(name: str) -> None:
    assert differences.same(MACHINES[name](frozenset()), MACHINES[name](frozenset()))


@pytest.mark.parametrize("name", sorted(set(DESIGNS) - {"sound"}))
def test_no_design_is_the_same_as_the_sound_one_and_its_difference_is_reported(name: str) -> None:
    sound, design = named_spec("sound"), named_spec(name)
    for machine in design.touched:
        base, change = sound.builders[machine](), design.builders[machine]()
        assert not differences.same(base.machine, change.machine)
        assert differences.parts(base.machine, change.machine) or differences.lines(base, change)


def test_names_of_variables_and_docstrings_are_no_difference() -> None:
    def machine(bound: str, doc: str) -> Machine:
        m = Machine("m", doc=doc)
        sort = m.sort("Block")
        m.relation("full", sort)
        quantified = eval(
            f"lambda s: ForAll(sort, lambda {bound}: Not(s.full[{bound}]))", {**globals(), "sort": sort}
        )

        @m.action(b=sort)
        def fill(s, b):  # type: ignore[no-untyped-def]
            s.require(quantified(s))
            s.full[b] = True

        return m

    assert differences.same(machine("b", "one"), machine("c", "two"))


def test_a_bound_by_size_is_part_of_the_machine() -> None:
    def machine(times: int) -> Machine:
        m = Machine("m")
        m.sort("Block")
        m.function("n", value=Int(0, lambda sizes: times * sizes["Block"]), init=0)

        @m.action()
        def grow(s):  # type: ignore[no-untyped-def]
            s.require(s.n == 0)
            s.n = 1

        return m

    assert differences.same(machine(1), machine(1))
    assert not differences.same(machine(1), machine(2))


def test_inner_and_outer_variables_of_one_name_are_distinguished() -> None:
    def machine(outer: bool) -> Machine:
        m = Machine("m")
        sort = m.sort("Block")
        m.relation("a", sort, sort)
        m.relation("done")

        @m.action()
        def go(s):  # type: ignore[no-untyped-def]
            def inner(b, c):  # type: ignore[no-untyped-def]
                return Implies(s.a[b, c], s.a[b, b] if outer else s.a[c, c])

            s.require(Not(s.done), ForAll(sort, lambda b: ForAll(sort, lambda c: inner(b, c))))
            s.done = True

        return m

    assert not differences.same(machine(True), machine(False))


def test_a_weaker_guard_only_adds_steps() -> None:
    sound, stronger = two_tier.build(), two_tier.build(frozenset({"no_evict"}))
    assert differences.weaker_only(stronger, sound)
    assert not differences.weaker_only(sound, stronger)
    assert not differences.weaker_only(sound, two_tier.build(frozenset({"no_pin"})))


def test_the_lines_of_a_switched_on_fault_are_reported() -> None:
    base, change = named_spec("sound").builders["lookup"](), named_spec("evict_pinned").builders["lookup"]()
    (line,) = differences.lines(base, change)
    assert (line.side, line.file) == ("base", "spec/machines/lookup.py")
    assert "s.pin[r, b]" in line.text


def test_two_files_of_different_names_are_compared_line_by_line(tmp_path: Path) -> None:
    text = SPEC.read_text(encoding="utf-8")
    one, other = tmp_path / "before.py", tmp_path / "after.py"
    one.write_text(text, encoding="utf-8")
    other.write_text(text.replace("s.require(Not(s.cached[b]))", "s.require()"), encoding="utf-8")
    built = [named_spec(f"{path}:build").builders["two_tier"]() for path in (one, other)]
    assert {(line.side, line.text.strip()) for line in differences.lines(*built)} == {
        ("base", "s.require(Not(s.cached[b]))"),
        ("change", "s.require()"),
    }
