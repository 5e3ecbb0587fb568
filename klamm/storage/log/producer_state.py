"""The state of a partition's idempotent and transactional producers (KIP-98), and its snapshots.

For each producer the state has its epoch, its last five batches (to answer duplicates), and the first offset of its
open transaction. The transactions determine the first unstable offset, below which every transaction is decided.

What must stay true:
- The state is a function of the log: replaying the batches from a snapshot gives the state at any later offset.
- `check` may refuse a batch and never changes the state. `update` changes the state and never refuses; it is called
  once for each batch in the log, in order.
- A finished transaction stays unstable until its marker is below the high watermark. A snapshot does not have the first
  offset of a finished transaction, so a state above the high watermark is replayed from a snapshot below it.
- While the log has all its records and no producer has expired, the state knows every producer. A client's batch of an
  unknown producer is then refused unless it begins with sequence number 0: batches before it are missing, and clients
  such as librdkafka would count them as acknowledged together with this one. Kafka 2.8 accepts it (KIP-360).

Snapshot file (`<offset>.snapshot`, the state before that offset): version 1 (i16), CRC-32C of the rest (u32), count
(i32), entries of 46 bytes. An entry has room for one batch, and Kafka writes one entry for a producer. So after a
restart Kafka refuses a repeated batch, unless it is the producer's last one. klamm also writes entries for a producer's
other batches, before the entry of the last batch. Kafka reads such files: a producer's last entry that has not expired
counts, so no entry has a later timestamp than the last one. An entry without a producer (id and timestamp -1) says that
a producer has expired; Kafka takes that entry for expired, too.
Source: kafka.log.ProducerStateManager.
"""

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from klamm.base.checksum import crc32c
from klamm.base.slices import CHEAP_SLICE, Slices, Steps, in_one_go
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import MAX_SEQUENCE, NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader, advance_sequence
from klamm.protocol.record.records import ControlRecordType, EndTransactionMarker
from klamm.storage.segments.transaction_index import CompletedTransaction

NO_PRODUCER_EPOCH = -1
NO_OFFSET = -1
BATCHES_TO_RETAIN = 5
# With more producers than these, a snapshot has only the last batch of each producer, to keep it small.
PRODUCERS_WITH_ALL_BATCHES = 2_000
# The snapshot of more producers takes more than one step.
PRODUCERS_AT_ONCE = 2_000
ENTRIES_PER_SLICE = 5_000

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEADER = struct.Struct(">hIi")
_SNAPSHOT_CRC_COVERS_FROM = 6
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class AppendOrigin(Enum):
    """The source of an append, which decides how much is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class BatchMetadata(NamedTuple):
    """One of a producer's last batches."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return advance_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


_NO_BATCH = BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, -1)


# The fields of the entry which says that a producer has expired.
_EXPIRED = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, *_NO_BATCH, -1, NO_OFFSET)


class SnapshotEntry(NamedTuple):
    """An entry of a snapshot file. If the producer has no batch, `batch` is _NO_BATCH except for the timestamp."""

    producer_id: int
    producer_epoch: int
    batch: BatchMetadata
    coordinator_epoch: int
    transaction_first_offset: int


class ProducerEntry:
    """The state of one producer. `batches` holds its last batches, the oldest first."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "image",
        "last_timestamp_ms",
        "producer_epoch",
        "transaction_first_offset",
    )

    def __init__(self, image: int = 0) -> None:
        # The number of the last snapshot begun before the entry was made (`ProducerState.begin_snapshot`).
        self.image = image
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.batches: list[BatchMetadata] = []
        self.last_timestamp_ms = -1
        self.coordinator_epoch = -1
        self.transaction_first_offset = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def copy(self, image: int) -> "ProducerEntry":
        copied = ProducerEntry(image)
        copied.producer_epoch = self.producer_epoch
        copied.batches = self.batches.copy()
        copied.last_timestamp_ms = self.last_timestamp_ms
        copied.coordinator_epoch = self.coordinator_epoch
        copied.transaction_first_offset = self.transaction_first_offset
        return copied

    def move_to_epoch(self, producer_epoch: int) -> None:
        """Forgets the batches of the old epoch, because the new epoch has its own sequence."""
        if self.producer_epoch != producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch

    def add_batch(self, header: BatchHeader) -> None:
        self.move_to_epoch(header.producer_epoch)
        if len(self.batches) == BATCHES_TO_RETAIN:
            del self.batches[0]
        self.batches.append(
            BatchMetadata(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
        )
        self.last_timestamp_ms = header.max_timestamp


class ProducerState:
    """The state after every batch below `end_offset`."""

    __slots__ = (
        "_entries",
        "_first_unstable_offset",
        "_has_expired",
        "_images",
        "_ongoing",
        "_unreplicated",
        "_unreplicated_markers",
        "end_offset",
    )

    def __init__(self, end_offset: int = 0, *, has_expired: bool = False) -> None:
        self.end_offset = end_offset
        self._entries: dict[int, ProducerEntry] = {}
        self._images = 0  # the snapshots that were begun
        self._has_expired = has_expired  # whether a producer has expired or may have
        # First offset of an open transaction -> producer id, in the order of the offsets.
        self._ongoing: dict[int, int] = {}
        # The first offsets of finished transactions, and the offsets of their markers. Both ascend: a transaction is
        # left out if an earlier one has a later marker, because it becomes stable with that one.
        self._unreplicated: list[int] = []
        self._unreplicated_markers: list[int] = []
        self._first_unstable_offset: int | None = None

    @property
    def entries(self) -> Mapping[int, ProducerEntry]:
        """The producers' entries, by producer id."""
        return self._entries

    @property
    def is_empty(self) -> bool:
        return not self._entries and not self._unreplicated

    @property
    def has_had_producers(self) -> bool:
        """Whether the log may have batches of producers, perhaps of expired ones."""
        return self._has_expired or not self.is_empty

    @property
    def has_markers(self) -> bool:
        """Whether a producer has ended a transaction, or an expired producer may have."""
        return self._has_expired or any(entry.coordinator_epoch >= 0 for entry in self._entries.values())

    @property
    def first_unstable_offset(self) -> int | None:
        """The start of the earliest transaction that is open or whose marker is not below the high watermark yet."""
        return self._first_unstable_offset

    def has_idle_transaction(self, since_ms: int) -> bool:
        """Whether the producer of the earliest open transaction has written nothing since that time."""
        producer_id = next(iter(self._ongoing.values()), None)
        return producer_id is not None and 0 < self._entries[producer_id].last_timestamp_ms < since_ms

    # -- what an append may do ------------------------------------------------------------------------------------

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The known batch that this one repeats, if any."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.producer_epoch != header.producer_epoch:
            return None
        last_sequence = header.last_sequence
        for batch in entry.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
                return batch
        return None

    def check(
        self, header: BatchHeader, marker: EndTransactionMarker | None, origin: AppendOrigin, log_start_offset: int
    ) -> None:
        """Checks that a batch with a producer id may be appended. `marker` is the content of a control batch.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER and UNKNOWN_PRODUCER_ID (clients only),
        INVALID_TXN_STATE (a batch without a transaction while one is open), TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            knows_all = log_start_offset == 0 and not self._has_expired
            if origin is AppendOrigin.CLIENT and knows_all and header.base_sequence > 0:
                raise KafkaError(
                    ErrorCode.UNKNOWN_PRODUCER_ID,
                    f"producer {header.producer_id} has no batch in this log, and sent sequence"
                    f" {header.base_sequence}, not 0",
                )
            return
        if header.producer_epoch < entry.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {header.producer_epoch},"
                f" the last seen epoch is {entry.producer_epoch}",
            )
        if marker is not None:
            if marker.coordinator_epoch < entry.coordinator_epoch:
                raise KafkaError(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"coordinator epoch {marker.coordinator_epoch} of producer {header.producer_id}'s marker"
                    f" is older than {entry.coordinator_epoch}",
                )
            return
        if origin is AppendOrigin.CLIENT:
            _check_sequence(header, entry)
        if entry.transaction_first_offset != NO_OFFSET and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction and wrote outside of it",
            )

    def update(self, header: BatchHeader, marker: EndTransactionMarker | None) -> CompletedTransaction | None:
        """This batch has been appended. Returns the transaction that it completes, if any."""
        completed = None
        if header.producer_id > NO_PRODUCER_ID:
            if not header.is_control:
                self._data_appended(header)
            elif marker is not None:
                completed = self._marker_appended(header, marker)
        self.end_offset = header.next_offset
        return completed

    def _data_appended(self, header: BatchHeader) -> None:
        entry = self._entry(header.producer_id)
        entry.add_batch(header)
        if header.is_transactional and entry.transaction_first_offset == NO_OFFSET:
            entry.transaction_first_offset = header.base_offset
            self._ongoing[header.base_offset] = header.producer_id
            if self._first_unstable_offset is None:
                self._first_unstable_offset = header.base_offset

    def _marker_appended(self, header: BatchHeader, marker: EndTransactionMarker) -> CompletedTransaction | None:
        entry = self._entry(header.producer_id)
        entry.move_to_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = header.max_timestamp
        first_offset = entry.transaction_first_offset
        # A marker for a transaction without data here has no effect on stability.
        if first_offset == NO_OFFSET:
            return None
        entry.transaction_first_offset = NO_OFFSET
        del self._ongoing[first_offset]
        count = bisect_left(self._unreplicated, first_offset)
        self._unreplicated[count:] = [first_offset]
        self._unreplicated_markers[count:] = [header.base_offset]
        last_stable_offset = next(iter(self._ongoing), header.base_offset + 1)
        is_aborted = marker.type is ControlRecordType.ABORT
        return CompletedTransaction(
            header.producer_id, first_offset, header.base_offset, is_aborted, last_stable_offset
        )

    def _entry(self, producer_id: int) -> ProducerEntry:
        """The entry, to be changed. A snapshot that is being written keeps the old entry."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(self._images)
        elif entry.image != self._images:
            entry = self._entries[producer_id] = entry.copy(self._images)
        return entry

    # -- what else happens to a log -------------------------------------------------------------------------------

    def high_watermark_updated(self, high_watermark: int) -> None:
        """Transactions whose markers are below the high watermark become stable."""
        if self._unreplicated and (count := bisect_left(self._unreplicated_markers, high_watermark)):
            del self._unreplicated[:count], self._unreplicated_markers[:count]
            self._find_first_unstable()

    def remove_expired(self, now_ms: int, expiration_ms: int) -> Steps[None]:
        """Forgets producers that have been idle for `expiration_ms` and have no transaction open."""
        looked_at = Slices(CHEAP_SLICE)
        for producer_id, entry in list(self._entries.items()):
            is_idle = entry.transaction_first_offset == NO_OFFSET and now_ms - entry.last_timestamp_ms >= expiration_ms
            if is_idle and self._entries.get(producer_id) is entry:
                del self._entries[producer_id]
                self._has_expired = True
            if looked_at.spend():
                yield

    def _find_first_unstable(self) -> None:
        first = next(iter(self._ongoing), None)
        if self._unreplicated:
            first = self._unreplicated[0] if first is None else min(first, self._unreplicated[0])
        self._first_unstable_offset = first

    # -- snapshots ------------------------------------------------------------------------------------------------

    @property
    def is_large(self) -> bool:
        """Whether a snapshot takes more than one step: `begin_snapshot` instead of `to_snapshot`."""
        return len(self._entries) > PRODUCERS_AT_ONCE

    def to_snapshot(self) -> bytes:
        """The content of the snapshot file for `end_offset`."""
        return in_one_go(_snapshot(self._entries.items(), self._has_expired))

    def begin_snapshot(self) -> Steps[bytes]:
        """The steps that make the content of the snapshot file for the present `end_offset`. The state may change
        between them."""
        self._images += 1
        return _snapshot(list(self._entries.items()), self._has_expired)

    @classmethod
    def from_snapshot(cls, content: bytes, end_offset: int, path: str) -> "ProducerState":
        """The state before `end_offset`. Raises KafkaError(KAFKA_STORAGE_ERROR) when malformed."""
        state = cls(end_offset)
        for entry in snapshot_entries(content, path):
            producer_id, first_offset = entry.producer_id, entry.transaction_first_offset
            if producer_id == NO_PRODUCER_ID:
                state._has_expired = True
                continue
            # Each transaction has its own first record, which is in the log.
            if first_offset in state._ongoing or first_offset >= end_offset:
                raise _malformed(path, f"no transaction of producer {producer_id} can begin at offset {first_offset}")
            # If this batch were answered as a duplicate, records that the log may lack would be acknowledged.
            if entry.batch.last_offset >= end_offset:
                raise _malformed(path, f"producer {producer_id} has a batch behind the snapshot's offset")
            if not state._load(entry):
                raise _malformed(path, f"an entry of producer {producer_id} does not continue the one before")
        state._ongoing = dict(sorted(state._ongoing.items()))
        state._find_first_unstable()
        return state

    def _load(self, loaded: SnapshotEntry) -> bool:
        """Returns whether the entry can follow the producer's earlier entries, each of which has an older batch."""
        producer_id, batch = loaded.producer_id, loaded.batch
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry()
        elif (
            not 0 < len(entry.batches) < BATCHES_TO_RETAIN
            or loaded.producer_epoch != entry.producer_epoch
            or batch.last_offset <= entry.batches[-1].last_offset
            or entry.transaction_first_offset >= 0
        ):
            return False
        entry.producer_epoch = loaded.producer_epoch
        entry.last_timestamp_ms = batch.timestamp_ms
        entry.coordinator_epoch = loaded.coordinator_epoch
        if batch.last_offset >= 0:
            entry.batches.append(batch)
        if loaded.transaction_first_offset >= 0:
            entry.transaction_first_offset = loaded.transaction_first_offset
            self._ongoing[loaded.transaction_first_offset] = producer_id
        return True


def _snapshot(entries: Collection[tuple[int, ProducerEntry]], has_expired: bool) -> Steps[bytes]:
    pack = _SNAPSHOT_ENTRY.pack
    has_room = len(entries) <= PRODUCERS_WITH_ALL_BATCHES
    parts = [pack(*_EXPIRED)] if has_expired else []
    slices = Slices(ENTRIES_PER_SLICE)
    for producer_id, entry in entries:
        epoch = entry.producer_epoch
        timestamp_ms, first_offset = entry.last_timestamp_ms, entry.transaction_first_offset
        for sequence, offset, delta, batch_ms in entry.batches[:-1] if has_room else ():
            # Kafka ignores an expired entry. An earlier entry must not become the producer's last one then.
            expires_ms = min(batch_ms, timestamp_ms)
            parts.append(pack(producer_id, epoch, sequence, offset, delta, expires_ms, -1, NO_OFFSET))
        sequence, offset, delta, _ = entry.batches[-1] if entry.batches else _NO_BATCH
        parts.append(
            pack(producer_id, epoch, sequence, offset, delta, timestamp_ms, entry.coordinator_epoch, first_offset)
        )
        if slices.spend():
            yield
    body = struct.pack(">i", len(parts)) + b"".join(parts)
    return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(body)) + body


def snapshot_entries(content: bytes, path: str) -> Iterator[SnapshotEntry]:
    """The entries of a snapshot file. Raises KafkaError(KAFKA_STORAGE_ERROR) when the file is malformed."""
    if len(content) < _SNAPSHOT_HEADER.size:
        raise _malformed(path, f"{len(content)} bytes are too few")
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(content)
    if version != _SNAPSHOT_VERSION:
        raise _malformed(path, f"version {version}, only {_SNAPSHOT_VERSION} is known")
    if crc32c(content[_SNAPSHOT_CRC_COVERS_FROM:]) != crc:
        raise _malformed(path, "the checksum does not match")
    if len(content) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
        raise _malformed(path, f"{count} entries do not fit into {len(content)} bytes")
    for producer_id, epoch, *batch, coordinator_epoch, first_offset in _SNAPSHOT_ENTRY.iter_unpack(
        content[_SNAPSHOT_HEADER.size :]
    ):
        yield SnapshotEntry(producer_id, epoch, BatchMetadata(*batch), coordinator_epoch, first_offset)


def _check_sequence(header: BatchHeader, entry: ProducerEntry) -> None:
    sequence = header.base_sequence
    if header.producer_epoch != entry.producer_epoch:
        in_order, expected = sequence == 0 or entry.producer_epoch == NO_PRODUCER_EPOCH, 0
    else:
        last = entry.last_sequence
        expected = 0 if last == MAX_SEQUENCE else last + 1
        in_order = sequence == expected
    if not in_order:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence {sequence},"
            f" expected is {expected}",
        )


def _malformed(path: str, what: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {what}")
