"""A copy that fails ends the copy thread of SimpleCPUOffloadConnector, and nobody hears of it.

Seen in vLLM 0.19.1 to 0.33.0; needs no GPU. ``DmaCopyBackend._copy_loop`` lets the exception of ``copy_blocks``
end the thread. Later copies stay in its queue: their events never appear, requests that wait for a load wait
for ever, and the blocks of the copies keep their ref counts.
"""

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
def test_a_failed_copy_is_told_to_the_worker(backend):
    events = []
    backend.launch_copy([1], [1], is_store=False, event_idx=0, events_list=events)
    assert wait_for(lambda: bool(events)), "nobody is told that the copy failed"
