"""One partition that this broker hosts: its log and what the controller has said about its leadership.

What must stay true:
- Only the leader appends for clients and answers their fetches.
- The leader epoch never goes back while the partition is hosted.
- A client reads nothing at or above the high watermark, which never passes the log's end; with isolation level
  read_committed nothing at or above the last stable offset.
- The high watermark moves only to what every member of the in-sync replica set has.
"""

from dataclasses import dataclass

from klamm.config.topic import TopicConfig
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.storage.log import AppendInfo, AppendOrigin, Log

NO_LEADER = -1
NO_EPOCH = -1

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What a LeaderAndIsr request says about one partition (facts of KIP-101, KIP-516)."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    controller_epoch: int
    zk_version: int
    is_new: bool = False


class Partition:
    """A hosted partition. Made when the controller first names this broker as a replica."""

    def __init__(self, topic: str, partition: int, broker_id: int, log: Log, topic_config: TopicConfig) -> None:
        self.topic = topic
        self.partition = partition
        self.log = log
        self.topic_config = topic_config
        self._broker_id = broker_id
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.zk_version = -1

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self._broker_id

    def make_leader(self, state: PartitionState) -> None:
        """Takes leadership as `state` says. The epoch starts at the log's end even when no record ever follows.

        Raises KafkaError KAFKA_STORAGE_ERROR when the epoch cannot be written down; then everything is as before.
        """
        self.log.leader_epochs.assign(state.leader_epoch, self.log.log_end_offset)
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.isr = state.isr
        self.replicas = state.replicas
        self.zk_version = state.zk_version
        self._advance_high_watermark()

    def append_records_as_leader(
        self, records: memoryview, required_acks: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Appends one batch.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS (acks=all with fewer in-sync replicas than
        min.insync.replicas), and whatever the log refuses.
        """
        if self.leader_id != self._broker_id:
            raise self._not_leader()
        if required_acks == -1 and len(self.isr) < self.topic_config.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic}-{self.partition} has {len(self.isr)} in-sync replicas,"
                f" min.insync.replicas is {self.topic_config.min_insync_replicas}",
            )
        info = self.log.append_as_leader(records, self.leader_epoch, origin=origin, now_ms=now_ms)
        self._advance_high_watermark()
        return info

    def require_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Checks that this broker leads, in the epoch that the client believes in (-1: it did not say; KIP-320).

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
        """
        if current_leader_epoch != NO_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            if current_leader_epoch > self.leader_epoch:
                raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            raise self._not_leader()

    def diverging_epoch(self, fetch_offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
        """Where a reader's log must be cut because it differs from this one: (epoch, end offset); None if it agrees.

        `last_fetched_epoch` is the epoch of the reader's last record, -1 if it does not say (KIP-595). Raises
        KafkaError OFFSET_OUT_OF_RANGE when this log knows nothing of that epoch or begins after the offset.
        """
        if last_fetched_epoch == NO_EPOCH:
            return None
        epoch, end_offset = self.log.leader_epochs.end_offset_for(last_fetched_epoch, self.log.log_end_offset)
        if end_offset < 0 or fetch_offset < self.log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return (epoch, end_offset) if epoch < last_fetched_epoch or end_offset < fetch_offset else None

    def fetch_upper_bound(self, isolation_level: int) -> int:
        """The first offset that a consumer must not see."""
        return self.log.last_stable_offset if isolation_level == READ_COMMITTED else self.log.high_watermark

    def _advance_high_watermark(self) -> None:
        """The smallest log end of the in-sync replicas; with this broker as the only one, its own."""
        self.log.update_high_watermark(self.log.log_end_offset)

    def _not_leader(self) -> KafkaError:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.partition} is led by {self.leader_id}")
