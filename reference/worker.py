"""The connector's worker side: starts the transfers of each step, and reports their ends."""

from kvfence.reference.connector.host_memory import DescriptorBuffers
from kvfence.reference.connector.rank_votes import RankVotes
from kvfence.reference.connector.stores import ConnectorMetadata
from kvfence.reference.connector.transfers import Transfer, TransferReport
from kvfence.reference.device.protocol import CopyJob, Device


class OffloadWorker:
    """Methods have the names of vLLM's ``KVConnectorBase_V1``. One object stands for the workers of all
    ranks.

    Nothing here waits for a copy. Loads need no wait because their request is not dispatched before they are
    reported; stores need none because each holds its source, which is written and confirmed before the store
    is decided.
    """

    def __init__(self, device: Device, descriptors: DescriptorBuffers, votes: RankVotes) -> None:
        self.device = device
        self.votes = votes
        self._aborted: list[TransferReport] = []
        self.descriptors = descriptors
        self._metadata = ConnectorMetadata()

    def bind_connector_metadata(self, metadata: ConnectorMetadata) -> None:
        """Take over what the scheduler side decided for this step."""
        self._metadata = metadata

    def start_load_kv(self) -> None:
        """Start the step's loads."""
        for transfer in self._metadata.loads:
            self._start(transfer)

    def wait_for_save(self) -> None:
        """Start the step's stores."""
        for transfer in self._metadata.stores:
            self._start(transfer)

    def get_finished(self) -> list[TransferReport]:
        """Ends of transfers since the last call."""
        reports = self._aborted + self.device.poll()
        self._aborted = []
        for report in reports:
            self.descriptors.reported(report.op, report.generation, report.rank)
        return reports

    def _start(self, transfer: Transfer) -> None:
        if not self.votes.carry_out(transfer.op, transfer.generation):
            ranks = range(self.votes.ranks)
            self._aborted += [TransferReport(transfer.op, transfer.generation, rank, False) for rank in ranks]
            return
        self.descriptors.take(transfer.op, transfer.generation)
        src, dst = (transfer.src_pool, transfer.src), (transfer.dst_pool, transfer.dst)
        job = CopyJob(transfer.op, transfer.generation, *src, *dst, load=transfer.kind == "load")
        self.device.submit(job)
