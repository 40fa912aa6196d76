"""The model runner of the rig: what steps write and read, as identities of token prefixes on virtual memory.

Block tables are kept from the scheduler's output, as a real runner keeps them. Computing a token writes the
identity of its prefix; attention reads every token that it would read and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvfence.checker.audit.cases.case import Case, Setup, Submit
from kvfence.checker.audit.cuda_stub.stub_device import Device
from kvfence.spec import order as od

STOP: Final = 3
"""The token with which a request ends before its length limit."""
OVERRUN: Final = 24
"""Tokens known beyond the end: steps in flight go on when a request has ended already."""
_SPAN: Final = 1 << 12
Ids = npt.NDArray[np.int64]
Work: TypeAlias = "tuple[Text, list[list[int]], int, int, int]"
Garbled = Callable[[str, str], None]
Span: TypeAlias = tuple[int, int, int]
"""What a step computes of a request: from a token, up to another, and from where on it is a wrong guess."""
JUNK: Final = -1
"""The identity of what a wrong guess computes."""


@dataclass(frozen=True)
class Text:
    """All tokens of a request, those that it will sample too, and the identity of each one's prefix."""

    uid: int
    tokens: list[int]
    prompt: int
    output: int
    stops: bool
    priority: int

    @cached_property
    def identity(self) -> Ids:
        """For each token, a number that stands for it and all before it."""
        chain = accumulate(self.tokens, _extended, initial=1469598103934665603)
        return np.array([at + 1 for at in chain][1:], np.int64)

    @property
    def name(self) -> str:
        """Its id in the engine."""
        return str(self.uid)


def _extended(before: int, token: int) -> int:
    return ((before ^ token) * 1099511628211 + 0x9E3779B97F4A7C15) & (2**59 - 1)


def texts_of(case: Case) -> list[Text]:
    """The texts of all requests of ``case``."""
    texts: list[Text] = []
    for action in case.actions:
        if not isinstance(action, Submit):
            continue
        uid = len(texts)
        earlier = texts[action.after] if 0 <= action.after < uid else None
        tokens = earlier.tokens[: earlier.prompt + earlier.output] if earlier is not None else []
        shared = min(action.shared, action.prompt) if not tokens else 0
        tokens = tokens + [100 + action.family * _SPAN + t for t in range(shared)]
        tokens += [100 + (8 + uid) * _SPAN + t for t in range(action.prompt - shared)]
        prompt = len(tokens)
        stops = bool(uid % 2)
        sampled = [100 + (8 + uid) * _SPAN + _SPAN // 2 + t for t in range(action.output)]
        if stops:
            sampled[-1] = STOP
        tokens = tokens + sampled + [100 + (8 + uid) * _SPAN + _SPAN - 1] * OVERRUN
        texts.append(Text(uid, tokens, prompt, action.output, stops, action.priority))
    return texts


def starts_of(output: Any) -> dict[str, int]:
    """The first token that each request computes in a step, as the scheduler says."""
    starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return starts


def resumed_in(output: Any) -> set[str]:
    """The requests that go on in a step after they were preempted; releases say so in two ways."""
    cached = output.scheduled_cached_reqs
    resumed = getattr(cached, "resumed_req_ids", None)
    if resumed is None:
        flags = cached.resumed_from_preemption
        return {name for name, flag in zip(cached.req_ids, flags, strict=True) if flag}
    return set(resumed)


class Runner:
    """One worker's model runner over the memory ``cells`` ([blocks, tokens] identities)."""

    def __init__(
        self, setup: Setup, texts: list[Text], device: Device, cells: Ids, region: int, garbled: Garbled
    ) -> None:
        self.setup, self.texts, self.device, self.cells = setup, texts, device, cells
        self.region, self.garbled = region, garbled
        self.tables: dict[str, list[list[int]]] = {}

    def launch(self, output: Any, spans: dict[str, Span]) -> None:
        """Launches the kernel of the step that ``output`` describes."""
        self._follow(output)
        work = [
            (self.texts[int(name)], [list(table) for table in self.tables[name]], *spans[name])
            for name in output.num_scheduled_tokens
        ]
        if not work:
            return
        reads, writes = self._ranges(work)
        self.device.kernel(lambda: self._step(work), reads, writes, "step")

    def _follow(self, output: Any) -> None:
        """Brings the block tables up to date."""
        for name in output.finished_req_ids:
            self.tables.pop(name, None)
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = [self._there(new.req_id, ids) for ids in new.block_ids]
        cached, resumed = output.scheduled_cached_reqs, resumed_in(output)
        for name, new_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in resumed:
                self.tables[name] = [self._there(name, ids) for ids in new_ids]
            elif new_ids is not None:
                for table, ids in zip(self.tables[name], new_ids, strict=True):
                    table.extend(self._there(name, ids))

    def _there(self, name: str, ids: Sequence[int]) -> list[int]:
        """``ids``, with the null block in place of blocks that do not exist."""
        wrong = [id_ for id_ in ids if not 0 <= id_ < self.setup.gpu_blocks]
        if wrong:
            cause = "a block table names a block that does not exist"
            self.garbled(cause, f"request {name} is given the blocks {wrong} of {self.setup.gpu_blocks}")
        return [0 if id_ in wrong else id_ for id_ in ids]

    def _ranges(self, work: list[Work]) -> tuple[list[od.Range], list[od.Range]]:
        """What the step reads and writes, in bytes."""
        size = self.setup.block_size
        read: set[int] = set()
        written: set[tuple[int, int]] = set()
        for _, tables, start, end, _ in work:
            for table, window in zip(tables, self.setup.windows, strict=True):
                first = max(0, start - window + 1) if window else 0
                read.update(table[first // size : -(-start // size)])
                for position in range(start, min(end, len(table) * size)):
                    written.add((table[position // size], position % size))
        read.discard(0)
        slot = size * 8
        reads = [(self.region, block * slot, slot) for block in sorted(read)]
        writes: list[od.Range] = []
        for block, cell in sorted(written):
            at = block * slot + cell * 8
            if not block:
                continue
            if writes and writes[-1][1] + writes[-1][2] == at:
                writes[-1] = (self.region, writes[-1][1], writes[-1][2] + 8)
            else:
                writes.append((self.region, at, 8))
        return reads, writes

    def _step(self, work: list[Work]) -> None:
        """The kernel: writes the new tokens of all requests, then attends."""
        places = []
        for text, tables, start, end, known in work:
            for group, (table, window) in enumerate(zip(tables, self.setup.windows, strict=True)):
                first = max(0, start - window + 1) if window else 0
                blocks, cells, wanted = self._cells(text, table, first, end, known, group)
                new = start - first
                here = blocks[new:] != 0
                self.cells[blocks[new:][here], cells[new:][here]] = wanted[new:][here]
                places.append((text, group, first, new, blocks, cells, wanted))
        for text, group, first, new, blocks, cells, wanted in places:
            # What it wrote itself needs no look, unless a neighbour wrote there too.
            found = self.cells[blocks, cells]
            wrong = np.flatnonzero(found != wanted)
            if wrong.size:
                at = int(wrong[0])
                if blocks[at] == 0 and at >= new:
                    continue
                self._emit(text, group, first + at, int(blocks[at]), int(found[at]), wrong.size)

    def _cells(
        self, text: Text, table: list[int], first: int, end: int, known: int, group: int
    ) -> tuple[Ids, Ids, Ids]:
        """Blocks and cells of the tokens ``first`` up to ``end``, and what they must contain."""
        end = min(end, len(table) * self.setup.block_size)
        positions = np.arange(first, end)
        blocks = np.array(table, np.int64)[positions // self.setup.block_size]
        wanted = np.where(positions < known, text.identity[first:end], JUNK) * 8 + group
        return blocks, positions % self.setup.block_size, wanted

    def _emit(self, text: Text, group: int, position: int, block: int, found: int, count: int) -> None:
        whose = "nothing was ever written there" if not found else self._owner(found)
        if not block:
            cause = "attention reads a block that its table does not have any more"
        elif not found:
            cause = "attention reads a block that was never filled"
        else:
            cause = "attention reads another content than its own"
        self.garbled(
            cause,
            f"request {text.uid} reads token {position} of group {group} in block {block} "
            f"({count} tokens of it are wrong): {whose}",
        )

    def _owner(self, found: int) -> str:
        group, identity = found % 8, found // 8
        for text in self.texts:
            at = np.flatnonzero(text.identity == identity)
            if at.size:
                return f"found token {int(at[0])} of request {text.uid}, group {group}"
        return "found what no request computes"
