"""Stories of the named designs: steps as they are printed, taken one by one; and what sound machines show."""

from collections.abc import Mapping

import pytest

from kvfence.checker.engines.base import Verdict
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.spec.designs import DESIGNS
from kvfence.spec.language import Machine
from kvfence.spec.machines import MACHINES

Story = tuple[str, ...]


def faulty_designs(*machines: str) -> set[str]:
    """The names of the faulty designs of these machines."""
    return {name for name, row in DESIGNS.items() if row.breaks and set(row.machines) & set(machines)}


def follow(run: Interpreter, story: Story) -> tuple[tuple[int, ...], str | None]:
    """The state after the story's steps, and the first step that could not be taken."""
    state = run.initial()
    for step in story:
        instance = next((i for i in run.enabled(state) if str(i) == step), None)
        if instance is None:
            return state, step
        state, failed = run.step(state, instance)
        assert not failed
        assert not run.violated(state)
    return state, None


def assert_breaks_by(
    design: str, story: Story, sizes: Mapping[str, int] | None = None, *, alone: bool = True
) -> None:
    """The design breaks its invariant, ``alone`` or with others, by the story and by no shorter one."""
    row = DESIGNS[design]
    (name,) = row.machines
    machine = MACHINES[name](row.faults)
    if alone:
        machine.assert_discovers(row.breaks, story, sizes=sizes or row.sizes)
    else:
        run = Interpreter(machine, sizes or row.sizes)
        state, refused = follow(run, story[:-1])
        assert refused is None
        state, failed = run.step(state, next(i for i in run.enabled(state) if str(i) == story[-1]))
        assert row.breaks in {broken.id for broken in (*failed, *run.violated(state))}
    found = Explore().run(machine, row.sizes, until="first")
    assert min(len(path) for path in found.violated if path.id == row.breaks) == len(story)


def refused_by_the_sound_twin(
    design: str, story: Story, sizes: Mapping[str, int] | None = None
) -> str | None:
    """The first step of the story that the sound machine does not take; None where it takes all, unbroken."""
    row = DESIGNS[design]
    (name,) = row.machines
    return follow(Interpreter(MACHINES[name](frozenset()), sizes or row.sizes), story)[1]


def assert_holds_and_does_all(machine: Machine, sizes: dict[str, int]) -> None:
    """The machine holds, each goal is reached, and each action is taken."""
    found = Explore().run(machine, sizes)
    assert found.verdict is Verdict.holds
    assert not found.vacuous
    assert all(depth is not None for depth in found.goals.values())
    assert all(times > 0 for times in found.coverage.values())


def assert_proof_needs_lemmas(machine: Machine, sizes: dict[str, int]) -> None:
    """Without its lemmas the machine is not proved."""
    pytest.importorskip("z3")
    from kvfence.checker.engines.smt.unbounded import Unbounded

    machine.lemmas.clear()
    assert Unbounded(search_seconds=1).run(machine, sizes).verdict is Verdict.undetermined
