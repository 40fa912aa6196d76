"""A ledger that goes on from a snapshot judges every step as the one that saw the run from its beginning.

Every state of a machine that the interpreter reaches at a small size carries the ledger that has seen the
events of one path to it, and one that was made anew at each step, from a snapshot written as a trace header
and read again. Every step from there, of the sound design and of each faulty one, must be judged alike by
both.
"""

import msgspec
import pytest
from small_sizes import FIRST, NEEDED

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.snapshots import snapshot_of
from kvfence.spec import events as ev
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import MACHINES

LARGER = {
    "lookup": {"Request": 2, "Block": 2},
    "transfer": {"Request": 2, "Block": 1, "Host": 1, "Operation": 1, "Rank": 1},
}
CASES = [
    *(("sound", machine, sizes) for machine, sizes in FIRST.items()),
    *(
        pytest.param(design, machine, FIRST[machine] | NEEDED.get(design, {}), marks=pytest.mark.slow)
        for design, row in DESIGNS.items()
        for machine in row.machines
        if machine in FIRST and design != "sound"
    ),
    *(pytest.param("sound", machine, sizes, marks=pytest.mark.slow) for machine, sizes in LARGER.items()),
]


def judged(ledger: Ledger, events: list[ev.Event]) -> list[str | None]:
    """For each event, what it violates."""
    return [found and f"{found.invariant}: {found.condition}" for found in map(ledger.apply, events)]


@pytest.mark.parametrize(("design", "name", "sizes"), CASES)
def test_a_ledger_from_a_snapshot_judges_every_step_alike(
    design: str, name: str, sizes: dict[str, int]
) -> None:
    interpreter = Interpreter(MACHINES[name](DESIGNS[design].faults), sizes)
    header, _ = interpreter.trace([])
    assert isinstance(header, ev.Header)
    start = interpreter.initial()
    ledgers = {start: (Ledger(header), Ledger(header), ev.StepNumbers())}
    queue, reached, steps, violations = [start], {start}, 0, 0
    for state in queue:
        seen, relayed, numbers_before = ledgers.pop(state)
        told = msgspec.structs.replace(header, snapshot=snapshot_of(relayed.state))
        read = msgspec.json.decode(msgspec.json.encode(told), type=ev.Header)
        for instance in interpreter.enabled(state):
            after, failed = interpreter.step(state, instance)
            numbers = numbers_before.copy()
            events = list(numbers(interpreter.events(state, instance, after)))
            one, other = seen.copy(), Ledger(read)
            found = judged(one, events)
            assert judged(other, events) == found, f"{instance} from {interpreter.view(state)}"
            assert (one.held(), one.state.ops.keys()) == (other.held(), other.state.ops.keys())
            steps += 1
            violations += any(found)
            if not any(found) and not failed and not interpreter.violated(after) and after not in reached:
                reached.add(after)
                ledgers[after] = (one, other, numbers)
                queue.append(after)
    assert steps > 100
    assert (violations > 0) == bool(DESIGNS[design].breaks)
