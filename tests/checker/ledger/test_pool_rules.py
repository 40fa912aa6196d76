"""Each rule about pools has a passing and a failing twin, and the failing one names that invariant."""

from twins import accepted, admit, complete, header, invariants, issue, rejected, report, step, store

from kvfence.spec import events as ev

HEADER = header(ev.Group("gpu", 4), ev.Group("gpu", 4, window=6), depth=2)


def alloc(holder: str, slots: list[int], free: int = -1, **place: int) -> ev.Alloc:
    """``holder`` gets ``slots`` of the GPU's pool."""
    return ev.Alloc("gpu", holder, slots, free, **place)


def touch(holder: str, slots: list[int], free: int = -1, **place: int) -> ev.Touch:
    """``holder`` joins the holders of ``slots`` of the GPU's pool."""
    return ev.Touch("gpu", holder, slots, free, **place)


def free(holder: str, slots: list[int], free: int = -1) -> ev.Free:
    """``holder`` leaves ``slots`` of the GPU's pool."""
    return ev.Free("gpu", holder, slots, free)


ALLOC = [alloc("req:1.0", [1, 2], free=5)]
CACHED = [*ALLOC, ev.Label("gpu", [1, 2], [11, 12]), free("req:1.0", [2, 1], free=7)]
STORING = [*ALLOC, touch("op:0.0", [1]), ev.Alloc("cpu", "op:0.0", [3]), store(0, [1], [3], [11])]
STORED = [*STORING, issue(), report(0), complete()]
FAILED_STORE = [*STORING, issue(), report(0, ok=False), complete(ok=False)]
ON_CPU = [*STORED, ev.Label("cpu", [3], [11], op=0), ev.Free("cpu", "op:0.0", [3]), free("op:0.0", [1])]
PINNED = [*ON_CPU, ev.Touch("cpu", "hit:2.0", [3])]
PROMISED = [*PINNED, ev.Lookup("2", 0, 0, 4, "cpu", [3])]
RUNNING = [ev.Submit("1", 0, 8), admit(0, 0, 8, 8), alloc("req:1.0", [1, 2]), step(0, 8)]
SHARED = [*RUNNING, ev.Process(0), ev.Label("gpu", [1], [11]), touch("req:2.0", [1]), step(1, 1)]
LEFT = [*SHARED, free("req:1.0", [1])]
# Window of 6 tokens, blocks of 4: token 12 reads tokens 7 to 12, which are in blocks 1 to 3.
SLIDING = [
    ev.Submit("1", 0, 12),
    admit(0, 0, 12, 12),
    alloc("req:1.0", [1, 2, 3, 4], group=1),
    step(0, 12),
    ev.Process(0),
    step(1, 1),
]

TWINS = [
    # Alloc.
    ("a slot is given away once", [], alloc("req:1.0", [1, 2]), alloc("req:1.0", [1, 1]), "CONSERVE"),
    ("a held slot is not given away", ALLOC, alloc("x:1", [3]), alloc("x:1", [2]), "CONSERVE"),
    ("the null block stays", [], alloc("req:1.0", [1]), alloc("req:1.0", [0]), "CONSERVE"),
    ("a slot exists", [], alloc("req:1.0", [7]), alloc("req:1.0", [8]), "CONSERVE"),
    ("a slot is not negative", [], alloc("req:1.0", [7]), alloc("req:1.0", [-1]), "CONSERVE"),
    ("a cached slot is evicted first", CACHED, alloc("x:1", [3]), alloc("x:1", [1]), "CONSERVE"),
    ("free slots are counted", [], alloc("x:1", [1], free=6), alloc("x:1", [1], free=7), "CONSERVE"),
    (
        "a slot in transfer is not given away",
        STORING,
        ev.Alloc("cpu", "x:1", [4]),
        ev.Alloc("cpu", "x:1", [3]),
        "FREEZE",
    ),
    # Deny.
    ("only a short pool refuses", [], ev.Deny("gpu", "x:1", 8), ev.Deny("gpu", "x:1", 7), "CONSERVE"),
    ("a refusal counts free slots", [], ev.Deny("gpu", "x:1", 8, 7), ev.Deny("gpu", "x:1", 8, 8), "CONSERVE"),
    # Touch.
    ("a holder joins once", ALLOC, touch("req:2.0", [1, 2]), touch("req:2.0", [1, 1]), "CONSERVE"),
    ("a holder is not there yet", ALLOC, touch("req:2.0", [1]), touch("req:1.0", [1]), "CONSERVE"),
    ("a transfer names a slot once", ALLOC, touch("op:1.0", [1]), touch("op:1.0", [1, 1]), "UNIQUE"),
    ("pins are not added", PINNED, ev.Touch("cpu", "hit:3.0", [3]), ev.Touch("cpu", "hit:2.0", [3]), "PURE"),
    ("there is something to share", CACHED, touch("x:1", [1]), touch("x:1", [3]), "CONSERVE"),
    ("a cached slot is counted", CACHED, touch("x:1", [1], 6), touch("x:1", [1], 7), "CONSERVE"),
    ("a held slot is counted once", ALLOC, touch("x:1", [1], 5), touch("x:1", [1], 4), "CONSERVE"),
    ("nobody shares the null block", ALLOC, touch("x:1", [1]), touch("x:1", [0]), "CONSERVE"),
    # Free.
    ("a holder leaves what it holds", ALLOC, free("req:1.0", [1]), free("req:1.0", [3]), "CONSERVE"),
    ("a holder leaves once", ALLOC, free("req:1.0", [1, 2]), free("req:1.0", [1, 1]), "CONSERVE"),
    ("a stranger does not leave", ALLOC, free("req:1.0", [1]), free("req:2.0", [1]), "CONSERVE"),
    ("freed slots are counted", ALLOC, free("req:1.0", [1], 6), free("req:1.0", [1], 7), "CONSERVE"),
    ("a source stays held", STORING, free("req:1.0", [1]), ev.Free("cpu", "op:0.0", [3]), "FREEZE"),
    ("a promised pin stays", [*PROMISED, ev.Withdraw("2", 0)], ev.Free("cpu", "hit:2.0", [3]), None, ""),
    ("a promised pin stays until then", PROMISED, None, ev.Free("cpu", "hit:2.0", [3]), "PIN"),
    # Evict.
    ("a cached slot is evicted", CACHED, ev.Evict("gpu", [1, 2]), ev.Evict("gpu", [1, 1]), "CONSERVE"),
    ("only a cached slot is evicted", CACHED, ev.Evict("gpu", [1]), ev.Evict("gpu", [3]), "CONSERVE"),
    ("the null block is not evicted", CACHED, ev.Evict("gpu", [1]), ev.Evict("gpu", [0]), "CONSERVE"),
    (
        "a held slot is not evicted either",
        [*CACHED, touch("x:1", [2])],
        ev.Evict("gpu", [1]),
        ev.Evict("gpu", [2]),
        "PIN",
    ),
    ("a pinned slot is not evicted", ON_CPU, ev.Evict("cpu", [3]), None, ""),
    ("a slot with a pin is not evicted", PINNED, None, ev.Evict("cpu", [3]), "PIN"),
    ("a promised slot is not evicted", PROMISED, None, ev.Evict("cpu", [3]), "PIN"),
    ("a slot in transfer is not evicted", STORING, None, ev.Evict("cpu", [3]), "FREEZE"),
    # Label.
    ("a labelled slot is held", ALLOC, ev.Label("gpu", [1], [11]), ev.Label("gpu", [3], [11]), "CONSERVE"),
    (
        "a slot is labelled once",
        ALLOC,
        ev.Label("gpu", [1, 2], [11, 12]),
        ev.Label("gpu", [1, 1], [11, 12]),
        "UNIQUE",
    ),
    ("a label is not replaced", PROMISED, ev.Label("cpu", [3], [11]), ev.Label("cpu", [3], [12]), "UNIQUE"),
    ("a label waits for the transfer", STORED, ev.Label("cpu", [3], [11], op=0), None, ""),
    ("a label comes after the transfer", STORING, None, ev.Label("cpu", [3], [11], op=0), "USE-READY"),
    ("a label comes after any transfer", STORING, None, ev.Label("cpu", [3], [11]), "USE-READY"),
    (
        "a failed transfer labels nothing",
        FAILED_STORE,
        ev.Label("gpu", [1], [11]),
        ev.Label("cpu", [3], [11], op=0),
        "FAIL-CLOSED",
    ),
    ("a slot it failed to fill has no label", FAILED_STORE, None, ev.Label("cpu", [3], [11]), "FAIL-CLOSED"),
    (
        "a store from before a reset brings nothing back",
        [*STORED, ev.Reset(True, ["gpu", "cpu"])],
        ev.Free("cpu", "op:0.0", [3]),
        ev.Label("cpu", [3], [11], op=0),
        "RESET",
    ),
    (
        "an answered-no reset changes nothing",
        [*STORED, ev.Reset(ok=False)],
        ev.Label("cpu", [3], [11], op=0),
        None,
        "",
    ),
    (
        "a table from before a reset is not published",
        [*ALLOC, ev.Reset(True, ["gpu"]), alloc("req:2.0", [3])],
        ev.Label("gpu", [3], [13]),
        ev.Label("gpu", [1], [11]),
        "RESET",
    ),
    (
        "unlabelling is always allowed",
        ALLOC,
        ev.Unlabel("gpu", [1, 2], "failed"),
        ev.Unlabel("gpu", [8], "failed"),
        "CONSERVE",
    ),
    # Steps that may still read.
    ("a processed step reads no more", [*RUNNING, ev.Process(0)], free("req:1.0", [2, 1]), None, ""),
    ("a dispatched step reads", RUNNING, None, free("req:1.0", [2]), "FREEZE"),
    (
        "a slot that joined after the dispatch is not read",
        [*RUNNING, alloc("req:1.0", [3], at=2)],
        free("req:1.0", [3]),
        free("req:1.0", [3, 2]),
        "FREEZE",
    ),
    ("a shared slot may be left", SHARED, free("req:1.0", [1]), free("req:1.0", [2]), "FREEZE"),
    ("a slot left too early is frozen for the others", LEFT, step(2, 1), free("req:2.0", [1]), "FREEZE"),
    ("and no longer than until the step is over", [*LEFT, ev.Process(1)], free("req:2.0", [1]), None, ""),
    (
        "and the others hold it when the step is over",
        [*LEFT, ev.Process(1)],
        None,
        alloc("req:3.0", [1]),
        "CONSERVE",
    ),
    (
        "what a lookup holds may be left whatever steps are under way",
        [
            *PINNED,
            ev.Submit("2", 0, 8),
            ev.Admit("2", 0, 0, 0, 8, 8),
            alloc("req:2.0", [3, 4]),
            step(0, 8, "2"),
        ],
        ev.Free("cpu", "hit:2.0", [3]),
        free("req:2.0", [4]),
        "FREEZE",
    ),
    ("a window leaves blocks behind", SLIDING, free("req:1.0", [1]), free("req:1.0", [2]), "FREEZE"),
    (
        "a window slides by processed steps only",
        [*SLIDING[:3], step(0, 12), step(1, 1)],
        None,
        free("req:1.0", [1]),
        "FREEZE",
    ),
]


def judge(events: list[ev.Event]) -> list[str]:
    """The invariants that ``events`` violate, in order; the same whether fast paths are taken or not."""
    found = invariants(events, HEADER)
    assert found == invariants(events, HEADER, fast_paths=False)
    return found


@accepted(TWINS)
def test_accepted(before: list[ev.Event], sound: ev.Event) -> None:
    assert judge([*before, sound]) == []


@rejected(TWINS)
def test_rejected(before: list[ev.Event], faulty: ev.Event, invariant: str) -> None:
    assert judge([*before, faulty]) == [invariant]


def test_a_refusal_is_judged_by_what_the_pool_told_is_free() -> None:
    miscounted = alloc("req:1.0", [1, 2], free=6)
    assert judge([miscounted, ev.Deny("gpu", "req:2.0", 7, free=6)]) == ["CONSERVE"]
    assert judge([miscounted, ev.Deny("gpu", "req:2.0", 6, free=6)]) == ["CONSERVE", "CONSERVE"]
