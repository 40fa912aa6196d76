"""Each rule about requests and steps has a passing and a failing twin that names that invariant."""

from twins import accepted, admit, cursor, drop, empty, finish, header, invariants, lookup, rejected, step

from kvfence.spec import events as ev

HEADER = header(ev.Group("gpu", 4), depth=2)

CACHED = [
    ev.Alloc("cpu", "op:0.0", [1, 2, 3]),
    ev.Label("cpu", [1, 2, 3], [11, 12, 13]),
    ev.Free("cpu", "op:0.0", [1, 2, 3]),
    ev.Submit("1", 0, 16),
]
PINNED = [*CACHED, ev.Touch("cpu", "hit:1.0", [1, 2])]
PROMISED = [*PINNED, lookup(0, 8, "cpu", [1, 2])]
REPEATED = [*PROMISED, ev.Touch("cpu", "hit:1.0", [3]), lookup(0, 12, "cpu", [1, 2, 3])]
SHORTER = [*PROMISED, lookup(0, 4, "cpu", [1])]
ADMITTED = [ev.Submit("1", 0, 9), admit(0, 0, 9, 9), ev.Alloc("gpu", "req:1.0", [1, 2, 3])]
RUN = [*ADMITTED, step(0, 9)]
TWO_STEPS = [*RUN, step(1, 1)]
DONE = [*RUN, ev.Process(0)]
DROPPED = [*DONE, drop(0, 2, "lazy")]
FINISHED = [*DONE, finish("stop", 9), ev.Free("gpu", "req:1.0", [3, 2, 1])]
COVERED = [*FINISHED[:-2], drop(0, 2, "resident"), *FINISHED[-2:]]
PREEMPTED = [*DONE, ev.Preempt("1", 0), ev.Free("gpu", "req:1.0", [3, 2, 1])]

TWINS = [
    # Submit.
    ("an id is submitted once", [ev.Submit("1", 0, 9)], ev.Submit("1", 1, 9), ev.Submit("1", 0, 9), "ONCE"),
    ("a preempted one may be told again", PREEMPTED, ev.Submit("1", 1, 9), ev.Submit("1", 0, 9), "ONCE"),
    ("what is submitted acts", [ev.Submit("1", 0, 9)], lookup(0, 0), ev.Lookup("2", 0, 0, 0), "ONCE"),
    (
        "what is gone does nothing",
        [*COVERED, ev.Retire("1", 0)],
        ev.Submit("1", 1, 9),
        drop(0, 1, "lazy"),
        "ONCE",
    ),
    # Lookup.
    ("a promise is held", PINNED, lookup(0, 8, "cpu", [1, 2]), None, ""),
    ("a promise without a pin", CACHED, None, lookup(0, 8, "cpu", [1, 2]), "PIN"),
    (
        "what is promised is cached",
        [*CACHED, ev.Alloc("cpu", "hit:1.0", [4])],
        None,
        lookup(0, 4, "cpu", [4]),
        "PIN",
    ),
    (
        "a hit is no longer than the request",
        PINNED,
        lookup(8, 8, "cpu", [1, 2]),
        lookup(9, 8, "cpu", [1, 2]),
        "COUNT",
    ),
    ("a hit is not negative", CACHED, lookup(8, 0), lookup(-1, 0), "COUNT"),
    ("pins are what is promised", PINNED, lookup(0, 8, "cpu", [1, 2]), lookup(0, 4, "cpu", [1]), "PURE"),
    ("a lookup may be repeated", PROMISED, lookup(0, 8, "cpu", [1, 2]), None, ""),
    ("and find more", REPEATED, lookup(0, 12, "cpu", [1, 2, 3]), None, ""),
    ("and less, if pins go", [*SHORTER, ev.Free("cpu", "hit:1.0", [2])], lookup(0, 4, "cpu", [1]), None, ""),
    ("pins that stay", SHORTER, ev.Free("cpu", "hit:1.0", [2]), lookup(0, 4, "cpu", [1]), "PURE"),
    ("pins that stay until admission", SHORTER, ev.Free("cpu", "hit:1.0", [2]), admit(0, 4, 12, 16), "PURE"),
    # Admit.
    ("tokens add up", PROMISED, admit(0, 8, 8, 16), admit(0, 8, 9, 16), "COUNT"),
    ("not by negative numbers", PROMISED, admit(0, 8, 8, 16), admit(16, 8, -8, 16), "COUNT"),
    ("no more than promised", PROMISED, admit(0, 4, 12, 16), admit(0, 12, 4, 16), "COUNT"),
    (
        "nothing without a promise",
        [*PROMISED, ev.Withdraw("1", 0)],
        admit(0, 0, 16, 16),
        admit(0, 8, 8, 16),
        "COUNT",
    ),
    (
        "a promise not taken is over",
        [*PROMISED, admit(0, 0, 16, 16)],
        ev.Free("cpu", "hit:1.0", [1, 2]),
        None,
        "",
    ),
    # Ends.
    ("a generation is preempted once", DONE, ev.Preempt("1", 0), None, ""),
    ("not after it finished", FINISHED, None, ev.Preempt("1", 0), "ONCE"),
    ("a generation finishes once", DONE, finish("stop", 9), finish("stop", 8), "COUNT"),
    ("not again", FINISHED, None, finish("abort", 9), "ONCE"),
    ("an unprocessed step is not confirmed", RUN, finish("abort", 0), finish("abort", 9), "COUNT"),
    ("a preempted generation is not dispatched", PREEMPTED, step(1, 9), None, ""),
    ("a finished request is not dispatched", FINISHED, empty(1), step(1, 1), "ONCE"),
    # Cursor.
    ("the cursor passes dropped blocks", DROPPED, cursor(2), cursor(3), "CURSOR"),
    ("the cursor passes no gap", [*DONE, drop(1, 1, "lazy")], drop(0, 1, "lazy"), cursor(1), "CURSOR"),
    ("the cursor goes on", [*DROPPED, cursor(1)], cursor(1), cursor(0), "CURSOR"),
    (
        "a new generation begins again",
        [*DROPPED, cursor(2), ev.Preempt("1", 0)],
        ev.Cursor("1", 1, 0),
        ev.Cursor("1", 1, 2),
        "CURSOR",
    ),
    # Retire.
    ("all blocks are accounted for", COVERED, ev.Retire("1", 0), None, ""),
    ("a block is forgotten", FINISHED, None, ev.Retire("1", 0), "FLUSH"),
    ("a preempted table is not flushed", PREEMPTED, ev.Retire("1", 0), None, ""),
    ("a table stays behind", [*COVERED[:-1]], None, ev.Retire("1", 0), "NO-LEAK"),
    ("a pin stays behind", PINNED, None, ev.Retire("1", 0), "NO-LEAK"),
    ("a promise stays open", PROMISED, None, ev.Retire("1", 0), "NO-LEAK"),
    # Steps.
    ("steps are numbered", [*ADMITTED, empty(4)], step(5, 9), step(6, 9), "ONCE"),
    ("steps are no more than allowed", RUN, step(1, 1), None, ""),
    ("steps run too far ahead", TWO_STEPS, ev.Process(0), step(2, 1), "ONCE"),
    ("steps end in order", TWO_STEPS, ev.Process(0), ev.Process(1), "ONCE"),
    ("a step ends once", DONE, step(1, 1), ev.Process(0), "ONCE"),
    # The whole.
    ("a reset clears what it says", CACHED, ev.Reset(True, ["gpu", "cpu"]), ev.Reset(True, ["gpu"]), "RESET"),
    ("a refused reset clears nothing", CACHED, ev.Reset(ok=False), None, ""),
    ("nothing is held when quiet", CACHED, ev.Quiesce(), None, ""),
    ("a held slot is not quiet", ADMITTED, None, ev.Quiesce(), "NO-LEAK"),
    ("a step is not quiet", [empty(0)], ev.Process(0), ev.Quiesce(), "NO-LEAK"),
]


@accepted(TWINS)
def test_accepted(before: list[ev.Event], sound: ev.Event) -> None:
    assert invariants([*before, sound], HEADER) == []


@rejected(TWINS)
def test_rejected(before: list[ev.Event], faulty: ev.Event, invariant: str) -> None:
    assert invariants([*before, faulty], HEADER) == [invariant]


def test_a_trace_may_begin_in_the_middle() -> None:
    """What no event told is not held against the connector."""
    events = [
        ev.Lookup("7", 3, 0, 0),
        ev.Dispatch(41, ["7", "8"], [1, 1]),
        ev.Process(41),
        ev.Finish("7", 3, "stop", 99),
        ev.Cursor("8", 0, 0),
        ev.Retire("7", 3),
    ]
    assert invariants(events, ev.Header(producer="test", pools=(ev.Pool("gpu", 8),))) == []


def test_without_groups_blocks_are_not_counted() -> None:
    assert invariants([*FINISHED, ev.Retire("1", 0)], header()) == []
    assert invariants([*FINISHED, ev.Retire("1", 0)], HEADER) == ["FLUSH"]
