"""Each rule about transfers has a passing and a failing twin, and the failing one names that invariant."""

import twins as tw

from kvfence.spec import events as ev

HEADER = tw.header(ev.Group("gpu", 4), ranks=2)


def reports(op: int, gen: int = 0, ok: tuple[bool, bool] = (True, True)) -> list[ev.Event]:
    """Issue, and the report of both ranks."""
    return [ev.Issue(op, gen), ev.Report(op, gen, 1, ok[1]), ev.Report(op, gen, 0, ok[0])]


HELD = [
    ev.Alloc("gpu", "req:1.0", [1, 2, 3]),
    ev.Touch("gpu", "op:0.0", [1, 2]),
    ev.Alloc("cpu", "op:0.0", [0, 1]),
    ev.Alloc("cpu", "op:1.0", [2, 3]),
    ev.Touch("gpu", "op:1.0", [1, 3]),
]
PAIR = tw.store(0, [1, 2], [0, 1], [11, 12])
OPEN = [*HELD, PAIR]
ISSUED = [*OPEN, tw.issue()]
DONE = [*OPEN, *reports(0), tw.complete()]
RESIDENT = [*DONE, ev.Label("cpu", [0, 1], [11, 12], op=0)]
COMPUTED = [ev.Submit("1", 0, 9), tw.admit(0, 0, 9, 9), *HELD, tw.step(0, 9), ev.Process(0)]
OWN = tw.store(0, [1, 2], [0, 1], [11, 12], req="1", at=[0, 1])
# Request 2 has blocks 11 and 12 promised, after 4 local tokens.
PROMISED = [
    *RESIDENT,
    ev.Free("cpu", "op:0.0", [0, 1]),
    ev.Submit("2", 0, 16),
    ev.Touch("cpu", "hit:2.0", [0, 1]),
    ev.Lookup("2", 0, 4, 8, "cpu", [0, 1]),
    ev.Admit("2", 0, 4, 8, 4, 16),
    ev.Alloc("gpu", "req:2.0", [4, 5, 6, 7]),
    ev.Touch("cpu", "op:5.0", [0, 1]),
]
LOAD = tw.load(5, [0, 1], [5, 6], [11, 12], req="2", at=[1, 2])
LOADING = [*PROMISED, LOAD]
LOADED = [*LOADING, *reports(5), ev.Complete(5, 0)]
FAILED = [*LOADING, *reports(5, ok=(True, False)), ev.Complete(5, 0, ok=False)]
ROLLED_BACK = [*FAILED, ev.Rollback("2", 0, 4)]
SHARER = [*LOADING, ev.Submit("3", 0, 12), ev.Admit("3", 0, 8, 0, 4, 12), ev.Touch("gpu", "req:3.0", [4, 5])]
SHARER_FAILED = [*SHARER, *reports(5, ok=(False, True)), ev.Complete(5, 0, ok=False)]
AGAIN = [
    *FAILED,
    ev.Rollback("2", 0, 4),
    ev.Touch("cpu", "op:5.1", [0]),
    tw.load(5, [0], [5], [11], 1),
    *reports(5, 1),
]

OTHER = tw.store(1, [3], [2], [13])  # nothing wrong with it
TWINS = [
    # Queue.
    ("a slot is a source once", HELD, PAIR, tw.store(0, [1, 1], [0, 1], [11, 12]), "UNIQUE"),
    ("a slot is a target once", HELD, PAIR, tw.store(0, [1, 2], [1, 1], [11, 12]), "UNIQUE"),
    ("a key is stored once", HELD, PAIR, tw.store(0, [1, 2], [0, 1], [11, 11]), "UNIQUE"),
    ("each source is held", HELD, OTHER, tw.store(0, [4], [0], [13]), "FREEZE"),
    ("each destination is held", HELD, OTHER, tw.store(0, [3], [4], [13]), "FREEZE"),
    ("each slot exists", HELD, OTHER, tw.store(0, [3], [6], [13]), "CONSERVE"),
    ("one store of a key is open", OPEN, OTHER, tw.store(1, [1], [2], [11]), "UNIQUE"),
    ("keys of two groups differ", OPEN, tw.store(1, [1], [2], [11], group=1), None, ""),
    ("a resident key is not stored", RESIDENT, OTHER, tw.store(1, [1], [2], [11]), "UNIQUE"),
    ("an id is used once at a time", OPEN, OTHER, tw.store(0, [3], [2], [13], gen=1), "ONCE"),
    ("an id grows older", DONE, tw.store(0, [3], [2], [13], gen=1), tw.store(0, [3], [2], [13]), "ONCE"),
    (
        "what is written is not read",
        OPEN,
        tw.load(1, [2], [3], [13]),
        tw.load(1, [0], [3], [11]),
        "USE-READY",
    ),
    (
        "one load fills a slot",
        [*LOADING, ev.Touch("gpu", "op:6.0", [6, 7])],
        tw.load(6, [1], [7], [12]),
        tw.load(6, [1], [6], [12]),
        "UNIQUE",
    ),
    ("one store fills a slot", OPEN, OTHER, tw.store(1, [3], [1], [13]), "UNIQUE"),
    ("a slot is filled again when it is filled", LOADED, tw.load(6, [1], [6], [12]), None, ""),
    ("or when that has failed", ROLLED_BACK, tw.load(6, [1], [6], [12]), None, ""),
    ("a store reads no load's target", LOADING, OTHER, tw.store(1, [5], [2], [13]), "USE-READY"),
    ("a store reads no failed load's target", FAILED, OTHER, tw.store(1, [5], [2], [13]), "FAIL-CLOSED"),
    ("a load reads what was promised", PROMISED, LOAD, tw.load(5, [2], [5], [11], req="2"), "PIN"),
    ("no store beside a load", LOADED, tw.store(1, [3], [2], [13], req="2"), None, ""),
    ("no store while loading", LOADING, OTHER, tw.store(1, [3], [2], [13], req="2"), "ONCE"),
    ("no load while storing", [*PROMISED, tw.store(1, [3], [2], [13], req="2")], None, LOAD, "ONCE"),
    (
        "a store reads confirmed blocks",
        COMPUTED,
        OWN,
        tw.store(0, [1, 3], [0, 1], [11, 13], req="1", at=[0, 2]),
        "STORE-READY",
    ),
    ("a store does not read ahead of the step", COMPUTED[:-1], PAIR, OWN, "STORE-READY"),
    (
        "a block is stored once",
        COMPUTED,
        OWN,
        tw.store(0, [1, 2], [0, 1], [11, 12], req="1", at=[1, 1]),
        "UNIQUE",
    ),
    # Issue, report, stale.
    ("a transfer is issued once", [*OPEN, OTHER, tw.issue()], ev.Issue(1, 0), tw.issue(), "ONCE"),
    ("an open transfer is issued", OPEN, tw.issue(), ev.Issue(1, 0), "ONCE"),
    ("its generation is issued", OPEN, tw.issue(), ev.Issue(0, 1), "ONCE"),
    ("it is reported after it is issued", OPEN, tw.issue(), tw.report(1), "ONCE"),
    ("a rank reports once", [*ISSUED, tw.report(1)], tw.report(0), tw.report(1), "ONCE"),
    ("a rank exists", ISSUED, tw.report(1), tw.report(2), "ONCE"),
    ("a late report is not taken", DONE, tw.stale(0), tw.report(0), "ONCE"),
    ("an older generation is ignored", ISSUED, ev.Stale(0, -1, 0), tw.stale(0), "ONCE"),
    ("a second report is ignored", [*ISSUED, tw.report(1)], tw.stale(1), tw.stale(0), "ONCE"),
    # Complete.
    ("all ranks reported", [*ISSUED, tw.report(0)], tw.report(1), tw.complete(), "RANKS"),
    ("a transfer ends", [*OPEN, *reports(0)], tw.complete(), ev.Complete(1, 0), "ONCE"),
    ("a transfer ends once", DONE, tw.stale(0), tw.complete(), "ONCE"),
    (
        "one failure is a failure",
        [*OPEN, *reports(0, ok=(True, False))],
        tw.complete(ok=False),
        tw.complete(),
        "FAIL-CLOSED",
    ),
    # After a load.
    ("a loaded table runs", LOADED, tw.step(0, 4, "2"), None, ""),
    ("a loading table waits", LOADING, tw.empty(0), tw.step(0, 4, "2"), "USE-READY"),
    ("a table that shares it waits", SHARER, tw.empty(0), tw.step(0, 4, "3"), "USE-READY"),
    ("until it landed", [*SHARER, *reports(5), ev.Complete(5, 0)], tw.step(0, 4, "2", "3"), None, ""),
    (
        "loaded tokens are computed",
        LOADED,
        ev.Finish("2", 0, "stop", 12),
        ev.Finish("2", 0, "stop", 4),
        "COUNT",
    ),
    ("a failed table is rolled back", ROLLED_BACK, tw.step(0, 12, "2"), None, ""),
    ("before it runs", FAILED, ev.Rollback("2", 0, 4), tw.step(0, 4, "2"), "FAIL-CLOSED"),
    (
        "a rollback goes to what is valid",
        FAILED,
        ev.Rollback("2", 0, 4),
        ev.Rollback("2", 0, 8),
        "FAIL-CLOSED",
    ),
    ("a sharer is rolled back too", SHARER_FAILED, ev.Rollback("3", 0, 4), tw.step(0, 4, "3"), "FAIL-CLOSED"),
    (
        "a sharer's rollback goes to what is valid",
        SHARER_FAILED,
        ev.Rollback("3", 0, 4),
        ev.Rollback("3", 0, 8),
        "FAIL-CLOSED",
    ),
    (
        "a table does not share what failed",
        [*FAILED, ev.Submit("3", 0, 12), ev.Touch("gpu", "req:3.0", [5], at=1)],
        ev.Rollback("3", 0, 4),
        tw.step(0, 4, "3"),
        "FAIL-CLOSED",
    ),
    ("a slot is labelled once rolled back", ROLLED_BACK, ev.Label("gpu", [5], [21]), None, ""),
    ("but not before", FAILED, ev.Rollback("2", 0, 4), ev.Label("gpu", [5], [21]), "FAIL-CLOSED"),
    ("a failed load may be tried again", AGAIN, ev.Complete(5, 1), None, ""),
    # What is covered.
    (
        "a failed store leaves a gap",
        [*COMPUTED, OWN, *reports(0, ok=(False, False)), tw.complete(ok=False)],
        tw.cursor(0),
        tw.cursor(2),
        "CURSOR",
    ),
    (
        "a gap may be filled",
        [*COMPUTED, tw.store(0, [2], [1], [12], req="1", at=[1]), tw.drop(0, 1, "resident")],
        tw.cursor(2),
        tw.cursor(3),
        "CURSOR",
    ),
    # Ends.
    ("a request is not gone while it loads", LOADING, ev.Stale(5, 0, 7), ev.Retire("2", 0), "NO-LEAK"),
    ("all tiers are reset", RESIDENT, ev.Reset(True, ["cpu"]), ev.Reset(True, ["gpu"]), "RESET"),
    ("an open transfer is not quiet", OPEN, tw.issue(), ev.Quiesce(), "NO-LEAK"),
]


@tw.accepted(TWINS)
def test_accepted(before: list[ev.Event], sound: ev.Event) -> None:
    assert tw.invariants([*before, sound], HEADER) == []


@tw.rejected(TWINS)
def test_rejected(before: list[ev.Event], faulty: ev.Event, invariant: str) -> None:
    assert tw.invariants([*before, faulty], HEADER) == [invariant]


def test_a_failed_load_tells_of_labels_that_were_set_too_early() -> None:
    """They were served to others, so they are told again when the load turns out to have failed."""
    events = [
        *LOADING,
        ev.Label("gpu", [5], [11]),
        *reports(5, ok=(False, True)),
        ev.Complete(5, 0, ok=False),
    ]
    assert tw.invariants(events, HEADER) == ["USE-READY", "FAIL-CLOSED"]
