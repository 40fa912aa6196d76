"""Stories of the named designs: steps as they are printed, taken one by one."""

from __future__ import annotations

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.engines.explicit.numpy_search import Explore
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import MACHINES

Story = tuple[str, ...]


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


def assert_breaks_by(design: str, story: Story) -> None:
    """The design breaks its invariant by the story, and by no shorter one."""
    row = DESIGNS[design]
    (name,) = row.machines
    machine = MACHINES[name](row.faults)
    machine.assert_discovers(row.breaks, story, sizes=row.sizes)
    found = Explore().run(machine, row.sizes, until="first")
    assert min(len(path) for path in found.violated if path.id == row.breaks) == len(story)


def refused_by_the_sound_twin(design: str, story: Story) -> str | None:
    """The first step of the story that the sound machine does not take; None where it takes all, unbroken."""
    (name,) = DESIGNS[design].machines
    return follow(Interpreter(MACHINES[name](frozenset()), DESIGNS[design].sizes), story)[1]
