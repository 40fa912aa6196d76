"""Two reports of what is slow or looks odd, and is right: it must not be flagged, however it is varied."""

from judged import breaks, holds
from situations import CACHED, LANDED, STORED

from kvfence.spec import events as ev

# Another request is promised the blocks that request 7 is loading, and loads them for itself.
SECOND: list[ev.Event] = [
    ev.Submit("8", 0, 32),
    ev.Touch("cpu", "hit:8.0", [0, 1]),
    ev.Lookup("8", 0, local=0, external=32, pool="cpu", slots=[0, 1]),
    ev.Alloc("gpu", "req:8.0", [4, 5]),
    ev.Admit("8", 0, local=0, external=32, compute=0, total=32),
    ev.Touch("cpu", "op:1.0", [0, 1]),
    ev.Touch("gpu", "op:1.0", [4, 5]),
    ev.Queue(1, 0, "load", "cpu", [0, 1], "gpu", [4, 5], [4242, 4343], req="8", at=[0, 1]),
    ev.Free("cpu", "hit:8.0", [0, 1]),
]
LANDS: list[ev.Event] = [
    ev.Issue(1, 0),
    ev.Report(1, 0, rank=0),
    ev.Complete(1, 0),
    ev.Free("cpu", "op:1.0", [0, 1]),
    ev.Free("gpu", "op:1.0", [4, 5]),
]
FIRST_LANDS = LANDED.index(ev.Report(0, 0, rank=0))


def test_vllm_44294_a_load_behind_another_load_of_the_same_blocks_is_slow_and_correct() -> None:
    holds([*LANDED[:FIRST_LANDS], *SECOND, *LANDED[FIRST_LANDS:], *LANDS])
    holds([*LANDED[:FIRST_LANDS], *SECOND, *LANDS, *LANDED[FIRST_LANDS:]])


def test_and_a_step_that_runs_on_the_second_load_before_it_lands_is_flagged() -> None:
    run = ev.Dispatch(0, ["8"], [1])
    breaks("USE-READY", [*LANDED[:FIRST_LANDS], *SECOND, *LANDED[FIRST_LANDS:], run])


# The first block was stored, and the tier has evicted it since; the second is dropped for a reason.
EVICTED: list[ev.Event] = [
    *STORED,
    ev.Cursor("7", 0, to=1),
    ev.Evict("cpu", [0]),
    ev.Drop("7", 0, 1, 1, "tier_full"),
]


def test_vllm_47234_a_cursor_behind_blocks_that_were_evicted_later_leaves_no_hole() -> None:
    holds([*EVICTED, ev.Cursor("7", 0, to=2)])
    holds([*STORED, ev.Evict("cpu", [0]), ev.Cursor("7", 0, to=1), ev.Dispatch(1, ["7"], [1]), ev.Process(1)])


def test_and_a_cursor_behind_a_block_that_was_never_stored_is_flagged() -> None:
    breaks("CURSOR", [*STORED, ev.Evict("cpu", [0]), ev.Cursor("7", 0, to=2)])


def test_a_hit_on_what_is_cached_needs_no_second_copy() -> None:
    holds([*CACHED, ev.Touch("cpu", "hit:7.0", [0])])
