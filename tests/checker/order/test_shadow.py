"""What the checker remembers of memory: pieces, and how few of them."""

import itertools
import random

from kvfence.checker.order.clocks import Clocks
from kvfence.checker.order.races import OrderChecker
from kvfence.checker.order.ranges import Shadow, Site
from kvfence.spec import order as od

SLOT = 4096


def header(slots: int, threads: tuple[int, ...] = (0,)) -> od.Header:
    return od.Header(
        producer="test",
        threads=threads,
        streams=(od.Stream(0), od.Stream(1)),
        regions=(
            od.Region(0, 0, slots * SLOT, slot=SLOT),
            od.Region(1, 1 << 50, slots * SLOT, "pinned", slot=SLOT),
        ),
    )


def test_pieces_say_the_same_as_single_bytes() -> None:
    draw = random.Random(0)
    shadow, simple = Shadow(1 << 20), dict.fromkeys(range(400), 0)
    for number in range(1, 3000):
        start = draw.randrange(399)
        end = min(400, start + draw.choice([1, 2, 7, 60]))
        site = Site(0, number, "host", True, 0, -1, "", "", -1)
        pieces = shadow.cut(start, end)
        assert [pieces[0].start, pieces[-1].end] == [start, end]
        assert all(one.end == other.start for one, other in itertools.pairwise(pieces))
        for piece in pieces:
            assert {simple[at] for at in range(piece.start, piece.end)} == {
                piece.write.number if piece.write else 0
            }
            piece.write = site
        simple.update(dict.fromkeys(range(start, end), number))


def test_many_pieces_stay_in_order() -> None:
    draw = random.Random(1)
    shadow = Shadow(1 << 20)
    starts = draw.sample(range(100_000), 5000)
    for start in starts:
        shadow.cut(start, start + 1)
    assert [piece.start for piece in shadow.overlapping(0, 100_000)] == sorted(starts)


def test_neighbours_that_remember_the_same_become_one_piece() -> None:
    shadow = Shadow(1 << 20)
    one, other = (Site(0, number, "host", True, 0, -1, "", "", -1) for number in (5, 6))
    for start, site in ((0, one), (1, one), (2, other), (4, other)):
        (piece,) = shadow.cut(start, start + 1)
        piece.write = site
    shadow.prune([4])
    assert [(piece.start, piece.end) for piece in shadow.overlapping(0, 9)] == [(0, 2), (2, 3), (4, 5)]


def steps(slots: int, count: int) -> list[od.OrderEvent]:
    """Each step computes a slot, stores it, and waits for the store."""
    events: list[od.OrderEvent] = []
    for number in range(count):
        slot = (0, number % slots * SLOT, SLOT)
        to = (1, number % slots * SLOT, SLOT)
        events += [
            od.Kernel(0, 0, (), (slot,)),
            od.Record(0, 0, 1),
            od.Wait(0, 1, 1),
            od.Copy(0, 1, (slot,), (to,)),
        ]
        events += [od.Record(0, 1, 2), od.SyncEvent(0, 2)]
    return events


def test_what_everybody_knows_to_be_over_is_forgotten() -> None:
    checker = OrderChecker(header(1 << 20))
    checker.apply_all(steps(1 << 20, 30_000))
    assert checker.found == 0
    assert checker.complete
    assert max(checker.shadow.peak, len(checker.shadow)) < 5000


def test_a_forgotten_past_hides_no_race() -> None:
    """The same race after a long, well-ordered run is found with its first access."""
    checker = OrderChecker(header(1 << 20))
    checker.apply_all(steps(1 << 20, 10_000))
    slot = (0, 77 * SLOT, SLOT)
    copy = od.Copy(0, 1, (slot,), ((1, 0, SLOT),))
    checker.apply_all([od.Kernel(0, 0, (), (slot,)), *steps(1 << 20, 5000), copy, od.SyncStream(0, 1)])
    assert checker.found == 0  # the steps wait for everything before them
    checker.apply_all([od.Kernel(0, 0, (), (slot,)), copy])
    assert checker.found == 1


def test_the_race_of_an_access_long_ago_is_found_if_nobody_waited() -> None:
    checker = OrderChecker(header(1 << 16))
    slot = (0, 5 * SLOT, SLOT)
    checker(od.Kernel(0, 0, (), (slot,)))
    other = (0, 9 * SLOT, 1)
    checker.apply_all(od.Kernel(0, 1, (), ((0, 9 * SLOT + 2 * number, 1),)) for number in range(10_000))
    checker.apply_all([od.Kernel(0, 1, (other,), ()), od.Kernel(0, 1, (slot,), ())])
    assert checker.found == 1
    assert checker.races[0].first.number == 0


def test_the_same_race_again_is_counted_not_kept() -> None:
    checker = OrderChecker(header(1 << 10))
    for number in range(100):
        checker(od.Kernel(0, 0, (), ((0, number * SLOT, SLOT),), "compute"))
        checker(od.Kernel(0, 1, ((0, number * SLOT, SLOT),), (), "attention"))
    assert (len(checker.races), checker.found, checker.times()) == (1, 100, [100])


def test_different_races_are_all_reported() -> None:
    checker = OrderChecker(header(1 << 10))
    checker(od.Kernel(0, 0, (), ((0, 0, SLOT),), "compute"))
    for number in range(5):
        checker(od.Kernel(0, 1, ((0, 0, SLOT),), (), f"reader {number}"))
    assert [race.second.name for race in checker.races] == [f"reader {number}" for number in range(5)]


def test_only_so_many_races_are_kept() -> None:
    emitted: list[object] = []
    checker = OrderChecker(header(1 << 10), keep=3, on_race=emitted.append)
    checker(od.Kernel(0, 0, (), ((0, 0, SLOT),)))
    for number in range(5):
        checker(od.Kernel(0, 1, ((0, 0, SLOT),), (), f"reader {number}"))
    assert len(checker.races) == len(emitted) == len(checker.times()) == 3
    assert checker.found == 5


def test_a_thread_that_asks_late_gets_the_clock_of_then() -> None:
    """Thread 1 shares a stream and knows only an early part of what thread 0 launched on it."""
    checker = OrderChecker(header(1 << 10, (0, 1)))
    early, late = (0, 0, SLOT), (0, SLOT, SLOT)
    checker.apply_all([od.Kernel(0, 0, (), (early,)), od.Record(0, 0, 1), od.Wait(0, 1, 1), od.Put(0, 1, 1)])
    for _ in range(200):
        checker.apply_all([od.Kernel(0, 0, (), (late,)), od.Record(0, 0, 1), od.Wait(0, 1, 1)])
    checker.apply_all([od.Get(1, 1, 1), od.SyncStream(1, 1), od.Kernel(1, 0, (early,), (), "knows")])
    assert checker.found == 0
    checker(od.Kernel(1, 1, (late,), (), "does not"))
    assert [race.second.name for race in checker.races] == ["does not"]
    assert checker.complete


def test_histories_are_cut_when_everybody_knows() -> None:
    checker = OrderChecker(header(1 << 10, (0, 1)))
    for number in range(2000):
        checker.apply_all([od.Kernel(0, 0, (), ((0, 0, SLOT),)), od.Record(0, 0, 1), od.SyncEvent(0, 1)])
        checker.apply_all(
            [od.Put(0, 1, number), od.Get(1, 1, number), od.Put(1, 2, number), od.Get(0, 2, number)]
        )
    lanes = [lane for lane in checker.clocks.lanes if lane is not None]
    assert max(len(lane.history) for lane in lanes) < 100


def test_clocks_of_an_idle_thread_stay_bounded_and_say_so_when_asked() -> None:
    clocks = Clocks()
    one, idle = clocks.add_thread(0), clocks.add_thread(1)
    for stream in (0, 1):
        clocks.add_stream(od.Stream(stream))
    number = 0
    for _ in range(20_000):
        number += 3
        clocks.record(one, 1, 1, number)
        clocks.wait(one, 0, 1, number + 1)
    assert max(len(lane.history) for lane in clocks.lanes if lane is not None) <= 8192
    assert not clocks.guessed
    assert idle.clock[one.index] == 0


def test_an_event_recorded_often_without_anybody_knowing_is_told_when_asked() -> None:
    clocks = Clocks()
    one, idle = clocks.add_thread(0), clocks.add_thread(1)
    clocks.add_stream(od.Stream(0))
    for number in range(1, 100):
        clocks.record(one, 0, 1, number)
    clocks.sync_event(idle, 1, 100)
    assert clocks.guessed == 1
    clocks.put(one, 0, 0, 101)
    clocks.get(idle, 0, 0, 102)
    clocks.sync_event(idle, 1, 103)
    assert clocks.guessed == 1
    assert idle.clock[one.lanes[0].index] == 99
