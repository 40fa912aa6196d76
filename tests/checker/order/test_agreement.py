"""The checker and the virtual device agree on programs drawn at random."""

import random

import pytest

from kvfence.checker.order.happens_before import OrderGraph, explain
from kvfence.checker.order.races import Access, OrderChecker, Race
from kvfence.reference.order_programs.program import Program
from kvfence.reference.order_programs.schedules import Run, exhaustive, in_order, seeded, witness
from kvfence.spec import order as od
from kvfence.spec.order_steps import Step, steps_of

MOST_RUNS = 1500


def drawn(seed: int) -> Program:
    """A program of one or two threads, three streams, two events, one queue and four bytes."""
    draw = random.Random(seed)
    threads = (0, 1) if draw.random() < 0.6 else (0,)
    kinds = draw.choice([("nonblocking",) * 3, ("legacy", "blocking", "nonblocking")])
    streams = tuple(od.Stream(number, 0, kind) for number, kind in enumerate(kinds))  # type: ignore[arg-type]
    header = od.Header(producer="drawn", threads=threads, streams=streams, regions=(od.Region(0, 0, 4),))
    items = 0
    events: list[od.OrderEvent] = []

    def where() -> od.Range:
        nbytes = draw.choice([1, 1, 2])
        return (0, draw.randrange(5 - nbytes), nbytes)

    def copy(thread: int, stream: int) -> od.Copy:
        src = tuple((0, at, 1) for at in draw.sample(range(4), draw.choice([1, 1, 2])))
        dst = tuple((0, at, 1) for at in draw.sample(range(4), len(src)))
        if any(one == other for one, other in zip(src, dst, strict=True)):
            return copy(thread, stream)
        return od.Copy(thread, stream, src, dst, draw.choice(["stream", "call", "any"]))

    for _ in range(draw.randint(3, 9)):
        thread, stream, event = draw.choice(threads), draw.randrange(3), draw.randrange(2)
        kind = draw.choice("kkkccrrwwsqtdhp")
        if kind == "p" and len(threads) == 2:
            events += [od.Put(thread, 0, items), od.Get(1 - thread, 0, items)]
            items += 1
        elif kind == "k":
            reads = (where(),) if draw.random() < 0.5 else ()
            writes = (where(),) if draw.random() < 0.7 or not reads else ()
            events.append(od.Kernel(thread, stream, reads, writes))
        elif kind in "crwsqtdh":
            made: dict[str, od.OrderEvent] = {
                "c": copy(thread, stream),
                "r": od.Record(thread, stream, event),
                "w": od.Wait(thread, stream, event),
                "s": od.SyncEvent(thread, event),
                "q": od.Query(thread, event, draw.random() < 0.5),
                "t": od.SyncStream(thread, stream),
                "d": od.SyncDevice(thread, 0),
                "h": od.Host(thread, *(((where(),), ()) if draw.random() < 0.5 else ((), (where(),)))),
            }
            events.append(made[kind])
    return Program(header, events)


def races(program: Program, run: Run) -> list[Race]:
    checker = OrderChecker(program.header)
    checker.apply_all(run.trace)
    return checker.races


def steps_at(run: Run, access: Access) -> list[Step]:
    """The steps that make an access of a run's trace."""
    call = run.trace[access.number]
    thread = call.thread  # type: ignore[union-attr]
    number = sum(earlier.thread == thread for earlier in run.trace[: access.number])  # type: ignore[union-attr]
    wanted = "write" if access.write else "read"
    made = [step for step in steps_of(call, thread, number) if step.kind in ("run", wanted)]
    return made or [Step(thread, number, "call")]


def both_orders_occur(race: Race, run: Run, all_runs: list[Run]) -> bool:
    one, other = steps_at(run, race.first), steps_at(run, race.second)
    for first in one:
        for second in other:
            orders = {each.steps.index(first) < each.steps.index(second) for each in all_runs}
            if orders == {True, False}:
                return True
    return False


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_no_report_means_that_no_execution_corrupts(start: int) -> None:
    silent = 0
    for seed in range(start, start + 50):
        program = drawn(seed)
        runs = [in_order(program), *(seeded(program, number) for number in range(3))]
        if any(races(program, run) for run in runs):
            continue
        silent += 1
        search = exhaustive(program, MOST_RUNS)
        for run in search:
            assert not run.corrupt, f"seed {seed}: {run.names}"
    assert silent > 5


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_a_reported_pair_occurs_in_both_orders(start: int) -> None:
    judged = 0
    for seed in range(start, start + 50):
        program = drawn(seed)
        run = seeded(program, seed)
        found = races(program, run)
        if not found:
            continue
        search = exhaustive(program, MOST_RUNS)
        all_runs = list(search)
        if not search.complete or any(each.stuck for each in all_runs):
            continue
        judged += 1
        for race in found:
            assert both_orders_occur(race, run, all_runs), f"seed {seed}: {race}"
    assert judged > 5


def has_unordered_conflict(program: Program, run: Run) -> bool:
    """Straight from the meaning: some two steps conflict in memory and the graph has no path between them."""
    graph = OrderGraph(program.header, run.trace)
    steps = [step for step in run.steps if str(step) in graph.number]
    for at, one in enumerate(steps):
        for other in steps[at + 1 :]:
            (looks, changes), (looks_too, changes_too) = (
                ({at for at in some if isinstance(at, int)} for some in program.footprint(step))
                for step in (one, other)
            )
            if changes & (looks_too | changes_too) or looks & changes_too:
                nodes = str(one), str(other)
                if not graph.comes_before(*nodes) and not graph.comes_before(*reversed(nodes)):
                    return True
    return False


def test_clocks_and_graph_agree_on_whether_there_is_a_race() -> None:
    racy = 0
    for seed in range(600):
        program = drawn(seed)
        run = seeded(program, seed)
        found = bool(races(program, run))
        assert found == has_unordered_conflict(program, run), f"seed {seed}"
        racy += found
    assert 100 < racy < 500


def test_the_witness_of_a_race_is_a_legal_schedule_that_turns_the_accesses_round() -> None:
    for seed in range(300):
        program = drawn(seed)
        run = seeded(program, seed)
        for race in races(program, run):
            why = explain(program.header, run.trace, race)
            executed = [witness(Program(why.header, why.program), steps) for steps in why.witnesses]
            assert both_orders_occur(race, run, executed), f"seed {seed}: {race}"
