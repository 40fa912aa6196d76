"""Fast paths, compiled or in numpy, and packed numbers change how fast an event is judged: nothing else."""

import importlib.util
import random
import shutil
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import header

from kvfence.checker.ledger.kernels.kernels import kernels
from kvfence.checker.ledger.ledger import Ledger
from kvfence.checker.ledger.state.ledger_state import holders_of
from kvfence.checker.ledger.state.violation import Violation
from kvfence.spec import events as ev
from kvfence.spec.packed import ints, pack

HEADER = header(ev.Group("gpu", 2), ev.Group("gpu", 2, window=3), gpu=5, cpu=4, depth=2)
NEVER = 10**9

pools = st.sampled_from(["gpu", "cpu"])
slots = st.lists(st.integers(-1, 5), max_size=3)
holders = st.sampled_from(["req:1.0", "req:2.0", "hit:1.0", "op:0.0", "op:1.0"])
free = st.sampled_from([-1, -1, 1, 2, 3, 4])
names = st.sampled_from(["1", "2"])
ids = st.integers(0, 1)
few = st.integers(0, 4)


@st.composite
def labels(draw: st.DrawFn) -> ev.Label:
    named = draw(slots)
    keys = [draw(st.integers(10, 13)) for _ in named]
    return ev.Label(draw(pools), named, keys, draw(ids), draw(st.integers(-1, 1)))


@st.composite
def transfers(draw: st.DrawFn) -> ev.Queue:
    src = draw(slots)
    dst = [draw(st.integers(0, 4)) for _ in src]
    keys = [draw(st.integers(10, 13)) for _ in src]
    store = draw(st.booleans())
    ends = ("gpu", "cpu") if store else ("cpu", "gpu")
    at = [draw(few) for _ in src] if draw(st.booleans()) else []
    kind = "store" if store else "load"
    owner = draw(st.sampled_from(["", "1", "2"]))
    return ev.Queue(draw(ids), draw(ids), kind, ends[0], src, ends[1], dst, keys, owner, at=at)


anything: st.SearchStrategy[ev.Event] = st.one_of(
    st.builds(ev.Alloc, pools, holders, slots, free, ids, few),
    st.builds(ev.Touch, pools, holders, slots, free, ids, few),
    st.builds(ev.Free, pools, holders, slots, free),
    st.builds(ev.Evict, pools, slots),
    labels(),
    transfers(),
    st.builds(ev.Unlabel, pools, slots, st.just("test")),
    st.builds(ev.Issue, ids, ids),
    st.builds(ev.Report, ids, ids, st.just(0), st.booleans()),
    st.builds(ev.Complete, ids, ids, st.booleans()),
    st.builds(ev.Lookup, names, st.just(0), few, few, pools, slots),
    st.builds(ev.Admit, names, st.just(0), few, few, few, few),
    st.builds(ev.Withdraw, names, st.just(0)),
    st.builds(ev.Rollback, names, st.just(0), few),
    st.builds(ev.Finish, names, st.just(0), st.just("stop"), few),
    st.builds(ev.Retire, names, st.just(0)),
    st.builds(ev.Dispatch, few, st.just(["1"]), st.just([2])),
    st.builds(ev.Process, few),
    st.builds(ev.Reset, st.booleans(), st.lists(pools, max_size=2)),
)


def state(ledger: Ledger) -> object:
    """All that a ledger knows about pools and requests, and what it counts as judged."""
    state = ledger.state
    return (
        [
            (
                list(pool.words),
                attrgetter("free", "drift", "labelled", "frozen", "stale")(pool),
                [(slot, pool.label_of(slot)) for slot in pool.labelled_slots()],
                pool.counts and pool.counts.counts(),
                {name: (holder.slots, holder.reaches()) for name, holder in pool.holders.items()},
            )
            for pool in state.pools.values()
        ],
        sorted(state.requests),
        sorted(state.ops),
        state.slots,
        ledger.checks_by_invariant(),
    )


def all_ledgers(header: ev.Header) -> list[Ledger]:
    """One that judges slot by slot, and those with fast paths: slot by slot, by numpy, by compiled code."""
    return [
        Ledger(header, fast_paths=False, long_from=NEVER),
        Ledger(header, compiled=False, long_from=NEVER),
        Ledger(header, compiled=False, long_from=0),
        Ledger(header, compiled=True),
    ]


def packed(event: ev.Event, form: int) -> ev.Event:
    """``event`` with its numbers as bytes or as an array, if they fit."""
    changes: dict[str, object] = {}
    for name, width in ev.PACKED_FIELDS[type(event)]:
        numbers = ints(getattr(event, name), width)
        if form == 1 and min(numbers, default=0) >= 0:
            changes[name] = pack(numbers, width)
        elif form == 2:
            changes[name] = np.array(numbers, np.int64)
        elif form == 3:
            changes[name] = np.array([number for number in numbers for _ in range(3)], np.int32)[::3]
        elif form == 4:
            changes[name] = tuple(numbers)
    return msgspec.structs.replace(event, **changes)


def judge_alike(ledgers: list[Ledger], event: ev.Event, form: int) -> None:
    """All come to the same verdict and the same state; the first one is not told packed numbers."""
    plain, *others = ledgers
    verdict = plain.apply(packed(event, 4) if form == 4 else event)
    for other in others:
        assert other.apply(packed(event, form)) == verdict
        assert state(other) == state(plain)


def test_compiled_short_cuts_are_tested() -> None:
    if shutil.which("cc") is None:
        pytest.skip("without a C compiler there are none")
    assert kernels() is not None


# From here random events reach more: a store and a load are open, a hit is promised, a step runs.
BEGINNING: list[ev.Event] = [
    ev.Alloc("gpu", "req:1.0", [1, 2]),
    ev.Admit("1", 0, 0, 0, 4, 4),
    ev.Dispatch(0, ["1"], [4]),
    ev.Process(0),
    ev.Alloc("cpu", "op:1.0", [1, 2]),
    ev.Label("cpu", [1, 2], [11, 12]),
    ev.Label("gpu", [1], [10]),
    ev.Touch("gpu", "op:0.0", [1]),
    ev.Alloc("cpu", "op:0.0", [3]),
    ev.Queue(0, 0, "store", "gpu", [1], "cpu", [3], [10], "1", at=[0]),
    ev.Touch("cpu", "hit:2.0", [1, 2]),
    ev.Lookup("2", 0, 0, 4, "cpu", [1, 2]),
    ev.Alloc("gpu", "req:2.0", [3]),
    ev.Issue(0, 0),
    ev.Queue(1, 0, "load", "cpu", [2], "gpu", [3], [12], "2", at=[0]),
    ev.Dispatch(1, ["1"], [1]),
]


@given(st.integers(0, len(BEGINNING)), st.lists(st.tuples(anything, st.integers(0, 4)), max_size=20))
def test_any_events_are_judged_alike(begun: int, events: list[tuple[ev.Event, int]]) -> None:
    ledgers = all_ledgers(HEADER)
    for event in BEGINNING[:begun]:
        judge_alike(ledgers, event, 0)
    for event, form in events:
        judge_alike(ledgers, event, form)


def plausible(chance: random.Random, ledger: Ledger) -> ev.Event:
    """An event that often goes through in the present state, and else often nearly does."""
    state = ledger.state
    name = chance.choice(["gpu", "cpu"])
    pool = state.pools[name]
    some = [slot for slot in range(pool.total) if chance.random() < 0.3] or [1]
    holder = chance.choice(["req:1.0", "req:2.0", "hit:2.0", "op:0.0", "op:1.0", *pool.holders])
    held = pool.holders[holder].slots if holder in pool.holders else set(some)
    mine = [slot for slot in sorted(held) if chance.random() < 0.7] or some
    keys = [chance.randrange(10, 20) for _ in mine]
    if chance.random() < 0.05:
        some = [*some, *some[:1]]
        mine = [*mine, *mine[:1]]
        keys = [*keys, 10]
    op = chance.choice(sorted(state.ops)) if state.ops else 0
    gen = state.ops[op].event.gen if op in state.ops else 0
    gpu, cpu = (
        [slot for slot in range(state.pools[side].total) if holders_of(state.pools[side], slot)] or [1]
        for side in ("gpu", "cpu")
    )
    count = chance.randrange(1, 3)
    src, dst = (chance.sample(held, min(count, len(held))) for held in (gpu, cpu))
    src, dst = src[: len(dst)], dst[: len(src)]
    if chance.random() < 0.2:
        src = src[:1] * len(src)
    blocks = [chance.randrange(4), chance.randrange(4)][: len(src)]
    owner = chance.choice(["1", "2"])
    new_op, new_gen = chance.randrange(2, 6), chance.randrange(9)
    moved = [chance.randrange(10, 20) for _ in src]
    unheld = [slot for slot in some if not holders_of(pool, slot)] or some
    cached = [slot for slot in pool.labelled_slots() if chance.random() < 0.5] or some
    return chance.choice(
        [
            lambda: ev.Alloc(name, holder, unheld, group=chance.randrange(2)),
            lambda: ev.Alloc(name, holder, some),
            lambda: ev.Touch(name, holder, cached, group=chance.randrange(2)),
            lambda: ev.Touch(name, holder, some),
            lambda: ev.Free(name, holder, mine, pool.free if chance.random() < 0.1 else -1),
            lambda: ev.Free(name, holder, mine),
            lambda: ev.Evict(name, cached),
            lambda: ev.Evict(name, [slot for slot in cached if slot in unheld] or some),
            lambda: ev.Label(name, mine, keys),
            lambda: ev.Label(name, mine, keys, op=op, gen=gen),
            lambda: ev.Queue(new_op, new_gen, "store", "gpu", src, "cpu", dst, moved, owner, at=blocks),
            lambda: ev.Queue(new_op, new_gen, "store", "gpu", src, "cpu", dst, moved, at=[]),
            lambda: ev.Queue(new_op, new_gen, "load", "cpu", dst, "gpu", src, moved, owner, at=blocks),
            lambda: ev.Issue(op, gen),
            lambda: ev.Report(op, gen, 0, chance.random() < 0.7),
            lambda: ev.Complete(op, gen, state.ops[op].failed == 0 if op in state.ops else True),
            lambda: ev.Dispatch((state.dispatched or 0) + 1, ["1"], [1]),
            lambda: ev.Process(state.steps[0].number if state.steps else 0),
            lambda: ev.Reset(chance.random() < 0.2, ["gpu", "cpu"]),
            lambda: ev.Lookup("2", 0, 0, len(cached), name, cached),
        ]
    )()


@pytest.mark.parametrize("seed", range(300))
def test_plausible_events_are_judged_alike(seed: int) -> None:
    chance = random.Random(seed)
    ledgers = all_ledgers(HEADER)
    begun = BEGINNING[: chance.randrange(len(BEGINNING) + 1)]
    for step in range(len(begun) + 30):
        event = begun[step] if step < len(begun) else plausible(chance, ledgers[0])
        judge_alike(ledgers, event, chance.randrange(5))


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The benchmark, which makes up sound traces."""
    path = Path(__file__).parents[3] / "bench" / "check_speed.py"
    spec = importlib.util.spec_from_file_location("check_speed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_speed"] = module
    spec.loader.exec_module(module)
    return module


def verdicts(ledger: Ledger, events: list[ev.Event]) -> list[Violation]:
    return [violation for event in events if (violation := ledger.apply(event)) is not None]


@pytest.mark.parametrize("seed", range(4))
def test_a_sound_trace_is_accepted_alike(bench: ModuleType, seed: int) -> None:
    header, events = bench.serving_trace(20, seed, gpu=200, cpu=150, longest=1500)
    ledgers = all_ledgers(header)
    assert [verdicts(ledger, events) for ledger in ledgers] == [[]] * 4
    told_packed = Ledger(header)
    assert verdicts(told_packed, [packed(event, 1) for event in events]) == []
    for ledger in [*ledgers[1:], told_packed]:
        assert state(ledger) == state(ledgers[0])


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_trace_is_rejected_alike(bench: ModuleType, seed: int) -> None:
    header, events = bench.serving_trace(8, seed, gpu=120, cpu=60, longest=600)
    chance = random.Random(seed)
    for _ in range(3):
        at = chance.randrange(len(events) - 1)
        match chance.randrange(3):
            case 0:
                del events[at]
            case 1:
                events.insert(at, events[at])
            case _:
                events[at], events[at + 1] = events[at + 1], events[at]
    plain, *others = (verdicts(ledger, events) for ledger in all_ledgers(header))
    assert others == [plain] * 3
    assert plain


def test_judging_until_a_violation_is_judging_one_by_one(bench: ModuleType) -> None:
    header, events = bench.serving_trace(8, 3, gpu=120, cpu=60, longest=600)
    del events[200]
    one_by_one, fast = Ledger(header), Ledger(header)
    found, rest = [], iter(events)
    while (violation := fast.apply_until_violation(rest)) is not None:
        found.append(violation)
    assert found == verdicts(one_by_one, events)
    assert fast.events == one_by_one.events == len(events)
    assert fast.checks_by_invariant() == one_by_one.checks_by_invariant()
