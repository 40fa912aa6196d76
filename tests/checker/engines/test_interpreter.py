"""The interpreter takes one concrete step at a time and turns paths into traces."""

import pytest

from kvfence.checker.engines import Explore, Interpreter
from kvfence.spec.language import Bool, Elem, Enum, Expr, Int, Machine, State, View, changes

Phase = Enum("Phase", "waiting running")


def machine() -> Machine:
    m = Machine("small")
    request = m.sort("Request", default=2)
    m.function("phase", request, value=Phase, init=Phase.waiting)
    m.function("count", value=Int(0, 1), init=0)

    def emitted(pre: View, post: View, r: int, ok: bool) -> list[object]:
        return [("start", r, ok, pre.phase[r], post.phase[r], post.count)]

    @m.action(r=request, ok=Bool, event=emitted)
    def start(s: State, r: Elem, ok: Expr) -> None:
        """Start a request."""
        s.require(s.phase[r] == Phase.waiting)
        s.phase[r] = Phase.running
        s.count = s.count + 1
        s.check("PIN", ok, "starts are ok")

    @m.action(r=request, event=lambda *views_and_args: [views_and_args[2:]])
    def stop(s: State, r: Elem) -> None:
        s.require(s.phase[r] == Phase.running)
        s.phase[r] = Phase.waiting
        s.count = s.count - 1

    @m.invariant("ONCE")
    def the_second_waits(s: State) -> Expr:
        return s.count == 0

    m.header(lambda sizes: {"requests": sizes["Request"]})
    return m


def test_a_step_gives_the_next_state_and_the_checks_that_fail() -> None:
    run = Interpreter(machine())
    start = run.find("start", r=1, ok=False)
    after, failing = run.step(run.initial(), start)
    assert [(f.id, f.name, f.text) for f in failing] == [("PIN", "start.PIN", "starts are ok")]
    assert changes(run.view(run.initial()), run.view(after)) == {
        "phase[1]": ("waiting", "running"),
        "count": (0, 1),
    }
    assert [p.name for p in run.violated(after)] == ["the_second_waits"]
    assert not run.violated(run.initial())


def test_a_state_is_a_tuple_of_integers() -> None:
    run = Interpreter(machine())
    after, _ = run.step(run.initial(), run.find("start", r=0, ok=True))
    assert [type(v) for v in after] == [int, int, int]


def test_a_value_out_of_range_is_a_failing_check() -> None:
    run = Interpreter(machine())
    one, _ = run.step(run.initial(), run.find("start", r=0, ok=True))
    two, failing = run.step(one, run.find("start", r=1, ok=True))
    assert [(f.id, f.text) for f in failing] == [("RANGE", "count stays in 0 to 1")]
    assert run.view(two).count == 2


def test_enabled_lists_what_can_be_taken_and_step_refuses_the_rest() -> None:
    run = Interpreter(machine())
    assert [str(i) for i in run.enabled(run.initial())] == [
        f"start(r={r}, ok={ok})" for r in (0, 1) for ok in (False, True)
    ]
    with pytest.raises(ValueError, match=r"stop\(r=0\) is not enabled"):
        run.step(run.initial(), run.find("stop", r=0))


def test_find_says_what_there_is_not() -> None:
    run = Interpreter(machine())
    with pytest.raises(LookupError, match="no action strat"):
        run.find("strat")
    with pytest.raises(LookupError, match="no instance"):
        run.find("stop", r=7)


def test_a_path_prints_as_a_trace_with_the_header_of_its_sizes() -> None:
    run = Interpreter(machine(), {"Request": 3})
    path = [run.find("start", r=2, ok=True), run.find("stop", r=2)]
    assert run.trace(path) == ({"requests": 3}, [("start", 2, True, "waiting", "running", 1), (2,)])


def test_a_counterexample_prints_as_a_trace() -> None:
    m = machine()
    r = Explore().run(m)
    path = r.findings["range of count"].path
    assert path is not None
    _, events = Interpreter(m).trace(path)
    assert len(events) == len(path) == 2


def test_a_path_reads_as_numbered_steps_with_what_changed() -> None:
    path = Explore().run(machine()).findings["the_second_waits"].path
    assert str(path).splitlines() == [
        "ONCE the_second_waits: the_second_waits",
        "  1. start(r=0, ok=False)  Start a request.",
        "       phase[0]: waiting -> running",
        "       count: 0 -> 1",
    ]


def test_an_expression_nested_hundreds_deep_still_compiles() -> None:
    m = Machine("deep")
    m.function("n", value=Int(0, 250), init=0)
    m.function("at", Int(0, 250), value=Int(0, 1), init=0)

    @m.action()
    def up(s: State) -> None:
        s.require(s.n < 250, s.at[s.n] == 0)
        s.n = s.n + 1

    m.terminal(lambda s: s.n == 250)
    run = Interpreter(m)
    assert len(run.enabled(run.initial())) == 1
    assert Explore().run(m).states == 251
