"""Faulty designs of loads that fail, and of what is remembered of a tier. Nothing here is right."""

from collections.abc import Iterable
from dataclasses import replace

from kvfence.reference.blocks.free_queue import Slots
from kvfence.reference.blocks.request import Request
from kvfence.reference.connector.disk_tier import DiskTier, Question
from kvfence.reference.connector.scheduler_side import Hit, OffloadScheduler
from kvfence.reference.connector.scheduler_side import Loading as LoadsOfRequest
from kvfence.reference.connector.shared_loads import Sharing
from kvfence.reference.connector.transfers import Transfer, TransferReport, TransferTable
from kvfence.reference.designs.design import Design, with_table
from kvfence.spec import events as ev


class _NamesBlocksWithoutGroup(TransferTable):
    """Reports a failed block by its number, as if there were only one group."""

    def _reported_group(self, transfer: Transfer) -> int:
        del transfer
        return 0


class _TakesPartForWhole(TransferTable):
    """Takes a load for a good one when some of its blocks have landed."""

    def report(self, report: TransferReport) -> Transfer | None:
        """Look only whether something landed."""
        transfer = self._addressee(report)
        if transfer is not None and report.failed is not None and report.failed.size < transfer.dst.size:
            report = replace(report, ok=True)
        return super().report(report)


class _ContentWithOneGroup(OffloadScheduler):
    """Counts a token that is valid in one of the groups."""

    def _all_groups(self, landed: list[bool]) -> bool:
        return any(landed)


class _KeepsCountAhead(OffloadScheduler):
    """Rolls the computed tokens back, and not those that it counts as on their way."""

    def _emit_rollback(self, request: Request, valid: int, loading: LoadsOfRequest) -> None:
        if self.observer is not None:
            ahead = loading.local + loading.tokens - valid
            self.observer(ev.Rollback(req=request.id, gen=request.generation, computed=valid, ahead=ahead))


class _KeepsVerdict(OffloadScheduler):
    """Remembers a hit although the load of it has failed."""

    def _distrust(self, load: Transfer) -> None:
        pass


class _LeavesSharersAlone(OffloadScheduler):
    """Rolls back the request that a failed load was for, and none that shares its blocks."""

    def _roll_back_sharer(self, sharing: Sharing) -> None:
        pass


class _SharersDoNotWait(OffloadScheduler):
    """Takes blocks that a load of another request fills for cached ones."""

    def filled_by(self, parts: Iterable[tuple[int, Slots]]) -> set[str]:
        """Ask no one."""
        del parts
        return set()


class _AnswersWithoutPin(OffloadScheduler):
    """A hit that the tier of files has answered is not pinned when it has come to memory."""

    def _was_asked(self, request: Request) -> bool:
        return self.disk is not None and request.holder in self.disk.tries

    def _pin(self, request: Request, slots: Slots) -> None:
        if not self._was_asked(request):
            super()._pin(request, slots)

    def _unpin(self, request: Request, hit: Hit) -> None:
        if self.tier.held(request.hit_holder):
            super()._unpin(request, hit)


class _ForgetsWhoAsked(OffloadScheduler):
    """Drops the answer that a request which went away had waited for, and forgets the pin of its hit."""

    def request_finished(self, request: Request, aborted: bool) -> bool:
        """Forget the pins of a request that asked."""
        disk = self.disk
        if disk is not None and (request.holder in disk.questions or disk.is_fetching(request)):
            self.promises.pop(request.hit_holder, None)
        return super().request_finished(request, aborted)


class _AnswersByKey(DiskTier):
    """Gives an answer to any request that waits for one."""

    def _addressee(self, question: Question) -> Question:
        others = [other for other in self.questions.values() if other.request is not question.request]
        return replace(question, request=others[0].request) if others else question


class _AnswersWhatWasAsked(DiskTier):
    """Answers what was true when the question came, whatever has failed since."""

    def _hits(self, question: Question) -> int:
        return len(question.keys)


FAULTS: dict[str, Design] = {
    "block_ids_unique_only_in_group": Design(connector=with_table(_NamesBlocksWithoutGroup)),
    "partial_load_counted_whole": Design(connector=with_table(_TakesPartForWhole)),
    "invalid_in_one_group_only": Design(connector=_ContentWithOneGroup),
    "count_not_rolled_back": Design(connector=_KeepsCountAhead),
    "sharer_not_rolled_back": Design(connector=_LeavesSharersAlone),
    "shared_before_landing": Design(connector=_SharersDoNotWait),
    "unpinned_verdict": Design(connector=_AnswersWithoutPin),
    "dropped_answer_keeps_pin": Design(connector=_ForgetsWhoAsked),
    "verdict_kept_after_failure": Design(connector=_KeepsVerdict),
    "answers_by_key": Design(disk=_AnswersByKey),
    "answer_on_its_way_kept": Design(disk=_AnswersWhatWasAsked),
}
"""Faulty designs of failed loads by name."""
