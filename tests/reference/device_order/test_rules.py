"""Every ordering rule: breaking it corrupts on the virtual device, keeping it never does."""

import pytest

from kvfence.reference.order_programs import order_rules as rules
from kvfence.reference.order_programs import schedules
from kvfence.reference.order_programs.contents import content, written
from kvfence.reference.order_programs.program import Program, ProgramError
from kvfence.spec import order as od

by_rule = pytest.mark.parametrize("twins", rules.RULES, ids=lambda twins: twins.rule)


@by_rule
def test_breaking_the_rule_corrupts_under_an_adversarial_schedule(twins: rules.Twins) -> None:
    run = schedules.hunt(twins.broken)
    assert run.corrupt
    assert not run.stuck


@by_rule
def test_breaking_the_rule_corrupts_in_some_execution_and_not_in_all(twins: rules.Twins) -> None:
    search = schedules.exhaustive(twins.broken)
    corrupt = [run.corrupt for run in search]
    assert search.complete
    assert any(corrupt)
    assert not all(corrupt)


@by_rule
def test_keeping_the_rule_is_clean_in_all_executions(twins: rules.Twins) -> None:
    search = schedules.exhaustive(twins.kept)
    runs = list(search)
    assert search.complete
    assert not any(run.corrupt or run.stuck for run in runs)


@by_rule
def test_a_corrupt_run_is_replayed_from_the_names_of_its_steps(twins: rules.Twins) -> None:
    run = schedules.hunt(twins.broken)
    assert schedules.witness(twins.broken, run.names) == run


@by_rule
def test_schedules_are_the_same_for_the_same_seed(twins: rules.Twins) -> None:
    for schedule in (schedules.seeded, schedules.adversarial):
        assert schedule(twins.broken, 3) == schedule(twins.broken, 3)


@by_rule
def test_every_random_run_is_one_of_all_executions(twins: rules.Twins) -> None:
    outcomes = {run.mismatches for run in schedules.exhaustive(twins.broken)}
    assert {schedules.seeded(twins.broken, seed).mismatches for seed in range(20)} <= outcomes


def test_in_order_is_what_others_are_compared_with() -> None:
    run = schedules.in_order(rules.RULES[0].broken)
    assert run.names == ["t0.0", "t0.0:run", "t0.1", "t0.1:read0", "t0.1:write0"]
    assert not run.corrupt


def test_a_thread_that_waits_for_ever_is_stuck() -> None:
    run = schedules.in_order(Program(rules.header(), [od.Get(0, 1, 0), od.Host(0, (rules.gpu(1),), ())]))
    assert run.stuck
    assert run.steps == ()


def test_a_mismatch_names_the_step_that_read_it_and_what_it_read() -> None:
    run = schedules.witness(rules.RULES[0].broken, ["t0.0", "t0.1", "t0.1:read0"])
    first = run.mismatches[0]
    assert str(first.step) == "t0.1:read0"
    assert first.found == ((16, 0, 16),)
    assert first.expected != first.found


def test_all_orders_of_independent_steps_count_once() -> None:
    events = [od.Kernel(0, stream, (), (rules.gpu(stream),), "write") for stream in range(3)]
    search = schedules.exhaustive(Program(rules.header(), events))
    assert len(list(search)) == 1


def test_conflicting_steps_are_tried_in_all_orders() -> None:
    events = [od.Kernel(0, stream, (), (rules.gpu(1),), "write") for stream in range(3)]
    search = schedules.exhaustive(Program(rules.header(), events))
    assert len({run.mismatches for run in search}) == 3  # memory ends as one of three
    assert search.runs == 6


def test_a_search_that_gives_up_says_so() -> None:
    events = [od.Kernel(0, stream, (), (rules.gpu(1),), "write") for stream in range(3)]
    search = schedules.exhaustive(Program(rules.header(), events), most=2)
    assert len(list(search)) == 2
    assert not search.complete


def test_a_queue_gives_what_was_put_first() -> None:
    events = [od.Put(0, 1, 5), od.Put(0, 1, 6), od.Get(1, 1, -1), od.Get(1, 1, -1)]
    run = schedules.in_order(Program(rules.header(threads=(0, 1)), events))
    assert [call.item for call in run.trace if isinstance(call, od.Get)] == [5, 6]


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (["t0.1"], "after 0 steps: step t0.1 cannot be taken here"),
        (["t0.0", "t0.1", "t0.1:write0"], "after 2 steps: step t0.1:write0 cannot be taken here"),
        (["t0.0", "t0.0:read0"], "step t0.0:read0 is not one of the program's"),
        (["t9.0"], "is not one of the program's"),
        (["here"], "'here' is no step"),
    ],
)
def test_a_witness_that_does_not_fit_is_refused(steps: list[str], says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        schedules.witness(rules.RULES[0].broken, steps)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([od.Host(3, (rules.gpu(1),), ())], "thread 3 is not started once"),
        ([od.Kernel(0, 9, (), (rules.gpu(1),))], "stream 9 is not declared"),
        ([od.SyncStream(0, 9)], "stream 9 is not declared"),
        ([od.Kernel(0, 0, (), ((0, 0, 10_000),))], "is in no declared region"),
        ([od.Copy(0, 0, (rules.gpu(0, 2),), (rules.cpu(0),))], "differ in their bytes"),
    ],
)
def test_a_program_that_makes_no_sense_is_refused(events: list[od.Host], says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        Program(rules.header(), events)


def test_memory_of_any_size_costs_what_is_written() -> None:
    pool = od.Region(0, 0, 1 << 50)
    events = [
        od.Kernel(0, rules.COMPUTE, (), ((0, 1 << 49, 1 << 30),)),
        od.Kernel(0, rules.STORE, ((0, 1 << 49, 1),), ()),
    ]
    run = schedules.hunt(
        Program(od.Header(producer="test", streams=rules.header().streams, regions=(pool,)), events)
    )
    assert run.corrupt


def test_contents_are_compared_however_they_came_there() -> None:
    memory = written((), 0, ((16, 7, 0),))
    memory = written(memory, 4, content(memory, 4, 8))
    assert content(memory, 0, 20) == ((16, 7, 0), (4, 0, 16))
