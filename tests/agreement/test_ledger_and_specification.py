"""The ledger is the specification at runtime: it rejects a step exactly when the specification does.

Each design of a machine is explored at a small size, completely. Every state carries the ledger that has
seen the events of one path to it. Every step from there goes through a copy of that ledger, which must object
if, and only if, the specification finds the step or the state after it in violation, and then for an
invariant that the specification names.
"""

from collections import Counter

import pytest
from small_sizes import NEEDED, SMALL

from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.ledger.ledger import Ledger
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import MACHINES
from kvfence.spec.numbering import Numbering

UNEVEN = {
    "fenced_victim_spin": "the ledger objects to a step, the specification to endless runs",
    "sharer_not_rolled_back": "the ledger wants the rollback even of a block computed since",
    "shared_before_landing": "the ledger wants the rollback even of a block computed since",
    "events_before_landing": "every store is rejected at once, so there is next to nothing to compare",
    "promotion_during_reset": "a trace tells of a reset when it is answered, not when it begins",
    "writer_keeps_too_little": "what nothing reads behind a whole chunk is kept, too, by the specification",
    "promise_longer_than_acceptable": "behind a whole chunk nothing is read, as above",
    "failure_after_completion": "until the failure is told, the ledger cannot know of it",
}
SLOW = {"duplicate_in_flight_store"}  # two operations and two CPU slots make many states
SLOW |= {"answers_by_key", "verdict_kept_after_failure", "answer_on_its_way_kept"}  # two requests
SLOW |= {"block_ids_unique_only_in_group", "invalid_in_one_group_only"}  # four blocks
SLOW |= {"other_groups_block_size"}  # two groups
CASES = [
    pytest.param(design, machine, marks=[pytest.mark.slow] if design in SLOW else [])
    for design, row in DESIGNS.items()
    for machine in row.machines
    # the ledger judges no order traces: see test_races_and_specification.py
    if machine in SMALL and design not in UNEVEN
]


def sweep(machine_name: str, design: str, sizes: dict[str, int]) -> tuple[Counter[str], list[str], int]:
    """Violations by invariant that both sides found, disagreements in words, and the steps compared."""
    machine = MACHINES[machine_name](DESIGNS[design].faults)
    interpreter = Interpreter(machine, sizes)
    header, _ = interpreter.trace([])
    start = interpreter.initial()
    ledgers = {start: (Ledger(header), Numbering())}
    queue, violations, differences, steps = [start], Counter[str](), list[str](), 0
    for state in queue:
        ledger_before, numbers_before = ledgers[state]
        for instance in interpreter.enabled(state):
            after, failed = interpreter.step(state, instance)
            specified = {f.id for f in failed} | {p.id for p in interpreter.violated(after)}
            ledger, numbers = ledger_before.copy(), numbers_before.copy()
            steps += 1
            found = None
            for event in numbers(interpreter.events(state, instance, after)):
                found = ledger.apply(event)
                if found is not None:
                    break
            judged = {found.invariant} if found else set()
            if bool(judged) != bool(specified) or not judged <= specified:
                differences.append(
                    f"{instance} from {interpreter.view(state)}: specification {specified or 'accepts'}, "
                    f"ledger {found or 'accepts'}"
                )
            elif judged:
                violations.update(judged)
            if not specified and after not in ledgers:
                ledgers[after] = (ledger, numbers)
                queue.append(after)
    return violations, differences, steps


@pytest.mark.parametrize(("design", "machine"), CASES)
def test_ledger_rejects_a_step_exactly_when_the_specification_does(design: str, machine: str) -> None:
    sizes = SMALL[machine] | NEEDED.get(design, {})
    violations, differences, steps = sweep(machine, design, sizes)
    assert not differences, "\n".join(differences[:3])
    assert steps > 100
    expected = DESIGNS[design].breaks
    if expected == "PROGRESS":  # no step breaks it
        assert set(violations) <= {"COUNT"}
    else:
        assert violations[expected] > 0 if expected else not violations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "sizes"),
    [
        ("block_pool", {"Block": 4, "Holder": 2, "Key": 2}),
        ("lookup", {"Request": 2, "Block": 2}),
        ("transfer", {"Request": 2, "Block": 1, "Host": 1, "Operation": 1, "Rank": 1}),
        ("transfer", {"Request": 1, "Block": 2, "Host": 1, "Operation": 2, "Rank": 1}),
        ("scheduling", {"Request": 2, "Block": 3, "Host": 1}),
        ("ranks", {"Operation": 2, "Rank": 2}),
    ],
)
def test_ledger_accepts_every_step_of_the_sound_designs(machine: str, sizes: dict[str, int]) -> None:
    violations, differences, steps = sweep(machine, "sound", sizes)
    assert not differences, "\n".join(differences[:3])
    assert not violations
    assert steps > 10_000
