"""Transfers between the tiers, from the decision to the last rank's report."""

from dataclasses import dataclass, field

import numpy as np

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.pool import Keys, Observer, unshared
from kvfence.reference.blocks.request import Request
from kvfence.spec import events as ev


@dataclass(slots=True, eq=False)
class Transfer:
    """Block ``src[i]`` of ``src_pool`` goes to ``dst[i]`` of ``dst_pool``; ``holder`` keeps both from being
    freed.
    """

    op: int
    generation: int
    kind: ev.Kind
    src_pool: str
    src: Slots
    dst_pool: str
    dst: Slots
    keys: Keys
    group: int
    epoch: int
    """The reset epoch in which it was decided."""
    at: Slots
    """Which blocks of the request's table these are; empty for a lazy store."""
    request: Request | None = None
    request_generation: int = 0
    reported: set[int] = field(default_factory=set)
    ok: bool = True
    issued: bool = False
    failed: Slots | None = None
    """Places in ``dst`` that some rank could not fill; None: not reported."""

    @property
    def holder(self) -> str:
        """Name under which the transfer holds its slots."""
        return f"op:{self.op}.{self.generation}"

    def failed_blocks(self) -> Slots:
        """Places in ``dst`` that are not to be trusted."""
        if self.ok:
            return np.zeros(0, np.int64)
        return np.arange(self.dst.size) if self.failed is None else self.failed


@dataclass(frozen=True, slots=True)
class TransferReport:
    """A worker's word that ``rank`` is done with a transfer; ``failed``: places that were not filled."""

    op: int
    generation: int
    rank: int
    ok: bool = True
    failed: Slots | None = None


class TransferTable:
    """The open transfers. Ids are used again soon, so a report counts only when its generation fits, once a
    rank.
    """

    def __init__(self, ranks: int, observer: Observer | None = None) -> None:
        self.ranks = ranks
        self.observer = observer
        self.open: dict[int, Transfer] = {}
        self.stale = 0
        """Late and repeated reports so far."""
        self._generation: list[int] = []
        self._idle: list[int] = []

    def next_id(self) -> tuple[int, int]:
        """An id that no open transfer has, and its new generation."""
        if self._idle:
            op = self._idle.pop()
        else:
            op = len(self._generation)
            self._generation.append(-1)
        self._generation[op] += 1
        return op, self._generation[op]

    def add(self, transfer: Transfer) -> None:
        """The transfer is decided: all its slots have their holder."""
        self.open[transfer.op] = transfer
        if self.observer is not None:
            request = transfer.request
            self.observer(
                ev.Queue(
                    op=transfer.op,
                    gen=transfer.generation,
                    kind=transfer.kind,
                    src_pool=transfer.src_pool,
                    src=unshared(transfer.src),
                    dst_pool=transfer.dst_pool,
                    dst=unshared(transfer.dst),
                    keys=unshared(transfer.keys),
                    req="" if request is None else request.id,
                    rgen=transfer.request_generation,
                    at=unshared(transfer.at),
                    group=transfer.group,
                )
            )

    def issue(self, transfer: Transfer) -> None:
        """The transfer is handed to the workers."""
        transfer.issued = True
        if self.observer is not None:
            self.observer(ev.Issue(op=transfer.op, gen=transfer.generation))

    def report(self, report: TransferReport) -> Transfer | None:
        """Take a report into account. Returns the transfer when this was the last rank it waited for."""
        transfer = self._addressee(report)
        if transfer is None or self._is_repeated(transfer, report):
            self.stale += 1
            if self.observer is not None:
                self.observer(ev.Stale(op=report.op, gen=report.generation, rank=report.rank))
            return None
        transfer.reported.add(report.rank)
        transfer.ok &= report.ok
        if report.failed is not None and transfer.kind == "load":
            self._take_failure(transfer, report)
        if self.observer is not None:
            self.observer(ev.Report(op=report.op, gen=report.generation, rank=report.rank, ok=report.ok))
        if not self._is_over(transfer):
            return None
        del self.open[transfer.op]
        if self.observer is not None:
            self.observer(ev.Complete(op=transfer.op, gen=transfer.generation, ok=transfer.ok))
        return transfer

    def _take_failure(self, transfer: Transfer, report: TransferReport) -> None:
        """Blocks that did not land on a rank are of no use on any."""
        assert report.failed is not None
        before = transfer.failed
        transfer.failed = report.failed if before is None else np.union1d(before, report.failed)
        if self.observer is not None:
            slots = transfer.dst[report.failed]
            self.observer(
                ev.Failed(
                    op=report.op,
                    gen=report.generation,
                    rank=report.rank,
                    dst=slots,
                    group=self._reported_group(transfer),
                )
            )

    def _reported_group(self, transfer: Transfer) -> int:
        return transfer.group

    def forget(self, transfer: Transfer) -> None:
        """Nothing refers to the transfer any more: its id may be used again."""
        self._idle.append(transfer.op)

    def _addressee(self, report: TransferReport) -> Transfer | None:
        transfer = self.open.get(report.op)
        return transfer if transfer is not None and transfer.generation == report.generation else None

    def _is_repeated(self, transfer: Transfer, report: TransferReport) -> bool:
        return report.rank in transfer.reported

    def _is_over(self, transfer: Transfer) -> bool:
        return len(transfer.reported) == self.ranks
