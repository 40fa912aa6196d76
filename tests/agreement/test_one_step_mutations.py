"""One-step mutations: what the events of a step may not become, for ledger and specification alike.

The sound design of each machine is explored completely at a small size. The events of every step are changed
in one place, in every way there is:

* a field takes another of the values that it has anywhere in the events of the machine at this size,
* an event is left out, told twice, or told after the one that follows it.

The specification accepts the outcome if a run of the machine from the same state tells it, or begins with it.
A ledger that has seen the run so far must then accept it as well. If the specification does not accept it,
the ledger must

* reject it, or
* know the same afterwards as after the step itself, or as before it: then nothing but an order, a repetition
  or a remark was changed, or
* reject it once it matters, at the latest when the connector is quiet: the mutated step is followed by the
  shortest way to rest, and by the shortest ways with one or two other steps first.

What remains is listed in ``LESS``, with the reason why an event says less there than the machine knows. The
list must be exact.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from small_sizes import FIRST

from kvfence.checker.engines.explicit.interpret import Interpreter, Values
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.snapshots import snapshot_of
from kvfence.spec import events as ev
from kvfence.spec.language import Instance, View
from kvfence.spec.machines import MACHINES
from kvfence.spec.snapshot import Snapshot

LARGER = [
    ("block_pool", {"Block": 3, "Holder": 2, "Key": 2}),
    ("lookup", {"Request": 1, "Block": 3}),
    ("transfer", {"Request": 1, "Block": 1, "Host": 1, "Operation": 1, "Rank": 2}),
    ("transfer", {"Request": 1, "Block": 2, "Host": 1, "Operation": 1, "Rank": 1}),
]
LESS: dict[str, dict[str, str]] = {
    "block_pool": {},
    "lookup": {
        "admit: Queue.dst": "the machine's loads do not tell which blocks of the table they fill",
        "end_store: Label.keys": "only the ends of the machine's stores are told: nobody knows their keys",
        "lookup: Lookup.external": "the machine has no groups: how many tokens a block has is not told",
    },
    "transfer": {
        "abort: Finish.why": "no rule asks why a request ended, if it was not preempted",
        "admit_by_load: Admit left out": "of a request whose admission is not told, no tokens are counted",
        "admit_by_load: Lookup left out": "promises are judged once the trace tells any: this was the first",
        "admit_by_load: Queue.at": "a load need not tell which blocks of the table it fills",
        "complete: Complete.ok": "a transfer may fail although no rank says so: that errs on the safe side",
        "complete: Label left out": "what was copied need not enter an index",
        "complete_failed: Complete after Unlabel": "what failed may be known before that is told",
        "complete_failed: Unlabel left out": "what a load failed to read may be there: it may be read again",
        "queue_lazy_store: Queue.at": "of a lazy store, nobody asks where the blocks are in a table",
        "queue_lazy_store: Queue.req": "a block that some request holds may be stored for it",
        "queue_lazy_store: Queue.rgen": "the generation of no request means nothing",
        "reset: Reset twice": "a reset of what is empty is one more reset",
    },
}

TWO_BLOCKS = {"process: Label.slots": "a label tells neither whose block it is nor that it is computed"}
"""What the transfer machine shows besides when it has more than one block."""


class Runs:
    """The runs of a machine's sound design at given sizes."""

    def __init__(self, name: str, sizes: dict[str, int]) -> None:
        self.name = name
        self.interpreter = Interpreter(MACHINES[name](frozenset()), sizes)
        self.steps: dict[Values, list[tuple[Instance, list[ev.Event], Values]]] = {}
        start = self.interpreter.initial()
        queue, reached = [start], {start}
        for state in queue:
            self.steps[state] = []
            for instance in self.interpreter.enabled(state):
                after, failed = self.interpreter.step(state, instance)
                assert not failed
                events: list[ev.Event] = list(self.interpreter.events(state, instance, after))  # type: ignore[arg-type]
                self.steps[state].append((instance, events, after))
                if after not in reached:
                    reached.add(after)
                    queue.append(after)
        self.values = self.all_values()
        self.homewards = self.ways_to_rest()

    def all_values(self) -> dict[tuple[type, str], list[object]]:
        """The values that each field of each kind of event has."""
        values: dict[tuple[type, str], list[object]] = defaultdict(list)
        for steps in self.steps.values():
            for _, events, _ in steps:
                for event in events:
                    for field in event.__struct_fields__:
                        known = values[type(event), field]
                        value = getattr(event, field)
                        if value not in known:
                            known.append(value)
        return values

    def quiet(self, view: View) -> bool:
        """Whether nothing is held, and no request is left."""
        if self.name == "block_pool":
            return any(view.null.values()) and not any(view.holds.values())
        if self.name == "lookup":
            return set(view.phase.values()) == {"gone"} and "storing" not in view.slot.values()
        return set(view.status.values()) == {"gone"} and set(view.state.values()) == {"idle"}

    def ways_to_rest(self) -> dict[Values, tuple[list[ev.Event], Values] | None]:
        """For each state, the first step of a shortest way to a quiet one."""
        back: dict[Values, list[tuple[list[ev.Event], Values]]] = defaultdict(list)
        for state, steps in self.steps.items():
            for _, events, after in steps:
                back[after].append((events, state))
        queue = [state for state in self.steps if self.quiet(self.interpreter.view(state))]
        ways: dict[Values, tuple[list[ev.Event], Values] | None] = dict.fromkeys(queue)
        for state in queue:
            for events, before in back[state]:
                if before not in ways:
                    ways[before] = (events, state)
                    queue.append(before)
        return ways

    def home(self, state: Values) -> list[ev.Event]:
        """The events of a shortest way to rest."""
        events: list[ev.Event] = []
        while (step := self.homewards[state]) is not None:
            events += step[0]
            state = step[1]
        return [*events, ev.Quiesce()]

    def futures(self, state: Values) -> Iterator[list[ev.Event]]:
        """The shortest way to rest, then with one, then with two other steps first."""
        yield self.home(state)
        for _, first, after in self.steps[state]:
            yield [*first, *self.home(after)]
        for _, first, between in self.steps[state]:
            for _, second, after in self.steps[between]:
                yield [*first, *second, *self.home(after)]

    def accepts(self, state: Values, events: Sequence[ev.Event], numbers: ev.StepNumbers) -> bool:
        """Whether a run from ``state`` tells ``events``, or begins with them."""
        todo, seen = [(state, 0, numbers)], {(state, 0)}
        while todo:
            at, told, counted = todo.pop()
            for _, more, after in self.steps[at]:
                count = counted.copy()
                numbered = list(count(more))
                n = min(len(numbered), len(events) - told)
                if numbered[:n] != list(events[told : told + n]):
                    continue
                if told + n == len(events):
                    return True
                if (after, told + n) not in seen:
                    seen.add((after, told + n))
                    todo.append((after, told + n, count))
        return False


def mutations(runs: Runs, events: Sequence[ev.Event]) -> Iterator[tuple[str, list[ev.Event]]]:
    """Every outcome of a change in one place, and what the change is called."""
    for at, event in enumerate(events):
        before, behind = list(events[:at]), list(events[at + 1 :])
        name = type(event).__name__
        yield f"{name} left out", before + behind
        yield f"{name} twice", [*before, event, event, *behind]
        if behind and behind[0] != event:
            yield f"{name} after {type(behind[0]).__name__}", [*before, behind[0], event, *behind[1:]]
        for field in event.__struct_fields__:
            for value in runs.values[type(event), field]:
                if value not in (getattr(event, field), ev.UNNUMBERED):
                    changed = msgspec.structs.replace(event, **{field: value})
                    yield f"{name}.{field}", [*before, changed, *behind]


def rejects(ledger: Ledger, events: Sequence[ev.Event]) -> bool:
    """Whether the ledger objects to one of the events."""
    for event in events:
        try:
            if ledger.apply(event) is not None:
                return True
        except ValueError:  # it makes no sense by itself
            return True
    return False


def known(ledger: Ledger) -> Snapshot:
    """What the ledger knows, in an order of its own."""
    snapshot = snapshot_of(ledger.state)
    pools = [
        msgspec.structs.replace(pool, holders=sorted(pool.holders, key=lambda holder: holder.name))
        for pool in snapshot.pools
    ]
    requests = sorted(snapshot.requests, key=lambda request: (request.req, request.gen))
    return msgspec.structs.replace(snapshot, events=0, pools=pools, requests=requests)


def compare(name: str, sizes: dict[str, int]) -> tuple[Counter[str], list[str], Counter[str]]:
    """Mutations by outcome; those that only the ledger rejects, in words; and those that it never does."""
    runs = Runs(name, sizes)
    header, _ = runs.interpreter.trace([])
    start = runs.interpreter.initial()
    ledgers = {start: (Ledger(header), ev.StepNumbers())}  # type: ignore[arg-type]
    queue, outcomes, strict, less = [start], Counter[str](), list[str](), Counter[str]()
    for state in queue:
        ledger, numbers_before = ledgers[state]
        known_before = known(ledger)
        for instance, events, after in runs.steps[state]:
            numbers = numbers_before.copy()
            numbered = list(numbers(events))
            stepped = ledger.copy()
            assert not rejects(stepped, numbered)
            known_after = known(stepped)
            for what, mutated in mutations(runs, numbered):
                judge = ledger.copy()
                rejected = rejects(judge, mutated)
                if runs.accepts(state, mutated, numbers_before):
                    outcomes["accepted by both"] += 1
                    if rejected:
                        strict.append(f"{instance.name}: {what}: {mutated}")
                elif rejected:
                    outcomes["rejected by both"] += 1
                elif known(judge) in (known_before, known_after):
                    outcomes["the same"] += 1
                elif any(rejects(judge.copy(), list(numbers.copy()(way))) for way in runs.futures(after)):
                    outcomes["rejected later"] += 1
                else:
                    less[f"{instance.name}: {what}"] += 1
            if after not in ledgers:
                ledgers[after] = (stepped, numbers)
                queue.append(after)
    return outcomes, strict, less


@pytest.mark.parametrize(
    ("name", "sizes"),
    [*FIRST.items(), *(pytest.param(name, sizes, marks=pytest.mark.slow) for name, sizes in LARGER)],
)
def test_a_mutation_of_one_step_is_rejected_by_ledger_and_specification_alike(
    name: str, sizes: dict[str, int]
) -> None:
    outcomes, strict, less = compare(name, sizes)
    assert not strict, strict[:3]
    assert outcomes["rejected by both"] > 1000
    listed = set(LESS[name]) | (set(TWO_BLOCKS) if name == "transfer" and sizes["Block"] > 1 else set())
    assert set(less) == listed, sorted(set(less) ^ listed)
