"""The engine of the rig: a real scheduler and its workers, stepped as the release's engine core does."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Final

from kvfence.checker.audit.cases.case import Abort, Case, Fail, Hold, Reset, Step, Submit
from kvfence.checker.audit.cases.judge import Judge
from kvfence.checker.audit.cuda_stub.stub_device import order_header
from kvfence.checker.audit.rig.copies import Copies
from kvfence.checker.audit.rig.engine import (
    batches_in_flight,
    call_with_known,
    kv_cache_config,
    request_of,
    scheduler_of,
    vllm_config,
    vllm_module,
)
from kvfence.checker.audit.rig.runner import OVERRUN, STOP, Span, resumed_in, starts_of, texts_of
from kvfence.checker.audit.rig.worker import Worker

WRONG: Final = 5
"""A drafted token. Whether it is taken for right is drawn, and not decided by looking at it."""
TICKS: Final = 2
"""Ticks of the device in a step, besides those that a step waits for."""


class Launched:
    """A step on its way: what the scheduler said, what the workers computed, and what they reported."""

    def __init__(self, number: int, output: Any) -> None:
        self.number, self.output = number, output
        self.spans: dict[str, Span] = {}
        self.sampled: dict[str, list[int]] = {}
        self.rejected: dict[str, int] = {}
        """Drafted tokens of each request that were wrong."""
        self.parts: list[Any] = []
        """What each worker reported of the connector."""


class Engine:
    """A scheduler and its workers, stepped as the engine core does."""

    def __init__(self, case: Case, connector: str | None, judge: Judge) -> None:
        self.case, self.judge = case, judge
        self.setup = case.setup
        self.texts = texts_of(case)
        self.config = vllm_config(self.setup, connector)
        caches = kv_cache_config(self.setup)
        judge.begin_order(order_header("kvfence.audit"))
        self.scheduler = scheduler_of(self.setup, self.config, caches)
        world = self.setup.ranks * self.setup.stages
        self.workers = [
            Worker(rank, case, self.config, caches, self.texts, judge)
            for rank in range(world if connector else 1)
        ]
        self.room = batches_in_flight(self.setup, self.config)
        self.queue: deque[Launched] = deque()
        self._random = random.Random(self.setup.seed)
        self.steps = self.submitted = self.last_progress = 0
        self.draining = False
        self._copies = Copies()
        self.calls: list[Any] = []
        """The calls of the scheduler, with their arguments: what a test repeats."""
        utils = vllm_module("distributed.kv_transfer.kv_connector.utils")
        self.aggregator = (
            call_with_known(utils.KVOutputAggregator, expected_finished_count=world) if connector else None
        )

    # What happens to it.

    def submit(self) -> None:
        """The next request arrives."""
        text = self.texts[self.submitted]
        self.submitted += 1
        most = text.output + (OVERRUN // 3 if text.stops else 0)
        # A request that may grow past what fits is cut to what was drawn.
        fits = (self.setup.gpu_blocks - 1) // len(self.setup.windows) - 1
        most = max(text.output, min(most, fits * self.setup.block_size - text.prompt))
        stop = STOP if text.stops else None
        prompt = text.tokens[: text.prompt]
        self.calls.append(["add", text.name, prompt, most, stop, text.priority])
        self.scheduler.add_request(request_of(self.setup, text.name, prompt, most, stop, text.priority))
        self.judge.counts["requests"] += 1

    def abort(self, action: Abort) -> None:
        """The client of a request goes away."""
        known = self.scheduler.requests
        names = map(str, range(self.submitted))
        live = [int(name) for name in names if name in known and not known[name].is_finished()]
        name = str(action.chosen(self.submitted, live))
        if name in known:
            self.calls.append(["abort", name])
            status = vllm_module("v1.request").RequestStatus.FINISHED_ABORTED
            self.scheduler.finish_requests(name, status)
            self.judge.counts["aborts"] += 1

    def reset(self, action: Reset) -> None:
        """The prefix caches are reset; a refusal is an answer like any other."""
        self.calls.append(["reset", action.running, action.tier])
        try:
            reset = self.scheduler.reset_prefix_cache
            call_with_known(reset, reset_running_requests=action.running, reset_connector=action.tier)
            self.judge.counts["resets"] += 1
        except (NotImplementedError, RuntimeError):
            self.judge.counts["resets refused"] += 1

    def step(self) -> None:
        """One step of the engine core; time goes by if there is nothing to do."""
        self.steps += 1
        self.judge.step = self.steps
        if self.working:
            scheduled = self._launch()
            if len(self.queue) < self.room and scheduled:
                return
        elif not self.queue:
            self._tick()
            return
        self._finish()

    @property
    def working(self) -> bool:
        """Whether the engine core would take a step; at the end it does, as if more requests were to come."""
        return self.draining or bool(self.scheduler.has_requests())

    def _launch(self) -> int:
        self.calls.append(["schedule"])
        output = self.scheduler.schedule()
        step = Launched(self.steps, output)
        self._copies.begun(output.kv_connector_metadata)
        fresh = {new.req_id for new in output.scheduled_new_reqs} | resumed_in(output)
        starts = starts_of(output)
        drafts = output.scheduled_spec_decode_tokens
        for name, count in output.num_scheduled_tokens.items():
            start = starts[name]
            if name not in fresh:
                # The scheduler counts on what steps in flight have drafted; the workers know better.
                start -= sum(ahead.rejected.get(name, 0) for ahead in self.queue)
            drafted = len(drafts.get(name, ()))
            right = self._random.randint(0, drafted) if drafted else 0
            step.rejected[name] = drafted - right
            step.spans[name] = start, start + count, start + count - drafted + right
            if not self.scheduler.requests[name].is_prefill_chunk:
                step.sampled[name] = self._sample(name, start + count - drafted, right)
        step.parts = [worker.execute(step) for worker in self.workers]
        self.judge.counts["preemptions"] += len(output.preempted_req_ids or ())
        self.judge.counts["drafts"] += sum(map(len, drafts.values()))
        self.queue.appendleft(step)
        self._tick()
        if output.total_num_scheduled_tokens:
            self.record_progress()
        return int(output.total_num_scheduled_tokens)

    def _sample(self, name: str, end: int, right: int) -> list[int]:
        """The drafted tokens from ``end`` on that are right, and the one after them."""
        tokens = self.texts[int(name)].tokens
        return [tokens[min(at, len(tokens) - 1)] for at in range(end, end + right + 1)]

    def _finish(self) -> None:
        step = self.queue.pop()
        output, sampled = step.output, step.sampled
        self._tick()
        for worker in self.workers:
            worker.finish(step.number)
        outputs = vllm_module("v1.outputs")
        names = list(output.num_scheduled_tokens)
        made = [
            outputs.ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[sampled.get(name, []) for name in names],
                kv_connector_output=part,
            )
            for part in step.parts
        ]
        result = made[0]
        if self.aggregator is not None and len(made) > 1:
            result = self.aggregator.aggregate(made, 0)
        reported = result.kv_connector_output
        self._watch(reported)
        meta = getattr(reported, "kv_connector_worker_meta", None)
        stored = getattr(meta, "completed_store_events", None) or getattr(meta, "completed_jobs", None)
        loaded = sorted(reported.finished_recving or ()) if reported is not None else []
        self.calls.append(["update", sampled, loaded, list((stored or {}).items())])
        before = len(self.scheduler.requests)
        self.scheduler.update_from_output(output, result)
        if self.setup.drafts and self.setup.depth == 1:
            self._draft(list(sampled))
        if len(self.scheduler.requests) != before:
            self.record_progress()

    def _draft(self, names: list[str]) -> None:
        """The drafter's guesses for the next step; with steps in flight, workers keep them to themselves."""
        guesses = [[WRONG] * self.setup.drafts for _ in names]
        self.calls.append(["draft", names, self.setup.drafts])
        self.scheduler.update_draft_token_ids(vllm_module("v1.outputs").DraftTokenIds(names, guesses))

    def _watch(self, reported: Any) -> None:
        if reported is None:
            return
        if reported.finished_recving:
            self.judge.counts["loads"] += len(reported.finished_recving)
            self.record_progress()
        ended = self._copies.ended(getattr(reported, "kv_connector_worker_meta", None))
        for what, count in zip(("stores", "loads"), ended, strict=True):
            if count:
                self.judge.counts[what] += count
                self.record_progress()

    def _tick(self) -> None:
        for _ in range(TICKS):
            for worker in self.workers:
                with worker.device.current():
                    worker.device.tick()

    def record_progress(self) -> None:
        """Records progress (stall detection)."""
        self.last_progress = self.steps

    # The whole case.

    def play(self) -> None:
        """All actions, one after the other."""
        for action in self.case.actions:
            match action:
                case Submit():
                    self.submit()
                case Abort():
                    self.abort(action)
                case Reset():
                    self.reset(action)
                case Hold(ticks):
                    for worker in self.workers:
                        worker.device.held = ticks
                case Fail():
                    self.workers[0].device.fail_next = True
                case Step(times):
                    for _ in range(times):
                        self.step()

    def close(self) -> None:
        """Gives everything back."""
        for worker in self.workers:
            worker.close()
