"""The rig: runs cases on the vLLM that is importable here, one JSON line in, one JSON line out.

:mod:`kvfence.checker.audit.rig.process` starts this as a process, with a release on the path of modules.
What vLLM prints goes to stderr; the answers have the original stdout.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec

from kvfence.checker.audit.cases.judge import Judge, without_numbers
from kvfence.checker.audit.cases.outcome import Outcome
from kvfence.checker.audit.cuda_stub.offloading import install_offloading
from kvfence.checker.audit.cuda_stub.stub_device import Deadlock, order_header
from kvfence.checker.audit.cuda_stub.stub_modules import install
from kvfence.checker.audit.rig.end import End
from kvfence.checker.audit.rig.engine import CUDA_USERS, NotInThisRelease, model_config, vllm_module
from kvfence.checker.audit.rig.loop import Engine
from kvfence.checker.audit.rig.messages import Answer, Ask
from kvfence.spec import events as ev
from kvfence.spec.files.order_traces import OrderTraceWriter
from kvfence.spec.files.outputs import write_text
from kvfence.spec.files.traces import TraceWriter


class Rig:
    """Hooks in place, CUDA replaced: ready to run cases."""

    def __init__(self) -> None:
        import torch

        for name in CUDA_USERS:
            with suppress(ImportError):
                install(vllm_module(name.removeprefix("vllm.")), torch)
        install_offloading(torch)
        mixin = vllm_module("v1.worker.kv_connector_model_runner_mixin")
        mixin.get_forward_context = lambda: None
        mixin.set_forward_context = lambda *_, **__: nullcontext()
        self.judge: Judge | None = None
        from kvfence.checker.adapters.vllm.hooks.instrument import instrument

        self.instrument = instrument
        self.release = str(getattr(vllm_module(""), "__version__", "unknown"))
        # vLLM looks at a model in a process of its own the first time: seconds, which no case has to spare.
        model_config()

    def run(self, ask: Ask) -> Outcome:
        """Runs one case, and writes its traces if ``ask`` names a folder for them.

        What vLLM raises in a run is a sighting. What it raises while it is set up is raised.
        """
        events: list[Any] = []
        order: list[Any] = []
        judge = Judge(events.append, order.append) if ask.record else Judge()

        def sink(event: Any) -> None:
            if isinstance(event, ev.Header):
                events.append(event)
                judge.begin(event)
            else:
                judge.event(event)

        hooks = self.instrument(sink) if ask.connector else None
        engine: Engine | None = None
        try:
            engine = Engine(ask.case, ask.connector, judge)
            engine.play()
            End(engine).drain()
            if hooks is not None:
                hooks.close()
        except NotInThisRelease as error:
            return Outcome(refused=str(error))
        except Deadlock as error:
            judge.sight("PROGRESS", "a thread waits for ever", "stall", str(error))
        except Exception as error:
            if engine is None or not of_vllm(error):
                raise
            invariant, cause, detail, story = broken_down(error)
            judge.sight(invariant, cause, "exception", detail, story)
        finally:
            if hooks is not None:
                _remove(hooks, judge)
            if engine is not None:
                engine.close()
        if engine is None:
            return judge.outcome(0)
        if any(worker.device.spared for worker in engine.workers):
            judge.not_checked(f"copies that fail: {ask.connector} has no way to report one")
        if ask.record:
            _write(Path(ask.record), events, order, engine.calls)
        return judge.outcome(engine.steps)


def _remove(hooks: Any, judge: Judge) -> None:
    """Takes the hooks out; what they could not observe was not checked."""
    for name, state in hooks.coverage.items():
        if state != "checked" and name in hooks.coverage.needed:
            judge.not_checked(f"{name}: {state}")
    for stream in hooks.engines.streams:
        for trouble in getattr(stream, "troubles", ()):
            judge.not_checked(f"adapter: {without_numbers(str(trouble))[:300]}")
    hooks.remove()


def of_vllm(error: BaseException) -> bool:
    """Whether the exception comes from vLLM's code rather than from the rig's, or from a hook."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_home())


def _home() -> str:
    return str(Path(str(vllm_module("").__file__)).parent) + os.sep


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


def _write(folder: Path, events: list[Any], order: list[Any], calls: list[Any]) -> None:
    """Writes the trace, the order trace, and the calls that a test repeats."""
    folder.mkdir(parents=True, exist_ok=True)
    if events and isinstance(events[0], ev.Header):
        with TraceWriter(folder / "trace.jsonl", events[0]) as writer:
            for event in events[1:]:
                if not isinstance(event, ev.Header):
                    writer(event)
    if order:
        with OrderTraceWriter(folder / "order.jsonl", order_header("kvfence.audit")) as order_writer:
            for event in order:
                order_writer(event)
    lines = ",\n".join(msgspec.json.encode(call).decode() for call in calls)
    write_text(folder / "calls.json", f"[\n{lines}\n]\n")


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
