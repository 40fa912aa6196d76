"""The rig: runs cases on the vLLM that is importable here, one JSON line in, one JSON line out.

:mod:`kvfence.checker.audit.rig_process` starts this as a process, with a release on the path of modules.
What vLLM prints goes to stderr; the answers have the original stdout.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from kvfence.checker.audit.case import Abort, Case, Fail, Hold, Reset, Step, Submit
from kvfence.checker.audit.judge import Judge, without_numbers
from kvfence.checker.audit.outcome import Outcome
from kvfence.checker.audit.rig_engine import (
    CUDA_USERS,
    LAYER,
    NotInThisRelease,
    batches_in_flight,
    fitting,
    kv_cache_config,
    page_bytes,
    request_of,
    scheduler_of,
    the,
    vllm_config,
    worker_connector,
)
from kvfence.checker.audit.rig_runner import OVERRUN, STOP, Runner, Text, texts_of
from kvfence.checker.audit.virtual_cuda import Deadlock, Device, VirtualEvent, install, order_header
from kvfence.checker.order.trace_file import OrderTraceWriter
from kvfence.checker.traces import TraceWriter
from kvfence.spec.events import Header

MOST_STEPS: Final = 1500
QUIET: Final = 60
"""Steps without progress after which the engine stalls; copies land within fewer."""
RESTLESS: Final = 300
"""Steps without any request after which copies should have come to an end."""
TICKS: Final = 2
"""Ticks of the device in a step, besides those that somebody waits for."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A line to the rig."""

    case: Case
    connector: str | None = "SimpleCPUOffloadConnector"
    record: str = ""
    """A folder for the trace and the order trace."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A line from the rig. The first one has no outcome: the rig is ready."""

    outcome: Outcome | None = None
    release: str = ""
    error: str = ""


class Worker:
    """One rank: a virtual GPU, the connector's worker side, and a model runner."""

    def __init__(
        self, rank: int, case: Case, made: Any, caches: Any, texts: list[Text], judge: Judge
    ) -> None:
        import torch

        setup = case.setup
        self.judge = judge
        self.vllm_config = made
        order = judge.order_event if rank == 0 else None
        self.device = Device(setup.seed * 31 + rank, setup.delay, setup.launch_delay, order)
        self.device.fail_rate = setup.fail_rate
        memory = torch.zeros((setup.gpu_blocks, page_bytes(setup)), dtype=torch.int8)
        self.device.gpu = (memory.data_ptr(), memory.numel())
        cells = memory.numpy().view(np.int64)
        self.region = self.device.region(memory, "gpu")
        self.runner = Runner(setup, texts, self.device, cells, self.region, self._garbled)
        self.connector: Any = None
        self.ends: dict[int, VirtualEvent] = {}
        if made.kv_transfer_config is not None:
            with self.device.current():
                self.connector = worker_connector(made, caches)
                self.connector.register_kv_caches(
                    {LAYER.format(g): memory for g in range(len(setup.windows))}
                )

    def _garbled(self, cause: str, told: str) -> None:
        self.judge.sight("USE-READY", cause, "content", told)

    def execute(self, number: int, output: Any) -> Any:
        """Executes a step as the release's model runner does; its part of the connector's output."""
        with self.device.current(), self._agent():
            told = None
            if self.connector is not None:
                mixin = the("v1.worker.kv_connector_model_runner_mixin")
                if output.preempted_req_ids:
                    self.connector.handle_preemptions(output.kv_connector_metadata)
                with mixin.KVConnectorModelRunnerMixin._get_kv_connector_output(output) as told:
                    self.runner.launch(output)
            else:
                self.runner.launch(output)
            event = self.ends[number] = VirtualEvent()
            event.record(self.device.compute)
        return told

    def finish(self, number: int) -> None:
        """Waits for the step's kernels, as whoever wants its sampled tokens does."""
        with self.device.current():
            self.ends.pop(number).synchronize()

    @contextmanager
    def _agent(self) -> Iterator[None]:
        state = the("distributed.kv_transfer.kv_transfer_state")
        state._KV_CONNECTOR_AGENT = self.connector
        try:
            yield
        finally:
            state._KV_CONNECTOR_AGENT = None

    def close(self) -> None:
        """Ends its threads."""
        self.device.held = 0
        for thread in self.device.threads:
            thread.alive = False
        if self.connector is not None and hasattr(self.connector, "shutdown"):
            with self.device.current():
                self.connector.shutdown()


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
        self.queue: deque[tuple[int, Any, list[Any]]] = deque()
        self.steps = 0
        self.submitted = 0
        self.last_progress = 0
        self.draining = False
        self.calls: list[Any] = []
        """What the scheduler was told, call by call: what a test has to repeat."""
        utils = the("distributed.kv_transfer.kv_connector.utils")
        self.aggregator = (
            fitting(utils.KVOutputAggregator, expected_finished_count=world) if connector else None
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

    def abort(self, request: int) -> None:
        """The client of a request goes away."""
        name = str(request)
        if name in self.scheduler.requests:
            self.calls.append(["abort", name])
            status = the("v1.request").RequestStatus.FINISHED_ABORTED
            self.scheduler.finish_requests(name, status)
            self.judge.counts["aborts"] += 1

    def reset(self, action: Reset) -> None:
        """The prefix caches are reset; a refusal is an answer like any other."""
        self.calls.append(["reset", action.running, action.tier])
        try:
            fitting(
                self.scheduler.reset_prefix_cache,
                reset_running_requests=action.running,
                reset_connector=action.tier,
            )
            self.judge.counts["resets"] += 1
        except (NotImplementedError, RuntimeError):
            self.judge.counts["resets refused"] += 1

    def step(self) -> bool:
        """One step of the engine core; whether anything was to be done."""
        self.steps += 1
        self.judge.step = self.steps
        if self.room > 1:
            return self._step_with_queue()
        if self.working:
            self._launch()
            self._finish()
        else:
            self._tick()
        return True

    def _step_with_queue(self) -> bool:
        if self.working:
            scheduled = self._launch()
            if len(self.queue) < self.room and scheduled:
                return True
        elif not self.queue:
            self._tick()
            return False
        self._finish()
        return True

    @property
    def working(self) -> bool:
        """Whether the engine core would take a step; at the end it does, as if requests went on to come."""
        return self.draining or bool(self.scheduler.has_requests())

    def _launch(self) -> int:
        self.calls.append(["schedule"])
        output = self.scheduler.schedule()
        number = self.steps
        parts = [worker.execute(number, output) for worker in self.workers]
        self.judge.counts["preemptions"] += len(output.preempted_req_ids or ())
        sampled = {}
        for name in output.num_scheduled_tokens:
            request = self.scheduler.requests[name]
            if not request.is_prefill_chunk:
                sampled[name] = self._sample(name, output)
        self.queue.appendleft((number, output, [parts, sampled]))
        self._tick()
        if output.total_num_scheduled_tokens:
            self._moved()
        return int(output.total_num_scheduled_tokens)

    def _sample(self, name: str, output: Any) -> list[int]:
        """The token after those that this step computes."""
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        end = starts[name] + output.num_scheduled_tokens[name]
        text = self.texts[int(name)]
        return [text.tokens[min(end, len(text.tokens) - 1)]]

    def _finish(self) -> None:
        number, output, (parts, sampled) = self.queue.pop()
        self._tick()
        for worker in self.workers:
            worker.finish(number)
        outputs = the("v1.outputs")
        names = list(output.num_scheduled_tokens)
        made = [
            outputs.ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[sampled.get(name, []) for name in names],
                kv_connector_output=part,
            )
            for part in parts
        ]
        result = made[0]
        if self.aggregator is not None and len(made) > 1:
            result = self.aggregator.aggregate(made, 0)
        self._watch(result.kv_connector_output)
        told = result.kv_connector_output
        stored = getattr(getattr(told, "kv_connector_worker_meta", None), "completed_store_events", None)
        loaded = sorted(told.finished_recving or ()) if told is not None else []
        self.calls.append(["update", sampled, loaded, list((stored or {}).items())])
        before = len(self.scheduler.requests)
        self.scheduler.update_from_output(output, result)
        if len(self.scheduler.requests) != before:
            self._moved()

    def _watch(self, told: Any) -> None:
        if told is None:
            return
        if told.finished_recving:
            self.judge.counts["loads"] += len(told.finished_recving)
            self._moved()
        meta = getattr(told, "kv_connector_worker_meta", None)
        done = getattr(meta, "completed_store_events", None)
        if done:
            self.judge.counts["stores"] += len(done)
            self._moved()

    def _tick(self) -> None:
        for _ in range(TICKS):
            for worker in self.workers:
                with worker.device.current():
                    worker.device.tick()

    def _moved(self) -> None:
        self.last_progress = self.steps

    # The whole case.

    def play(self) -> None:
        """All actions, and then on until everything is quiet. Sees a stall and what is still held."""
        for action in self.case.actions:
            match action:
                case Submit():
                    self.submit()
                case Abort(request) if request < self.submitted:
                    self.abort(request)
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
                case _:
                    pass
        self._drain()

    def _drain(self) -> None:
        """On until nothing is held any more, or nothing has moved for longer than any copy takes."""
        patience = QUIET + 4 * (self.setup.delay + self.setup.launch_delay) + max([0, *self._holds()])
        self.last_progress = self.steps
        self.draining = True
        last = self.steps + MOST_STEPS
        alone = asleep = 0
        while self.steps < last and self.steps - self.last_progress <= patience:
            idle = not self.scheduler.get_num_unfinished_requests()
            quiet = not self.queue and not self._pending()
            if idle and quiet and not any(held for _, _, held in self._held()):
                break
            # An engine without requests sleeps, unless the connector keeps it awake.
            awake = bool(self.scheduler.has_requests())
            alone = alone + 1 if idle and awake else 0
            asleep += idle and not awake
            if alone > RESTLESS:
                self._restless(alone)
                return
            if asleep > RESTLESS:
                return
            before = [dict(worker.device.launched) for worker in self.workers]
            self.step()
            if before != [worker.device.launched for worker in self.workers]:
                self._moved()
        if self.steps >= last and self.scheduler.get_num_unfinished_requests():
            left = ", ".join(f"{name} {r.status.name}" for name, r in sorted(self.scheduler.requests.items()))
            cause = "steps go on, and requests never come to an end"
            self.judge.sight("PROGRESS", cause, "stall", f"after {MOST_STEPS} more steps: {left}")
        if self.steps >= last:
            return
        dead = [
            f"{name} ended with {error!r}" for worker in self.workers for name, error in worker.device.deaths
        ]
        stalled = bool(self.scheduler.get_num_unfinished_requests())
        if dead:
            end = "requests wait for ever" if stalled else "the blocks of its copies are never given back"
            cause = "a copy that fails ends the thread that copies, and nobody hears of it"
            self.judge.sight(
                "FAIL-CLOSED", cause, "stall" if stalled else "leak", f"{end}: {'; '.join(dead)}"
            )
        elif stalled:
            self._stalled()
        else:
            self._leaks()

    def _restless(self, steps: int) -> None:
        copies = {name: sum(w.device.launched[name] for w in self.workers) for name in ("store", "load")}
        told = f"no request was left for {steps} steps, in which the engine could not sleep"
        cause = "copies go on for ever though no request is left"
        self.judge.sight(
            "PROGRESS", cause, "stall", f"{told}; so far {copies['store']} stores, {copies['load']} loads"
        )

    def _held(self) -> list[tuple[str, Any, list[Any]]]:
        """Each pool with its name and the blocks that somebody holds."""
        pools = [("gpu", self.scheduler.kv_cache_manager.block_pool)]
        pools += [("cpu", pool) for pool in connector_pools(self.scheduler.connector)]
        return [
            (name, pool, [block for block in pool.blocks if block.ref_cnt > 0 and not block.is_null])
            for name, pool in pools
        ]

    def _holds(self) -> list[int]:
        return [action.ticks for action in self.case.actions if isinstance(action, Hold)]

    def _pending(self) -> bool:
        return any(worker.device.busy for worker in self.workers)

    def _stalled(self) -> None:
        pool = self.scheduler.kv_cache_manager.block_pool
        states = sorted(f"{name} {request.status.name}" for name, request in self.scheduler.requests.items())
        free = pool.get_num_free_blocks()
        told = f"no step, end or copy for {self.steps - self.last_progress} steps: {', '.join(states)}"
        parked = any("REMOTE" in state for state in states)
        cause = "requests wait, " + "one of them for a load, " * parked + "and nothing runs any more"
        self.judge.sight("PROGRESS", cause, "stall", f"{told}; {free} GPU blocks are free")

    def _leaks(self) -> None:
        for name, pool, held in self._held():
            if held:
                blocks = ", ".join(f"{block.block_id} (ref count {block.ref_cnt})" for block in held[:8])
                cause = f"blocks of {name} are held though nothing is left"
                self.judge.sight("NO-LEAK", cause, "leak", f"{len(held)} blocks: {blocks}")
            free = pool.get_num_free_blocks()
            missing = len(pool.blocks) - 1 - len(held) - free
            listed = len(pool.free_block_queue.get_all_free_blocks())
            if missing or listed != free:
                cause = f"the free list of {name} is not what nobody holds"
                told = f"counts {free} free, lists {listed}; {len(held)} held of {len(pool.blocks)}"
                self.judge.sight("CONSERVE", cause, "leak", told)

    def close(self) -> None:
        """Gives everything back."""
        for worker in self.workers:
            worker.close()


def connector_pools(connector: Any) -> list[Any]:
    """The block pools of a connector, and of the connectors within it."""
    if connector is None:
        return []
    found = []
    manager = getattr(connector, "scheduler_manager", None)
    if manager is not None and hasattr(manager, "cpu_block_pool"):
        found.append(manager.cpu_block_pool)
    for inner in getattr(connector, "_connectors", ()):
        found += connector_pools(inner)
    return found


class Rig:
    """Hooks in place, CUDA replaced: ready to run cases."""

    def __init__(self) -> None:
        import torch

        self.replaced: dict[str, list[str]] = {}
        for name in CUDA_USERS:
            try:
                module = the(name.removeprefix("vllm."))
            except ImportError:
                continue
            self.replaced[name] = install(module, torch)
        mixin = the("v1.worker.kv_connector_model_runner_mixin")
        mixin.get_forward_context = lambda: None
        mixin.set_forward_context = lambda *_, **__: nullcontext()
        self.judge: Judge | None = None
        from kvfence.checker.adapters.vllm import instrument

        self.instrument = instrument
        self.release = str(getattr(the(""), "__version__", "unknown"))

    def run(self, ask: Ask) -> Outcome:
        """Runs one case."""
        record = order = None
        folder = Path(ask.record) if ask.record else None
        judge = Judge()
        kept: list[Any] = []
        kept_order: list[Any] = []
        if folder is not None:
            judge = Judge(kept.append, kept_order.append)
        del record, order

        def sink(event: Any) -> None:
            if isinstance(event, Header):
                if folder is not None:
                    kept.append(event)
                judge.begin(event)
            else:
                judge.event(event)

        hooks = self.instrument(sink) if ask.connector else None
        engine: Engine | None = None
        try:
            try:
                engine = Engine(ask.case, ask.connector, judge)
            except NotInThisRelease as error:
                return Outcome(refused=str(error))
            engine.play()
            if hooks is not None:
                hooks.close()
        except Deadlock as error:
            judge.sight("PROGRESS", "a thread waits for ever", "stall", str(error))
        except Exception as error:
            if engine is None or not of_vllm(error):
                raise
            invariant, cause, told, story = broken_down(error)
            judge.sight(invariant, cause, "exception", told, story)
        finally:
            if hooks is not None:
                for name, state in hooks.coverage.items():
                    if state != "checked" and name in hooks.coverage.needed:
                        judge.not_checked(f"{name}: {state}")
                for stream in hooks.engines.streams:
                    for trouble in getattr(stream, "troubles", ()):
                        judge.not_checked(f"adapter: {without_numbers(str(trouble))[:300]}")
                hooks.remove()
            if engine is not None:
                engine.close()
        if folder is not None:
            _write(folder, kept, kept_order)
            if engine is not None:
                (folder / "calls.json").write_bytes(msgspec.json.encode(engine.calls))
        return judge.outcome(engine.steps if engine is not None else 0)


def of_vllm(error: BaseException) -> bool:
    """Whether the exception comes from vLLM's code rather than from the rig's, or from a hook."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_home())


def _home() -> str:
    return str(Path(str(the("").__file__)).parent) + os.sep


def broken_down(error: BaseException) -> tuple[str, str, str, tuple[str, ...]]:
    """Invariant, cause, words and stack of an exception of the engine."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(_home())]
    where = frames[-1]
    file, kind = Path(where.filename).name, type(error).__name__
    pool = file in {"block_pool.py", "kv_cache_utils.py"}
    return (
        "CONSERVE" if pool else "PROGRESS",
        f"the engine breaks down with {kind} in {file} {where.name}",
        f"{kind}: {error} ({file} {where.name}, line {where.lineno})",
        tuple(f"{Path(f.filename).name}:{f.lineno} {f.name}: {f.line}" for f in frames[-6:]),
    )


def _write(folder: Path, events: list[Any], order: list[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if events and isinstance(events[0], Header):
        with TraceWriter(folder / "trace.jsonl", events[0]) as writer:
            for event in events[1:]:
                if not isinstance(event, Header):
                    writer(event)
    if order:
        with OrderTraceWriter(folder / "order.jsonl", order_header("kvfence.audit")) as order_writer:
            for event in order:
                order_writer(event)


def main() -> None:
    """Reads asks, writes answers, until there is nothing more to read."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    encode = msgspec.json.Encoder().encode
    decode = msgspec.json.Decoder(Ask).decode
    try:
        rig = Rig()
    except Exception as error:
        traceback.print_exc()
        answers.write(encode(Answer(error=f"{type(error).__name__}: {error}")) + b"\n")
        return
    answers.write(encode(Answer(release=rig.release)) + b"\n")
    gc.disable()
    for count, line in enumerate(sys.stdin.buffer):
        try:
            answer = Answer(outcome=rig.run(decode(line)))
        except KeyboardInterrupt:
            return
        except Exception as error:
            traceback.print_exc()
            answer = Answer(error=f"{type(error).__name__}: {error}")
        answers.write(encode(answer) + b"\n")
        if count % 20 == 0:
            gc.collect()


if __name__ == "__main__":
    main()
