"""What a lockstep says about an implementation that parts ways with its specification."""

from collections.abc import Callable, Sequence

import pytest

from kvfence.checker.analysis import lockstep as ls
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.spec import events as ev
from kvfence.spec.language import Count, Elem, Expr, Int, Machine, Not, State


def seats(limit: int = 2) -> Machine:
    """Three seats, of which at most two may be taken; ``taken`` counts them."""
    m = Machine("seats")
    seat = m.sort("Seat", default=3)
    m.relation("used", seat, init=False)
    m.function("taken", value=Int(0, 3), init=0)

    @m.action(s=seat)
    def sit(state: State, s: Elem) -> None:
        """Somebody sits down."""
        state.require(Not(state.used[s]), state.taken < limit)
        state.used[s] = True
        state.taken = state.taken + 1

    @m.action(s=seat)
    def leave(state: State, s: Elem) -> None:
        """Somebody gets up."""
        state.require(state.used[s])
        state.used[s] = False
        state.taken = state.taken - 1

    @m.invariant("CONSERVE")
    def at_most_two(state: State) -> Expr:
        """Two is company."""
        return Count(seat, lambda s: state.used[s]) <= 2

    return m


SPEC = Interpreter(seats())


class Full(Exception):  # noqa: N818 - what the implementation raises
    """No seat is left."""


class Seats:
    """A right implementation, which seats people from the left."""

    unobserved: frozenset[str] = frozenset()
    header = None

    def __init__(self) -> None:
        self.used: list[int] = []
        self.events: list[ev.Event] = []

    def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:
        if action == "leave":
            self.used.remove(args["s"])
            return None
        if len(self.used) == 2:
            raise Full
        seat = min({0, 1, 2} - set(self.used))
        self.used.append(seat)
        return [("sit", {"s": seat})]

    def abstract(self) -> dict[str, ls.Observed]:
        return {"used": set(self.used), "taken": len(self.used)}

    def refusal(self, action: str, args: ls.Args) -> type[Exception] | None:  # noqa: ARG002
        return Full if action == "sit" and len(self.used) == 2 else None


class SeatsFour(Seats):
    """Seats people twice."""

    def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:
        first = super().perform(action, args)
        return [*(first or []), *(super().perform(action, args) or [])] if action == "sit" else first


class Miscounts(Seats):
    """Counts one too many."""

    def abstract(self) -> dict[str, ls.Observed]:
        return super().abstract() | {"taken": 2 * len(self.used)}


class SitsOnLaps(Seats):
    """Seats everybody at the left end."""

    def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:
        self.used.append(0)
        return [("sit", {"s": 0})] if action == "sit" else super().perform(action, args)


class SqueezesIn(Seats):
    """Does not refuse the third."""

    def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:
        self.used.append(2)
        self.used.pop()
        return super().perform(action, args) if len(self.used) < 2 else None


class ChangesBeforeItRefuses(Seats):
    """Counts the third before it refuses."""

    def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:
        if action == "sit" and len(self.used) == 2:
            self.used.append(2)
            raise Full
        return super().perform(action, args)


class GivesUp(Seats):
    """Fails."""

    def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:  # noqa: ARG002
        raise KeyError(action)


class Shy(GivesUp):
    """Cannot do anything here."""

    def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:  # noqa: ARG002
        raise ls.CannotHere("too shy")


SIT: ls.Step = ("sit", {})


def test_a_right_implementation_is_followed_through_its_choices() -> None:
    lockstep = ls.Lockstep(SPEC, Seats())
    lockstep.take(SPEC.find("sit", s=2))
    assert SPEC.view(lockstep.state).used[0]
    lockstep.play([SIT, ("leave", {"s": 0})])
    assert lockstep.coverage.taken == {"sit": 2, "leave": 1}


def test_a_difference_names_field_and_both_values() -> None:
    lockstep = ls.Lockstep(SPEC, Miscounts())
    with pytest.raises(ls.StatesDifferError) as e:
        lockstep.play([SIT])
    assert e.value.fields == ["taken"]
    assert str(e.value) == (
        "after sit(s=0): the states differ\n  field  specification  implementation\n  taken  1              2"
    )


def test_a_step_that_is_not_allowed_is_named_with_the_situation() -> None:
    lockstep = ls.Lockstep(SPEC, SitsOnLaps())
    with pytest.raises(
        ls.StepNotAllowedError, match=r"does not allow sit\(s=0\) where used\[0\]=True, taken=1"
    ):
        lockstep.play([SIT, SIT])


def test_each_step_of_a_sequence_must_be_allowed() -> None:
    lockstep = ls.Lockstep(SPEC, SeatsFour())
    lockstep.play([SIT])
    assert lockstep.coverage.taken == {"sit": 2}


def test_a_broken_invariant_is_named() -> None:
    spec = Interpreter(seats(limit=3))

    class SeatsThree(Seats):
        def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:  # noqa: ARG002
            self.used.append(len(self.used))
            return None

    with pytest.raises(ls.PropertyBrokenError, match="at_most_two") as e:
        ls.Lockstep(spec, SeatsThree()).play([SIT, SIT, SIT])
    assert e.value.invariant == "CONSERVE"


def test_what_is_not_allowed_must_be_refused() -> None:
    lockstep = ls.Lockstep(SPEC, Seats())
    lockstep.play([SIT, SIT])
    ((third, error),) = [(i, e) for i, e in lockstep.refusals() if i.args == {"s": 2}]
    lockstep.refuse(third, error)
    assert lockstep.coverage.refused == {"sit": 1}


@pytest.mark.parametrize(
    ("driver", "error", "message"),
    [
        (SqueezesIn, ls.NotRefusedError, "not refused with Full"),
        (ChangesBeforeItRefuses, ls.StatesDifferError, "was refused"),
    ],
)
def test_what_is_not_refused_or_changes_something_is_found(
    driver: type[Seats], error: type[Exception], message: str
) -> None:
    lockstep = ls.Lockstep(SPEC, driver())
    lockstep.play([SIT, SIT])
    with pytest.raises(error, match=message):
        lockstep.refuse(*lockstep.refusals()[0])


def test_a_refusal_with_another_error_is_found() -> None:
    lockstep = ls.Lockstep(SPEC, GivesUp())
    with pytest.raises(ls.NotRefusedError, match="but with KeyError"):
        lockstep.refuse(SPEC.find("leave", s=0), Full)


def test_an_allowed_step_that_fails_is_found() -> None:
    with pytest.raises(ls.StepFailedError, match="is allowed, and fails: KeyError"):
        ls.Lockstep(SPEC, GivesUp()).play([SIT])


def test_what_cannot_be_performed_is_counted_and_changes_nothing() -> None:
    lockstep = ls.Lockstep(SPEC, Shy())
    lockstep.play([SIT])
    assert lockstep.coverage.cannot == {"sit": 1}
    assert lockstep.state == SPEC.initial()


def test_a_scene_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"step leave\(\) is not allowed where nothing has happened"):
        ls.Lockstep(SPEC, Seats()).play([("leave", {})])


@pytest.mark.parametrize(
    ("given", "message"),
    [({"used": ()}, "does not give taken"), ({"used": (), "taken": 0, "x": 0}, "has no field x")],
)
def test_a_driver_gives_every_field_or_leaves_it_unobserved(
    given: dict[str, ls.Observed], message: str
) -> None:
    class Gives(Seats):
        def abstract(self) -> dict[str, ls.Observed]:
            return given

    with pytest.raises(ValueError, match=message):
        ls.Lockstep(SPEC, Gives())


def test_hypothesis_finds_what_only_a_long_run_shows(run: Callable[..., ls.Coverage]) -> None:
    class Tires(Seats):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def perform(self, action: str, args: ls.Args) -> Sequence[ls.Step] | None:
            self.steps += 1
            steps = super().perform(action, args)
            if self.steps > 5:
                self.used.clear()
            return steps

    with pytest.raises(ls.StatesDifferError):
        run(SPEC, Tires)
    assert run(SPEC, Seats).taken.keys() == {"sit", "leave"}
