"""Rules for the actions of brokers on records, checked at the moment of each action.

The checks at the end of a run (`verdict`, `transaction_ledger`, `compacting`) find a fault of a broker only if another
fault turns it into a loss. A rule needs only the wrong action, so a run fails at its first violation.

What must be true of each partition that a broker hosts:
- Only the leader that ZooKeeper names for a leader epoch appends in that epoch. The leader epoch never goes back.
- An append with acks=all begins only if at least min.insync.replicas are in sync, as far as the leader knows. As in
  Kafka, the committed ISR counts, without a replica that is about to join. The append is acknowledged only when at
  least min.insync.replicas have the records.
- A replica that a leader adds to the ISR has all records that the leader's log had when the leader epoch began.
- A consumer gets no record at or above the high watermark. With read_committed it gets no record at or above the last
  stable offset, the first offset of the first transaction without a marker below the high watermark.
- A fenced producer appends nothing: in a log, the epochs of a producer id only rise.

A rule does not take its evidence from the code that it judges, but from the bytes of logs, the znodes and the other
brokers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from klamm.base.tasks import OnFailure
from klamm.config.safest import ALL_REPLICAS
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import (
    HEADER_SIZE_BYTES,
    NO_PRODUCER_ID,
    BatchHeader,
    crc_matches,
    is_partial,
    iterate_batches,
    parse_header,
)
from klamm.protocol.vocabulary import ACKS_ALL, CONSUMER_REPLICA_ID, NO_LEADER, READ_COMMITTED, PartitionKey
from klamm.replication.partition.isr import PendingIsr
from klamm.replication.partition.partition import Partition
from klamm.replication.replica_manager import ReplicaManager, Wanted
from klamm.simulation.machine.disk import Disk
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.witnesses.state_checker import StateChecker
from klamm.storage.log.log import AppendInfo, Log
from klamm.storage.log.truncation import Truncation

HostedPartition = Callable[[int, PartitionKey], Partition | None]
"""Returns a broker's hosted partition; None if the broker does not host it or is down."""


class ProducersOfLog:
    """The transactions and epochs of the producers in the batches of a log."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        # (first offset, offset of the marker)
        self._ended: list[tuple[int, int]] = []
        self._epochs: dict[int, int] = {}

    def add(self, header: BatchHeader) -> None:
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        self._epochs[producer_id] = max(header.producer_epoch, self.epoch(producer_id))
        if header.is_control:
            if producer_id in self._open:
                self._ended.append((self._open.pop(producer_id), header.base_offset))
        elif header.is_transactional:
            self._open.setdefault(producer_id, header.base_offset)

    def epoch(self, producer_id: int) -> int:
        """The newest epoch of a producer; -1 for an unknown one."""
        return self._epochs.get(producer_id, -1)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset of every replica with this high watermark and these batches."""
        undecided = [first for first, marker in self._ended if marker >= high_watermark]
        return min([high_watermark, *undecided, *self._open.values()])


class Rules:
    """See the module. `watch` checks a broker's partitions from then on. `on_violation` gets the SimulationFailure."""

    def __init__(self, state: StateChecker, hosted: HostedPartition, on_violation: OnFailure) -> None:
        self.state = state
        self.hosted = hosted
        self._on_violation = on_violation

    def broken(self, message: str) -> None:
        self._on_violation(SimulationFailure(message))

    def watch(self, manager: ReplicaManager, broker_id: int, disk: Disk) -> None:
        manager.new_partition = partial(RuledPartition, rules=self, disk=disk)
        fetch = manager.fetch

        async def ruled(
            wanted: Sequence[Wanted], *, replica_id: int = CONSUMER_REPLICA_ID, isolation_level: int, **options: Any
        ) -> Any:
            before = [_cuts(manager, each) for each in wanted]
            results = await fetch(wanted, replica_id=replica_id, isolation_level=isolation_level, **options)
            if replica_id == CONSUMER_REPLICA_ID:
                for (topic, want), cuts, result in zip(wanted, before, results, strict=True):
                    # A replica that was truncated meanwhile no longer has the records that were read.
                    if result.records and cuts is not None and cuts == _cuts(manager, (topic, want)):
                        partition = manager.hosted_partition((topic, want.partition))
                        assert isinstance(partition, RuledPartition)
                        self._fetched(broker_id, partition, want.fetch_offset, result, isolation_level)
            return results

        manager.fetch = ruled  # type: ignore[method-assign]  # all fetches pass this method

    def _fetched(
        self, broker_id: int, partition: "RuledPartition", offset: int, result: Any, isolation_level: int
    ) -> None:
        end = _end_of(result.records or b"", offset)
        if end is None:
            return
        what = f"{partition}: broker {broker_id} has given a consumer records up to {end}"
        if end > result.high_watermark:
            self.broken(f"{what}, its high watermark was {result.high_watermark}")
        elif isolation_level == READ_COMMITTED and (producers := partition.producers()) is not None:
            stable = max(producers.last_stable_offset(result.high_watermark), partition.log.log_start_offset)
            if end > stable:
                self.broken(
                    f"{what} with read_committed; at the high watermark {result.high_watermark} the last stable offset"
                    f" is {stable}"
                )


def _cuts(manager: ReplicaManager, wanted: Wanted) -> tuple[int, int] | None:
    """The identity of the broker's hosted partition, and how often its log was truncated."""
    topic, want = wanted
    partition = manager.hosted_partition((topic, want.partition))
    return (id(partition), partition.cuts) if isinstance(partition, RuledPartition) else None


def _end_of(records: Buffer, offset: int) -> int | None:
    """The end offset of the whole batches that were fetched from an offset. None if a batch is not at its expected
    offset: bytes have changed on the disk, which only readers notice, or batches were compacted."""
    try:
        for position, header in iterate_batches(records, allow_partial_end=True):
            if not header.base_offset <= offset < header.next_offset or not crc_matches(records, position, header):
                return None
            offset = header.next_offset
    except KafkaError:
        return None
    return offset


class RuledPartition(Partition):
    """A partition that reports its actions to the rules. It behaves like any other partition."""

    def __init__(self, *arguments: Any, rules: Rules, disk: Disk, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._rules = rules
        self._disk = disk
        # The log end offset when this broker became the leader in its leader epoch.
        self._term_begins_at = 0
        # How often the log was truncated.
        self.cuts = 0
        # The producers of this log; None until the log is read from the disk.
        self._read: tuple[Log, ProducersOfLog] | None = None

    def producers(self) -> ProducersOfLog | None:
        """The producers in the log's batches; None for a log with a damaged batch."""
        if self._read is None or self._read[0] is not self.log:
            producers = ProducersOfLog()
            try:
                for header in _batches_on_disk(self._disk, self.log):
                    producers.add(header)
            except (KafkaError, OSError):
                return None
            self._read = self.log, producers
        return self._read[1]

    # -- appends ------------------------------------------------------------------------------------------------------

    def append_records_as_leader(
        self, records: bytearray | memoryview, required_acks: int, *arguments: Any, **options: Any
    ) -> AppendInfo:
        isr, end, producers = self.isr_state.isr, self.log.log_end_offset, self.producers()
        info = super().append_records_as_leader(records, required_acks, *arguments, **options)
        leader = self._rules.state.leader_of(*self.topic_partition, self.leader_epoch)
        if leader not in (None, self._broker_id):
            self._broken(f"appends in leader epoch {self.leader_epoch}, in which {leader} leads")
        if required_acks == ACKS_ALL and len(isr) < self._minimum():
            self._broken(
                f"takes records with acks=all while the ISR is {isr}; min.insync.replicas is {self._minimum()}"
            )
        if self.log.log_end_offset > end:
            header = parse_header(records)._replace(base_offset=info.first_offset)
            if producers is not None:
                newest = producers.epoch(header.producer_id)
                if header.producer_epoch < newest:
                    self._broken(f"appends {header} of a producer that was fenced: its epoch is {newest}")
                producers.add(header)
        return info

    def append_records_as_follower(self, records: Buffer) -> AppendInfo:
        log, end, producers = self.log, self.log.log_end_offset, self.producers()
        cuts = self.cuts
        info = super().append_records_as_follower(records)
        if producers is not None and self.cuts == cuts and self.log is log:
            for _, header in iterate_batches(records, allow_partial_end=True):
                if end <= header.base_offset and header.next_offset <= log.log_end_offset:
                    producers.add(header)
        return info

    def acknowledgement(self, required_offset: int, leader_epoch: int) -> ErrorCode | None:
        code = super().acknowledgement(required_offset, leader_epoch)
        if code is ErrorCode.NONE:
            members = tuple(dict.fromkeys((*self.isr_state.maximal_isr, *self._committed_isr())))
            have = [each for each in members if self._may_have(each, required_offset)]
            if len(have) < self._minimum() or len(have) < len(members):
                self._broken(
                    f"acknowledges the records before {required_offset} of epoch {leader_epoch} in epoch"
                    f" {self.leader_epoch}; of the ISR {members} {have} have them, min.insync.replicas is"
                    f" {self._minimum()}"
                )
        return code

    def _committed_isr(self) -> tuple[int, ...]:
        """The ISR in ZooKeeper, which the leader may not know yet; empty in another leader epoch."""
        state = self._rules.state.partitions().get(self.topic_partition)
        return state.isr if state is not None and state.leader_epoch == self.leader_epoch else ()

    def _may_have(self, broker_id: int, offset: int) -> bool:
        """Whether a replica has the records before the offset. True if this cannot be seen, because its broker is down
        or in another leader epoch."""
        replica = self if broker_id == self._broker_id else self._rules.hosted(broker_id, self.topic_partition)
        is_of_epoch = replica is not None and replica.leader_epoch == self.leader_epoch
        return replica is None or not is_of_epoch or replica.log.log_end_offset >= offset

    def _minimum(self) -> int:
        configured = self.topic_config.min_insync_replicas
        return len(self.replicas) - len(self.adding_replicas) if configured == ALL_REPLICAS else configured

    def _propose(self, proposal: PendingIsr) -> None:
        for each in {*proposal.proposed_isr} - {*proposal.isr}:
            if not self._may_have(each, self._term_begins_at):
                self._broken(
                    f"takes {each} into the ISR, which lacks records before {self._term_begins_at}, where leader epoch"
                    f" {self.leader_epoch} begins"
                )
        super()._propose(proposal)

    # -- truncations and epochs ---------------------------------------------------------------------------------------

    def truncate_to(self, offset: int, prepared: Truncation | None = None) -> bool:
        self._cut()
        return super().truncate_to(offset, prepared)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self._cut()
        super().truncate_fully_and_start_at(offset)

    def _cut(self) -> None:
        self.cuts += 1
        self._read = None

    def make_leader(self, state: LeaderAndIsrPartitionState) -> bool:
        self._check_epoch(state)
        if state.leader_epoch > self.leader_epoch:
            self._term_begins_at = self.log.log_end_offset
        return super().make_leader(state)

    def make_follower(self, state: LeaderAndIsrPartitionState) -> bool:
        self._check_epoch(state)
        return super().make_follower(state)

    def _check_epoch(self, state: LeaderAndIsrPartitionState) -> None:
        if state.leader_epoch < self.leader_epoch:
            self._broken(f"goes back from leader epoch {self.leader_epoch} to {state.leader_epoch}")
        leader = self._rules.state.leader_of(*self.topic_partition, state.leader_epoch)
        if leader not in (None, state.leader) and state.leader != NO_LEADER:
            self._broken(f"takes {state.leader} for the leader in epoch {state.leader_epoch}, in which {leader} leads")

    def _broken(self, what: str) -> None:
        self._rules.broken(f"{self}: broker {self._broker_id} {what}")


def _batches_on_disk(disk: Disk, log: Log) -> Iterator[BatchHeader]:
    """The headers of a log's batches. Raises KafkaError for a damaged batch, and OSError for a log that moves."""
    for content in disk.contents(log.directory, ".log"):
        for position, header in iterate_batches(content[: _end_of_batches(content)], allow_partial_end=True):
            if not crc_matches(content, position, header):
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
            yield header


def _end_of_batches(segment: bytes) -> int:
    """The position of the zeros that preallocation has put behind the batches."""
    position = 0
    while (beginning := segment[position : position + HEADER_SIZE_BYTES]) and any(beginning):
        if is_partial(segment, position):
            break
        position += parse_header(segment, position).size_bytes
    return position
