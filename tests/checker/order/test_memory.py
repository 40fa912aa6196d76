"""Memory that comes and goes, has owners, is seen through views, and is on several devices."""

import pytest

from kvfence.checker.order.clocks import OrderTraceError
from kvfence.checker.order.happens_before import FarApart, explain
from kvfence.checker.order.races import OrderChecker
from kvfence.reference.order_programs.program import Program
from kvfence.reference.order_programs.schedules import witness
from kvfence.spec.order import (
    Copy,
    Declare,
    Get,
    Header,
    Host,
    Join,
    Kernel,
    OrderEvent,
    Own,
    Put,
    Record,
    Region,
    Release,
    Spawn,
    Stream,
    SyncDevice,
    SyncStream,
    Wait,
)

HEADER = Header(
    producer="test",
    threads=(0, 1),
    streams=(Stream(0, 0), Stream(1, 1), Stream(2, 0)),
    regions=(Region(0, 0, 64, slot=16, name="pool"), Region(1, 1000, 64, device=1)),
)
SLOT = (0, 16, 16)


def judged(*events: OrderEvent) -> OrderChecker:
    checker = OrderChecker(HEADER)
    checker.apply_all(events)
    return checker


def test_memory_given_back_while_a_kernel_uses_it_is_a_race() -> None:
    race = judged(Kernel(0, 0, (SLOT,), ()), Release(0, 0)).races[0]
    assert (race.second.what, race.invariant) == ("release", "FREEZE")
    assert not judged(Kernel(0, 0, (SLOT,), ()), SyncStream(0, 0), Release(0, 0)).races


def test_memory_given_back_exists_no_more() -> None:
    checker = judged(Release(0, 0))
    with pytest.raises(OrderTraceError, match="region 0 was not declared, or released before"):
        checker(Kernel(0, 0, (SLOT,), ()))


def test_new_memory_at_the_old_address_is_the_same_bytes() -> None:
    again = Declare(regions=(Region(9, 16, 16, name="new"),))
    assert judged(Release(0, 0), again, Kernel(0, 0, (), ((9, 0, 16),))).races == []
    race = judged(Release(0, 0), again, Kernel(1, 0, (), ((9, 0, 16),))).races[0]
    assert (race.first.what, race.region) == ("release", "new")


def test_a_race_names_the_owner_of_most_of_its_bytes() -> None:
    owned = [Own("req:1.0", [(0, 16, 4)]), Own("req:2.0", [(0, 20, 12)]), Own("req:3.0", [(0, 32, 16)])]
    race = judged(*owned, Kernel(0, 0, (), (SLOT,)), Kernel(0, 2, (SLOT,), ())).races[0]
    assert race.owner == "req:2.0"
    assert race.slots == (1, 1)
    given_up = Own("", [(0, 20, 12)])
    race = judged(*owned, given_up, Kernel(0, 0, (), (SLOT,)), Kernel(0, 2, (SLOT,), ())).races[0]
    assert race.owner == "req:1.0"


def test_a_copy_between_devices_is_ordered_by_an_event_of_either() -> None:
    peer = Copy(0, 1, ((0, 16, 16),), ((1, 0, 16),), name="peer")
    write = Kernel(0, 0, (), (SLOT,))
    assert len(judged(write, peer).races) == 1
    assert len(judged(write, SyncDevice(0, 1), peer).races) == 1
    assert judged(write, SyncDevice(0, 0), peer).races == []
    assert judged(write, Record(0, 0, 5), Wait(0, 1, 5), peer).races == []


def test_streams_may_be_declared_later_and_only_once() -> None:
    late = Declare(streams=(Stream(7, 0),))
    assert judged(late, Kernel(0, 7, (), (SLOT,)), late).races == []
    with pytest.raises(OrderTraceError, match="stream 7 was declared before, and differently"):
        judged(late, Declare(streams=(Stream(7, 1),)))


def test_a_kernel_may_read_what_it_writes() -> None:
    assert judged(Kernel(0, 0, (SLOT,), (SLOT,)), Kernel(0, 0, (SLOT,), (SLOT,))).races == []


def test_reads_of_many_streams_do_not_conflict_but_a_write_needs_all_of_them() -> None:
    reads = [Kernel(0, 0, (SLOT,), (), "a"), Kernel(0, 1, (SLOT,), (), "b"), Kernel(0, 2, (SLOT,), (), "c")]
    assert judged(*reads).races == []
    found = judged(*reads, Record(0, 1, 5), Wait(0, 2, 5), Kernel(0, 2, (), (SLOT,), "write")).races
    assert [race.first.name for race in found] == ["a"]


def test_an_explanation_of_an_excerpt_leaves_out_what_began_before_it() -> None:
    before: list[OrderEvent] = [Put(0, 1, 1), Spawn(0, 2), Host(2, (), ((0, 0, 1),))]
    inside: list[OrderEvent] = [
        Join(0, 2),
        Get(1, 1, 1),
        Kernel(0, 0, (), (SLOT,)),
        Kernel(0, 2, (SLOT,), ()),
    ]
    race = judged(*before, *inside).races[0]
    why = explain(HEADER, inside, race, len(before))
    assert [type(event) for event in why.program] == [Kernel, Kernel]
    assert witness(Program(why.header, why.program), why.witnesses[0]).corrupt
    with pytest.raises(FarApart, match=r"5 and 6 are not both among those looked at, which are 6 to 7$"):
        explain(HEADER, inside[2:], race, 6)
