"""The race checker and the virtual device confirm what the stream order machine says.

Each step of the machine is told as order events. The race checker, which knows nothing of the machine, has to
find a race exactly where the machine finds a violation, and the virtual device has to execute each
counterexample to a wrong content.
"""

import copy
from pathlib import Path

import pytest

from kvfence.checker.analysis.verify import record, verify
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.order.races import OrderChecker
from kvfence.reference.order_programs.program import Program
from kvfence.reference.order_programs.schedules import exhaustive, hunt
from kvfence.spec import order as od
from kvfence.spec.designs import DESIGNS
from kvfence.spec.files.order_traces import OrderTraceReader
from kvfence.spec.language import Instance
from kvfence.spec.machines import MACHINES

FAULTY = [name for name, row in DESIGNS.items() if row.breaks and "stream_order" in row.machines]
ONE_OF_EACH = {"Slot": 1, "Host": 1, "Operation": 1}
TIMED = {"flush_misses_queued", "completion_on_wrong_stream"}
"""Designs in which the engine thread waits for a stream without having heard of a launch there: the machine
knows that it came first this time, and the race checker relies on no such luck."""


def recorded(path: Path) -> tuple[od.Header, list[od.OrderEvent]]:
    reader = OrderTraceReader(path)
    return reader.header, [event for batch in reader.batches() for event in batch]


@pytest.mark.parametrize("design", FAULTY)
def test_a_recorded_counterexample_is_a_race_for_the_same_invariant_and_corrupts_a_device(
    design: str, tmp_path: Path
) -> None:
    found = verify(design)
    assert record(found, tmp_path / "order.jsonl")
    header, events = recorded(tmp_path / "order.jsonl")
    checker = OrderChecker(header)
    checker.apply_all(events)
    assert [race.invariant for race in checker.races] == [DESIGNS[design].breaks]
    before_last_step = sum(len(step.observed) for step in found.counterexamples[0].steps[:-1])
    assert checker.races[0].second.number >= before_last_step
    run = hunt(Program(header, events))
    assert run.corrupt
    assert not run.stuck


def sweep(design: str) -> tuple[set[str], list[str], list[str], int]:
    """What both found; what only the machine and only the race checker found, in words; steps compared."""
    interpreter = Interpreter(MACHINES["stream_order"](DESIGNS[design].faults), ONE_OF_EACH)
    header, _ = interpreter.trace([])
    start = interpreter.initial()
    checkers = {start: OrderChecker(header)}  # type: ignore[arg-type]
    queue, both, missed, extra, steps = [start], set[str](), list[str](), list[str](), 0
    for state in queue:
        for instance in interpreter.enabled(state):
            after, failed = interpreter.step(state, instance)
            specified = {f.id for f in failed}
            checker = copy.deepcopy(checkers[state])
            checker.apply_all(interpreter.events(state, instance, after))  # type: ignore[arg-type]
            judged = {race.invariant for race in checker.races}
            steps += 1
            both |= specified & judged
            told = f"{instance} from {interpreter.view(state)}: {specified} and {judged}"
            missed += [told] if specified - judged else []
            extra += [told] if judged - specified else []
            if not specified and not judged and after not in checkers:
                checkers[after] = checker
                queue.append(after)
    return both, missed, extra, steps


@pytest.mark.parametrize("design", ["sound", *(name for name in FAULTY if not DESIGNS[name].sizes)])
def test_the_race_checker_finds_a_race_exactly_where_the_machine_is_violated(design: str) -> None:
    both, missed, extra, steps = sweep(design)
    assert not missed, missed[0]
    assert bool(extra) == (design in TIMED), extra[:1]
    assert steps > 1000
    expected = DESIGNS[design].breaks
    assert expected in both if expected else not both


BOLDEST = """\
allocate x=0
compute x=0
queue_store x=0 h=0 o=0
attend x=0
take o=0
launch_store o=0 order=stream
hear_of_launch o=0
free_after_flush x=0
allocate x=0
zero_fill x=0
complete o=0
free x=0
queue_load x=0 h=0 o=0
take o=0
launch_load o=0 order=any
hear_of_launch o=0
complete o=0
attend x=0"""
"""Steps of the sound design: the slot is given away before the store is complete."""


def step(interpreter: Interpreter, line: str) -> Instance:
    """The step of an action with arguments, as a line of ``BOLDEST`` names it."""
    name, *arguments = line.split()
    pairs = (argument.split("=") for argument in arguments)
    return interpreter.find(name, **{key: int(value) if value.isdigit() else value for key, value in pairs})


def test_a_store_and_its_slots_next_owner_are_clean_in_all_executions() -> None:
    """What the sound design does at its boldest: the slot is given away before the store is complete."""
    interpreter = Interpreter(MACHINES["stream_order"](frozenset()), ONE_OF_EACH)
    header, events = interpreter.trace([step(interpreter, line) for line in BOLDEST.split("\n")])
    search = exhaustive(Program(header, events))  # type: ignore[arg-type]
    assert not any(run.corrupt or run.stuck for run in search)
    assert search.complete
    without_flush = [event for event in events if not isinstance(event, od.SyncStream)]
    assert any(run.corrupt for run in exhaustive(Program(header, without_flush)))  # type: ignore[arg-type]
