"""One partition that this broker hosts: its log, its leadership as decided by the controller, and, on the leader, the
progress of the followers.

What must stay true:
- Only the leader appends for clients and answers followers; only a follower copies and truncates. Both answer
  consumers, each below its own high watermark (KIP-392).
- The leader epoch never goes back while the partition is hosted. It is -1 until the first LeaderAndIsr.
- The high watermark moves only to an offset that every member of the maximal ISR has reached (see `isr.py`). On a
  leader it never goes back. A client reads nothing at or above it, and with isolation level read_committed nothing at
  or above the last stable offset.
- An answer of the controller counts only for the proposal that the partition still waits for.

Source: kafka.cluster.Partition. Times are milliseconds of the loop's clock, unless they say otherwise.
"""

import logging
from collections.abc import Callable, Mapping

from klamm.config.safest import ALL_REPLICAS
from klamm.config.topic import TopicConfig
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.vocabulary import (
    ACKS_ALL,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    NO_LEADER,
    READ_COMMITTED,
)
from klamm.replication.partition.isr import (
    CommittedIsr,
    IsrState,
    IsrStatistics,
    PendingExpandIsr,
    PendingIsr,
    PendingShrinkIsr,
    high_watermark,
    may_join,
    out_of_sync,
)
from klamm.replication.partition.replica import NEVER_MS, Replica
from klamm.replication.partition.topic_metrics import TopicCounts
from klamm.replication.ports import IsrChange, IsrChanges, WrittenIsr
from klamm.storage.log.batch_inspection import Inspected
from klamm.storage.log.log import AppendInfo, AppendOrigin, Log
from klamm.storage.log.truncation import Truncation

_log = logging.getLogger(__name__)

# A special offset in `DeleteRecordsRequest`.
TO_HIGH_WATERMARK = -1


class Partition:
    """A hosted partition. `on_high_watermark` is called for each advance, `on_low_watermark` on the leader whenever a
    follower reports another log start offset or has left the ISR."""

    def __init__(
        self,
        topic: str,
        partition: int,
        broker_id: int,
        log: Log,
        topic_config: TopicConfig,
        *,
        replica_lag_time_max_ms: float,
        clock_ms: Callable[[], float],
        isr_changes: IsrChanges,
        isr_statistics: IsrStatistics,
        topic_counts: TopicCounts,
        on_high_watermark: Callable[["Partition"], None],
        on_low_watermark: Callable[["Partition"], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_partition = (topic, partition)
        self.log = log
        # The log in another directory that will replace `log`; `log_dir_moves.py` fills it.
        self.future_log: Log | None = None
        # The lowest offset at which `log` was truncated and `future_log` must still be.
        self.future_log_cut: int | None = None
        self.topic_config = topic_config
        # The topic's counts, shared by its partitions.
        self.topic_counts = topic_counts
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        # Whether the controller has made this broker a follower in the leader epoch.
        self.is_follower = False
        # The first epoch of this broker's unbroken leadership; only meaningful while it leads.
        self.leading_since_epoch = NO_EPOCH
        # The log end offset when the current epoch began; None unless this broker leads.
        self.leader_epoch_start_offset: int | None = None
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.removing_replicas: tuple[int, ...] = ()
        self.isr_state: IsrState = CommittedIsr(())
        self.zk_version = -1
        # The controller epoch of the LeaderAndIsr that made this broker the leader or a follower.
        self.controller_epoch = 0
        self._broker_id = broker_id
        self._max_lag_ms = replica_lag_time_max_ms
        self.clock_ms = clock_ms
        self._isr_changes = isr_changes
        self._isr_statistics = isr_statistics
        self._on_high_watermark = on_high_watermark
        self._on_low_watermark = on_low_watermark
        self._remote_replicas: dict[int, Replica] = {}
        # Whether the ISR has members that are not replicas. A reassignment is about to remove them from the ISR.
        self._has_strangers = False

    def __repr__(self) -> str:
        return f"<Partition {self} leader {self.leader_id} epoch {self.leader_epoch} {self.isr_state}>"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self._broker_id

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas as the controller has committed them; empty unless this broker leads."""
        return self.isr_state.isr

    @property
    def remote_replicas(self) -> Mapping[int, Replica]:
        """The other replicas by broker id. Read only."""
        return self._remote_replicas

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads and a replica is out of sync. Replicas that a reassignment adds do not count."""
        return self.is_leader and self.replication_factor > len(self.isr)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether this broker leads and refuses records with acks=all."""
        return self.is_leader and len(self.isr) < self.min_insync_replicas

    @property
    def is_at_min_isr(self) -> bool:
        """Whether this broker leads and would refuse records with acks=all if one more replica left the ISR."""
        return self.is_leader and len(self.isr) == self.min_insync_replicas

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def replication_factor(self) -> int:
        """The number of replicas, without those that a reassignment adds."""
        return len(self.replicas) - len(self.adding_replicas)

    @property
    def min_insync_replicas(self) -> int:
        """The number of in-sync replicas that acks=all needs."""
        configured = self.topic_config.min_insync_replicas
        return self.replication_factor if configured == ALL_REPLICAS else configured

    # -- requests of the controller -------------------------------------------------------------------------------

    def make_leader(self, state: LeaderAndIsrPartitionState) -> bool:
        """Leads in the epoch of `state`. Returns whether this broker did not lead before.

        The epoch starts at the log's end, even if no record ever follows. Raises KafkaError KAFKA_STORAGE_ERROR when
        the epoch cannot be written to disk; then nothing has changed.
        """
        start_offset = self.log.log_end_offset
        self.log.leader_epochs.assign(state.leader_epoch, start_offset)
        is_new_leader = not self.is_leader
        # Another broker may have led in a skipped epoch, and followers may have truncated this broker's records then.
        forget_offsets = is_new_leader or state.leader_epoch > self.leader_epoch + 1
        self._take_assignment(state, state.isr)
        self.is_follower = False
        self.leader_epoch_start_offset = start_offset
        now_ms = self.clock_ms()
        for replica in self._remote_replicas.values():
            in_sync = replica.broker_id in state.isr
            replica.leader_epoch_started(start_offset, now_ms, in_sync=in_sync, forget_offsets=forget_offsets)
        if is_new_leader:
            self.leading_since_epoch = state.leader_epoch
        # The ISR could be down to this broker.
        self._advance_high_watermark(now_ms)
        return is_new_leader

    def make_follower(self, state: LeaderAndIsrPartitionState) -> bool:
        """Follows the leader of `state`. Returns whether the leader or the epoch is new."""
        changed = (self.leader_id, self.leader_epoch) != (state.leader, state.leader_epoch)
        self._take_assignment(state, ())
        self.is_follower = True
        self.leader_epoch_start_offset = None
        return changed

    def _take_assignment(self, state: LeaderAndIsrPartitionState, isr: tuple[int, ...]) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.zk_version = state.zk_version
        self.controller_epoch = state.controller_epoch
        self.replicas = state.replicas
        self.adding_replicas = state.adding_replicas
        self.removing_replicas = state.removing_replicas
        known = self._remote_replicas
        self._remote_replicas = {
            replica_id: known.get(replica_id) or Replica(replica_id)
            for replica_id in state.replicas
            if replica_id != self._broker_id
        }
        self._commit_isr(isr)
        self._isr_changes.clear_pending(self.topic_partition)

    def step_down(self, leader_id: int, leader_epoch: int) -> None:
        """This broker neither leads nor follows until a newer LeaderAndIsr arrives. Another broker may lead."""
        self.stop()
        self.leader_id = leader_id
        self.leader_epoch = max(self.leader_epoch, leader_epoch)

    def stop(self) -> None:
        """The partition is no longer hosted here: this broker does not lead it and ignores answers to its proposals."""
        self.leader_id = NO_LEADER
        self.is_follower = False
        self.leader_epoch_start_offset = None
        self._remote_replicas = {}
        self._commit_isr(())
        self._isr_changes.clear_pending(self.topic_partition)

    # -- requests of clients --------------------------------------------------------------------------------------

    def require_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Checks that this broker leads in `current_leader_epoch`, the epoch that the client knows (-1: any; KIP-320).

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
        """
        self.require_leader_epoch(current_leader_epoch)
        if self.leader_id != self._broker_id:
            raise self._not_leader()

    def require_leader_or_follower(self, current_leader_epoch: int) -> None:
        """Like `require_leader`, but this broker may also follow the leader of that epoch."""
        self.require_leader_epoch(current_leader_epoch)
        if not self.is_follower and self.leader_id != self._broker_id:
            raise self._not_leader()

    def require_leader_epoch(self, current_leader_epoch: int) -> None:
        """Checks only the epoch. A tool may also read a replica that neither leads nor follows."""
        if current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH
                if current_leader_epoch < self.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{self} is in leader epoch {self.leader_epoch}, not {current_leader_epoch}",
            )

    def append_records_as_leader(
        self,
        records: bytearray | memoryview,
        required_acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        inspected: Inspected | None = None,
    ) -> AppendInfo:
        """Appends one batch. `now_ms` is the wall clock.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS (acks=all with fewer in-sync replicas than
        min.insync.replicas), and the errors of `Log.append_as_leader`. Also raises LargeBatch like that method.
        """
        if self.leader_id != self._broker_id:
            raise self._not_leader()
        if required_acks == ACKS_ALL and len(self.isr_state.isr) < self.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self} has {len(self.isr)} in-sync replicas, min.insync.replicas is {self.min_insync_replicas}",
            )
        info = self.log.append_as_leader(records, self.leader_epoch, origin=origin, now_ms=now_ms, inspected=inspected)
        self._advance_high_watermark()
        return info

    def acknowledgement(self, required_offset: int, leader_epoch: int) -> ErrorCode | None:
        """The answer to acks=all for records below `required_offset`, appended in `leader_epoch`; None while an in-sync
        replica lacks some of them (Kafka's checkEnoughReplicasReachOffset).

        A leader that followed another leader in between may have lost the records, whatever its high watermark is.
        """
        if self.leader_id != self._broker_id or leader_epoch < self.leading_since_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log.high_watermark < required_offset:
            return None
        if len(self.isr_state.maximal_isr) < self.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def delete_records(self, offset: int) -> int:
        """Moves the log start offset forward to `offset`, or to the high watermark (`TO_HIGH_WATERMARK`). Returns the
        new offset: once the low watermark has reached it, all replicas have deleted the records.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION unless cleanup.policy has delete,
        OFFSET_OUT_OF_RANGE above the high watermark, KAFKA_STORAGE_ERROR.
        """
        self.require_leader()
        if "delete" not in self.topic_config.cleanup_policy:
            policy = ",".join(self.topic_config.cleanup_policy)
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"cleanup.policy of {self.topic} is {policy}, without delete")
        if offset == TO_HIGH_WATERMARK:
            offset = self.log.high_watermark
        if offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} of {self}: allowed are -1 and from 0 on")
        self.log.update_log_start_offset(offset)
        return offset

    def low_watermark(self, is_live: Callable[[int], object]) -> int:
        """The offset below which the records are deleted on this leader and on all followers that are live or may be
        elected, so that no restart brings them back."""
        low_watermark, maximal_isr = self.log.durable_log_start_offset, self.isr_state.maximal_isr
        for replica in self._remote_replicas.values():
            counts = replica.broker_id in maximal_isr or is_live(replica.broker_id)
            if replica.log_start_offset < low_watermark and counts:
                low_watermark = replica.log_start_offset
        return low_watermark

    def diverging_epoch(self, fetch_offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
        """(epoch, end offset) at which a reader must truncate a log that diverges from this one. None if the logs
        agree.

        `last_fetched_epoch` is the epoch of the reader's last record, or -1 if the reader does not send it (KIP-595).
        Raises KafkaError OFFSET_OUT_OF_RANGE when this log does not know that epoch or begins after the offset.
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

    async def list_offset(self, timestamp_ms: int, isolation_level: int | None) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record at or after a timestamp. None without such a record.

        LATEST_TIMESTAMP and EARLIEST_TIMESTAMP ask for the log's ends, which have timestamp -1. `isolation_level` is
        None for a follower, which may see the log's end. Raises KafkaError OFFSET_NOT_AVAILABLE when the answer may lie
        above a high watermark that has not reached the current leader epoch: clients would see it go back (KIP-207).
        """
        log = self.log
        if timestamp_ms == EARLIEST_TIMESTAMP:
            start = log.log_start_offset
            return -1, start, log.leader_epochs.epoch_for(start)
        if timestamp_ms == LATEST_TIMESTAMP:
            self._require_offsets_available(isolation_level)
            return -1, self._last_fetchable_offset(isolation_level), self.leader_epoch
        found = await self._offset_for_timestamp(timestamp_ms)
        if found is not None and found[1] < self._last_fetchable_offset(isolation_level):
            return found
        self._require_offsets_available(isolation_level)
        return None

    async def _offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        while True:
            log = self.log
            try:
                return await log.offset_for_timestamp(timestamp_ms)
            except KafkaError:
                if self.log is log:
                    raise  # Otherwise the log has moved to another directory: look there.

    def _last_fetchable_offset(self, isolation_level: int | None) -> int:
        return self.log.log_end_offset if isolation_level is None else self.fetch_upper_bound(isolation_level)

    def _require_offsets_available(self, isolation_level: int | None) -> None:
        start_offset = self.leader_epoch_start_offset
        if isolation_level is not None and start_offset is not None and self.log.high_watermark < start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"the high watermark of {self}, {self.log.high_watermark}, has not reached {start_offset}, where leader"
                f" epoch {self.leader_epoch} starts",
            )

    # -- the progress of followers --------------------------------------------------------------------------------

    def require_replica(self, replica_id: int) -> None:
        """Raises KafkaError NOT_LEADER_OR_FOLLOWER unless that broker is one of the other replicas."""
        if replica_id not in self._remote_replicas:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {replica_id} is no replica of {self}: {self.replicas}"
            )

    def update_follower_fetch_state(
        self, replica_id: int, fetch_offset: int, log_start_offset: int, now_ms: float
    ) -> None:
        """A follower fetches from `fetch_offset`, up to which its log agrees with this one.

        The fetch acknowledges every record before the offset. The follower may then join the ISR, and the high
        watermark may advance.
        """
        replica = self._remote_replicas[replica_id]
        has_moved = replica.log_end_offset != fetch_offset
        has_other_start = replica.log_start_offset != log_start_offset
        replica.update_fetch_state(fetch_offset, log_start_offset, now_ms, self.log.log_end_offset)
        start_offset, log = self.leader_epoch_start_offset, self.log
        if start_offset is not None and may_join(
            self.isr_state, replica, log.high_watermark, start_offset, log.log_start_offset
        ):
            self._propose(PendingExpandIsr(self.isr_state.isr, replica_id))
        if has_moved:
            self._advance_high_watermark(now_ms)
        if has_other_start:
            self._on_low_watermark(self)

    def broker_died(self, broker_id: int) -> None:
        """The high watermark no longer waits for that broker to join the ISR.

        Otherwise a follower that was caught up when it died would hold back the high watermark, and with it acks=all,
        for replica.lag.time.max.ms.
        """
        replica = self._remote_replicas.get(broker_id)
        if self.is_leader and replica is not None and broker_id not in self.isr_state.isr:
            # A replica proposed for the ISR still counts. The controller's decision then advances the high watermark.
            replica.last_caught_up_ms = NEVER_MS
            self._advance_high_watermark()

    def maybe_shrink_isr(self) -> None:
        """Proposes an ISR without the replicas that have been behind for too long."""
        if not self.is_leader:
            return
        end_offset = self.log.log_end_offset
        outsiders = out_of_sync(
            self.isr_state, self._broker_id, end_offset, self._remote_replicas, self.clock_ms(), self._max_lag_ms
        )
        if outsiders:
            ends = {replica_id: replica.log_end_offset for replica_id, replica in self._remote_replicas.items()}
            _log.info(
                "Shrinking the ISR of %s from %s by %s: the log ends at %d, the high watermark is %d, others end at %s",
                *(self, self.isr, outsiders, end_offset, self.log.high_watermark, ends),
            )
            self._propose(PendingShrinkIsr(self.isr_state.isr, outsiders))

    def _propose(self, proposal: PendingIsr) -> None:
        self.isr_state = proposal
        self._isr_changes.submit(
            IsrChange(
                self.topic_partition,
                self.leader_epoch,
                proposal.proposed_isr,
                self.zk_version,
                self.controller_epoch,
                lambda result: self._isr_change_decided(proposal, result),
            )
        )

    def _isr_change_decided(self, proposal: PendingIsr, result: WrittenIsr | ErrorCode) -> None:
        if self.isr_state is not proposal:
            return  # A LeaderAndIsr came first.
        if isinstance(result, ErrorCode):
            # The controller sends the true state in a LeaderAndIsr. Until then the maximal ISR stays.
            _log.info("The controller has refused %s for %s: %s", proposal, self, result.name)
            self._isr_statistics.failed_updates += 1
            return
        if result.leader_epoch != self.leader_epoch or result.zk_version < self.zk_version:
            _log.info("%s, epoch %d version %d, ignores %s", self, self.leader_epoch, self.zk_version, result)
            self._isr_statistics.failed_updates += 1
            return
        _log.info("The ISR of %s is %s now, in version %d", self, result.isr, result.zk_version)
        self._isr_statistics.decided(proposal)
        self._commit_isr(result.isr)
        self.zk_version = result.zk_version
        # Records and deletions that waited for replicas that have left the ISR may be committed now.
        self._advance_high_watermark()
        self._on_low_watermark(self)

    def _commit_isr(self, isr: tuple[int, ...]) -> None:
        self.isr_state = CommittedIsr(isr)
        self._has_strangers = any(id_ != self._broker_id and id_ not in self._remote_replicas for id_ in isr)

    def _advance_high_watermark(self, now_ms: float | None = None) -> None:
        if self._has_strangers:
            return  # The controller could elect such a member, and its end offset is unknown.
        offset = self.log.log_end_offset
        if self._remote_replicas:
            offset = high_watermark(
                offset,
                self._remote_replicas.values(),
                self.isr_state.maximal_isr,
                self.clock_ms() if now_ms is None else now_ms,
                self._max_lag_ms,
            )
        if offset > self.log.high_watermark:
            self.log.update_high_watermark(offset)
            self._on_high_watermark(self)

    # -- as a follower --------------------------------------------------------------------------------------------

    def append_records_as_follower(self, records: Buffer) -> AppendInfo:
        """Appends the first of the leader's records, as many as `Log.append_as_follower` does.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER when this broker leads, and the errors of `Log.append_as_follower`.
        """
        self._require_follower()
        log = self.log
        if records and log.log_end_offset == log.log_start_offset:
            # The leader's log may begin within a batch; an empty log here begins with the whole batch.
            for _, header in iterate_batches(records, allow_partial_end=True):
                if 0 <= header.base_offset < log.log_end_offset <= header.last_offset:
                    self.truncate_fully_and_start_at(header.base_offset)
                break
        info = log.append_as_follower(records)
        self.topic_counts.fetched_from_leader(info.size_bytes, is_reassignment=self._broker_id in self.adding_replicas)
        return info

    def truncate_to(self, offset: int, prepared: Truncation | None = None) -> bool:
        """Like `Log.truncate_to`. Raises KafkaError NOT_LEADER_OR_FOLLOWER when this broker leads."""
        self._require_follower()
        if offset < self.log.high_watermark:
            _log.warning("Truncating %s to %d, below the high watermark %d", self, offset, self.log.high_watermark)
        self.cut_future_log_at(offset)
        return self.log.truncate_to(offset, prepared)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Like `Log.truncate_fully_and_start_at`. Raises KafkaError NOT_LEADER_OR_FOLLOWER when this broker leads."""
        self._require_follower()
        self.cut_future_log_at(offset)
        self.log.truncate_fully_and_start_at(offset)

    def cut_future_log_at(self, offset: int) -> None:
        """The log changes from `offset` on, so the future log must be truncated there."""
        if self.future_log is not None:
            self.future_log_cut = offset if self.future_log_cut is None else min(offset, self.future_log_cut)

    def future_log_was_cut(self, offset: int) -> None:
        if self.future_log_cut is not None and self.future_log_cut >= offset:
            self.future_log_cut = None

    def update_follower_high_watermark(self, leader_high_watermark: int) -> int:
        """Moves the high watermark to the leader's, or to the log end offset if that is lower. Returns the result.

        The high watermark may go back: after an election the leader's can be lower for a while.
        """
        self._require_follower()
        before = self.log.high_watermark
        after = self.log.update_high_watermark(leader_high_watermark)
        if after > before:
            self._on_high_watermark(self)  # Consumers that read from this follower may wait for it.
        return after

    def maybe_increment_log_start_offset(self, leader_log_start_offset: int) -> None:
        """Moves the log start offset forward to the leader's, but not above the high watermark."""
        self._require_follower()
        self.log.update_log_start_offset(min(leader_log_start_offset, self.log.high_watermark))

    def _require_follower(self) -> None:
        if self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker leads {self}")

    def _not_leader(self) -> KafkaError:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self} is led by {self.leader_id}")
