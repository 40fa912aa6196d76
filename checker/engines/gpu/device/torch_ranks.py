"""Ranks as processes of torchrun: NCCL between GPUs, gloo between processes on the processor."""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from kvfence.checker.core.terminal_text import print_err
from kvfence.checker.engines.gpu.device.ranks import Lost, Ranks
from kvfence.checker.engines.gpu.device.search_device import Words
from kvfence.spec.errors import CannotRun

GRACE = 8.0  # seconds in which to end in good order
PATIENCE = timedelta(minutes=10)  # a rank that does not answer for so long is lost
_SIGN = np.uint64(1 << 63)  # torch compares 64-bit integers with a sign


class TorchRanks(Ranks):
    """All processes that torchrun started. ``gpu`` says where the states are that travel."""

    def __init__(self, *, gpu: bool, patience: timedelta = PATIENCE) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError:
            raise CannotRun("several ranks need torch (pip install 'kvfence[reference]')") from None
        self._torch, self._dist = torch, dist
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device("cuda", local) if gpu else torch.device("cpu")
        if gpu:
            torch.cuda.set_device(self.device)
            dist.init_process_group("nccl", timeout=patience, device_id=self.device)
        else:
            dist.init_process_group("gloo", timeout=patience)
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        self._boxes: list[Any] = []
        self._arrived: list[Any] = []
        # torchrun ends the other processes when one is gone: end as by Ctrl-C, and say what was found
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        self.last_words: Callable[[], str] | None = None
        self._where = self._processes()
        self._watch_for_the_end()
        atexit.register(self.close)

    def _watch_for_the_end(self) -> None:
        """End, with a line on what was found, where a lost rank leaves this one waiting for ever in a call.

        Python handles a signal only between two of its own steps; the byte that it writes arrives at once.
        """
        received, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)

        def watch() -> None:
            while True:
                if os.read(received, 1)[0] == signal.SIGTERM:
                    time.sleep(GRACE)
                    if self.speaks() and self.last_words is not None:
                        print_err(self.last_words())
                    os._exit(3)

        threading.Thread(target=watch, daemon=True).start()

    def _processes(self) -> list[tuple[int, int]]:
        """Of each rank a number for its host, and its process."""
        host = int.from_bytes(hashlib.sha256(socket.gethostname().encode()).digest()[:7], "little")
        own = self._torch.tensor([host, os.getpid()], dtype=self._torch.int64, device=self.device)
        every = self._torch.empty(2 * self.count, dtype=self._torch.int64, device=self.device)
        self._wait(lambda: self._gather(every, own))
        numbers = [int(x) for x in every.tolist()]
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def speaks(self) -> bool:
        """See ``Ranks``. Those of other hosts are taken to be there."""
        here, _ = self._where[self.rank]
        return not any(host != here or _is_alive(process) for host, process in self._where[: self.rank])

    def total(self, numbers: Sequence[int]) -> list[int]:
        """See ``Ranks``."""
        t = self._torch.tensor(list(numbers), dtype=self._torch.int64, device=self.device)
        self._wait(lambda: self._dist.all_reduce(t))
        return [int(x) for x in t.tolist()]

    def largest(self, number: int) -> int:
        """See ``Ranks``."""
        t = self._torch.tensor([number], dtype=self._torch.int64, device=self.device)
        self._wait(lambda: self._dist.all_reduce(t, op=self._dist.ReduceOp.MAX))
        return int(t.item())

    def lowest(self, sights: Words, size: int) -> Words:
        """See ``Ranks``."""
        own = self._torch.from_numpy((sights ^ _SIGN).view(np.int64).reshape(-1)).to(self.device)
        every = [self._torch.empty_like(own) for _ in range(self.count)]
        self._wait(lambda: self._dist.all_gather(every, own))
        rows = np.stack([t.cpu().numpy() for t in every]).view(np.uint64) ^ _SIGN
        rows = rows.reshape(self.count, -1, size)
        out: Words = np.empty((rows.shape[1], size), np.uint64)
        for k in range(rows.shape[1]):
            out[k] = min(rows[:, k].tolist())
        return out

    def boxes(self, room: int, words: int) -> list[int]:
        """See ``Ranks``."""
        self._room, self._words = room, words
        shape = (4, self.count, room * words)
        made = self._torch.empty(shape, dtype=self._torch.int64, device=self.device)
        self._boxes, self._arrived = [made[0], made[1]], [made[2], made[3]]
        return [int(b.data_ptr()) for b in self._boxes]

    def agree(self, numbers: Sequence[int], counts: Sequence[int]) -> tuple[list[int], list[int]]:
        """See ``Ranks``."""
        torch = self._torch
        own = torch.tensor([*numbers, *counts], dtype=torch.int64, device=self.device)
        every = torch.empty(self.count * len(own), dtype=torch.int64, device=self.device)
        self._wait(lambda: self._gather(every, own))
        rows = np.array(every.tolist(), np.int64).reshape(self.count, -1)
        return (
            [int(x) for x in rows[:, : len(numbers)].sum(axis=0)],
            [int(x) for x in rows[:, len(numbers) + self.rank]],
        )

    def exchange(self, which: int, counts: Sequence[int], coming: Sequence[int]) -> TorchTransfer:
        """See ``Ranks``."""
        sends = [self._boxes[which][r, : n * self._words] for r, n in enumerate(counts)]
        takes = [self._arrived[which][r, : n * self._words] for r, n in enumerate(coming)]
        return TorchTransfer(self, self._begin(takes, sends), takes, coming)

    def _begin(self, takes: list[Any], sends: list[Any]) -> list[Any]:
        """Start all transfers between two ranks each; empty ones are left out on both sides."""
        dist = self._dist
        moves = []
        for r in range(self.count):
            if r != self.rank and sends[r].numel():
                moves.append(dist.P2POp(dist.isend, sends[r], r))
            if r != self.rank and takes[r].numel():
                moves.append(dist.P2POp(dist.irecv, takes[r], r))
        if not moves:
            return []
        try:
            return list(dist.batch_isend_irecv(moves))
        except RuntimeError as error:
            raise Lost(_line(error)) from None

    def _wait(self, call: Any) -> None:
        try:
            call()
        except RuntimeError as error:
            raise Lost(_line(error)) from None

    def close(self) -> None:
        """Part from the other ranks."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._dist.is_initialized():
            self._dist.destroy_process_group()


class TorchTransfer:
    """Keys on their way."""

    def __init__(self, ranks: TorchRanks, work: list[Any], takes: list[Any], coming: Sequence[int]) -> None:
        self._ranks, self._work, self._takes, self._coming = ranks, work, takes, coming

    def wait(self) -> list[tuple[int, int]]:
        """See ``Transfer``."""
        for work in self._work:
            self._ranks._wait(work.wait)
        if self._work and self._ranks.device.type == "cuda":
            self._ranks._torch.cuda.current_stream().synchronize()
        return [(int(t.data_ptr()), n) for t, n in zip(self._takes, self._coming, strict=True) if n]


def _is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _line(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0][:200]
