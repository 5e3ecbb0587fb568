"""The offsets that open transactions have committed to one group (KIP-98). Pure.

    TxnOffsetCommit --> being appended --> pending, once the log has the records --> visible or gone, by the marker

What must stay true:
- The order of the log decides. A marker ends exactly the commits whose records precede it in the log, in whatever order
  the marker and the ends of the appends are reported.
- A commit with records in the log stays until its marker, even if its client got an error: the next leader loads it.
  Only a later commit of the same transaction replaces it, so that repeated commits take no more memory than one.
- A removed commit never becomes visible.

Source: kafka.coordinator.group.GroupMetadata (`pendingTransactionalOffsetCommits`).
"""

from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

from klamm.protocol.vocabulary import PartitionKey

Offset = TypeVar("Offset")


class PendingCommit(Generic[Offset]):
    """The offsets of one TxnOffsetCommit. `record_offset` is where its records begin in the log; None until the log has
    them."""

    __slots__ = ("offsets", "producer_id", "record_offset")

    def __init__(self, producer_id: int, offsets: Mapping[PartitionKey, Offset], record_offset: int | None) -> None:
        self.producer_id = producer_id
        self.offsets = dict(offsets)
        self.record_offset = record_offset


class TransactionalOffsets(Generic[Offset]):
    """The pending commits of one group."""

    def __init__(self) -> None:
        # By producer, oldest first.
        self._commits: dict[int, dict[PendingCommit[Offset], None]] = {}
        self._by_partition: dict[PartitionKey, dict[PendingCommit[Offset], None]] = {}
        # By producer with an unfinished append: the markers reported meanwhile, by offset, and whether they commit.
        self._markers: dict[int, dict[int, bool]] = {}

    @property
    def partitions(self) -> Collection[PartitionKey]:
        """The partitions with a pending commit."""
        return self._by_partition.keys()

    @property
    def producer_ids(self) -> Collection[int]:
        """The producers with a pending commit that no marker has ended."""
        return self._commits.keys()

    def add(
        self, producer_id: int, offsets: Mapping[PartitionKey, Offset], record_offset: int | None = None
    ) -> PendingCommit[Offset]:
        """Adds a commit whose records are being appended, or are in the log at `record_offset`."""
        commit = PendingCommit(producer_id, offsets, record_offset)
        self._commits.setdefault(producer_id, {})[commit] = None
        for partition in offsets:
            self._by_partition.setdefault(partition, {})[commit] = None
        return commit

    def appended(self, commit: PendingCommit[Offset], record_offset: int, transaction_offset: int) -> bool:
        """The commit's records are in the log, in a transaction that begins at `transaction_offset`. Returns whether an
        earlier reported marker has committed them."""
        commit.record_offset = record_offset
        markers = self._markers.get(commit.producer_id, {})
        marker_offset = min((offset for offset in markers if record_offset < offset), default=None)
        if marker_offset is None:
            self._replace(range(transaction_offset, record_offset), commit)
        else:
            self._end(commit)
        self._forget_markers(commit.producer_id)
        return marker_offset is not None and markers[marker_offset]

    def failed(self, commit: PendingCommit[Offset]) -> None:
        """The commit's records were not appended."""
        self._end(commit)
        self._forget_markers(commit.producer_id)

    def ended(self, producer_id: int, marker_offset: int, is_committed: bool) -> list[PendingCommit[Offset]]:
        """The log has a marker of the producer. Returns the commits that it ends. They are pending until `release`."""
        ended: list[PendingCommit[Offset]] = []
        open_: dict[PendingCommit[Offset], None] = {}
        for commit in self._commits.pop(producer_id, ()):
            if commit.record_offset is None:
                self._markers.setdefault(producer_id, {})[marker_offset] = is_committed
            is_ended = commit.record_offset is not None and commit.record_offset < marker_offset
            if is_ended:
                ended.append(commit)
            else:
                open_[commit] = None
        if open_:
            self._commits[producer_id] = open_
        return ended

    def release(self, commit: PendingCommit[Offset]) -> None:
        """The commit is no longer pending."""
        for partition in commit.offsets:
            self._forget(partition, commit)

    def remove(self, partition: PartitionKey) -> None:
        """Removes the partition from all pending commits."""
        for commit in self._by_partition.pop(partition, ()):
            del commit.offsets[partition]

    def _replace(self, record_offsets: range, commit: PendingCommit[Offset]) -> None:
        """Removes the partitions of `commit` from the producer's commits at these offsets of the log."""
        for partition in commit.offsets:
            for other in list(self._by_partition[partition]):
                if other.producer_id == commit.producer_id and other.record_offset in record_offsets:
                    del other.offsets[partition]
                    self._forget(partition, other)
                    if not other.offsets:
                        del self._commits[commit.producer_id][other]

    def _forget(self, partition: PartitionKey, commit: PendingCommit[Offset]) -> None:
        commits = self._by_partition[partition]
        del commits[commit]
        if not commits:
            del self._by_partition[partition]

    def _end(self, commit: PendingCommit[Offset]) -> None:
        commits = self._commits[commit.producer_id]
        del commits[commit]
        if not commits:
            del self._commits[commit.producer_id]
        self.release(commit)

    def _forget_markers(self, producer_id: int) -> None:
        """Forgets the producer's markers once all its appends are finished."""
        if producer_id in self._markers and all(
            commit.record_offset is not None for commit in self._commits.get(producer_id, ())
        ):
            del self._markers[producer_id]
