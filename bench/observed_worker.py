"""The worker side of released vLLM on a real GPU, under observation: its copies, their order, what it costs.

    python bench/observed_worker.py FOLDER [FOLDER ...] [--steps N] [--output DIR]

FOLDER: ``RELEASE/vllm/v1/simple_kv_offload`` of an unpacked release, or ``RELEASE/simple_kv_offload``; or
``RELEASE/vllm`` for its OffloadingConnector (0.32.0 or newer). What these files import of the rest of vLLM
is made up here; torch, streams, events, the thread that copies and the driver's copies are real. Each step
writes two blocks with a kernel that takes long, and stores those of the step before, which may still run. At
the end all blocks are loaded into others, and every byte is compared. ``plain`` is without kvfence,
``observed`` with its worker hooks, ``broken`` with them and stores that wait for nothing: a control that must
be reported.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import inspect
import json
import logging
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from _measure import arguments, save

PACKAGE: Final = "vllm.v1.simple_kv_offload"
BLOCK_BYTES: Final = 65_536
LAYERS: Final = 2
TOKENS: Final = 16
"""Of a block."""
HOLD: Final = 2_000_000
"""Cycles that the kernel of a step takes before it writes: about a millisecond."""
PER_STEP: Final = 2
"""Blocks of a step."""


def made_up(folder: Path) -> None:
    """What the files in ``folder`` import of vLLM, as modules of the process."""
    import torch

    def module(name: str, **names: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__dict__.update({"__path__": []} | names)
        sys.modules[name] = made
        return made

    class Anything:
        """A class that is only named."""

    platform = types.SimpleNamespace(
        is_rocm=lambda: False, is_cuda=lambda: True, is_xpu=lambda: False, set_device=torch.cuda.set_device
    )
    module("vllm", __version__=folder.name)
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=platform)
    module("vllm.config", VllmConfig=Anything)
    module("vllm.envs", VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS=0)
    module("vllm.utils")
    module("vllm.utils.torch_utils", PIN_MEMORY=True)
    module("vllm.utils.platform_utils", is_pin_memory_available=lambda: True)
    for name in ("distributed", "distributed.kv_transfer", "distributed.kv_transfer.kv_connector", "v1"):
        module(f"vllm.{name}")
    module("vllm.distributed.kv_transfer.kv_connector.v1")
    names = ("KVConnectorMetadata", "KVConnectorWorkerMetadata")
    classes = {name: type(name, (), {}) for name in names}
    module("vllm.distributed.kv_transfer.kv_connector.v1.base", **classes)
    module("vllm.v1.kv_cache_interface")
    module(PACKAGE, __path__=[str(folder)])
    try:
        importlib.import_module("cuda.bindings.driver")
    except ImportError:
        module("cuda", bindings=module("cuda.bindings", driver=_driver(module)))


def _driver(module: Any) -> types.ModuleType:
    """The one call of ``cuda.bindings.driver`` that is needed."""
    library = ctypes.CDLL("libcuda.so.1")

    def procedure(name: bytes, version: int, flags: int) -> tuple[int, int, int]:
        found, status = ctypes.c_void_p(), ctypes.c_int()
        error = library.cuGetProcAddress_v2(
            name, ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status)
        )
        return error, found.value or 0, status.value

    success = types.SimpleNamespace(CUDA_SUCCESS=0)
    made: types.ModuleType = module("cuda.bindings.driver", cuGetProcAddress=procedure, CUresult=success)
    return made


class Lab:
    """A worker side of the release, its caches, and the engine around it."""

    deferred = False
    """Whether a step is given its own blocks to store, which the next does; else those of the one before."""

    def __init__(self, slots: int) -> None:
        import torch

        self.torch = torch
        self.slots = slots
        self.caches = {
            f"layer{number}": torch.zeros((slots, BLOCK_BYTES), dtype=torch.int8, device="cuda")
            for number in range(LAYERS)
        }
        tensors = [
            types.SimpleNamespace(
                layers=[name],
                shared_by=[name],
                size=slots * BLOCK_BYTES,
                offset=0,
                block_stride=BLOCK_BYTES,
                layer_stride=slots * BLOCK_BYTES,
            )
            for name in self.caches
        ]
        spec = type("FullAttentionSpec", (), {"block_size": TOKENS})()
        config = types.SimpleNamespace(
            num_blocks=slots,
            kv_cache_tensors=tensors,
            kv_cache_groups=[types.SimpleNamespace(kv_cache_spec=spec, layer_names=list(self.caches))],
        )
        engine = types.SimpleNamespace(
            scheduler_config=types.SimpleNamespace(async_scheduling=True),
            parallel_config=types.SimpleNamespace(),
            max_concurrent_batches=2,
        )
        self.number = -1
        self.times: list[float] = []
        self.stored: set[int] = set()
        self.known: set[str] = set()
        self.loading: dict[int, list[str]] = {}
        self.worker: Any = None
        self.make(config, engine)
        self.worker.register_kv_caches(self.caches)

    def make(self, config: Any, engine: Any) -> None:
        """The worker side, of a KVCacheConfig and a VllmConfig."""
        worker = importlib.import_module(f"{PACKAGE}.worker").SimpleCPUOffloadWorker
        slots = self.slots
        capacity = slots * BLOCK_BYTES * LAYERS
        known = inspect.signature(worker).parameters
        more = {"num_cpu_blocks": slots} if "num_cpu_blocks" in known else {}
        self.worker = worker(engine, config, capacity, **more)
        self.metadata = importlib.import_module(f"{PACKAGE}.metadata").SimpleCPUOffloadMetadata

    def arrive(self, name: str, store: list[int] | None, load: tuple[list[int], list[int]] | None) -> None:
        """The calls of a step before it computes: what it stores of slots with the same number, and loads."""
        meta = self.metadata()
        if store:
            meta.store_event, meta.store_gpu_blocks, meta.store_cpu_blocks = self.number, store, store
        if load:
            meta.load_event, meta.load_cpu_blocks, meta.load_gpu_blocks = self.number, *load
            self.loading[self.number] = [name]
        meta.load_event_to_reqs = dict(self.loading)
        self.worker.bind_connector_metadata(meta)
        self.worker.start_load_kv()

    def leave(self) -> tuple[Any, Any]:
        """The calls after it: which loads are over, and the numbers of the steps whose stores are."""
        self.worker.wait_for_save()
        _, received = self.worker.get_finished(set())
        meta = self.worker.build_connector_worker_meta()
        return received, () if meta is None else meta.completed_store_events

    def host(self, name: str) -> Any:
        """The tier's tensor of a layer."""
        keys = list(self.worker.cpu_kv_caches)
        return self.worker.cpu_kv_caches[
            next(key for key in keys if key == name or key.startswith(f"{name}."))
        ]

    def stream(self) -> str:
        """The class of the stream that stores are launched on, under the one that observes it."""
        return type(self.worker.store_stream).__mro__[1].__name__

    def step(
        self,
        name: str,
        blocks: list[int],
        start: int,
        *,
        value: int = 0,
        store: list[int] | None = None,
        load: tuple[list[int], list[int]] | None = None,
        in_flight: int = 0,
    ) -> Any:
        """A step that computes the tokens of ``blocks``, the next of its request; which loads are over."""
        from kvfence.checker.adapters.vllm.hooks.scheduler import IN_FLIGHT
        from kvfence.checker.adapters.vllm.hooks.worker import STEP

        self.number += 1
        tokens = {name: TOKENS * len(blocks)} if blocks else {}
        new = [] if not blocks or name in self.known else [(name, blocks)]
        again = [] if new or not blocks else [name]
        output = types.SimpleNamespace(
            finished_req_ids=set(),
            num_scheduled_tokens=tokens,
            scheduled_new_reqs=[
                types.SimpleNamespace(req_id=each, block_ids=(of,), num_computed_tokens=start)
                for each, of in new
            ],
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=again,
                new_block_ids=[(blocks,) for _ in again],
                num_computed_tokens=[start for _ in again],
                resumed_req_ids=set(),
            ),
        )
        self.known.update(each for each, _ in new)
        setattr(output, IN_FLIGHT, in_flight)
        begin = time.perf_counter()
        STEP.begin(output)
        self.arrive(name, store, load)
        spent = time.perf_counter() - begin
        if blocks:
            self.torch.cuda._sleep(HOLD)
            for layer, cache in enumerate(self.caches.values()):
                cache[blocks[0] : blocks[-1] + 1].fill_(
                    (value + layer) % 127
                )  # Launched at once, unlike a copy.
        begin = time.perf_counter()
        received, stored = self.leave()
        spent += time.perf_counter() - begin
        self.stored.update(stored)
        self.times.append(spent)
        return received

    def play(self, steps: int) -> dict[str, Any]:
        """Steps with stores, then a load of everything; what came out."""
        before: list[int] = []
        wanted = 0
        blocks: list[int] = []
        for number in range(steps):
            blocks = [1 + PER_STEP * number + each for each in range(PER_STEP)]
            start = number * PER_STEP * TOKENS
            store = blocks if self.deferred else before
            self.step("a", blocks, start, value=number + 1, store=store, in_flight=min(number, 1))
            wanted += bool(store)
            before = blocks
        self.step("a", [], 0, store=[] if self.deferred else before)
        wanted += not self.deferred
        self._wait(lambda: len(self.stored) == wanted)
        times = self.times[5:steps]
        there = list(range(1, 1 + PER_STEP * steps))
        to = [PER_STEP * steps + each for each in there]
        self.torch.cuda.synchronize()
        received = self.step("b", [], 0, load=(there, to))
        seen: list[Any] = [received]
        self._wait(lambda: any(seen), lambda: seen.append(self.step("", [], 0)))
        self.torch.cuda.synchronize()
        wrong = {"host": 0, "loaded": 0}
        for number in range(steps):
            for layer, name in enumerate(self.caches):
                value = (number + 1 + layer) % 127
                host = self.host(name)
                for each in range(PER_STEP):
                    slot = 1 + PER_STEP * number + each
                    wrong["host"] += not bool((host[slot] == value).all())
                    wrong["loaded"] += not bool((self.caches[name][slot + PER_STEP * steps] == value).all())
        return {
            "steps": steps,
            "blocks": LAYERS * PER_STEP * steps,
            "wrong_in_host": wrong["host"],
            "wrong_loaded": wrong["loaded"],
            "us_a_step": round(statistics.median(times) * 1e6, 1),
        }

    def _wait(self, done: Any, again: Any = None) -> None:
        until = time.monotonic() + 20
        while not done():
            if time.monotonic() > until:
                raise SystemExit("transfers did not come to an end within 20 s")
            time.sleep(0.002)
            if again is not None:
                again()
            else:
                self.step("", [], 0)


def without_waiting() -> bool:
    """Stores wait for nothing from here on; whether this release lets them wait at all."""
    backend = importlib.import_module(f"{PACKAGE}.copy_backend").DmaCopyBackend
    original = backend.launch_copy
    if "wait_event" not in inspect.signature(original).parameters:
        return False

    def launch_copy(
        self: Any, src_blocks: Any, dst_blocks: Any, is_store: Any, event_idx: Any, events_list: Any, **_: Any
    ) -> Any:
        return original(self, src_blocks, dst_blocks, is_store, event_idx, events_list)

    backend.launch_copy = launch_copy
    return True


def observed(
    steps: int, how: str, lab_of: Callable[[int], Lab], breaks: Callable[[], bool]
) -> dict[str, Any]:
    """One life of a worker side: ``plain``, ``observed`` or ``broken``."""
    slots = 1 + 2 * PER_STEP * steps
    if how == "plain":
        return {"how": how, **lab_of(slots).play(steps)}
    if how == "broken" and not breaks():
        return {"how": how, "refused": "stores of this release wait for nothing anyway"}
    from kvfence.checker.adapters.vllm.hooks.offloading import hook_offloading
    from kvfence.checker.adapters.vllm.hooks.patching import Patches
    from kvfence.checker.adapters.vllm.hooks.worker import Workers, hook_worker
    from kvfence.checker.adapters.vllm.notes.hook_coverage import Coverage

    races: list[Any] = []
    patches = Patches(Coverage())
    workers = Workers("bench", on_race=races.append)
    if lab_of is Lab:
        hook_worker(patches, workers)
    else:
        patches = hook_offloading(workers)
    lab = lab_of(slots)
    found = lab.play(steps)
    kinds = sorted({f"{race.invariant}: {race.first.name}, {race.second.name}" for race in races})
    return {
        "how": how,
        **found,
        "races": len(races),
        "kinds": kinds,
        "first": str(races[0]) if races else "",
        "events": workers.events,
        "accesses": workers.accesses,
        "not_checked": workers.unchecked
        + [f"{hook}: {state}" for hook, state in patches.coverage.items() if state != "checked"],
        "stream": lab.stream(),
    }


def one(folder: Path, steps: int, how: str) -> int:
    """What a process of its own does for one release and one way."""
    if folder.name == "vllm":
        import _observed_offloading as offloading

        offloading.made_up(folder)
        found = observed(steps, how, offloading.OffloadingLab, offloading.without_waiting)
    else:
        made_up(folder)
        found = observed(steps, how, Lab, without_waiting)
    print("RESULT " + json.dumps(found))
    return 0


def main() -> int:
    """Exit code 1 if a run fails, if bytes are wrong without a reported race, or if a broken one has none."""
    parser = arguments(__doc__, output="write the figures to this folder")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--how", choices=("plain", "observed", "broken"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.how:
        return one(asked.folders[0], asked.steps, asked.how)
    from _cuda import driver_or_exit, facts

    card = facts(driver_or_exit())
    rows: list[dict[str, Any]] = []
    for folder in asked.folders:
        release = folder.parts[-4] if folder.parts[-3:-1] == ("vllm", "v1") else folder.parts[-2]
        release += " OffloadingConnector" if folder.name == "vllm" else ""
        for how in ("plain", "observed", "broken"):
            command = [sys.executable, __file__, str(folder), "--steps", str(asked.steps), "--how", how]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            text = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), "")
            row = (
                json.loads(text.removeprefix("RESULT "))
                if text
                else {"how": how, "failed": done.stderr[-3000:]}
            )
            rows.append({"release": release, **row})
            print(release, {name: value for name, value in row.items() if name != "first"}, flush=True)
    save(asked.output and asked.output / "observed_worker.json", {**card, "rows": rows})
    return int(any(_bad(row) for row in rows))


def _bad(row: dict[str, Any]) -> bool:
    if "failed" in row:
        return True
    silent = "races" in row and not row["races"]
    return silent and bool(row["wrong_in_host"] or row["wrong_loaded"] or row["how"] == "broken")


if __name__ == "__main__":
    raise SystemExit(main())
