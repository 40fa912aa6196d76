"""What a machine file means, down to the cells of a finite state."""

# ruff: noqa: ARG005 (each condition takes the state and both sorts, used or not)

from collections.abc import Callable

import pytest

from kvfence.spec import language as kl
from kvfence.spec.language.nodes import Node

Phase = kl.Enum("Phase", "waiting running done")


def value(n: Node, cells: tuple[int, ...]) -> int:
    """A node's value in a state, by the plain reading of each operation."""
    a = [value(x, cells) for x in n.args] if n.op != "ite" else []
    meaning: dict[str, Callable[[], int]] = {
        "const": lambda: n.value,
        "cell": lambda: cells[n.value],
        "not": lambda: 1 - a[0],
        "and": lambda: int(all(a)),
        "or": lambda: int(any(a)),
        "eq": lambda: int(a[0] == a[1]),
        "lt": lambda: int(a[0] < a[1]),
        "le": lambda: int(a[0] <= a[1]),
        "add": lambda: a[0] + a[1],
        "sub": lambda: a[0] - a[1],
        "ite": lambda: value(n.args[1] if value(n.args[0], cells) else n.args[2], cells),
    }
    return meaning[n.op]()


def machine() -> tuple[kl.Machine, kl.Sort, kl.Sort]:
    m = kl.Machine("m")
    block, request = m.sort("Block", default=3), m.sort("Request", default=2)
    m.function("phase", request, value=Phase, init=Phase.waiting)
    m.relation("pin", request, block)
    m.function("ref", block, value=kl.Int(0, 9), init=kl.Index)
    m.function("n", value=kl.Int(0, 9), init=1)
    return m, block, request


def after(m: kl.Machine, body: Callable[..., None], **params: kl.Sort) -> kl.View:
    """The state after the first instance of a new action, from the initial state."""
    body.__name__ = "act"
    m.action(**params)(body)
    g = kl.ground(m)
    (i, *_) = g.instances
    assert value(i.guard, g.initial)
    cells = list(g.initial)
    for cell, n in i.updates.items():
        cells[cell] = value(n, g.initial)
    return g.view(cells)


def holds(m: kl.Machine, condition: Callable[[kl.State], kl.Expr]) -> bool:
    """Whether a condition holds initially."""

    def prop(s: kl.State) -> kl.Expr:
        return condition(s)

    m.goal(prop)
    m.action()(_nothing)
    g = kl.ground(m)
    return bool(value(g.goals[0][1], g.initial))


def _nothing(_s: kl.State) -> None:
    return None


def test_assignments_take_effect_in_order() -> None:
    m, block, _ = machine()

    def act(s: kl.State, b: kl.Elem, c: kl.Elem) -> None:
        s.require(b != c)
        s.ref[b] = s.ref[b] + 5
        s.n = s.ref[b]
        s.ref[c] = s.ref[b] + 1
        s.ref[b] = s.n - 2

    v = after(m, act, b=block, c=block)
    assert (dict(v.ref), v.n) == ({0: 3, 1: 6, 2: 2}, 5)


def test_the_later_assignment_wins_where_two_indices_are_the_same() -> None:
    m, block, _ = machine()

    def act(s: kl.State, b: kl.Elem, c: kl.Elem) -> None:
        s.require(b == c)
        s.ref[b] = 7
        s.ref[c] = s.ref[c] + 1

    assert dict(after(m, act, b=block, c=block).ref) == {0: 8, 1: 1, 2: 2}


def test_update_gives_every_index_its_value_at_once() -> None:
    m, block, _ = machine()

    def act(s: kl.State, b: kl.Elem) -> None:
        s.ref[b] = 4
        s.ref.update(lambda c: kl.If(c == b, s.n, s.ref[c] + s.ref[b]))

    assert dict(after(m, act, b=block).ref) == {0: 1, 1: 5, 2: 6}


def test_an_update_may_quantify_over_what_was_just_assigned() -> None:
    m, block, request = machine()

    def act(s: kl.State, r: kl.Elem, b: kl.Elem) -> None:
        s.pin[r, b] = True
        s.ref.update(lambda c: kl.Count(request, lambda q: s.pin[q, c]))

    assert dict(after(m, act, r=request, b=block).ref) == {0: 1, 1: 0, 2: 0}


def test_a_check_sees_the_assignments_before_it() -> None:
    m, block, _ = machine()

    @m.action(b=block)
    def act(s: kl.State, b: kl.Elem) -> None:
        s.check("PIN", s.ref[b] == 0)
        s.ref[b] = 8
        s.check("PIN", s.ref[b] == 8, "after")

    g = kl.ground(m)
    first, second = g.instances[1].checks
    assert (first.name, second.name, second.text) == ("act.PIN", "act.PIN#2", "after")
    assert (value(first.holds, g.initial), value(second.holds, g.initial)) == (0, 1)


@pytest.mark.parametrize(
    ("expected", "condition"),
    [
        (True, lambda s, b, r: kl.ForAll(b, lambda x: s.ref[x] == kl.Index(x))),
        (False, lambda s, b, r: kl.ForAll(b, r, lambda x, y: s.ref[x] == kl.Index(y))),
        (True, lambda s, b, r: kl.Exists(b, r, lambda x, y: (s.ref[x] == 2) & ~s.pin[y, x])),
        (True, lambda s, b, r: kl.Count(b, lambda x: s.ref[x] >= 1) == 2),
        (True, lambda s, b, r: kl.Count(b, b, lambda x, y: x != y) == 6),
        (True, lambda s, b, r: kl.ForAll(r, lambda x: kl.IsIn(s.phase[x], Phase.done, Phase.waiting))),
        (False, lambda s, b, r: kl.ForAll(r, lambda x: s.phase[x] != Phase.waiting)),
        (True, lambda s, b, r: kl.Iff(s.n == 1, kl.Exists(b, lambda x: s.ref[x] == 1))),
        (True, lambda s, b, r: kl.Implies(s.n == 2, False) & kl.Or() == kl.And(False)),
        (True, lambda s, b, r: kl.And() & kl.Not(kl.Or())),
        (True, lambda s, b, r: (3 - s.n == 2) & (1 + s.n <= 2) & (s.n > 0)),
        (True, lambda s, b, r: kl.ForAll(kl.Int(0, 4), lambda k: kl.If(k > s.n, k, s.n) >= k)),
        (True, lambda s, b, r: kl.Exists(Phase, lambda p: p == Phase.done)),
        (True, lambda s, b, r: True & (s.n == 1)),
    ],
)
def test_conditions_mean_what_they_say(
    expected: bool, condition: Callable[[kl.State, kl.Sort, kl.Sort], kl.Expr]
) -> None:
    m, block, request = machine()
    assert holds(m, lambda s: condition(s, block, request)) is expected


def test_a_guarded_read_outside_the_domain_gives_the_default() -> None:
    m, _, _ = machine()
    m.function("at", kl.Int(1, 4), value=kl.Int(0, 9), init=lambda k: k + 1)
    assert holds(m, lambda s: (s.at.get(s.n, 0) == 2) & (s.at.get(s.n + 4, 7) == 7) & (s.at.get(0, 5) == 5))


def test_a_guard_narrows_the_numbers_that_index() -> None:
    m, _, _ = machine()
    m.relation("at", kl.Int(0, 3))

    @m.action()
    def act(s: kl.State) -> None:
        s.require(s.n < 3)
        s.at[s.n + 1] = True
        s.check("PIN", kl.If(s.n >= 1, s.at[kl.If(s.n >= 1, s.n - 1, 0)], True))

    assert len(kl.ground(m).instances) == 1


def test_guards_keep_their_lines_and_actions_their_meaning() -> None:
    m, block, _ = machine()

    @m.action(b=block, fair="weak")
    def act(s: kl.State, b: kl.Elem) -> None:
        """Take b."""
        s.require(s.ref[b] == 0, s.n < 4)

    action = m.actions["act"]
    assert (action.doc, action.fair, len(action.guards)) == ("Take b.", "weak", 2)
    assert all("test_meaning.py:" in g.where for g in action.guards)
    assert [repr(g.expr) for g in action.guards] == ["(s.ref[b] == 0)", "(s.n < 4)"]


def test_equal_expressions_are_one_node_and_machines_do_not_mix() -> None:
    graphs = []
    for _ in range(2):
        m, block, _ = machine()

        @m.action(b=block)
        def act(s: kl.State, b: kl.Elem) -> None:
            s.require(s.ref[b] + 1 == 2, s.ref[b] + 1 == 2)

        first, second = m.actions["act"].guards
        assert first.expr is second.expr
        graphs.append(first.expr)
    assert graphs[0] is not graphs[1]


def grounded(body: Callable[..., None]) -> kl.Grounded:
    m, block, _ = machine()
    m.action(b=block)(body)
    return kl.ground(m)


def test_instances_that_can_never_be_taken_are_dropped() -> None:
    def act(s: kl.State, b: kl.Elem) -> None:
        s.require(kl.Index(b) < 2, s.ref[b] < 9, s.n <= 9)

    g = grounded(act)
    assert [i.args for i in g.instances] == [{"b": 0}, {"b": 1}]
    assert [i.guard.op for i in g.instances] == ["lt", "lt"]


def test_an_assignment_that_changes_nothing_is_no_update() -> None:
    def act(s: kl.State, b: kl.Elem) -> None:
        s.ref[b] = s.ref[b] + 0
        s.n = kl.If(s.n == 3, s.n, s.n)

    assert all(not i.updates for i in grounded(act).instances)


def test_a_range_is_watched_only_where_the_guard_leaves_it_open() -> None:
    def act(s: kl.State, b: kl.Elem) -> None:
        s.require(s.ref[b] < 9)
        s.ref[b] = s.ref[b] + 1
        s.n = kl.If(s.n > 0, s.n - 1, s.n)

    def careless(s: kl.State, b: kl.Elem) -> None:
        s.ref[b] = s.ref[b] + 1

    def exact(s: kl.State, b: kl.Elem) -> None:
        s.require(s.n <= 8, ~(s.ref[b] <= 3))
        s.n = s.n + 1
        s.ref[b] = s.ref[b] - 4

    def one_off(s: kl.State, b: kl.Elem) -> None:
        s.require(s.n <= 8, ~(s.ref[b] < 3))
        s.n = s.n + 2
        s.ref[b] = s.ref[b] - 4

    assert all(not i.ranges for i in grounded(act).instances)
    assert all(not i.ranges for i in grounded(exact).instances)
    assert all(len(i.ranges) == 2 for i in grounded(one_off).instances)
    assert [c.id for c in grounded(careless).instances[0].ranges] == ["RANGE"]


def test_a_view_reads_labels_truth_values_and_numbers() -> None:
    m, _, _ = machine()
    m.action()(_nothing)
    g = kl.ground(m)
    before, later = g.view(g.initial), g.view((1, *g.initial[1:]))
    assert before.phase[1] == "waiting"
    assert before.pin[1, 2] is False
    assert (before.ref[2], before.n, len(before.pin)) == (2, 1, 6)
    assert kl.changes(before, later) == {"phase[0]": ("waiting", "running")}
    assert list(kl.flat(before))[:3] == ["phase[0]", "phase[1]", "pin[0, 0]"]
    with pytest.raises(KeyError):
        before.ref[3]
    with pytest.raises(AttributeError, match="did you mean phase"):
        _ = before.phse


@pytest.mark.parametrize(
    "event",
    [
        lambda pre, post, r, b: [(pre.n, post.n, r, b)],
        lambda pre, post, b, r: [(pre.n, post.n, r, b)],
        lambda pre, post, *args: [(pre.n, post.n, *args)],
        lambda pre, post, **args: [(pre.n, post.n, args["r"], args["b"])],
    ],
)
def test_an_event_takes_its_arguments_by_name(event: Callable[..., list[object]]) -> None:
    m, block, request = machine()

    @m.action(r=request, b=block, event=event)
    def act(s: kl.State, r: kl.Elem, b: kl.Elem) -> None:
        s.pin[r, b] = True

    g = kl.ground(m)
    events = m.actions["act"].event
    assert events is not None
    assert events(g.view(g.initial), g.view(g.initial), r=1, b=2) == [(1, 1, 1, 2)]


def test_bounds_may_depend_on_the_sizes() -> None:
    m, block, _ = machine()
    m.function("pos", block, value=kl.Int(0, lambda sizes: sizes["Block"] - 1), init=kl.Index)
    m.action()(_nothing)
    g = kl.ground(m, {"Block": 5})
    assert [(c.lo, c.hi, c.init) for c in g.cells if c.function.name == "pos"] == [
        (0, 4, k) for k in range(5)
    ]
