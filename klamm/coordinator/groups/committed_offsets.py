"""The committed offsets of one group, those that are being committed, and those of open transactions. Pure.

What must stay true:
- A committed offset is replaced only by one that is later in the log, whenever the append or the transaction of either
  one ends.
- A commit is pending until its append ends, or, with records of a transaction in the log, until the marker. Commits of
  one partition are pending side by side; the end of one does not end another.
- An offset that is removed while its commit is pending does not come back when the commit ends.

Source: kafka.coordinator.group.GroupMetadata (`offsets`, `pendingOffsetCommits`).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from klamm.coordinator.groups.transactional_offsets import PendingCommit, TransactionalOffsets
from klamm.protocol.vocabulary import PartitionKey


class OffsetAndMetadata(NamedTuple):
    """A committed offset. `expire_timestamp_ms` is set only if the client chose its own retention (until version 4)."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None


class CommittedOffsets:
    """The offsets of one group, by partition."""

    __slots__ = ("_committed", "_pending", "_transactional")

    def __init__(self) -> None:
        # (offset of the record in __consumer_offsets, committed offset)
        self._committed: dict[PartitionKey, tuple[int, OffsetAndMetadata]] = {}
        self._pending: dict[PartitionKey, list[OffsetAndMetadata]] = {}
        self._transactional: TransactionalOffsets[OffsetAndMetadata] = TransactionalOffsets()

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def committed(self) -> Mapping[PartitionKey, OffsetAndMetadata]:
        """A copy of the committed offsets."""
        return {partition: offset for partition, (_, offset) in self._committed.items()}

    @property
    def count(self) -> int:
        """The number of committed offsets."""
        return len(self._committed)

    @property
    def partitions(self) -> list[PartitionKey]:
        """The partitions with a committed or pending offset."""
        return list(dict.fromkeys((*self._committed, *self._pending, *self._transactional.partitions)))

    @property
    def is_empty(self) -> bool:
        """Whether no offset is committed and no commit is pending."""
        return not (self._committed or self._pending or self._transactional.partitions)

    def get(self, partition: PartitionKey) -> OffsetAndMetadata | None:
        """The committed offset."""
        found = self._committed.get(partition)
        return None if found is None else found[1]

    def has(self, partition: PartitionKey) -> bool:
        """Whether an offset of the partition is committed or a commit is pending."""
        return partition in self._committed or self.is_pending(partition)

    def is_pending(self, partition: PartitionKey) -> bool:
        """Whether an offset is being appended, or waits for the end of its transaction."""
        return partition in self._pending or partition in self._transactional.partitions

    # -- commits ----------------------------------------------------------------------------------------------------

    def load(self, partition: PartitionKey, record_offset: int, offset: OffsetAndMetadata) -> None:
        """Loads the offset from the record at `record_offset` of the log."""
        self._committed[partition] = record_offset, offset

    def prepare_commit(self, offsets: Mapping[PartitionKey, OffsetAndMetadata]) -> None:
        """Marks offsets as being appended. Each ends with `complete_commit` or `fail_commit` with the same object."""
        for partition, offset in offsets.items():
            self._pending.setdefault(partition, []).append(offset)

    def complete_commit(self, partition: PartitionKey, record_offset: int, offset: OffsetAndMetadata) -> None:
        """The prepared offset is in the log at `record_offset`, on all in-sync replicas."""
        if self.fail_commit(partition, offset):  # Otherwise it was removed meanwhile, for example with its topic.
            self._commit(partition, record_offset, offset)

    def fail_commit(self, partition: PartitionKey, offset: OffsetAndMetadata) -> bool:
        """Ends the pending commit; other commits of the partition may stay pending. Returns whether it was pending."""
        pending = self._pending.get(partition, [])
        for index, candidate in enumerate(pending):
            if candidate is offset:
                del pending[index]
                if not pending:
                    del self._pending[partition]
                return True
        return False

    def remove(self, partitions: Iterable[PartitionKey]) -> list[PartitionKey]:
        """Returns the partitions that had a committed or pending offset, of which the log may hold a record."""
        removed = []
        for partition in partitions:
            if self.has(partition):
                removed.append(partition)
                self._committed.pop(partition, None)
                self._pending.pop(partition, None)
                self._transactional.remove(partition)
        return removed

    def _commit(self, partition: PartitionKey, record_offset: int, offset: OffsetAndMetadata) -> None:
        known = self._committed.get(partition)
        if known is None or known[0] < record_offset:
            self._committed[partition] = record_offset, offset

    # -- commits in transactions ------------------------------------------------------------------------------------

    @property
    def open_producer_ids(self) -> Collection[int]:
        """The producers with a pending commit in a transaction."""
        return self._transactional.producer_ids

    def load_transactional_commit(
        self, producer_id: int, partition: PartitionKey, record_offset: int, offset: OffsetAndMetadata
    ) -> None:
        """Loads the offset of an open transaction from the record at `record_offset` of the log."""
        self._transactional.add(producer_id, {partition: offset}, record_offset)

    def prepare_transactional_commit(
        self, producer_id: int, offsets: Mapping[PartitionKey, OffsetAndMetadata]
    ) -> PendingCommit[OffsetAndMetadata]:
        """Marks offsets of a transaction as being appended. The append ends with `transactional_commit_appended` or
        `fail_transactional_commit`."""
        return self._transactional.add(producer_id, offsets)

    def transactional_commit_appended(
        self, commit: PendingCommit[OffsetAndMetadata], record_offset: int, transaction_offset: int
    ) -> None:
        """The prepared offsets are in the log, the first one at `record_offset`, in a transaction that begins there at
        `transaction_offset`: the marker decides on them."""
        if self._transactional.appended(commit, record_offset, transaction_offset):
            self._commit_all(commit)

    def fail_transactional_commit(self, commit: PendingCommit[OffsetAndMetadata]) -> None:
        """The prepared offsets are not in the log."""
        self._transactional.failed(commit)

    def end_transaction(
        self, producer_id: int, marker_offset: int, is_committed: bool
    ) -> list[PendingCommit[OffsetAndMetadata]]:
        """The producer's marker is in the log at `marker_offset`. Returns the pending commits before it, which end with
        `end_transactional_commit`."""
        return self._transactional.ended(producer_id, marker_offset, is_committed)

    def end_transactional_commit(self, commit: PendingCommit[OffsetAndMetadata], is_committed: bool) -> None:
        """The offsets become visible, or are dropped."""
        self._transactional.release(commit)
        if is_committed:
            self._commit_all(commit)

    def _commit_all(self, commit: PendingCommit[OffsetAndMetadata]) -> None:
        assert commit.record_offset is not None, "only what the log has becomes visible"
        for partition, offset in commit.offsets.items():
            self._commit(partition, commit.record_offset, offset)
