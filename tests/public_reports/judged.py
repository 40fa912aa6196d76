"""What the tests of public reports do: a faulty design is rejected twice, its corrected twin accepted.

* :func:`rejected`: the explorer finds the fault with the invariant named, and its story, written as a trace,
  is rejected by ``kvfence check`` (by ``kvfence races`` for the order of streams) with the same invariant.
* :func:`twin_accepted`: the sound design takes the same steps, those left out that it refuses; nothing is
  violated on the way, and its events are accepted as a trace.
* :func:`breaks` and :func:`holds`: a trace written down by hand, for siblings that no report mentions.
"""

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from situations import connector

from kvfence.checker.analysis.results import Verification
from kvfence.checker.analysis.verify import record, verify
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.checker.ledger.check import check_trace
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.violation import Violation
from kvfence.checker.order.races import OrderChecker
from kvfence.spec import events as ev
from kvfence.spec import order
from kvfence.spec.designs import DESIGNS
from kvfence.spec.files.order_traces import OrderTraceReader
from kvfence.spec.machines import MACHINES
from kvfence.spec.numbering import Numbering

ORDER = "stream_order"
CONNECTOR = connector()
UNRECORDED = {"geometry"}
"""A trace names its groups in its header, and this machine chooses them step by step: tests of its reports
write their traces themselves."""


@cache
def story(design: str, machine: str) -> Verification:
    """What exploring the machine with the design finds."""
    return verify(design, machine=machine)


def rejected(design: str, invariant: str, *, reported_as: str | None = None) -> None:
    """The explorer and the trace's judge reject the design, both for ``invariant``.

    ``reported_as``: what the judge says, where the machine shows the fault before a trace shows its effect.
    """
    row = DESIGNS[design]
    assert row.breaks == invariant
    for machine in row.machines:
        found = story(design, machine)
        assert found.verdict == "violated"
        assert found.counterexamples[0].invariant == invariant
        if found.counterexamples[0].header is None:
            assert machine in UNRECORDED
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "story.jsonl"
            assert record(found, file)
            assert invariants_broken(file, machine)[0] == (reported_as or invariant)


def invariants_broken(file: Path, machine: str) -> list[str]:
    """What the judge of a recorded story says it breaks, in order."""
    if machine == ORDER:
        reader = OrderTraceReader(file)
        checker = OrderChecker(reader.header)
        for batch in reader.batches():
            checker.apply_all(batch)
        return [race.invariant for race in checker.races]
    return [violation.invariant for violation in check_trace(file).violations]


def twin_accepted(design: str) -> None:
    """The sound design lives through the same story, and nothing in it is wrong."""
    for machine in DESIGNS[design].machines:
        example = story(design, machine).counterexamples[0]
        sizes = next(one.sizes for one in story(design, machine).machines)
        sound = Interpreter(MACHINES[machine](frozenset()), dict(sizes))
        state, taken = sound.initial(), []
        numbered = Numbering()
        events: list[Any] = []
        for step in example.steps:
            try:
                instance = sound.find(step.action, **step.arguments)
                after, failures = sound.step(state, instance)
            except (LookupError, ValueError):
                continue
            assert failures == []
            assert sound.violated(after) == []
            events += numbered(cast("list[ev.Event]", sound.events(state, instance, after)))
            taken.append((instance.name, after))
            state = after
        assert taken, "the sound design refuses the whole story: it is no twin"
        if DESIGNS[design].breaks == "PROGRESS":  # which no one run shows to be kept
            kept = {
                c.invariant: c.verdict for one in story("sound", machine).machines for c in one.conditions
            }
            assert kept["PROGRESS"] == "holds"
        if example.header is None:
            continue
        if machine == ORDER:
            checker = OrderChecker(cast("order.Header", example.header))
            checker.apply_all(events)
            assert checker.races == []
        else:
            assert judged(events, example.header) == []


def judged(events: Sequence[ev.Event], header: ev.Header) -> list[Violation]:
    """What the ledger says of a trace."""
    ledger = Ledger(header, "count")
    return [violation for event in events if (violation := ledger.apply(event)) is not None]


def holds(events: Sequence[ev.Event], header: ev.Header = CONNECTOR) -> None:
    """The trace is accepted."""
    assert judged(events, header) == []


def breaks(invariant: str, events: Sequence[ev.Event], header: ev.Header = CONNECTOR) -> None:
    """The trace is accepted up to its last event, which violates ``invariant`` and nothing else."""
    *before, last = events
    assert judged(before, header) == []
    assert {violation.invariant for violation in judged([*before, last], header)} == {invariant}
