"""The public reports: what went wrong, which designs have the fault, and a sibling that no report mentions.

A *sibling* is a trace that is written down here, with a sound twin.
"""

from collections.abc import Sequence
from typing import NamedTuple

import situations as at
from situations import connector

from kvfence.spec import events as ev


class Report(NamedTuple):
    """A public report by its project and number, with the designs that have its fault."""

    name: str
    about: str
    faults: dict[str, str]
    """By design: the invariant that it breaks."""
    sibling: str = ""
    """The same mistake in another situation: ``before`` and ``sound`` are accepted, and the last event of
    ``before`` and ``faulty`` breaks ``invariant``."""
    invariant: str = ""
    before: Sequence[ev.Event] = ()
    sound: Sequence[ev.Event] = ()
    faulty: Sequence[ev.Event] = ()
    header: ev.Header = connector()


WINDOW = connector(ev.Group("gpu", 16, window=16, kind="sliding"))
RESET = ev.Reset(ok=True, pools=["gpu", "cpu"])
PROMISE = ev.Lookup("7", 0, local=0, external=32, pool="cpu", slots=[0, 1])
FREED = ev.Free("gpu", "req:7.0", [1, 2])
FREED_FIRST = ev.Free("gpu", "req:7.0", [1])
FREED_ALL = ev.Free("gpu", "req:7.0", [1, 2, 3])
SOURCE_LET_GO = ev.Free("gpu", "op:0.0", [1])
TARGET_LET_GO = ev.Free("cpu", "op:0.0", [0])
TWO_STEPS: list[ev.Event] = [*at.ADMITTED, ev.Dispatch(0, ["7"], [16]), ev.Dispatch(1, ["7"], [16])]
ENDED: list[ev.Event] = [*at.COMPUTED, ev.Finish("7", 0, "length", 32)]
FAILED: list[ev.Event] = [*at.LOADING, ev.Report(0, 0, rank=0, ok=False), ev.Complete(0, 0, ok=False)]
ABORTED: list[ev.Event] = [*at.PROMISED, ev.Finish("7", 0, "abort", 0), ev.Withdraw("7", 0)]
REPORTED: list[ev.Event] = [ev.Report(0, 0, rank=0), ev.Complete(0, 0)]
DONE: list[ev.Event] = [
    *(ev.Finish("7", 0, "length", 32), ev.Drop("7", 0, 1, 1, "off"), FREED),
    *(ev.Retire("7", 0), ev.Quiesce()),
]
STORE_AFTER_END: list[ev.Event] = [
    ev.Finish("7", 0, "length", 32),
    ev.Drop("7", 0, 1, 1, "off"),
    FREED,
    ev.Alloc("cpu", "op:0.0", [0]),
    ev.Queue(0, 0, "store", "gpu", [1], "cpu", [0], [4242], req="7", at=[0]),
]

REPORTS = [
    Report(
        "dynamo#3730",
        "GPU blocks are never freed. The leader drops its slot before the worker reports: the operation "
        "never ends. The same in dynamo#4171.",
        {"dropped_leader_slot": "ONCE", "lost_completion": "ONCE"},
        "a request that is gone while its load is open",
        "NO-LEAK",
        [],
        [
            *(*at.LANDED, ev.Finish("7", 0, "abort", 32), ev.Drop("7", 0, 0, 2, "off")),
            *(FREED_ALL, ev.Retire("7", 0), ev.Quiesce()),
        ],
        [*at.LOADING, ev.Finish("7", 0, "abort", 0), FREED_ALL, ev.Quiesce()],
    ),
    Report(
        "LMCache#4133",
        "Fewer tokens are retrieved than were promised. Pins are broken between lookup and retrieval, and "
        "what comes back is counted as the whole.",
        {
            "evict_pinned": "PIN",
            "partial_load_counted_whole": "FAIL-CLOSED",
            "lost_file_still_found": "FAIL-CLOSED",
            "unpinned_verdict": "PIN",
        },
        "the last block of a promise that is evicted",
        "PIN",
        [],
        [*at.CACHED, ev.Evict("cpu", [1])],
        [*at.PROMISED, ev.Evict("cpu", [1])],
    ),
    Report(
        "LMCache#4955",
        "Another request's KV lies under an old key. A store reads its source after preemption has freed "
        "it; the flush in between does nothing, on one rank or for what is still queued. The same in "
        "LMCache#5248.",
        {"free_on_preempt": "FREEZE", "flush_misses_queued": "FREEZE", "noop_flush_on_one_rank": "FREEZE"},
        "a store whose source is let go while one rank still reads",
        "FREEZE",
        [*at.STORING, FREED_FIRST, ev.Report(0, 0, rank=0)],
        [ev.Report(0, 0, rank=1), ev.Complete(0, 0), SOURCE_LET_GO],
        [SOURCE_LET_GO],
        connector(ranks=2),
    ),
    Report(
        "sglang#13483",
        "Host memory is corrupt after a prefetch that ended early. The tail of a transfer is released "
        "twice, by two code paths.",
        {"double_release": "CONSERVE"},
        "a pin that is given back twice",
        "CONSERVE",
        [*at.PROMISED, ev.Withdraw("7", 0)],
        [ev.Free("cpu", "hit:7.0", [0, 1])],
        [ev.Free("cpu", "hit:7.0", [0, 0])],
    ),
    Report(
        "sglang#28468",
        "Host slots are freed in the middle of a copy. The destination of a copy in flight has no holder.",
        {"unpinned_destination": "FREEZE"},
        "the destination of a store that is let go before its report",
        "FREEZE",
        at.STORING,
        [*REPORTED, TARGET_LET_GO],
        [TARGET_LET_GO],
    ),
    Report(
        "sglang#33862",
        "The storage tier silently starves. Each node keeps a mirror on the host, which no one gives back, "
        "until every backup is refused.",
        {},
        "a connector that holds a slot of the tier when nothing is left to do",
        "NO-LEAK",
        [],
        [*at.STORED, *DONE],
        [*(event for event in at.STORED if event != TARGET_LET_GO), *DONE],
    ),
    Report(
        "vllm#21048",
        "A request is reported finished although a rank still transfers. What one rank says is taken for "
        "all.",
        {"one_rank_enough": "RANKS", "complete_on_first_rank": "RANKS", "repeat_counts": "ONCE"},
        "three ranks of which two have reported",
        "RANKS",
        [*at.STORING, ev.Report(0, 0, rank=0), ev.Report(0, 0, rank=1)],
        [ev.Report(0, 0, rank=2), ev.Complete(0, 0)],
        [ev.Complete(0, 0)],
        connector(ranks=3),
    ),
    Report(
        "vllm#27697",
        "Blocks are never offloaded. The cursor advances before the job is queued, and an early exit leaves "
        "the job out.",
        {"cursor_before_queue": "CURSOR"},
        "a cursor that passes one block more than was queued",
        "CURSOR",
        at.QUEUED,
        [ev.Cursor("7", 0, to=1)],
        [ev.Cursor("7", 0, to=2)],
    ),
    Report(
        "vllm#29870",
        "Stores of a preempted request read blocks that were used again. Preemption gives slots back while "
        "a transfer still reads them.",
        {"free_on_preempt": "FREEZE", "free_fenced_victim": "FREEZE"},
        "a preempted request whose load is still writing",
        "FREEZE",
        [*at.LOADING, ev.Preempt("7", 0)],
        [FREED_ALL],
        [FREED_ALL, ev.Free("gpu", "op:0.0", [1, 2])],
    ),
    Report(
        "vllm#31341",
        "Stored KV is corrupt. A store does not wait for the compute stream. (event_reused: it waits for an "
        "event that was recorded for an earlier step.)",
        {"store_without_barrier": "STORE-READY", "event_reused": "STORE-READY"},
    ),
    Report(
        "vllm#32255",
        "A load writes into freed blocks after an abort. An abort frees what a load in flight still writes; "
        "or, the other way round, nothing frees it.",
        {"free_on_abort": "FREEZE", "leak_on_abort": "NO-LEAK", "pin_leak_on_abort": "NO-LEAK"},
        "an abort before the load is issued that keeps the pins",
        "NO-LEAK",
        ABORTED,
        [ev.Free("cpu", "hit:7.0", [0, 1]), ev.Retire("7", 0)],
        [ev.Free("cpu", "hit:7.0", [0]), ev.Retire("7", 0)],
    ),
    Report(
        "vllm#39702",
        "A promised hit is evicted before it is allocated for. A promise has no holder: between the two "
        "phases of a lookup nothing keeps the blocks, and asking again adds to what the first answer took.",
        {"unpinned_lookup": "PIN", "pins_added_not_replaced": "PURE"},
        "a promise of two blocks of which one is pinned",
        "PIN",
        at.CACHED,
        [ev.Touch("cpu", "hit:7.0", [0, 1]), PROMISE],
        [ev.Touch("cpu", "hit:7.0", [0]), PROMISE],
    ),
    Report(
        "vllm#39726",
        "A reset with transfers in flight fails or leaks. Holds and trackers of transfers survive the "
        "reset, and their completion brings entries back.",
        {
            "reset_ignores_in_flight": "RESET",
            "store_resurrects_key": "RESET",
            "reset_forgets_transfers": "NO-LEAK",
        },
        "a store from before the reset that brings its key back",
        "RESET",
        [*at.STORING, RESET, *REPORTED],
        [TARGET_LET_GO],
        [ev.Label("cpu", [0], [4242], op=0, gen=0)],
    ),
    Report(
        "vllm#41289",
        "The same GPU blocks are offloaded twice. A key becomes known only when its store has landed: a "
        "request that hits the block before stores it again.",
        {"duplicate_in_flight_store": "UNIQUE"},
        "one store that carries a key twice",
        "UNIQUE",
        [*at.COMPUTED, ev.Touch("gpu", "op:0.0", [1, 2]), ev.Alloc("cpu", "op:0.0", [0, 1])],
        [ev.Queue(0, 0, "store", "gpu", [1, 2], "cpu", [0, 1], [4242, 4343])],
        [ev.Queue(0, 0, "store", "gpu", [1, 2], "cpu", [0, 1], [4242, 4242])],
    ),
    Report(
        "vllm#41704",
        "The last full block of a request is never stored. Stores are planned before the step that "
        "completes the block is counted, and finishing clears what is left.",
        {"no_flush_on_finish": "FLUSH"},
        "a request that ends at its length and drops only its first block",
        "FLUSH",
        ENDED,
        [ev.Drop("7", 0, 0, 2, "off"), FREED, ev.Retire("7", 0)],
        [ev.Drop("7", 0, 0, 1, "off"), FREED, ev.Retire("7", 0)],
    ),
    Report(
        "vllm#42085",
        "The same GPU block several times in one transfer ends in an over-pop. A list has duplicates: each "
        "naming is counted, and the free list grows beyond the pool.",
        {"duplicate_in_store_list": "UNIQUE", "over_pop": "CONSERVE", "allocate_unchecked": "CONSERVE"},
        "a load that writes two sources into one slot",
        "UNIQUE",
        [*at.CACHED, ev.Alloc("gpu", "op:0.0", [1, 2]), ev.Touch("cpu", "op:0.0", [0, 1])],
        [ev.Queue(0, 0, "load", "cpu", [0, 1], "gpu", [1, 2], [4242, 4343])],
        [ev.Queue(0, 0, "load", "cpu", [0, 1], "gpu", [1, 1], [4242, 4343])],
    ),
    Report(
        "vllm#42571",
        "The same physical block is in the free list twice. One release names a block twice.",
        {"over_pop": "CONSERVE", "duplicate_in_store_list": "UNIQUE"},
        "a request that releases a slot of its table twice",
        "CONSERVE",
        [*at.COMPUTED, ev.Drop("7", 0, 0, 2, "off")],
        [FREED],
        [ev.Free("gpu", "req:7.0", [1, 1])],
    ),
    Report(
        "vllm#42959",
        "A declined store is made up for from a block that belongs to another request by now. The cursor or "
        "the plan outlives the hold on the block.",
        {"late_flush": "FREEZE", "cursor_before_queue": "CURSOR"},
        "a store of a block that its request has given back",
        "FREEZE",
        at.COMPUTED,
        [ev.Touch("gpu", "op:0.0", [1]), *STORE_AFTER_END],
        STORE_AFTER_END,
    ),
    Report(
        "vllm#45138",
        "A request is stranded in the running queue. Counts are rolled back after a failed load, and one of "
        "them is forgotten.",
        {"count_not_rolled_back": "COUNT", "count_promised": "COUNT"},
        "tokens of a hit that are computed as well",
        "COUNT",
        at.PROMISED,
        [ev.Admit("7", 0, local=0, external=32, compute=16, total=48)],
        [ev.Admit("7", 0, local=0, external=32, compute=32, total=48)],
    ),
    Report(
        "vllm#45388",
        "Nothing runs although a loaded request is ready. The head of the queue does not fit, and those "
        "behind it that hold blocks are never looked at. The same in vllm#45387.",
        {"head_blocks_holder": "PROGRESS"},
        "rounds without a step while a landed load waits",
        "PROGRESS",
        [*at.LANDED, ev.Round(ready=1), ev.Round(ready=1)],
        [ev.Dispatch(0, ["7"], [16])],
        [ev.Round(ready=1)],
    ),
    Report(
        "vllm#45704",
        "A store's copy reads while compute still writes. The copy's stream has no edge from the compute, "
        "or its reads leave the order of the stream. (barrier_before_compute: the barrier is recorded too "
        "early.)",
        {
            "store_without_barrier": "STORE-READY",
            "barrier_with_any": "STORE-READY",
            "barrier_before_compute": "STORE-READY",
        },
    ),
    Report(
        "vllm#47282",
        "A window slides on tokens that are not confirmed, and a load takes the block. A slot is given back "
        "on an optimistic count while a dispatched step still reads it. The same in vllm#47291, vllm#47653 "
        "and vllm#47728.",
        {"free_before_processed": "FREEZE", "load_without_barrier": "LOAD-ORDER"},
        "a slot given back after one of two steps in flight",
        "FREEZE",
        [*TWO_STEPS, ev.Process(0)],
        [ev.Process(1), FREED_FIRST],
        [FREED_FIRST],
        connector(depth=2),
    ),
    Report(
        "vllm#48596",
        "The final block is lost, and then read after it was used again. What is stored at the end is "
        "submitted when the blocks are gone.",
        {"late_flush": "FREEZE", "no_flush_on_finish": "FLUSH"},
        "a final store that is issued after its source was let go",
        "FREEZE",
        [],
        [*at.STORED, FREED_FIRST],
        [*at.QUEUED, FREED_FIRST, SOURCE_LET_GO],
    ),
    Report(
        "vllm#48959",
        "A valid load fails a bound. A window that does not begin at a block's edge lies in one block more "
        "than its length suggests.",
        {"aligned_window_bound": "GEOMETRY"},
        "a short window in the middle of two blocks",
        "GEOMETRY",
        [ev.Submit("7", 0, 40)],
        [ev.Geometry("7", 0, group=0, tokens=40, needed=2, bound=2)],
        [ev.Geometry("7", 0, group=0, tokens=40, needed=2, bound=1)],
        WINDOW,
    ),
    Report(
        "vllm#49250",
        "The output is wrong after a failed load of a shared block. A sharer takes the failed block for "
        "computed.",
        {
            "sharer_not_rolled_back": "FAIL-CLOSED",
            "keep_label_on_failure": "FAIL-CLOSED",
            "shared_before_landing": "USE-READY",
            "register_before_landing": "USE-READY",
        },
        "a step that runs on a load that has not landed",
        "USE-READY",
        [],
        [*at.LANDED, ev.Dispatch(0, ["7"], [16])],
        [*at.LOADING, ev.Dispatch(0, ["7"], [16])],
    ),
    Report(
        "vllm#49674",
        "Requests preempt each other in turn, without progress. A retry counts on blocks of a victim that "
        "stay fenced. Its opposite, a victim whose blocks come free at once, is unsafe.",
        {"fenced_victim_spin": "PROGRESS", "free_fenced_victim": "FREEZE"},
        "a victim of two steps in flight whose slots come free after one",
        "FREEZE",
        [*TWO_STEPS, ev.Preempt("7", 0), ev.Process(0)],
        [ev.Process(1), FREED],
        [FREED],
        connector(depth=2),
    ),
    Report(
        "vllm#50388",
        "A failed block cannot be told from another group's. Ids are unique in a group only. The same in "
        "vllm#56855 and vllm#47812.",
        {
            "block_ids_unique_only_in_group": "FAIL-CLOSED",
            "invalid_in_one_group_only": "FAIL-CLOSED",
            "failure_after_completion": "FAIL-CLOSED",
        },
        "a failed load after which the request runs on",
        "FAIL-CLOSED",
        FAILED,
        [ev.Rollback("7", 0, 0)],
        [ev.Dispatch(0, ["7"], [16])],
    ),
    Report(
        "vllm#50696",
        "A request attends over zeros. A zero-fill that was dispatched earlier lands after the load. "
        "(load_without_barrier: a step of the previous owner still reads when the load begins.)",
        {"zero_fill_after_load": "LOAD-ORDER", "load_without_barrier": "LOAD-ORDER"},
    ),
    Report(
        "vllm#52170",
        "After preemption the store cursor points behind the new table. The table begins anew, and the "
        "cursor does not.",
        {"cursor_not_rewound": "CURSOR"},
        "a cursor that jumps over a block in the middle",
        "CURSOR",
        at.COMPUTED,
        [ev.Drop("7", 0, 0, 2, "tier_full"), ev.Cursor("7", 0, to=2)],
        [ev.Drop("7", 0, 1, 1, "tier_full"), ev.Cursor("7", 0, to=2)],
    ),
    Report(
        "vllm#52735",
        "Blocks are stored and never hit with speculative decoding. A group that drafts nothing is treated "
        "as if it did: its only block is always left out. The same in vllm#52771.",
        {"eagle_marks_every_group": "GEOMETRY"},
        "null blocks in front of a window that are counted",
        "GEOMETRY",
        [ev.Submit("7", 0, 48), ev.Alloc("gpu", "req:7.0", [1])],
        [ev.Geometry("7", 0, group=0, tokens=48, slots=[0, 0, 1], held=1)],
        [ev.Geometry("7", 0, group=0, tokens=48, slots=[0, 0, 1], held=3)],
        WINDOW,
    ),
    Report(
        "vllm#54872",
        "The late answer for one request is applied to another. An answer is matched by key alone.",
        {"answers_by_key": "ONCE", "ignore_generation": "ONCE"},
        "a report of a transfer that is over",
        "ONCE",
        at.STORED,
        [ev.Stale(0, 0, rank=0)],
        [ev.Report(0, 0, rank=0)],
    ),
    Report(
        "vllm#57727",
        "A reset succeeds, and the CPU tier goes on serving. One tier is reset, and the answer hides that "
        "another was not.",
        {"reset_one_tier": "RESET", "reset_skips_a_tier": "RESET"},
        "a reset that clears the tier and not the GPU",
        "RESET",
        [
            *(*at.CACHED, ev.Alloc("gpu", "req:6.0", [1]), ev.Label("gpu", [1], [4242])),
            ev.Free("gpu", "req:6.0", [1]),
        ],
        [RESET],
        [ev.Reset(ok=True, pools=["cpu"])],
    ),
    Report(
        "vllm#57841",
        "Nothing runs, and the cache is nearly full. A request without blocks stands in front of one that "
        "holds some.",
        {"blockless_head": "PROGRESS"},
        "two ready requests of which none runs",
        "PROGRESS",
        [*at.LANDED, ev.Round(ready=2), ev.Round(ready=2)],
        [ev.Dispatch(0, ["7"], [16])],
        [ev.Round(ready=2)],
    ),
]
