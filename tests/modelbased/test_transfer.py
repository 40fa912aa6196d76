"""The reference's transfers in lockstep with the machine ``transfer``.

Driven: the scheduler side, the KV-cache manager, both pools and the table of transfers, by the calls that the
engine's scheduler makes to them, in its order; steps are dispatched ahead of their output. The reference
stores eagerly in one run and lazily in another. What differs in the words:

* A prompt has one full block, as in the machine, and one token more, which the reference always leaves to
  compute and which nobody computes here.
* The reference does at once what the machine does in steps, and the driver answers with these steps: a
  finished request's block is stored or dropped and the request retires; an operation is complete with the
  last rank's report; whatever was queued is issued together; an allocation evicts first. So ``drop``,
  ``retire``, ``complete`` and ``complete_failed`` are taken, but never asked for alone.
* An aborted request gives its table up at once, and its load alone holds the block; the machine keeps the
  table until the load is over. The driver counts the load's hold as the table. The block of such a load is
  not entered into the prefix index: the machine enters it and evicts it.
* After a failed load the reference gives the request's block back, and would take another for it; the machine
  computes into the same one. The driver allocates until that one comes, which evicts others.
* Operation ids are those of the reference, until the machine's two uses of an id are used up.
* ``evict`` and ``evict_from_tier`` are pressure on a pool; for a held slot it must be refused.

Left out: ``refuse_reset``, which the engine's scheduler answers, not these parts (it also resets where the
machine refuses to: behind a fence, and beside the load of an aborted request). Not performed in some states:
``decline_store`` where the reference drops the block with a reason, since the key is resident or on its way
(the machine drops only blocks of finished requests, so the eager scan is driven only where the machine
stores or declines); ``queue_lazy_store`` of a block that is held (the lazy scan looks at free blocks, once
each). Not observed: ``good``, the content of blocks, which needs a device.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from drivers import RequestsDriver, press

from kvfence.checker.analysis import lockstep as ls
from kvfence.checker.engines.explicit.interpret import Interpreter
from kvfence.reference.blocks.errors import OutOfBlocks
from kvfence.reference.blocks.kv_cache_manager import LocalHit
from kvfence.reference.blocks.pool import BlockPool
from kvfence.reference.blocks.request import Request
from kvfence.reference.blocks.workload import synthetic
from kvfence.reference.connector.transfers import Transfer, TransferReport
from kvfence.reference.designs.design import SOUND, Design
from kvfence.reference.designs.faulty import FAULTS
from kvfence.reference.scheduler.options import Mode
from kvfence.reference.scheduler.scheduler import Scheduler
from kvfence.spec import events as ev
from kvfence.spec.designs import DESIGNS
from kvfence.spec.machines import transfer

SIZES = {"Request": 3, "Block": 3, "Host": 1, "Operation": 3, "Rank": 2}
SPEC = Interpreter(transfer.build(), SIZES)
LARGER_TIER = Interpreter(transfer.build(), SIZES | {"Host": 2})
REQUESTS, BLOCKS, OPERATIONS, RANKS = (SIZES[sort] for sort in ("Request", "Block", "Operation", "Rank"))
FULL, USES = transfer.FULL, 2
NO_ROWS = np.empty(0, np.int64)
NO_HIT = LocalHit(0, ((0, NO_ROWS),))
SELDOM = {"abort", "decline_store", "evict", "evict_from_tier", "finish", "refused", "reset", "rest"}


def computed(r: int) -> list[ls.Step]:
    return [("admit", {"r": r}), *[("dispatch", {"r": r}), ("process", {"r": r})] * FULL]


def landed(ok: bool = True) -> list[ls.Step]:
    """Both ranks report; the operation is the one that is issued."""
    return [("report", {"k": 0}), ("report" if ok else "report_failure", {"k": 1})]


STORED: list[ls.Step] = [*computed(0), ("queue_store", {"r": 0}), *landed()]
LOADING: list[ls.Step] = [*STORED, ("admit_by_load", {"r": 1})]
TWO_LOADS: list[ls.Step] = [*STORED, ("finish", {"r": 0}), *(("admit_by_load", {"r": r}) for r in (1, 2))]
ONE_FAILED: list[ls.Step] = [*TWO_LOADS, ("issue", {}), *landed(ok=False)]
DECLINED: list[ls.Step] = [*ONE_FAILED, *computed(1)[1:], ("decline_store", {"r": 1})]
REPEATED: list[ls.Step] = [("report", {"k": 0}), ("repeat", {"k": 0}), ("report", {"k": 1})]
LATE: list[ls.Step] = [*computed(0), ("queue_store", {"r": 0}), *REPEATED, ("admit_by_load", {"r": 1})]
AHEAD: list[ls.Step] = [("admit", {"r": 0}), ("dispatch", {"r": 0}), ("dispatch", {"r": 0})]
STORING: list[ls.Step] = [*computed(0), ("queue_store", {"r": 0})]
TWO_FULL: list[ls.Step] = [*computed(0), *computed(1), ("queue_store", {"r": 0})]
CACHED: list[ls.Step] = [*computed(0), ("finish", {"r": 0})]
RESET: list[ls.Step] = [*CACHED, ("reset", {})]
TIGHT: list[ls.Step] = [*STORING, ("preempt", {"r": 0}), ("admit", {"r": 1}), ("admit", {"r": 2})]
EAGER = [AHEAD, STORING, TIGHT, TWO_FULL, STORED, LOADING, ONE_FAILED, DECLINED, LATE, RESET]
LAZY_STORE: list[ls.Step] = [*CACHED, ("queue_lazy_store", {})]
LAZY_LOAD: list[ls.Step] = [*LAZY_STORE, *landed(), ("admit_by_load", {"r": 1})]
LAZY_LATE: list[ls.Step] = [*LAZY_STORE, *REPEATED, ("admit_by_load", {"r": 1}), ("issue", {})]
LAZY_TIGHT: list[ls.Step] = [*computed(0), ("preempt", {"r": 0}), ("queue_lazy_store", {}), *TIGHT[-2:]]
LAZY = [AHEAD, LAZY_TIGHT, CACHED, LAZY_STORE, LAZY_LOAD, LAZY_LATE]


Run = Callable[..., ls.Coverage]


class Flight(NamedTuple):
    """A step of one request that is not processed."""

    step: int
    r: int
    row: int
    ticket: int
    end: int
    blocks: frozenset[int]


class Leaving(NamedTuple):
    """A generation that has ended, until nothing is held for it; ``steps`` are its end in the machine."""

    request: Request
    generation: int
    steps: list[ls.Step]


class Snapshot(NamedTuple):
    """What an aborted request had when it lost its row."""

    computed: int
    confirmed: int
    covered: bool
    cursor: bool


class TransferDriver(RequestsDriver):
    """Requests of one content key, whose steps, stores and loads are in flight."""

    unobserved = frozenset({"good"})

    def __init__(self, mode: Mode, design: Design, hosts: int) -> None:
        how = {"lazy": mode == "lazy", "store_batch": 1}
        super().__init__(design, BLOCKS + 1, hosts, FULL, REQUESTS, depth=2, ranks=RANKS, **how)
        self.mode = mode
        self.requests = [
            Request.arriving(synthetic(r, FULL + 1, FULL, family=0), FULL) for r in range(REQUESTS)
        ]
        self.key = self.requests[0].key_list[0]
        for request in self.requests:
            self.observe(ev.Submit(request.id, 0, request.total))
        self.flights: deque[Flight] = deque()
        self.steps = 0
        self.leaving: dict[str, Leaving] = {}
        self.aborted: dict[int, Snapshot] = {}
        self.gone: set[int] = set()
        self.current: dict[int, Transfer] = {}
        """The machine's operation -> the transfer that is, or was last, under this id."""
        self.uses = dict.fromkeys(range(OPERATIONS), 0)
        self.late: dict[tuple[int, int], tuple[TransferReport, int]] = {}

    # Operations and events, in the machine's words.

    def observe(self, event: ev.Event) -> None:
        super().observe(event)
        if isinstance(event, ev.Queue):
            free = [o for o, uses in self.uses.items() if uses < USES and not self.is_open(o)]
            o = event.op if event.op in free else free[0]
            self.uses[o] += 1
            self.current[o] = self.connector.transfers.open[event.op]

    def is_open(self, o: int) -> bool:
        known = self.current.get(o)
        return known is not None and self.connector.transfers.open.get(known.op) is known

    def operation(self, op: int, generation: int) -> int:
        return next(o for o, t in self.current.items() if (t.op, t.generation) == (op, generation))

    def need_an_operation(self) -> None:
        if not any(uses < USES and not self.is_open(o) for o, uses in self.uses.items()):
            raise ls.CannotHere("the machine has no operation left")

    def steps_since(self, since: int) -> list[ls.Step]:
        """The steps of the machine that the events from ``since`` on amount to, but for reports and ends."""
        steps: list[ls.Step] = []
        for event in self.events[since:]:
            match event:
                case ev.Evict(pool="gpu", slots=slots):
                    steps += [("evict", {"b": slot - 1}) for slot in slots]
                case ev.Evict(slots=slots):
                    steps += [("evict_from_tier", {"h": slot}) for slot in slots]
                case ev.Queue(kind="store", src=src, dst=dst):
                    args = {"b": src[0] - 1, "h": dst[0], "o": self.operation(event.op, event.gen)}
                    if event.req:
                        steps.append(("queue_store", {"r": int(event.req), **args}))
                    else:
                        steps.append(("queue_lazy_store", args))
                case ev.Issue(op=op, gen=generation):
                    steps.append(("issue", {"o": self.operation(op, generation)}))
        return steps

    # Admission.

    def admit(self, r: int, b: int) -> list[ls.Step]:
        del b
        since = len(self.events)
        self.manager.admit(self.requests[r], NO_HIT, 0, FULL)
        self.admitted(self.requests[r], 0, 0)
        return [*self.steps_since(since), ("admit", {"r": r, "b": self.block(r)})]

    def admit_by_prefix_hit(self, r: int, b: int) -> list[ls.Step]:
        del b
        hit = self.manager.get_computed_blocks(self.requests[r])
        self.manager.admit(self.requests[r], hit, 0, 0)
        self.admitted(self.requests[r], hit.tokens, 0)
        return [("admit_by_prefix_hit", {"r": r, "b": self.block(r)})]

    def admit_by_load(self, r: int, b: int, h: int, o: int) -> list[ls.Step]:
        del b, h, o
        self.need_an_operation()
        since, request = len(self.events), self.requests[r]
        promised, _ = self.connector.get_num_new_matched_tokens(request, 0)
        self.manager.admit(request, NO_HIT, promised, 0)
        self.admitted(request, 0, promised)
        queue = next(event for event in self.events[since:] if isinstance(event, ev.Queue))
        ends = {"b": self.block(r), "h": queue.src[0], "o": self.operation(queue.op, queue.gen)}
        return [*self.steps_since(since), ("admit_by_load", {"r": r, **ends})]

    def block(self, r: int) -> int:
        (slot,) = self.tables.table(self.requests[r].row, 0).tolist()
        return int(slot) - 1

    # Steps.

    def dispatch(self, r: int) -> None:
        request, tables = self.requests[r], self.tables
        row = request.row
        tables.computed[row] += 1
        tables.last_step[row] = self.steps
        blocks = frozenset((tables.table(row, 0) - 1).tolist())
        self.flights.append(
            Flight(self.steps, r, row, int(tables.ticket[row]), int(tables.computed[row]), blocks)
        )
        self.observe(ev.Dispatch(self.steps, [request.id], [1]))
        self.steps += 1

    def process(self, r: int) -> list[ls.Step]:
        flight = self.flights.popleft()
        self.observe(ev.Process(flight.step))
        if self.tables.ticket[flight.row] == flight.ticket:
            self.tables.confirmed[flight.row] = flight.end
            self.manager.cache_blocks(np.array([flight.row]))
        self.manager.step_processed(flight.step)
        return [("process", {"r": r}), *self.retired()]

    # Stores.

    def must_be(self, mode: Mode) -> None:
        """A lazy connector stores nothing for a request; an eager one stores for requests only."""
        if self.mode != mode:
            raise ls.CannotHere(f"only a connector that is {mode} stores like this")

    def queue_store(self, r: int, b: int, h: int, o: int) -> list[ls.Step]:
        del b, h, o
        self.must_be("eager")
        self.need_an_operation()
        return self.build([self.requests[r].row])

    def queue_lazy_store(self, b: int, h: int, o: int) -> list[ls.Step]:
        del b, h, o
        self.must_be("lazy")
        self.need_an_operation()
        return self.build([])

    def decline_store(self, r: int) -> list[ls.Step]:
        self.must_be("eager")
        if self.key in self.connector.storing[0] or self.tier.get_cached_block(self.key) is not None:
            raise ls.CannotHere("the block is dropped, with a reason")
        return [("decline_store", {"r": r}), *self.build([self.requests[r].row])]

    def issue(self, o: int) -> list[ls.Step]:
        del o
        if self.mode == "lazy":
            self.need_an_operation()
        return self.build([])

    def build(self, rows: list[int]) -> list[ls.Step]:
        since = len(self.events)
        self.connector.build_connector_meta(np.array(rows, np.int64))
        return self.steps_since(since)

    # Reports.

    def report_failure(self, o: int, k: int) -> list[ls.Step]:
        return self.report(o, k, ok=False)

    def report(self, o: int, k: int, ok: bool = True) -> list[ls.Step]:
        """Rank k's report of operation o, and what follows from it."""
        return [("report" if ok else "report_failure", {"o": o, "k": k}), *self.after_report(o, k, ok)]

    def after_report(self, o: int, k: int, ok: bool) -> list[ls.Step]:
        t = self.current[o]
        self.connector.update_connector_output([TransferReport(t.op, t.generation, k, ok)])
        if self.is_open(o):
            return []
        steps: list[ls.Step] = [("complete" if t.ok else "complete_failed", {"o": o})]
        if t.kind == "store":
            return steps
        assert t.request is not None
        b = int(t.dst[0]) - 1
        if t.request.row < 0:
            steps += self.retired()
            return [*steps, ("evict", {"b": b})] if t.ok else steps
        return steps if t.ok else [*steps, *self.allocate_again(t.request, b)]

    def allocate_again(self, request: Request, b: int) -> list[ls.Step]:
        since = len(self.events)
        self.manager.allocate_slots(request, FULL)
        while self.block(int(request.id)) != b:
            self.manager.truncate(request, 0)
            self.manager.allocate_slots(request, FULL)
        return self.steps_since(since)

    def repeat(self, o: int, k: int) -> None:
        t = self.current[o]
        self.late[o, k] = TransferReport(t.op, t.generation, k), self.uses[o]

    def late_report(self, o: int, k: int) -> None:
        report, _ = self.late.pop((o, k))
        self.connector.update_connector_output([report])

    # Ends of requests.

    def preempt(self, r: int) -> list[ls.Step]:
        request, since = self.requests[r], len(self.events)
        self.may_store(request)
        confirmed = self.preempted(request)
        steps = [*self.steps_since(since), ("preempt", {"r": r})]
        self.leave(request, [])
        request.next_generation(confirmed)
        return [*steps, *self.retired()]

    def finish(self, r: int) -> list[ls.Step]:
        request, since = self.requests[r], len(self.events)
        self.may_store(request)
        self.end(request, "stop")
        dropped = any(isinstance(event, ev.Drop) for event in self.events[since:])
        steps: list[ls.Step] = [("finish", {"r": r}), *self.steps_since(since)]
        steps += [("drop", {"r": r})] if dropped else []
        self.leave(request, [("retire", {"r": r})])
        return [*steps, *self.retired()]

    def abort(self, r: int) -> list[ls.Step]:
        request, since = self.requests[r], len(self.events)
        row, tables = request.row, self.tables
        if row < 0:
            self.end(request, "abort")
            self.leave(request, [])
            return [("abort", {"r": r}), *self.retired()]
        at = int(tables.computed[row]), int(tables.confirmed[row])
        self.end(request, "abort")
        cursor = bool(tables.cursor[0, row])
        dropped = any(isinstance(event, ev.Drop) for event in self.events[since:])
        self.aborted[r] = Snapshot(*at, cursor or dropped, cursor)
        self.leave(request, [("retire", {"r": r})])
        return [("abort", {"r": r}), *self.retired()]

    def may_store(self, request: Request) -> None:
        """An eager connector stores what is left when a request loses its table."""
        row = request.row
        if self.mode == "eager" and self.tables.confirmed[row] == FULL and not self.tables.cursor[0, row]:
            self.need_an_operation()

    def end(self, request: Request, why: ev.FinishReason) -> None:
        confirmed = int(self.tables.confirmed[request.row]) if request.row >= 0 else 0
        self.finished(request, why, confirmed)

    def leave(self, request: Request, steps: list[ls.Step]) -> None:
        self.release(request)
        self.leaving[request.holder] = Leaving(request, request.generation, steps)

    def retired(self) -> list[ls.Step]:
        """The generations for which nothing is held any more retire."""
        steps: list[ls.Step] = []
        for holder, (request, generation, ends) in list(self.leaving.items()):
            if not self.manager.is_fenced(holder) and holder not in self.connector.loading:
                del self.leaving[holder]
                request.retired.add(generation)
                self.observe(ev.Retire(request.id, generation))
                steps += ends
                if generation == request.generation:
                    self.gone.add(int(request.id))
        return steps

    # The caches.

    def evict(self, b: int) -> list[ls.Step]:
        return self.press(self.gpu, b + 1)

    def evict_from_tier(self, h: int) -> list[ls.Step]:
        return self.press(self.tier, h)

    def press(self, pool: BlockPool, slot: int) -> list[ls.Step]:
        since = len(self.events)
        press(pool, slot)
        return self.steps_since(since)

    def reset(self) -> None:
        self.gpu.reset_prefix_cache()
        self.connector.reset_cache()
        self.observe(ev.Reset(ok=True, pools=["gpu", "cpu"]))

    def rest(self) -> None:
        self.observe(ev.Quiesce())

    def refusal(self, action: str, args: ls.Args) -> type[Exception] | None:
        if action == "admit" and self.status(args["r"]) == "waiting" and not self.fenced(args["r"]):
            return None if self.gpu.num_free else OutOfBlocks
        if action == "evict" and self.gpu.ref[args["b"] + 1]:
            return OutOfBlocks
        if action == "evict_from_tier" and self.tier.ref[args["h"]]:
            return OutOfBlocks
        return None

    # The state, in the machine's words.

    def status(self, r: int) -> str:
        request = self.requests[r]
        if request.row >= 0:
            return "loading" if self.connector.has_open_loads(request) else "running"
        return "gone" if r in self.gone else "aborting" if r in self.aborted else "waiting"

    def fenced(self, r: int) -> set[int]:
        request = self.requests[r]
        return {slot - 1 for slot in self.gpu.held(f"req:{request.id}.{request.generation - 1}")}

    def table(self, r: int) -> set[int]:
        request = self.requests[r]
        slots = set(self.gpu.held(request.holder))
        if r in self.aborted:
            for t in self.connector.transfers.open.values():
                if t.request is request and t.kind == "load":
                    slots |= self.gpu.held(t.holder)
        return {slot - 1 for slot in slots}

    def progress(self, r: int) -> Snapshot:
        row, tables = self.requests[r].row, self.tables
        if row < 0:
            return self.aborted[r] if self.status(r) == "aborting" else Snapshot(0, 0, False, False)
        passed = bool(tables.cursor[0, row])
        return Snapshot(int(tables.computed[row]), int(tables.confirmed[row]), passed, passed)

    def found(self, pool: BlockPool) -> set[int]:
        """The slots that can be found under the one key."""
        first = pool.get_cached_block(self.key)
        return set() if first is None else {first, *pool.spares[0].get(self.key, [])}

    def abstract(self) -> dict[str, ls.Observed]:
        requests = range(REQUESTS)
        progress = {r: self.progress(r) for r in requests}
        is_open = {o: t for o, t in self.current.items() if self.is_open(o)}
        state = {o: "issued" if t.issued else "queued" for o, t in is_open.items()}
        known = self.current.items()
        return {
            "status": {r: self.status(r) for r in requests},
            "gen": {r: self.requests[r].generation for r in requests},
            "computed": {r: progress[r].computed for r in requests},
            "confirmed": {r: progress[r].confirmed for r in requests},
            "table": {(r, b) for r in requests for b in self.table(r)},
            "fence": {(r, b) for r in requests for b in self.fenced(r)},
            "flight": {(i, flight.r) for i, flight in enumerate(self.flights)},
            "reads": {(flight.r, b) for flight in self.flights for b in flight.blocks},
            "covered": {r for r in requests if progress[r].covered},
            "cursor": {r for r in requests if progress[r].cursor},
            "label": {slot - 1 for slot in self.found(self.gpu)},
            "resident": self.found(self.tier),
            "state": {o: state.get(o, "idle") for o in range(OPERATIONS)},
            "uses": self.uses,
            "load": {o for o, t in is_open.items() if t.kind == "load"},
            "of": {
                (o, int(t.request.id))
                for o, t in is_open.items()
                if t.request is not None and t.request_generation == t.request.generation
            },
            "block": {(o, slot - 1) for o, t in is_open.items() for slot in slots_of(t, "gpu")},
            "host": {(o, slot) for o, t in is_open.items() for slot in slots_of(t, "cpu")},
            "op_pin": {(o, slot - 1) for o, t in known for slot in self.gpu.held(t.holder)},
            "host_pin": {(o, slot) for o, t in known for slot in self.tier.held(t.holder)},
            "reported": {(o, k) for o, t in is_open.items() for k in t.reported},
            "late": set(self.late),
            "late_uses": {
                (o, k): self.late[o, k][1] if (o, k) in self.late else 0
                for o in range(OPERATIONS)
                for k in range(RANKS)
            },
            "failed": {o for o, t in is_open.items() if not t.ok},
            "old": {o for o, t in is_open.items() if t.epoch != self.connector.epoch},
            "was_reset": self.connector.epoch > 0,
        }


def slots_of(t: Transfer, pool: str) -> list[int]:
    """The slots of ``pool``, gpu or cpu, that a transfer copies from or to."""
    slots: list[int] = (t.src if (t.kind == "store") == (pool == "gpu") else t.dst).tolist()
    return slots


ASKED = {
    "eager": set(SPEC.machine.actions) - {"refuse_reset", "queue_lazy_store"},
    "lazy": set(SPEC.machine.actions) - {"refuse_reset", "queue_store", "decline_store"},
}
SCENES = {"eager": EAGER, "lazy": LAZY}
GOALS = {"eager": set(SPEC.machine.goals), "lazy": set(SPEC.machine.goals) - {"a_store_outlives_its_request"}}


def lockstep(
    run: Run,
    mode: Mode,
    design: Design = SOUND,
    spec: Interpreter = SPEC,
    scenes: Sequence[Sequence[ls.Step]] | None = None,
    judge: bool = True,
) -> ls.Coverage:
    return run(
        spec,
        lambda: TransferDriver(mode, design, spec.sizes["Host"]),
        without=set(spec.machine.actions) - ASKED[mode],
        seldom=SELDOM,
        scenes=SCENES[mode] if scenes is None else scenes,
        judge=judge,
        more=1 if judge else 4,
    )


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_transfers_do_what_the_specification_does(run: Run, mode: Mode) -> None:
    coverage = lockstep(run, mode)
    assert set(coverage.taken) == ASKED[mode], str(coverage)
    assert set(coverage.goals) == GOALS[mode], str(coverage)
    assert set(coverage.refused) == {"admit", "evict", "evict_from_tier"}, str(coverage)
    assert coverage.events > 0


BROKEN = {design.name for design in DESIGNS.values() if "transfer" in design.machines and design.breaks}
DRIVEN = {name for name in BROKEN if FAULTS[name].scheduler is Scheduler}


def test_only_designs_that_break_the_engines_scheduler_are_left_out() -> None:
    left_out = BROKEN - DRIVEN
    assert left_out == {"leak_on_abort", "reset_one_tier"}


@pytest.mark.parametrize("name", sorted(DRIVEN - {"duplicate_in_flight_store"}))
def test_a_broken_design_is_found(run: Run, name: str) -> None:
    with pytest.raises(ls.LockstepError):
        lockstep(run, "eager", FAULTS[name], judge=False)


def test_a_second_store_of_a_key_is_found(run: Run) -> None:
    faulty = FAULTS["duplicate_in_flight_store"]
    with pytest.raises(ls.StepNotAllowedError, match="queue_store"):
        lockstep(
            run, "eager", faulty, LARGER_TIER, [TWO_FULL, [*TWO_FULL, ("finish", {"r": 1})]], judge=False
        )
