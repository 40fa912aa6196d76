"""Writes the test of a finding for the maintainers of vLLM: one file that needs vLLM, torch and pytest only.

The test is made from the folder that an audit writes for a finding, whenever it is asked for. It builds the
release's scheduler and connector as the rig does, repeats the recorded calls of the shortest case with copies
ending when they ended there, and asserts what the invariant says. So it covers the scheduler side. What a
failed copy does to its thread has a test of its own; races between streams are in the order trace.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kvfence.checker.audit.cases.case import read_case
from kvfence.checker.audit.cases.outcome import Sighting
from kvfence.checker.audit.rig import engine as rig_engine
from kvfence.checker.audit.rig.engine import OFFLOADING
from kvfence.spec.errors import CannotRun

_T = TypeVar("_T")

_MOST_CALLS: Final = 400

_CHECKS: Final = {
    "pin": '''
    def looked_up(self, request, promised):
        """A promised hit must have a holder until it is consumed."""
        free = [block.block_id for block in self.hit if not block.is_null and block.ref_cnt == 0]
        assert not (promised and free), f"request {request.request_id}: promised blocks {free} have no holder"
''',
    "once": '''
    def scheduled(self, output):
        """A block must not be stored twice by one transfer."""
        blocks = list(output.kv_connector_metadata.store_gpu_blocks)
        twice = sorted({block for block in blocks if blocks.count(block) > 1})
        assert not twice, f"GPU blocks {twice} appear twice in one store: {blocks}"
''',
    "in_flight": '''
    def scheduled(self, output):
        """A block must not be stored by two transfers in flight."""
        meta = output.kv_connector_metadata
        both = sorted(set(meta.store_gpu_blocks) & {b for blocks in self.stores.values() for b in blocks})
        assert not both, f"GPU blocks {both} are stored again while {self.stores} are in flight"
''',
    "free_list": '''
    def called(self):
        """The free list must have every block without a holder, once, and count them right."""
        for name, pool in self.pools():
            listed = free_list_of(pool)
            unheld = [block.block_id for block in pool.blocks if block.ref_cnt == 0 and not block.is_null]
            assert sorted(listed) == unheld, f"{name}: free list {listed}, blocks without a holder {unheld}"
            assert pool.get_num_free_blocks() == len(unheld), f"{name}: counts {pool.get_num_free_blocks()}"
''',
    "flush": '''
    def ended(self):
        """Every full block of a finished request must have been stored; the CPU pool has room for all."""
        request, group = self.requests[REQUEST], GROUP
        utils = vllm_module("v1.core.kv_cache_utils")
        pool = self.connector_pools()[0]
        hashes = request.block_hashes[: (request.num_tokens - 1) // SETUP.block_size]
        keys = [utils.make_block_hash_with_group_id(one, group) for one in hashes]
        lost = [i for i, key in enumerate(keys) if not pool.cached_block_hash_to_block.get_one_block(key)]
        assert not lost, f"blocks {lost} of {len(keys)} of request {REQUEST} are neither stored nor queued"
''',
    "leak": '''
    def ended(self):
        """Nothing may be held when no request is left and no copy is in flight."""
        for name, pool in self.pools():
            held = {b.block_id: b.ref_cnt for b in pool.blocks if b.ref_cnt and not b.is_null}
            assert not held, f"{name}: held for ever, with these ref counts: {held}"
''',
    "stall": '''
    def ended(self):
        """All requests must come to an end."""
        left = {name: request.status.name for name, request in self.scheduler.requests.items()}
        assert not left, f"no step and no copy for many steps, and these still wait: {left}"
''',
    "restless": '''
    def scheduled(self, output):
        """Without any request, copies must come to an end."""
        meta = output.kv_connector_metadata
        stored = len(meta.store_jobs if hasattr(meta, "store_jobs") else meta.store_gpu_blocks)
        self.idle = 0 if self.scheduler.requests else self.idle + bool(stored)
        assert self.idle < 40, "no request is left, and the connector started 40 more stores"
''',
    "sleepless": '''
    def ended(self):
        """An engine whose requests have ended, with no copy in flight, must be able to sleep."""
        assert not self.scheduler.has_requests(), "nothing is left to be done, and the engine must not sleep"
''',
    "exception": """
    # The engine itself raises.
""",
}

_SIMPLE_POOLS: Final = """
    def connector_pools(self):
        return [connector.scheduler_manager.cpu_block_pool for connector in self.connectors()]
"""
_SIMPLE_WATCH: Final = """
    def watch(self, connector):
        manager = connector.scheduler_manager
        find, look_up = manager.cpu_coordinator.find_longest_cache_hit, connector.get_num_new_matched_tokens

        def found(*args, **kwargs):
            result = find(*args, **kwargs)
            self.hit = [block for group in result[0] for block in group]
            return result

        def looked_up(request, computed):
            result = look_up(request, computed)
            self.looked_up(request, result[0])
            return result

        manager.cpu_coordinator.find_longest_cache_hit = found
        connector.get_num_new_matched_tokens = looked_up
"""
_OTHER_POOLS: Final = """
    def connector_pools(self):
        return []  # Its tier has ledger state of its own.
"""
_OTHER_WATCH: Final = """
    def watch(self, connector): ...
"""
_METADATA: Final = {
    OFFLOADING: (
        "distributed.kv_transfer.kv_connector.v1.offloading.common",
        "OffloadingWorkerMetadata",
    ),
}
"""By connector: where the metadata of its workers is defined, and its name; it takes a count for each end."""
_SIMPLE_METADATA: Final = ("v1.simple_kv_offload.metadata", "SimpleCPUOffloadWorkerMetadata")

_BODY: Final = '''

SETUP = SimpleNamespace(**{setup})
CONNECTOR = {connector!r}
REQUEST, GROUP = {request!r}, {group}
CALLS = [
{calls}
]


class Hooks:
    def looked_up(self, request, promised): ...
    def scheduled(self, output): ...
    def called(self): ...
    def ended(self): ...


class Checked(Hooks):
    """The scheduler and its connector, called as an engine calls them; hooks check what must hold."""

    def __init__(self):
        self.config = vllm_config(SETUP, CONNECTOR)
        self.scheduler = scheduler_of(SETUP, self.config, kv_cache_config(SETUP))
        self.requests, self.in_flight, self.stores, self.hit, self.idle = {{}}, [], {{}}, [], 0
        for connector in self.connectors():
            self.watch(connector)

    def connectors(self):
        top = self.scheduler.connector
        return list(getattr(top, "_connectors", None) or [top])

{pools}

    def pools(self):
        gpu = self.scheduler.kv_cache_manager.block_pool
        return [("GPU", gpu)] + [("CPU", pool) for pool in self.connector_pools()]

{watch}
{check}

    def add(self, name, prompt, most, stop, priority):
        self.requests[name] = request_of(SETUP, name, list(prompt), most, stop, priority)
        self.scheduler.add_request(self.requests[name])

    def abort(self, name):
        self.scheduler.finish_requests(name, vllm_module("v1.request").RequestStatus.FINISHED_ABORTED)

    def reset(self, running, tier):
        with contextlib.suppress(NotImplementedError, RuntimeError):
            reset = self.scheduler.reset_prefix_cache
            call_with_known(reset, reset_running_requests=running, reset_connector=tier)

    def schedule(self):
        output = self.scheduler.schedule()
        self.in_flight.append(output)
        self.scheduled(output)
        meta = output.kv_connector_metadata
        if getattr(meta, "store_event", -1) >= 0:
            self.stores[meta.store_event] = list(meta.store_gpu_blocks)

    def draft(self, names, count):
        guesses = [[5] * count for _ in names]
        self.scheduler.update_draft_token_ids(vllm_module("v1.outputs").DraftTokenIds(names, guesses))

    def update(self, sampled, loaded, stored):
        output = self.in_flight.pop(0)
        outputs = vllm_module("v1.outputs")
        meta = vllm_module("{metadata[0]}").{metadata[1]}(dict(stored))
        for event, _ in stored:
            self.stores.pop(event, None)
        connector = outputs.KVConnectorOutput(
            finished_recving=set(loaded) or None, kv_connector_worker_meta=meta if stored else None
        )
        names = list(output.num_scheduled_tokens)
        self.scheduler.update_from_output(
            output,
            outputs.ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={{name: i for i, name in enumerate(names)}},
                sampled_token_ids=[sampled.get(name, []) for name in names],
                kv_connector_output=connector,
            ),
        )

    def play(self):
        for name, *arguments in CALLS:
            getattr(self, name)(*arguments)
            self.called()
        self.ended()


def {name}():
    Checked().play()


if __name__ == "__main__":
    {name}()
'''


_WHY_COPIES_STOP: Final = """\
``DmaCopyBackend._copy_loop`` lets the exception of ``copy_blocks`` end the thread. Later copies stay in its
queue: their events never appear, requests that wait for a load wait for ever, and the blocks of the copies
keep their ref counts."""
_COPY_THREAD: Final = '''
from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.simple_kv_offload import copy_backend


class Event:
    """A CUDA event that is over at once."""

    def record(self, stream): ...
    def query(self):
        return True


@pytest.fixture
def backend(monkeypatch):
    fails = iter([True, False])

    def copy_blocks(src_blocks, dst_blocks, params):
        if next(fails, False):
            raise RuntimeError("batch memcpy failed: err=700 failIdx=0")

    monkeypatch.setattr(copy_backend, "build_params", lambda *args, **kwargs: SimpleNamespace())
    monkeypatch.setattr(copy_backend, "copy_blocks", copy_blocks)
    monkeypatch.setattr(copy_backend, "current_platform", SimpleNamespace(set_device=lambda device: None))
    monkeypatch.setattr(copy_backend.torch, "Event", Event)
    made = copy_backend.DmaCopyBackend()
    stream = SimpleNamespace(wait_event=lambda event: None)
    made.init({}, {}, torch.device("cpu"), stream, stream)
    yield made
    made.shutdown()


def wait_for(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_copy_after_a_failed_one_is_made(backend):
    events = []
    backend.launch_copy([1], [1], is_store=True, event_idx=0, events_list=events)
    backend.launch_copy([2], [2], is_store=True, event_idx=1, events_list=events)
    assert wait_for(lambda: any(index == 1 for index, _ in events)), (
        "the copy after a failed one was never made: the copy thread has ended"
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_copy_is_reported_to_the_worker(backend):
    events = []
    backend.launch_copy([1], [1], is_store=False, event_idx=0, events_list=events)
    assert wait_for(lambda: bool(events)), "no one is told that the copy failed"
'''


_KINDS: Final = {
    "PIN": "pin",
    "CONSERVE": "free_list",
    "FLUSH": "flush",
    "NO-LEAK": "leak",
    "FAIL-CLOSED": "copy_thread",
}
"""By invariant: the check that shows it, whatever its cause."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``finding.json`` says of a finding: where it was seen, and what was seen."""

    release: str
    connector: str
    sighting: Sighting


def test_of(folder: Path) -> str | None:
    """The test of the finding in ``folder``: its case, ``finding.json`` and ``calls.json``.

    None where no test can show it. CannotRun if a file is missing or is not what an audit wrote.
    """
    setup = read_case(folder / "case.json").setup
    about = _read(folder / "finding.json", Recorded)
    kind = kind_of(about.sighting)
    several = "+" in about.connector or setup.second_connector
    if not kind or several:
        return None
    if kind == "copy_thread":
        return None if about.connector in _METADATA else _doc(about, _WHY_COPIES_STOP) + _COPY_THREAD
    calls = _read(folder / "calls.json", list[list[object]])[:_MOST_CALLS]
    words = re.findall(r"[a-z]+", about.sighting.cause.lower())[:8]
    where = re.search(r"req = (\d+)\.\d+(?:, group = (\d+))?", about.sighting.detail)
    other = about.connector in _METADATA
    return (
        _doc(about, "The calls below are the shortest that show it; copies end when they are reported here.")
        + _engine_source()
        + _BODY.format(
            setup={**msgspec.to_builtins(setup), "windows": setup.windows},
            connector=about.connector,
            pools=(_OTHER_POOLS if other else _SIMPLE_POOLS).strip("\n"),
            watch=(_OTHER_WATCH if other else _SIMPLE_WATCH).strip("\n"),
            metadata=_METADATA.get(about.connector, _SIMPLE_METADATA),
            request=where[1] if where else "0",
            group=(where[2] if where else None) or 0,
            calls="\n".join(f"    {tuple(call)!r}," for call in calls),
            check=_CHECKS[kind].rstrip("\n"),
            name="test_" + "_".join(dict.fromkeys(words)),
        )
    )


def _read(file: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise CannotRun(f"{file}: cannot be read ({error.strerror}): an audit of vLLM writes it") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CannotRun(f"{file}: is not what an audit of vLLM writes: {error}") from error


def kind_of(seen: Sighting) -> str:
    """Which of the checks shows ``seen``; empty if none does."""
    cause = seen.cause
    if seen.evidence == "exception":
        return "exception"
    if seen.evidence in {"race", "content"}:
        return ""
    if seen.invariant == "UNIQUE":
        return "in_flight" if "open store" in cause else "once"
    if seen.invariant == "PROGRESS":
        quiet = "sleepless" if "never sleeps" in cause else "stall"
        return "restless" if "for ever though" in cause else quiet
    return _KINDS.get(seen.invariant, "")


def _doc(about: Recorded, more: str) -> str:
    """The docstring of the test."""
    summary = textwrap.fill(f"{about.sighting.invariant}: {about.sighting.detail}.", 100)
    seen = f"Seen in vLLM {about.release} with {about.connector}, by kvfence audit; needs no GPU."
    return f'"""{summary}\n\n{seen}\n{more}\n"""\n'


def _engine_source() -> str:
    """What the rig builds engines with, as source that does without kvfence."""
    engine = inspect.getsource(rig_engine).partition('"""\n\n')[2]
    engine = re.sub(r"^from (kvfence|__future__|typing)\b.*\n", "", engine, flags=re.MULTILINE)
    head = (
        "\nfrom __future__ import annotations\n\nimport contextlib\nimport tempfile\n"
        "from types import SimpleNamespace\nfrom typing import Any, Final\n\n"
    )
    scratch = 'os.environ.setdefault("KVFENCE_SCRATCH", tempfile.mkdtemp())\nSetup = Any\n'
    before, marker, after = engine.partition("\nLAYER: Final")
    return head + before.lstrip() + scratch + marker + after.rstrip() + "\n"
