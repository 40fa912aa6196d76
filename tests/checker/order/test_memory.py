"""Memory that comes and goes, has owners, is seen through views, and is on several devices."""

import pytest

from kvfence.checker.order.clocks import OrderTraceError
from kvfence.checker.order.happens_before import FarApart, explain
from kvfence.checker.order.races import OrderChecker
from kvfence.reference.order_programs.program import Program
from kvfence.reference.order_programs.schedules import witness
from kvfence.spec import order as od

HEADER = od.Header(
    producer="test",
    threads=(0, 1),
    streams=(od.Stream(0, 0), od.Stream(1, 1), od.Stream(2, 0)),
    regions=(od.Region(0, 0, 64, slot=16, name="pool"), od.Region(1, 1000, 64, device=1)),
)
SLOT = (0, 16, 16)


def judged(*events: od.OrderEvent) -> OrderChecker:
    checker = OrderChecker(HEADER)
    checker.apply_all(events)
    return checker


def test_memory_given_back_while_a_kernel_uses_it_is_a_race() -> None:
    race = judged(od.Kernel(0, 0, (SLOT,), ()), od.Release(0, 0)).races[0]
    assert (race.second.what, race.invariant) == ("release", "FREEZE")
    assert not judged(od.Kernel(0, 0, (SLOT,), ()), od.SyncStream(0, 0), od.Release(0, 0)).races


def test_memory_given_back_exists_no_more() -> None:
    checker = judged(od.Release(0, 0))
    with pytest.raises(OrderTraceError, match="region 0 was not declared, or released before"):
        checker(od.Kernel(0, 0, (SLOT,), ()))


def test_new_memory_at_the_old_address_is_the_same_bytes() -> None:
    again = od.Declare(regions=(od.Region(9, 16, 16, name="new"),))
    assert judged(od.Release(0, 0), again, od.Kernel(0, 0, (), ((9, 0, 16),))).races == []
    race = judged(od.Release(0, 0), again, od.Kernel(1, 0, (), ((9, 0, 16),))).races[0]
    assert (race.first.what, race.region) == ("release", "new")


def test_a_race_names_the_owner_of_most_of_its_bytes() -> None:
    owned = [
        od.Own("req:1.0", [(0, 16, 4)]),
        od.Own("req:2.0", [(0, 20, 12)]),
        od.Own("req:3.0", [(0, 32, 16)]),
    ]
    race = judged(*owned, od.Kernel(0, 0, (), (SLOT,)), od.Kernel(0, 2, (SLOT,), ())).races[0]
    assert race.owner == "req:2.0"
    assert race.slots == (1, 1)
    given_up = od.Own("", [(0, 20, 12)])
    race = judged(*owned, given_up, od.Kernel(0, 0, (), (SLOT,)), od.Kernel(0, 2, (SLOT,), ())).races[0]
    assert race.owner == "req:1.0"


def test_a_copy_between_devices_is_ordered_by_an_event_of_either() -> None:
    peer = od.Copy(0, 1, ((0, 16, 16),), ((1, 0, 16),), name="peer")
    write = od.Kernel(0, 0, (), (SLOT,))
    assert len(judged(write, peer).races) == 1
    assert len(judged(write, od.SyncDevice(0, 1), peer).races) == 1
    assert judged(write, od.SyncDevice(0, 0), peer).races == []
    assert judged(write, od.Record(0, 0, 5), od.Wait(0, 1, 5), peer).races == []


def test_streams_may_be_declared_later_and_only_once() -> None:
    late = od.Declare(streams=(od.Stream(7, 0),))
    assert judged(late, od.Kernel(0, 7, (), (SLOT,)), late).races == []
    with pytest.raises(OrderTraceError, match="stream 7 was declared before, and differently"):
        judged(late, od.Declare(streams=(od.Stream(7, 1),)))


def test_a_kernel_may_read_what_it_writes() -> None:
    assert judged(od.Kernel(0, 0, (SLOT,), (SLOT,)), od.Kernel(0, 0, (SLOT,), (SLOT,))).races == []


def test_reads_of_many_streams_do_not_conflict_but_a_write_needs_all_of_them() -> None:
    reads = [
        od.Kernel(0, 0, (SLOT,), (), "a"),
        od.Kernel(0, 1, (SLOT,), (), "b"),
        od.Kernel(0, 2, (SLOT,), (), "c"),
    ]
    assert judged(*reads).races == []
    found = judged(*reads, od.Record(0, 1, 5), od.Wait(0, 2, 5), od.Kernel(0, 2, (), (SLOT,), "write")).races
    assert [race.first.name for race in found] == ["a"]


def test_an_explanation_of_an_excerpt_leaves_out_what_began_before_it() -> None:
    before: list[od.OrderEvent] = [od.Put(0, 1, 1), od.Spawn(0, 2), od.Host(2, (), ((0, 0, 1),))]
    inside: list[od.OrderEvent] = [
        od.Join(0, 2),
        od.Get(1, 1, 1),
        od.Kernel(0, 0, (), (SLOT,)),
        od.Kernel(0, 2, (SLOT,), ()),
    ]
    race = judged(*before, *inside).races[0]
    why = explain(HEADER, inside, race, len(before))
    assert [type(event) for event in why.program] == [od.Kernel, od.Kernel]
    assert witness(Program(why.header, why.program), why.witnesses[0]).corrupt
    with pytest.raises(FarApart, match=r"5 and 6 are not both among those looked at, which are 6 to 7$"):
        explain(HEADER, inside[2:], race, 6)
