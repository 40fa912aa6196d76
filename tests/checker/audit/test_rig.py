"""Parts of the rig that need no vLLM: what steps write and read, drafted tokens, broken free lists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from kvfence.checker.audit.cases.case import Case, Setup, Submit
from kvfence.checker.audit.cuda_stub.stub_device import Device
from kvfence.checker.audit.rig.engine import free_list_of
from kvfence.checker.audit.rig.runner import Runner, Span, texts_of
from kvfence.checker.audit.rig.worker import sent

SETUP = Setup(block_size=4, gpu_blocks=8)


class Stepped:
    """A model runner with one request of 6 tokens that samples 8, in blocks 1 to 4."""

    def __init__(self) -> None:
        self.garbled: list[str] = []
        self.device = Device(0, 1, 0)
        self.cells = np.zeros((SETUP.gpu_blocks, SETUP.block_size), np.int64)
        texts = texts_of(Case(SETUP, (Submit(6, 8),)))
        self.runner = Runner(
            SETUP, texts, self.device, self.cells, 0, lambda cause, _: self.garbled.append(cause)
        )

    def step(self, span: Span, *, first: bool = False, ids: list[list[int]] | None = None) -> None:
        """Computes ``span`` of the request, and waits until that is done."""
        new = SimpleNamespace(req_id="0", block_ids=ids or [[1, 2, 3, 4]], num_computed_tokens=0)
        names, tables, starts = ([], [], []) if first else (["0"], [None], [span[0]])
        cached = SimpleNamespace(
            req_ids=names, new_block_ids=tables, num_computed_tokens=starts, resumed_req_ids=set()
        )
        output: Any = SimpleNamespace(finished_req_ids=set(), scheduled_cached_reqs=cached)
        output.scheduled_new_reqs = [new] if first else []
        output.num_scheduled_tokens = {"0": span[1] - span[0]}
        self.runner.launch(output, {"0": span})
        for _ in range(4):
            self.device.tick()


def test_wrong_guesses_are_written_and_then_written_over() -> None:
    run = Stepped()
    run.step((0, 6, 6), first=True)
    run.step((6, 10, 8))  # one sampled token and three guesses, of which one is right
    assert (run.cells[2, 2:] > 0).all()
    assert (run.cells[3, :2] < 0).all()
    run.step((8, 12, 12))
    run.step((12, 13, 13))
    assert run.garbled == []


def test_a_guess_that_is_not_written_over_is_seen_when_attention_reads_it() -> None:
    run = Stepped()
    run.step((0, 6, 6), first=True)
    run.step((6, 10, 8))
    run.step((10, 12, 12))  # as if all guesses had been right
    assert run.garbled == ["attention reads another content than its own"]


def test_a_block_that_does_not_exist_is_reported_once_and_read_as_the_null_block() -> None:
    run = Stepped()
    run.step((0, 4, 4), first=True, ids=[[1, -1, 3, 4]])
    assert run.garbled == ["a block table names a block that does not exist"]


def a_pool(*order: int, ring: bool = False) -> Any:
    head, tail = SimpleNamespace(block_id=-1), SimpleNamespace(block_id=-1, next_free_block=None)
    blocks = {id_: SimpleNamespace(block_id=id_) for id_ in order}
    at = head
    for id_ in order:
        at.next_free_block = at = blocks[id_]
    at.next_free_block = blocks[order[0]] if ring else tail
    head.next_free_block = blocks[order[0]]
    queue = SimpleNamespace(fake_free_list_head=head, fake_free_list_tail=tail)
    return SimpleNamespace(free_block_queue=queue, blocks=list(blocks.values()))


def test_a_free_list_is_listed_and_a_ring_comes_to_an_end() -> None:
    assert free_list_of(a_pool(3, 1, 2)) == [3, 1, 2]
    assert free_list_of(a_pool(3, 1, 2, ring=True)) == [3, 1, 2, 3]


def test_a_worker_in_a_process_of_its_own_has_its_own_metadata() -> None:
    """Connectors take out of it what they have begun: the other workers must still find it."""
    output = SimpleNamespace(kv_connector_metadata={"stores": {2: "blocks"}}, num_scheduled_tokens={"0": 4})
    first, second = sent(output), sent(output)
    first.kv_connector_metadata["stores"].pop(2)
    assert second.kv_connector_metadata == output.kv_connector_metadata == {"stores": {2: "blocks"}}
    assert second.num_scheduled_tokens is output.num_scheduled_tokens


def test_a_copy_that_is_to_fail_does_so_once() -> None:
    device = Device(0, 1, 0)
    device.fail_next = True
    assert [device.fails() for _ in range(3)] == [True, False, False]
    device.fail_rate = 1.0
    assert device.fails()
    assert device.fails()
