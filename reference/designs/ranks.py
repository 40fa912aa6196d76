"""Faulty designs of what several ranks do together. Nothing here is right."""

from dataclasses import replace
from typing import Literal

from kvfence.reference.blocks.request import Request
from kvfence.reference.connector.rank_votes import RankVotes
from kvfence.reference.connector.scheduler_side import OffloadScheduler
from kvfence.reference.connector.transfers import Transfer, TransferReport, TransferTable
from kvfence.reference.designs.design import Design, with_table
from kvfence.spec import events as ev


class _DecidesAlone(RankVotes):
    """The last rank has not heard of the decision in time and takes it for a commit."""

    def _decision(self, rank: int, refusing: int) -> Literal["commit", "abort"]:
        return "commit" if rank == self.ranks - 1 else super()._decision(rank, refusing)


class _BelievesLeader(TransferTable):
    """Puts the reports of the ranks together so that the first rank's counts for all."""

    def _is_over(self, transfer: Transfer) -> bool:
        return 0 in transfer.reported


class _CountsReports(TransferTable):
    """Counts reports, whichever rank sent them."""

    def report(self, report: TransferReport) -> Transfer | None:
        """Count it."""
        addressee = self._addressee(report)
        if addressee is not None:
            counts = self.__dict__.setdefault("_counts", {})
            counts[addressee.holder] = counts.get(addressee.holder, 0) + 1
        return super().report(report)

    def _is_repeated(self, transfer: Transfer, report: TransferReport) -> bool:
        del transfer, report
        return False

    def _is_over(self, transfer: Transfer) -> bool:
        return bool(self.__dict__["_counts"][transfer.holder] >= self.ranks)


class _ReportsFailureLater(TransferTable):
    """The end of a copy and its failure come in two messages, the failure last."""

    def report(self, report: TransferReport) -> Transfer | None:
        """Take the end for a good one."""
        transfer = self._addressee(report)
        over = super().report(replace(report, ok=True, failed=None))
        if transfer is not None and not report.ok and report.rank in transfer.reported:
            late = self.__dict__.setdefault("_late", {})
            late.setdefault(transfer.holder, []).append(report)
        if over is not None and self.observer is not None:
            for one in self.__dict__.get("_late", {}).pop(over.holder, []):
                slots = over.dst if one.failed is None else over.dst[one.failed]
                self.observer(
                    ev.Failed(op=one.op, gen=one.generation, rank=one.rank, dst=slots, group=over.group)
                )
        return over


class _ContentWithoutOneRank(OffloadScheduler):
    """Lets go of a store's source when all ranks but one have read it."""

    def update_connector_output(self, reports: list[TransferReport]) -> list[Request]:
        """Let go of what the last rank may still read."""
        over = super().update_connector_output(reports)
        gone = self.__dict__.setdefault("_gone", set())
        for transfer in self.transfers.open.values():
            most = self.transfers.ranks - 1
            mine = transfer.kind == "store" and transfer.src_pool == self.gpu.name
            if mine and transfer.holder not in gone and len(transfer.reported) == most:
                self.gpu.free_blocks(transfer.holder, transfer.src)
                gone.add(transfer.holder)
        return over

    def _store_over(self, transfer: Transfer) -> None:
        if transfer.holder in self.__dict__.get("_gone", set()):
            self.gpu.touch(transfer.holder, transfer.src)
        super()._store_over(transfer)


class _DropsLeadersRecord(OffloadScheduler):
    """Drops its record of stores that some ranks have ended when their request is done."""

    def request_finished(self, request: Request, aborted: bool) -> bool:
        """Forget the stores that are not over on every rank."""
        open_now = self.transfers.open
        mine = [op for op, t in open_now.items() if t.request is request and t.reported]
        delay = super().request_finished(request, aborted)
        for op in mine:
            if open_now[op].kind == "store":
                del open_now[op]
        return delay


FAULTS: dict[str, Design] = {
    "one_rank_enough": Design(connector=with_table(_BelievesLeader)),
    "decide_alone": Design(votes=_DecidesAlone),
    "repeat_counts": Design(connector=with_table(_CountsReports)),
    "failure_after_completion": Design(connector=with_table(_ReportsFailureLater)),
    "noop_flush_on_one_rank": Design(connector=_ContentWithoutOneRank),
    "dropped_leader_slot": Design(connector=_DropsLeadersRecord),
}
"""Faulty designs of several ranks by name."""
