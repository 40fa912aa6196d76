"""The engine's scheduler: waiting, parked and running requests, chunked prefill, preemption, ends."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kvfence.reference.blocks.changes import Change
from kvfence.reference.blocks.errors import OutOfBlocks
from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.kv_cache_manager import KVCacheManager
from kvfence.reference.blocks.pool import Observer
from kvfence.reference.blocks.request import Request, State
from kvfence.reference.blocks.stats import Stats
from kvfence.reference.blocks.tables import Rows
from kvfence.reference.blocks.workload import RequestSpec
from kvfence.reference.connector.scheduler_side import OffloadScheduler
from kvfence.reference.connector.stores import ConnectorMetadata
from kvfence.reference.connector.transfers import TransferReport
from kvfence.reference.scheduler.emitter import Emitter
from kvfence.reference.scheduler.options import FailurePolicy
from kvfence.spec import events as ev

PATIENCE = 8
"""Rounds that a preempted request's blocks are waited for before another one is preempted."""

DEFERRED = -1
"""A request waits for blocks on their way from files, and holds up no other request."""

_NO_ROWS = np.empty(0, np.int64)


@dataclass(slots=True)
class StepOutput:
    """What one call of :meth:`Scheduler.schedule` decided. ``step`` is -1 when there is nothing to compute.

    Row ``rows[i]`` computes ``tokens[i]`` tokens from token ``start[i]`` on. ``tickets`` show whether a row
    still belongs to the same request when the output arrives.
    """

    metadata: ConnectorMetadata
    step: int = -1
    rows: Rows = field(default_factory=lambda: _NO_ROWS)
    start: Rows = field(default_factory=lambda: _NO_ROWS)
    tokens: Rows = field(default_factory=lambda: _NO_ROWS)
    tickets: Rows = field(default_factory=lambda: _NO_ROWS)
    changes: list[Change] = field(default_factory=list)
    zero: Slots = field(default_factory=lambda: _NO_ROWS)
    """Slots to fill with zeros before anything is computed."""


class Scheduler:
    """Decides each step; first come, first served.

    Requests that hold blocks come before those that do not: a parked request whose load is over is never
    behind a waiting one. When a running request gets no block, the last one is preempted, at most once in a
    step: blocks behind a fence or under a transfer come back later, and preempting more requests does not
    make them come sooner.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        connector: OffloadScheduler,
        token_budget: int,
        stats: Stats,
        observer: Observer | None = None,
        on_failure: FailurePolicy = "recompute",
        emitter_type: type[Emitter] = Emitter,
    ) -> None:
        self.manager = manager
        self.on_failure = on_failure
        self.connector = connector
        self.tables = manager.tables
        self.token_budget = token_budget
        self.stats = stats
        self.observer = observer
        self.emitter = None if observer is None else emitter_type(manager, observer)
        self.block_size = manager.groups[0].block_size
        self.unit = manager.unit
        self._sizes = [
            (group, spec.block_size)
            for group, spec in enumerate(manager.groups)
            if spec.block_size not in {other.block_size for other in manager.groups[:group]}
        ]
        """Each block size, with the first group that has it: groups of a size have equally long tables."""
        self.watermark = manager.pool.usable // 100
        """Free slots left alone when a request is admitted beside others: room for those to grow."""
        self.waiting: deque[Request] = deque()
        self.parked: dict[str, Request] = {}
        self.ready: list[Request] = []
        self.running: list[Request] = []
        self.next_step = 0
        self._rows: Rows | None = None
        self._retiring: dict[str, tuple[Request, int]] = {}
        """Holder -> request and generation that ended, while the fence keeps its table or loads write into
        it.
        """
        self._round = 0
        self._preempted_at = -PATIENCE

    # Arrival.

    def add_request(self, spec: RequestSpec) -> Request:
        """A request arrives. One that could never run ends at once, with reason ``error``."""
        request = Request.arriving(spec, *(group.block_size for group in self.manager.groups))
        self.stats.requests += 1
        if self.observer is not None:
            self.observer(ev.Submit(req=request.id, gen=0, prompt=spec.prompt))
        if self.manager.fits(spec.prompt + spec.output + self.manager.depth):
            self.waiting.append(request)
        else:
            self._end(request, "error")
        return request

    # A step.

    def schedule(self) -> StepOutput:
        """Decide the next step, and what the connector starts with it."""
        self._round += 1
        rows, tokens, budget = self._schedule_running()
        admitted = self._admit(budget) if self._preempted_at != self._round else []
        if admitted:
            rows = np.concatenate([rows, np.array([request.row for request, _ in admitted], np.int64)])
            tokens = np.concatenate([tokens, np.array([n for _, n in admitted], np.int64)])
        running = self._running_rows()
        output = StepOutput(self.connector.build_connector_meta(running))
        self.manager.slide_windows(running)
        if rows.size:
            self._dispatch(output, rows, tokens)
        elif self.emitter is not None:
            needed = self.waiting[0].needed if self.waiting else 0
            if needed and (self.running or self.parked or self.ready):
                needed += self.watermark
            self.emitter.emit_idle_round(
                needed, running=self.running, ready=self.ready, parked=self.parked, waiting=self.waiting
            )
        return output

    def _running_rows(self) -> Rows:
        if self._rows is None:
            self._rows = np.array([request.row for request in self.running], np.int64)
        return self._rows

    def _schedule_running(self) -> tuple[Rows, Rows, int]:
        """Tokens for the running requests, with the blocks for them. Returns rows, tokens and the budget
        left.
        """
        rows = self._running_rows()
        if not rows.size:
            return rows, rows, self.token_budget
        tables = self.tables
        computed = tables.computed[rows]
        wanted = np.maximum(tables.total[rows] - computed, computed < tables.limit[rows])
        before = np.cumsum(wanted) - wanted
        tokens = np.clip(self.token_budget - before, 0, wanted)
        until = computed + tokens
        short = -(-until // self.block_size) > tables.blocks[0, rows]
        for group, size in self._sizes[1:]:
            short |= -(-until // size) > tables.blocks[group, rows]
        batch = list(self.running)
        for i in np.flatnonzero(short).tolist():
            request = batch[i]
            if request.state is not State.RUNNING:
                continue
            if not self._grow(request, int(computed[i] + tokens[i])):
                tokens[i] = 0
        if self._rows is None:
            stay = np.array([request.state is State.RUNNING for request in batch])
            rows, tokens = rows[stay], tokens[stay]
        some = tokens > 0
        if not some.all():
            rows, tokens = rows[some], tokens[some]
        return rows, tokens, self.token_budget - int(tokens.sum())

    def _grow(self, request: Request, tokens: int) -> bool:
        """Blocks up to ``tokens`` tokens; False when the request has to wait, or was itself preempted."""
        while True:
            try:
                self.manager.allocate_slots(request, tokens)
                return True
            except OutOfBlocks:
                self.stats.refusals += 1
                if not self._make_room() or request.state is not State.RUNNING:
                    return False

    def _make_room(self) -> bool:
        """Preempt the last request, unless one was preempted whose blocks are still on their way back."""
        on_the_way = self.manager.fenced or self.connector.uses_gpu()
        if self._round - self._preempted_at < (PATIENCE if on_the_way else 1):
            return False
        victim = self.running[-1] if self.running else self.ready[-1]
        self._preempted_at = self._round
        self._preempt(victim, "room")
        return True

    def _dispatch(self, output: StepOutput, rows: Rows, tokens: Rows) -> None:
        tables = self.tables
        output.step = self.next_step
        output.rows, output.tokens = rows, tokens
        output.start = tables.computed[rows]
        output.tickets = tables.ticket[rows]
        output.changes = self.manager.take_changes()
        tables.computed[rows] += tokens
        tables.last_step[rows] = self.next_step
        self.next_step += 1
        self.stats.steps += 1
        self.stats.tokens_computed += int(tokens.sum())
        if self.observer is not None:
            names = [request.id for row in rows.tolist() if (request := tables.requests[row]) is not None]
            self.observer(ev.Dispatch(step=output.step, reqs=names, tokens=tokens.tolist()))
        if self.manager.zeroes:
            self._zero(output)

    def _zero(self, output: StepOutput) -> None:
        """New slots of the step's requests are filled with zeros by the step itself, before it computes."""
        requests = [self.tables.requests[row] for row in output.rows.tolist()]
        fresh = [slots for one in requests if one for slots in self.manager.take_to_zero(one.holder)]
        if fresh:
            output.zero = np.concatenate(fresh)
            if self.observer is not None:
                self.observer(ev.Zero(step=output.step, pool=self.manager.pool.name, slots=output.zero))

    # Admission.

    def _admit(self, budget: int) -> list[tuple[Request, int]]:
        """Requests that join the running batch with this step, and their tokens."""
        joined: list[tuple[Request, int]] = []
        while self.ready and budget > 0:
            request = self.ready[0]
            valid = int(self.tables.computed[request.row])
            tokens = min(budget, request.total - valid)
            try:
                self.manager.allocate_slots(request, valid + tokens)
            except OutOfBlocks:
                if not self.running and not joined and self._make_room() and self.ready:
                    continue
                return joined
            self.ready.pop(0)
            self._run(request)
            joined.append((request, tokens))
            budget -= tokens
        deferred = 0
        while deferred < len(self.waiting) and budget > 0 and self.tables.rows_free:
            request = self.waiting[deferred]
            alone = not (self.running or self.parked or self.ready)
            if not alone and self.manager.pool.num_free < request.needed + self.watermark:
                break
            share = self._admit_one(request, budget, alone)
            if share is None:
                break
            if share == DEFERRED:
                deferred += 1
                continue
            del self.waiting[deferred]
            if share:
                self._run(request)
                joined.append((request, share))
                budget -= share
        return joined

    def _admit_one(self, request: Request, budget: int, alone: bool) -> int | None:
        """Tokens the request computes in this step; 0 when it is parked behind a load; None when it has to
        wait for room, and those behind it with it; DEFERRED when only it has to wait.
        """
        hit = self.manager.get_computed_blocks(request)
        owners = self.connector.filled_by(hit.parts)
        promised: int | None = 0
        if owners:
            self.connector.withdraw(request)
        else:
            promised, _ = self.connector.get_num_new_matched_tokens(request, hit.tokens)
        if promised is None:
            request.needed = 0
            return DEFERRED
        external = self._accepted(request, hit.tokens, promised)
        request.needed = self.manager.blocks_wanted(request, hit, external)
        if self.manager.pool.num_free < request.needed + (0 if alone else self.watermark):
            return None
        tokens = 0 if external or owners else min(budget, request.total - hit.tokens)
        try:
            self.manager.admit(request, hit, external, tokens)
        except OutOfBlocks:
            return None
        row = request.row
        self.tables.computed[row] = self.tables.confirmed[row] = hit.tokens
        self.tables.cached[row] = hit.tokens
        request.local, request.external = hit.tokens, external
        self.stats.local_hit_tokens += hit.tokens
        self.stats.external_hit_tokens += external
        if self.emitter is not None:
            self.emitter.emit_admission(request, hit.tokens, external, promised)
        self.connector.update_state_after_alloc(request, external)
        if self.emitter is not None and len(self.manager.groups) > 1 and hit.tokens + external:
            self.emitter.emit_tables(request, hit.tokens + external)
        if owners:
            self.connector.share(request, owners)
        if external or owners:
            request.state = State.PARKED
            self.parked[request.id] = request
        return tokens

    def _accepted(self, request: Request, local: int, promised: int) -> int:
        """How much of a promise is taken: at least one token is left to compute."""
        most = (request.total - 1) // self.unit * self.unit - local
        return min(promised, most)

    def _run(self, request: Request) -> None:
        request.state = State.RUNNING
        self.running.append(request)
        self._rows = None

    # A step's output.

    def update_from_output(self, output: StepOutput | None, reports: list[TransferReport]) -> None:
        """The output of the oldest step in flight arrived (None: of none), with the workers' reports."""
        if output is not None:
            self._process(output)
        for request in self.connector.update_connector_output(reports):
            if self.parked.pop(request.id, None) is None:
                continue
            request.state = State.READY
            if self.connector.take_failure(request) and self.on_failure == "fail":
                self._end(request, "error")
            else:
                self.ready.append(request)
        if self._retiring:
            self._retire_released()

    def _process(self, output: StepOutput) -> None:
        tables = self.tables
        if self.observer is not None:
            self.observer(ev.Process(step=output.step))
        alive = tables.ticket[output.rows] == output.tickets
        rows, confirmed = output.rows[alive], (output.start + output.tokens)[alive]
        tables.confirmed[rows] = np.minimum(confirmed, tables.target[rows])
        self.manager.cache_blocks(rows)
        self.manager.step_processed(output.step)
        for row in rows[tables.confirmed[rows] >= tables.target[rows]].tolist():
            request = tables.requests[row]
            assert request is not None
            self.running.remove(request)
            self._rows = None
            self.stats.prompt_tokens += request.spec.prompt
            self.stats.output_tokens += request.spec.output
            self._end(request, "stop" if request.stops_unannounced else "length")

    # Ends of generations.

    def _end(self, request: Request, why: ev.FinishReason) -> None:
        """The request is over; whatever it holds goes as soon as nothing in flight uses it."""
        confirmed = int(self.tables.confirmed[request.row]) if request.row >= 0 else 0
        self.stats.finished[why] += 1
        request.state = State.ENDED
        if self.observer is not None:
            self.observer(ev.Finish(req=request.id, gen=request.generation, why=why, computed=confirmed))
        self.connector.request_finished(request, aborted=why == "abort")
        self._release(request)

    def _preempt(self, request: Request, why: Literal["room", "reset"]) -> None:
        """The request loses its blocks and goes back to the head of the waiting queue."""
        self.stats.preemptions += 1
        (self.running if request.state is State.RUNNING else self.ready).remove(request)
        self._rows = None
        if self.observer is not None:
            self.observer(ev.Preempt(req=request.id, gen=request.generation, why=why))
        self.connector.request_preempted(request)
        confirmed = int(self.tables.confirmed[request.row])
        self._release(request)
        request.next_generation(confirmed)
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        if request.row >= 0:
            self.manager.release(request)
        self._retiring[request.holder] = (request, request.generation)
        self._retire_released()

    def _retire_released(self) -> None:
        """Generations for which nothing is held any more are gone."""
        for holder, (request, generation) in list(self._retiring.items()):
            if not self.manager.is_fenced(holder) and not self.connector.still_needs(holder):
                del self._retiring[holder]
                request.retired.add(generation)
                if self.observer is not None:
                    self.observer(ev.Retire(req=request.id, gen=generation))

    def abort_request(self, request: Request) -> bool:
        """The client went away. False when the request has ended already."""
        match request.state:
            case State.ENDED:
                return False
            case State.WAITING:
                self.waiting.remove(request)
            case State.PARKED:
                del self.parked[request.id]
            case State.READY:
                self.ready.remove(request)
            case State.RUNNING:
                self.running.remove(request)
                self._rows = None
        self._end(request, "abort")
        return True

    # The whole engine.

    def reset_prefix_cache(self, preempt_running: bool = False) -> bool:
        """Forget all cached content, in both tiers or not at all.

        Refused while a request has a table, since its blocks would enter the index afterwards, unless
        ``preempt_running`` gives all of them up first. Transfers in flight are no obstacle: they belong to
        an older epoch.
        """
        holding = [*self.running, *self.ready, *self.parked.values()]
        if holding and not preempt_running:
            self.stats.resets_refused += 1
            if self.observer is not None:
                self.observer(ev.Reset(ok=False))
            return False
        for request in reversed(holding):
            if request.state is State.PARKED:
                del self.parked[request.id]
                self.ready.append(request)
                request.state = State.READY
            self._preempt(request, "reset")
        for request in self.waiting:
            self.connector.withdraw(request)
        self.stats.resets += 1
        pools = self._reset_tiers()
        if self.observer is not None:
            self.observer(ev.Reset(ok=True, pools=pools))
        for pool in (self.manager.pool, *self.connector.tiers):
            if pool.name in pools:
                pool.publish_cleared()
        return True

    def _reset_tiers(self) -> list[str]:
        self.manager.pool.reset_prefix_cache()
        self.connector.reset_cache()
        return [self.manager.pool.name, *(tier.name for tier in self.connector.tiers)]

    @property
    def busy(self) -> bool:
        """Whether a request is left, a table is behind the fence, or a transfer is in flight."""
        held = self.waiting, self.running, self.parked, self.ready, self._retiring
        return any(held) or self.connector.has_pending_transfers()

    def quiesce(self) -> None:
        """Emit that nothing is left."""
        for pool in (self.manager.pool, *self.connector.tiers):
            pool.publish_rest()
        if self.observer is not None:
            self.observer(ev.Quiesce())
