"""What the adapter is tried for on a release of vLLM, in an environment that has it: prints one JSON object.

    python release_checks.py [SCENARIO ...]

Each scenario has the violations that were found in it, what was not checked, and figures of its own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from mini_engine import BLOCK, MiniEngine

from kvfence.checker.adapters.vllm.notes.compiled_hooks import compiled_hooks
from kvfence.checker.adapters.vllm.runtime import Runtime, active, facts, install, uninstall
from kvfence.checker.ledger.guard.guard import Guard
from kvfence.spec import events as ev
from kvfence.spec.files.packing import packed

SIMPLE = "SimpleCPUOffloadConnector"
FENCE = "kvfence.checker.adapters.fence"


def fenced(inner: Any = SIMPLE, *, extra: dict[str, Any] | None = None, **named: Any) -> MiniEngine:
    """An engine with a fenced connector."""
    name = named.pop("fence", "FencedConnector")
    more = {"kvfence_connector": inner, "kvfence_mode": "count", **(extra or {})}
    if inner is None:
        del more["kvfence_connector"]
    return MiniEngine(connector=name, module=FENCE, extra=more, **named)


def runtime() -> Runtime:
    """The instrumentation that the fenced connector put in place."""
    found = active()
    assert found is not None
    return found


def prompt(family: int, length: int) -> list[int]:
    """The first tokens of a family of prompts."""
    return [1 + (family * 7919 + at * 31) % 899 for at in range(length)]


def traffic(engine: MiniEngine, seed: int = 1, requests: int = 24, most: int = 160) -> None:
    """Requests with shared prefixes that come, go on and are aborted; transfers end at any time."""
    from vllm.v1.request import RequestStatus

    draw = random.Random(seed)
    sent = 0
    for _ in range(400):
        if sent < requests and draw.random() < 0.5:
            engine.add(
                f"r{sent}", prompt(draw.randrange(4), draw.randrange(5, most)), draw.randrange(1, 2 * BLOCK)
            )
            sent += 1
        if engine.scheduler.requests and draw.random() < 0.03:
            name = draw.choice(list(engine.scheduler.requests))
            engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        engine.dispatch()
        if len(engine.outputs) > draw.randrange(engine.ahead + 1):
            engine.process(stores=draw.randrange(3), loads=draw.randrange(2))
        if sent == requests and not engine.scheduler.requests:
            break
    while engine.outputs:
        engine.process()
    engine.run()


# Scenarios.


def ordinary() -> dict[str, Any]:
    """Shared prefixes, aborts, chunked prefill."""
    engine = fenced(gpu_blocks=48, cpu_blocks=64, budget=64)
    traffic(engine)
    stats = engine.connector.get_kv_connector_stats()
    return {"stats": sorted(stats.data) if stats is not None else []}


def preempting() -> dict[str, Any]:
    """A pool so small that requests are preempted."""
    traffic(fenced(gpu_blocks=14, cpu_blocks=64, budget=128, seqs=6), most=60)
    return {}


TRAFFIC: dict[str, dict[str, Any]] = {
    "lazily": {"lazy": True},
    "ahead": {"asynchronous": True},
    "drafted": {"gpu_blocks": 64, "drafts": 3},
    "drafted_ahead": {"gpu_blocks": 64, "drafts": 2, "asynchronous": True},
    "full_tier": {"cpu_blocks": 5},
    "hybrid": {"gpu_blocks": 64, "cpu_blocks": 96, "windows": (None, 2 * BLOCK)},
}
"""Engines that are given ordinary traffic, by scenario.

``ahead``: steps are scheduled before the output of the one before is known; ``drafted``: some of the drafted
tokens are rejected; ``full_tier``: the tier is always full; ``hybrid``: one group has a window.
"""


def ordinary_traffic(**changed: Any) -> dict[str, Any]:
    """Ordinary traffic through an engine with these options."""
    traffic(fenced(**{"gpu_blocks": 48, "cpu_blocks": 64, "budget": 64} | changed))
    return {}


def loaded(engine: MiniEngine, failing: bool, lose: int = 0) -> int:
    """A prompt comes back that only the tier has; how many requests were loaded.

    ``lose``: a second tier loses all blocks but the first so many.
    """
    engine.add("first", prompt(1, 6 * BLOCK + 3), 2 * BLOCK)
    engine.run()
    if lose:
        pool = engine.connector._connectors[1].scheduler_manager.cpu_block_pool
        pool.evict_blocks(set(range(1 + lose, len(pool.blocks))))
    assert engine.scheduler.reset_prefix_cache()
    engine.add("again", prompt(1, 6 * BLOCK + 3), 3)
    count = 0
    for _ in range(40):
        if not engine.scheduler.requests:
            break
        before = len(engine.loads)
        output = engine.dispatch()
        count += len(engine.loads) - before
        if len(engine.loads) > before and failing:
            engine.failing = set(output.kv_connector_metadata.load_gpu_blocks[-2:])
        if engine.loads and failing:
            engine.failed = engine.failing
        engine.process()
    engine.run()
    return count


def loads() -> dict[str, Any]:
    """Loads that succeed."""
    return {"loads": loaded(fenced(gpu_blocks=48, cpu_blocks=64), False)}


def failed_loads() -> dict[str, Any]:
    """Loads some of whose blocks are reported as not loaded: they are computed anew."""
    engine = fenced(gpu_blocks=48, cpu_blocks=64, recompute=True)
    return {"loads": loaded(engine, True)}


def resets() -> dict[str, Any]:
    """Resets of the GPU's cache and of both, while idle and while requests run."""
    engine = fenced(gpu_blocks=48, cpu_blocks=64, budget=64)
    answers = []
    for number in range(6):
        for more in range(3):
            engine.add(f"r{number}.{more}", prompt(more, 70), 8)
        for _ in range(2 + number):
            engine.step(stores=1)
        named = [{}, {"reset_running_requests": True}, {"reset_connector": True}][number % 3]
        try:
            answers.append(bool(engine.scheduler.reset_prefix_cache(**named)))
        except (NotImplementedError, RuntimeError) as error:
            answers.append(type(error).__name__)
        engine.run()
    answers.append(bool(engine.scheduler.reset_prefix_cache()))
    return {"answers": answers}


def both(bytes_each: int = 1 << 22) -> list[dict[str, Any]]:
    """The configuration of two connectors."""
    one = {
        "kv_connector": SIMPLE,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": bytes_each},
    }
    return [one, {**one, "kv_connector_extra_config": {"cpu_bytes_to_use": bytes_each // 4}}]


def supports(engine: MiniEngine) -> dict[str, Any]:
    """Whether the connector, and what it wraps, support hybrid groups."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA

    connector = engine.connector
    return {
        "fenced": type(connector).__name__,
        "hma": isinstance(connector, SupportsHMA),
        "inner": isinstance(connector._inner_connector, SupportsHMA),
    }


def two_connectors() -> dict[str, Any]:
    """MultiConnector with two tiers."""
    engine = fenced("MultiConnector", extra={"connectors": both()}, hybrid=False, gpu_blocks=48, budget=64)
    traffic(engine)
    return supports(engine)


def two_hits() -> dict[str, Any]:
    """Two tiers that both have the beginning of a prompt, the second one less of it."""
    engine = fenced("MultiConnector", extra={"connectors": both()}, hybrid=False, gpu_blocks=48)
    return {"loads": loaded(engine, False, lose=3)}


def offloading() -> dict[str, Any]:
    """A connector whose own tier no hook knows."""
    engine = fenced(
        "OffloadingConnector",
        extra={"spec_name": "CPUOffloadingSpec", "block_size": BLOCK, "num_cpu_blocks": 8},
        hybrid=False,
    )
    engine.add("a", prompt(1, 8), 3)
    engine.run(12)
    return {**supports(engine), "not_checked": runtime().not_checked(), "facts": facts(runtime())}


def example() -> dict[str, Any]:
    """A connector without hybrid groups."""
    extra = {"shared_storage_path": tempfile.mkdtemp(prefix="kvfence-")}
    return supports(fenced("ExampleConnector", extra=extra, hybrid=False))


def own_module() -> dict[str, Any]:
    """A connector that vLLM does not know."""
    inner = {"kv_connector": "OwnConnector", "kv_connector_module_path": "own_connector"}
    engine = fenced(inner, gpu_blocks=48, cpu_blocks=64, budget=64)
    traffic(engine, requests=8)
    connector = engine.connector
    return {**supports(engine), "said": connector.say("it"), "role": connector.role.name}


def every_method() -> dict[str, Any]:
    """Members of vLLM's base class that a fenced connector does not pass on by itself."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    from kvfence.checker.adapters.fence import FencedConnector

    fence = set().union(*(vars(kind) for kind in FencedConnector.__mro__[:2]))
    return {
        "missing": sorted(n for n in vars(KVConnectorBase_V1) if not n.startswith("_") and n not in fence)
    }


def names() -> dict[str, Any]:
    """What vLLM asks by the name of a connector."""
    asked = getattr(fenced().config.kv_transfer_config, "has_connector", None)
    if asked is None:
        return {"asked": None}
    return {"asked": [asked(SIMPLE), asked("FencedConnector"), asked("NixlConnector")]}


def misconfigured() -> dict[str, Any]:
    """The errors of configurations that cannot work."""
    found = {}
    wrong: dict[str, Any] = {
        "missing": None,
        "unknown": "NoSuchConnector",
        "no module": {"kv_connector": "Own", "kv_connector_module_path": "no.such.module"},
        "no class": {"kv_connector": "Own", "kv_connector_module_path": "json"},
        "itself": "FencedConnector",
        "hma": "ExampleConnector",
    }
    engines = {
        what: functools.partial(fenced, inner, extra={"shared_storage_path": "."})
        for what, inner in wrong.items()
    }
    engines["mode"] = functools.partial(fenced, extra={"kvfence_mode": "loud"})
    for what, engine in engines.items():
        found[what] = ""
        try:
            engine()
        except Exception as error:
            found[what] = f"{type(error).__name__}: {error}"
    return found


def twice() -> dict[str, Any]:
    """The plugin, the connector and a second instrumentation in one process."""
    from kvfence.checker.adapters.vllm.hooks.instrument import instrument
    from kvfence.checker.adapters.vllm_plugin import register

    first = runtime()
    os.environ["KVFENCE_MODE"] = "log"
    register()
    register()
    del os.environ["KVFENCE_MODE"]
    traffic(fenced(), requests=4)
    second = instrument(lambda _: None)
    state = second.undetermined
    second.remove()
    traffic(fenced(), requests=4)
    return {"same": runtime() is first, "mode": runtime().mode, "second is undetermined": state}


PLUGIN = """
import json, os
from vllm.plugins import load_general_plugins
load_general_plugins()
load_general_plugins()
from kvfence.checker.adapters.vllm.runtime import active
here = active()
wrong = [hook for hook, state in here.instrumentation.coverage.items() if state != "checked"]
child = os.fork()
if child == 0:
    os._exit(0 if active() is here else 1)
print("PLUGIN", json.dumps([here.mode, wrong, os.waitpid(child, 0)[1]]))
"""
"""What each of vLLM's processes does, as far as plugins go."""


def plugin() -> dict[str, Any]:
    """vLLM itself loads the plugin, in two processes."""
    with tempfile.TemporaryDirectory(prefix="kvfence-") as folder:
        info = Path(folder) / "kvfence-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvfence\nVersion: 0\n")
        (info / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nkvfence = kvfence.checker.adapters.vllm_plugin:register\n"
        )
        more = {"KVFENCE_MODE": "count", "VLLM_PLUGINS": "kvfence"}
        more["PYTHONPATH"] = os.pathsep.join((os.environ["PYTHONPATH"], folder))
        command = [sys.executable, "-W", "ignore", "-c", PLUGIN]
        both_processes = [
            subprocess.Popen(
                command,
                env={**os.environ, **more},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        said = [each.communicate() for each in both_processes]
    lines = [line for out, _ in said for line in out.splitlines() if line.startswith("PLUGIN ")]
    return {
        "processes": [json.loads(line.removeprefix("PLUGIN ")) for line in lines],
        "errors": [err[-500:] for out, err in said if "PLUGIN " not in out],
    }


def figures() -> dict[str, Any]:
    """Figures of both sides, through vLLM's own path and over a process boundary."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    from kvfence.checker.adapters.fence import FencedConnector
    from kvfence.checker.adapters.fence.stats import FencedStats

    engine = fenced()
    traffic(engine, requests=4)
    facts(runtime())  # Waits until everything is judged.
    engine.connector._next_stats = 0
    emitted = engine.connector.get_kv_connector_stats()
    worker = FencedConnector(engine.config, KVConnectorRole.WORKER, engine.caches)
    runtime().races.counts["STORE-READY"] += 2
    mine = worker.get_kv_connector_stats()
    runtime().races.counts.clear()
    carried = FencedConnector.build_kv_connector_stats(json.loads(json.dumps(mine.data)))
    together = carried.aggregate(FencedStats(data=emitted.data)).aggregate(FencedStats())
    fence = together.data["kvfence"]
    return {
        "violations": fence["violations"],
        "sides": sorted(fence["state"]),
        "events": fence["events"] > 0,
        "line": together.reduce(),
    }


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    made.__name__: made
    for made in (
        ordinary,
        preempting,
        loads,
        failed_loads,
        resets,
        two_connectors,
        two_hits,
        own_module,
        every_method,
        names,
        misconfigured,
        figures,
        twice,
        plugin,
        example,
        offloading,
    )
} | {name: functools.partial(ordinary_traffic, **changed) for name, changed in TRAFFIC.items()}


def tried(scenario: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a scenario showed with hooks of its own, and a digest of all judged events in their order."""
    batch, digest = Guard.batch, hashlib.sha256()

    def judged(guard: Guard, events: list[ev.Event]) -> None:
        for event in events:
            digest.update(msgspec.json.encode(packed(event)))
        batch(guard, events)

    with unittest.mock.patch.object(Guard, "batch", judged):
        found = watched(scenario)
    return found | {"digest": digest.hexdigest(), "compiled": compiled_hooks() is not None}


def watched(scenario: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """See :func:`tried`."""
    uninstall()
    found: dict[str, Any] = {}
    try:
        install("count")
        found["figures"] = scenario()
    except Exception:
        found["failed"] = traceback.format_exc(limit=-6)
    here = runtime()
    here.instrumentation.close()
    known = facts(here)
    found["violations"] = {name: count for name, count in known["violations"].items() if count}
    found["events"] = known["events"]
    found["not_checked"] = here.not_checked()
    found["undetermined"] = known["undetermined"]
    found["faults"] = [str(fault)[:300] for guard in here.guards for fault in list(guard.faults)[:3]]
    found["coverage"] = dict(here.instrumentation.coverage)
    return found


def main() -> None:
    """Runs the scenarios that were named, or all."""
    wanted = sys.argv[1:] or list(SCENARIOS)
    print("RESULT " + json.dumps({name: tried(SCENARIOS[name]) for name in wanted}))


if __name__ == "__main__":
    main()
