"""Runs a lockstep under Hypothesis."""

from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings, stateful, strategies

from kvfence.checker.analysis.lockstep import Coverage, Driver, Lockstep, Step, state_machine
from kvfence.checker.engines.explicit.interpret import Interpreter


def rehearse(lockstep: Lockstep, scene: Sequence[Step]) -> None:
    """Play ``scene``, and at its end try everything that must be refused there."""
    lockstep.play(scene)
    for instance, error in lockstep.refusals():
        lockstep.refuse(instance, error)
    lockstep.finish()


@pytest.fixture(scope="session")
def run() -> Callable[..., Coverage]:
    """Runs a driver in lockstep with a specification, for as many examples as the Hypothesis profile says."""

    def run(
        spec: Interpreter,
        driver: Callable[[], Driver],
        *,
        without: Collection[str] = (),
        seldom: Collection[str] = (),
        scenes: Sequence[Sequence[Step]] = (),
        judge: bool = True,
        more: int = 1,
    ) -> Coverage:
        """Run ``driver`` beside ``spec``, with a rule for each action but ``without``; what the runs came by.

        Each of ``scenes`` is played once in any case, and Hypothesis's runs begin with one of them.
        ``seldom``: see ``state_machine``. ``judge``: whether the ledger judges the events. ``more``: how
        many times the profile's number of examples.
        Raises the first difference.
        """
        coverage = Coverage()
        for scene in scenes:
            rehearse(Lockstep(spec, driver(), coverage, judge=judge), scene)
        machine = state_machine(
            lambda: Lockstep(spec, driver(), coverage, judge=judge),
            [name for name in spec.machine.actions if name not in without],
            stateful,
            strategies,
            seldom=seldom,
            scenes=scenes,
        )
        chosen = settings(
            max_examples=settings().max_examples * more,
            stateful_step_count=2 * settings().stateful_step_count,
            phases=(Phase.explicit, Phase.generate),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        stateful.run_state_machine_as_test(machine, settings=chosen)
        print(coverage)  # pytest -s shows it
        return coverage

    return run
