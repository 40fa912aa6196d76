"""A wrong specification gets one line that names its file and line, the fault and the way out."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from kvfence.spec.language import (
    And,
    Bool,
    Count,
    Enum,
    Exists,
    Expr,
    ForAll,
    If,
    Index,
    Int,
    Machine,
    Not,
    Sort,
    SpecError,
    State,
    ground,
)

Phase = Enum("Phase", "waiting running")
Other = Enum("Other", "waiting gone")


def machine(faults: frozenset[str] = frozenset()) -> Machine:
    m = Machine("m", faults=faults)
    block, request = m.sort("Block"), m.sort("Request")
    m.function("phase", request, value=Phase, init=Phase.waiting)
    m.relation("cached", block)
    m.relation("pin", request, block)
    m.function("ref", block, value=Int(0, 4), init=0)
    m.function("at", Int(0, 3), value=Int(0, 9), init=0)
    m.function("n", value=Int(0, 3), init=0)
    return m


Fault = Callable[[State, Expr, Expr], object]
Declaration = Callable[[Machine, Sort], object]
# What must be refused with which text, at its line: that of a lambda, or the one marked "wrong".
WRONG: dict[str, tuple[str, Fault]] = {
    "in_a_set": (
        "is symbolic, so sets and dicts cannot look it up",
        lambda s, r, _b: s.require(s.phase[r] in {Phase.waiting, Phase.running}),
    ),
    "a_number_in_a_set": (
        "is symbolic, so sets and dicts cannot look it up",
        lambda s, _r, _b: s.require(s.n in {1, 2}),
    ),
    "in_a_list": (
        "has no truth value yet",
        lambda s, _r, _b: s.require(s.n in [1, 2]),
    ),
    "any_of_them": (
        "has no truth value yet",
        lambda s, r, b: s.require(any([s.cached[b], s.pin[r, b]])),
    ),
    "its_text": (
        "so its value has no text",
        lambda s, r, _b: s.require(str(s.phase[r]) == "waiting"),
    ),
    "its_format": (
        "so its value has no text",
        lambda s, _r, _b: s.require(f"{s.n}" == "1"),
    ),
    "up_to": (
        "it has no number yet",
        lambda s, _r, b: s.require(*(s.cached[b] for _ in range(s.n))),
    ),
    "index_of_a_variable": (
        "so it has no index",
        lambda s, _r, b: s.require(s.n[b] == 1),
    ),
    "is_true": (
        "asks which object a value is",
        lambda s, _r, b: s.require(s.cached[b] is True),
    ),
    "is_false_in_a_quantifier": (
        "asks which object a value is",
        lambda s, _r, b: s.require(ForAll(b.type, lambda c: s.cached[c] is False)),
    ),
    "an_id_of_ours": (
        "the id DEADLOCK is kvfence's own",
        lambda s, _r, b: s.check("DEADLOCK", s.cached[b]),
    ),
    "python_and": (
        "has no truth value yet",
        lambda s, r, b: s.require(s.cached[b] and s.pin[r, b]),
    ),
    "python_not": (
        "has no truth value yet",
        lambda s, _r, b: s.require(not s.cached[b]),
    ),
    "python_in": (
        "has no truth value yet",
        lambda s, r, _b: s.require(s.phase[r] in [Phase.running, Phase.waiting]),
    ),
    "chained_comparison": (
        "two comparisons joined by &",
        lambda s, _r, b: s.require(0 < s.ref[b] < 3),
    ),
    "in_a_field": (
        "in does not work on cached; index it",
        lambda s, _r, b: s.require(b in s.cached),
    ),
    "loop_over_a_field": (
        "cached cannot be iterated; quantify",
        lambda s, _r, _b: list(s.cached),
    ),
    "misspelt_field": (
        "has no field cachd; did you mean cached?",
        lambda s, _r, b: s.require(s.cachd[b]),
    ),
    "too_few_indices": (
        r"pin takes 2 indices \(Request, Block\), not 1",
        lambda s, r, _b: s.require(s.pin[r]),
    ),
    "indices_swapped": (
        "index 1 of pin is a Request; b is of type Block",
        lambda s, r, b: s.require(s.pin[b, r]),
    ),
    "number_as_an_element": (
        "index 1 of cached is a Block; 0 is of type Int",
        lambda s, _r, _b: s.require(s.cached[0]),
    ),
    "no_index": (
        "cached is a whole function here; give its indices",
        lambda s, _r, _b: s.require(s.cached),
    ),
    "arithmetic_without_index": (
        "ref is a whole function here; give its indices",
        lambda s, _r, _b: s.require(s.ref + 1 == 2),
    ),
    "unguarded_index": (
        r"index \(s.n \+ 1\) .* of at may be 1 to 4, outside Int\(0, 3\); "
        "require it to fit, or read s.at.get",
        lambda s, _r, _b: s.require(s.at[s.n + 1] == 0),
    ),
    "labels_of_two_enums": (
        "of type Phase and .* of type Other; give both one",
        lambda s, r, _b: s.require(s.phase[r] == Other.waiting),
    ),
    "label_as_text": (
        "the text 'running' is not a value; write the label as a constant",
        lambda s, r, _b: s.require(s.phase[r] == "running"),
    ),
    "order_of_labels": (
        "<= takes an Int, not Phase",
        lambda s, r, _b: s.require(s.phase[r] <= Phase.running),
    ),
    "order_of_elements": (
        "< takes an Int, not Block .* use Index",
        lambda s, _r, b: s.require(b < b),  # noqa: PLR0124
    ),
    "sum_of_truth_values": (
        r"\+ takes an Int, not Bool .* use If\(x, 1, 0\)",
        lambda s, _r, b: s.require(s.cached[b] + 1 == 2),
    ),
    "conjunction_of_numbers": (
        "And takes a Bool, not Int",
        lambda s, _r, b: s.require(s.ref[b] & s.cached[b]),
    ),
    "arms_of_two_types": (
        "arms of If are of types Int and Bool",
        lambda s, _r, b: s.require(If(s.cached[b], 1, True) == 1),
    ),
    "updating_with_another_type": (
        "cached holds Bool, and 1 is of type Int",
        lambda s, _r, _b: s.cached.update(lambda _: 1),
    ),
    "check_without_id": (
        "a check needs the id of an invariant",
        lambda s, _r, b: s.check("", s.cached[b]),
    ),
    "quantifier_without_sort": (
        r"ForAll takes finite sorts and then a function",
        lambda s, _r, b: s.require(ForAll(lambda c: s.cached[c] | (c == b))),
    ),
    "quantifier_of_wrong_arity": (
        "Count over 2 sorts needs a function of 2, not 1",
        lambda s, _r, b: s.require(Count(b.type, b.type, lambda c: s.cached[c]) == 0),
    ),
    "index_of_a_number": (
        "Index takes an element of a sort, not Int",
        lambda s, _r, b: s.require(Index(s.ref[b]) == 0),
    ),
}


def wrong(text: str) -> Callable[[Fault], None]:
    """Add an action body of several lines to ``WRONG``."""
    return lambda body: WRONG.update({body.__name__: (text, body)})


@wrong("is symbolic, so sets and dicts cannot look it up")
def in_a_dict(s: State, r: Expr, _b: Expr) -> None:
    s.n = {Phase.waiting: 1}.get(s.phase[r], 0)  # wrong


@wrong("is symbolic, so sets and dicts cannot look it up")
def a_parameter_as_key(s: State, r: Expr, b: Expr) -> None:
    s.n = len({r, b})  # wrong


@wrong("has no truth value yet")
def matched(s: State, _r: Expr, _b: Expr) -> None:
    match s.n:
        case 1:  # wrong
            s.n = 2


@wrong("has no truth value yet")
def the_greater(s: State, _r: Expr, _b: Expr) -> None:
    s.n = max(s.n, 2)  # wrong


@wrong("it has no number yet")
def as_int(s: State, _r: Expr, _b: Expr) -> None:
    s.n = int(s.n)  # wrong


@wrong("it has no elements; quantify")
def how_many(s: State, _r: Expr, _b: Expr) -> None:
    s.n = len(s.cached)  # wrong


@wrong("numbers are only added and subtracted")
def times(s: State, _r: Expr, _b: Expr) -> None:
    s.n = 2 * s.n  # wrong


@wrong("has no truth value yet")
def python_if(s: State, r: Expr, b: Expr) -> None:
    if s.cached[b]:  # wrong
        s.phase[r] = Phase.running


@wrong("has no field phse; did you mean phase?")
def misspelt_assignment(s: State, _r: Expr, _b: Expr) -> None:
    s.phse = Phase.running  # wrong


@wrong("Phase has no label runing; did you mean running?")
def misspelt_label(s: State, r: Expr, _b: Expr) -> None:
    s.phase[r] = Phase.runing  # wrong


@wrong("cached is indexed; assign s.cached")
def assigning_without_index(s: State, _r: Expr, _b: Expr) -> None:
    s.cached = True  # wrong


@wrong("may be -1 to 2, outside")
def unguarded_assignment(s: State, _r: Expr, _b: Expr) -> None:
    s.at[s.n - 1] = 0  # wrong


@wrong("ref holds Int, and True is of type Bool")
def assigning_another_type(s: State, _r: Expr, b: Expr) -> None:
    s.ref[b] = True  # wrong


@wrong("None is not a value of the language")
def nothing_as_a_value(s: State, _r: Expr, b: Expr) -> None:
    s.ref[b] = None  # type: ignore[assignment]  # wrong


@wrong("require after an assignment; guards read the state before the step")
def guard_after_assignment(s: State, _r: Expr, b: Expr) -> None:
    s.cached[b] = True
    s.require(s.ref[b] == 0)  # wrong


@wrong("variable c is used outside its quantifier")
def escaping_variable(s: State, _r: Expr, b: Expr) -> None:
    kept: list[Expr] = []
    s.require(Exists(b.type, lambda c: And(kept.append(c) is None, s.cached[c])))
    s.require(s.cached[kept[0]])  # wrong


def line_of(body: Callable[..., object]) -> str:
    source, start = inspect.getsourcelines(body)
    at = next((k for k, line in enumerate(source) if "# wrong" in line), 0)
    path = Path(__file__)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{start + at}: "


@pytest.mark.parametrize(("text", "body"), WRONG.values(), ids=WRONG)
def test_a_wrong_action_is_refused_at_its_line(text: str, body: Fault) -> None:
    m = machine()

    def action(s: State, r: Expr, b: Expr) -> None:
        body(s, r, b)

    with pytest.raises(SpecError, match=text) as error:
        m.action(r=m.sorts["Request"], b=m.sorts["Block"])(action)
    assert str(error.value).startswith(line_of(body))
    assert "\n" not in str(error.value)


DECLARED: dict[str, tuple[str, Declaration]] = {
    "duplicate_field": (
        "field ref is declared twice",
        lambda m, _b: m.relation("ref"),
    ),
    "duplicate_sort": (
        "sort Block is declared twice",
        lambda m, _b: m.sort("Block"),
    ),
    "empty_sort": (
        "default size 0; a sort has at least one element",
        lambda m, _b: m.sort("Empty", default=0),
    ),
    "reserved_field": (
        "'require' cannot be the name of a field",
        lambda m, _b: m.relation("require"),
    ),
    "wrong_init": (
        "k holds Int, and its init is of type Bool",
        lambda m, b: m.function("k", b, value=Int(0, 1), init=False),
    ),
    "unbounded_index": (
        "cannot be indexed by an unbounded Int",
        lambda m, _b: m.relation("k", Int()),
    ),
    "foreign_sort": (
        "uses sort Block of another machine",
        lambda m, _b: m.relation("k", machine().sorts["Block"]),
    ),
    "half_bounded": (
        "both bounds or none",
        lambda m, _b: m.function("k", value=Int(0), init=0),
    ),
    "bounds_swapped": (
        "has no value; the lower bound comes first",
        lambda m, _b: m.function("k", value=Int(3, 1), init=1),
    ),
    "unknown_fairness": (
        'fair is "weak", "strong" or None',
        lambda m, _b: m.action(fair="some"),  # type: ignore[arg-type]
    ),
    "invariant_without_id": (
        "an invariant needs the id of the catalogue",
        lambda m, _b: m.invariant(""),
    ),
    "label_twice": (
        "Enum E lists a twice",
        lambda _m, _b: Enum("E", "a b a"),
    ),
    "label_taken": (
        "'name' cannot be a label",
        lambda _m, _b: Enum("E", "name"),
    ),
}


def declare(text: str) -> Callable[[Declaration], None]:
    """Add a declaration of several lines to ``DECLARED``."""
    return lambda body: DECLARED.update({body.__name__: (text, body)})


@declare(r"action act declares \(b\) and its function takes \(c\)")
def parameters_differ(m: Machine, b: Sort) -> None:
    @m.action(b=b)  # wrong
    def act(s: State, c: Expr) -> None:
        s.require(s.cached[c])


@declare("the event of act asks for c")
def event_asks_for_unknown(m: Machine, b: Sort) -> None:
    @m.action(b=b, event=lambda pre, post, c: [pre, post, c])  # wrong
    def act(s: State, b: Expr) -> None:
        s.require(s.cached[b])


@declare("inv only reads the state; assign ref in an action")
def assigning_in_an_invariant(m: Machine, b: Sort) -> None:
    @m.invariant("PIN")
    def inv(s: State) -> Expr:
        s.ref.update(lambda _: 0)  # wrong
        return ForAll(b, lambda c: s.cached[c])


@declare("inv takes a Bool, not Int")
def invariant_that_is_a_number(m: Machine, _b: Sort) -> None:
    @m.invariant("PIN")  # wrong
    def inv(s: State) -> Expr:
        return s.n + 1


@declare("terminal is declared twice")
def two_terminals(m: Machine, _b: Sort) -> None:
    m.terminal(lambda s: s.n == 0)
    m.terminal(lambda s: s.n == 1)  # wrong


@pytest.mark.parametrize(("text", "body"), DECLARED.values(), ids=DECLARED)
def test_a_wrong_declaration_is_refused_at_its_line(text: str, body: Declaration) -> None:
    m = machine()
    with pytest.raises(SpecError, match=text) as error:
        body(m, m.sorts["Block"])
    assert str(error.value).startswith(line_of(body))


def acting(m: Machine) -> Machine:
    @m.action(ok=Bool)
    def act(s: State, ok: Expr) -> None:
        s.require(ok)
        m.faulty("unpinned_lookup")

    return m


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"Blok": 2}, "machine m has no sort Blok; did you mean Block?"),
        ({"Block": 0}, "size of Block is 0; a sort has at least one element"),
        ({"Block": True}, "size of Block is True"),
    ],
)
def test_sizes_that_fit_nothing_are_refused(sizes: dict[str, int], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        ground(acting(machine()), sizes)


def test_a_fault_that_is_never_consulted_is_refused() -> None:
    m = acting(machine(frozenset({"unpined_lookup"})))
    with pytest.raises(
        SpecError, match=r"never consults the fault 'unpined_lookup'; did you mean unpinned_lo"
    ):
        ground(m)


def test_a_machine_without_actions_is_refused() -> None:
    with pytest.raises(SpecError, match="machine m has no action"):
        ground(machine())


def test_an_initial_value_outside_its_range_is_refused() -> None:
    m = machine()
    m.function("low", m.sorts["Block"], value=Int(0, 1), init=lambda b: Index(b) + 0)
    ground(acting(m), {"Block": 2})
    with pytest.raises(SpecError, match=r"init of low\[2\] is 2, outside 0 to 1"):
        ground(m, {"Block": 3})


def test_an_index_that_fits_only_at_some_sizes_is_refused_at_the_others() -> None:
    m = machine()
    m.relation("slot", Int(0, lambda sizes: sizes["Block"] - 1))

    @m.action(b=m.sorts["Block"])
    def act(s: State, b: Expr) -> None:
        s.require(Not(s.slot[s.n]), s.cached[b])  # wrong

    ground(m, {"Block": 4})
    with pytest.raises(SpecError, match=r"index s.n .* of slot may be 0 to 3, outside Int\(0, 2\)") as error:
        ground(m, {"Block": 3})
    assert str(error.value).startswith(
        line_of(test_an_index_that_fits_only_at_some_sizes_is_refused_at_the_others)
    )


def test_what_an_action_returns_is_not_lost() -> None:
    m = machine()
    with pytest.raises(SpecError, match=r"action act returns something, which would be lost"):

        @m.action(b=m.sorts["Block"])
        def act(s: State, b: Expr) -> Expr:
            return s.cached[b]


def test_an_action_that_yields_would_never_run() -> None:
    m = machine()
    with pytest.raises(SpecError, match="action act returns something"):

        @m.action()
        def act(s: State) -> object:
            yield s.n


@pytest.mark.parametrize("kind", ["lemma", "goal", "promise"])
def test_what_is_judged_has_a_name_of_its_own(kind: str) -> None:
    m = machine()

    @m.invariant("PIN")
    def twice(s: State) -> object:
        """x"""
        return s.n >= 0

    declare = m.eventually if kind == "promise" else getattr(m, kind)
    given = ("twice", lambda s: s.n == 0) if kind == "promise" else (twice,)
    with pytest.raises(SpecError, match=f"twice is the name of an invariant already; rename the {kind}"):
        declare(*given)


@pytest.mark.parametrize("id_", ["LEMMA", "PREMISE", "DEADLOCK", "RANGE"])
def test_ids_that_kvfence_gives_are_its_own(id_: str) -> None:
    with pytest.raises(SpecError, match=f"the id {id_} is kvfence's own"):
        machine().invariant(id_)


def test_no_invariant_is_called_as_what_every_machine_has() -> None:
    m = machine()
    with pytest.raises(SpecError, match="deadlock is the name of a condition that every machine has"):

        @m.invariant("PIN")
        def deadlock(s: State) -> object:
            return s.n >= 0


def test_a_view_is_read_and_not_searched() -> None:
    g = ground(acting(machine()))
    view = g.view(g.initial)
    with pytest.raises(SpecError, match=r"in does not work on cached; read the value: cached\[…\]"):
        _ = 0 in view.cached
    with pytest.raises(SpecError, match="cached is a whole function, which has no truth value"):
        bool(view.cached)


def test_labels_are_keys_and_minus_is_a_difference() -> None:
    assert {Phase.waiting: 1}[Phase.waiting] == 1
    assert Phase.running not in {Phase.waiting}
    m = machine()

    @m.action()
    def act(s: State) -> None:
        s.require(-s.n >= -2)
        s.n = 3 + -s.n

    assert repr(m.actions["act"].updates[m.functions["n"]]) == "(3 + (0 - s.n))"
