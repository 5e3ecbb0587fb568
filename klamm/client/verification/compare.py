"""Compares the batches of a partition's replicas. Pure: windows of bytes in, differences out.

A `Window` has the bytes of one replica from an offset on, and its high watermark. `compare` takes one window of each
replica and goes through the offsets that all windows have, below every high watermark. The callers fetch the next
windows from there.

What counts as equal:
- Batches with the same offsets must have the same leader epoch and the same checksum. The checksum is computed from
  the bytes, so bytes that a disk has changed are found; Kafka's tool only compares the stored numbers. The checksum
  does not cover the leader epoch, which is compared separately.
- A replica that lacks a batch of another replica differs, and so do batches with other begins or ends.
- In a compacted topic each replica is compacted at its own time. There differing batches are compared record by record:
  records that several replicas still have must be the same, and a missing record is no difference, unless its value is
  lost (`newest_values`).

What must stay true:
- Equal replicas never give a difference, however their windows are cut. Content that is unknown, or not below the high
  watermark, is never judged.
- Work and memory are bounded by the windows, and by the largest batch when records are compared.
- Arbitrary bytes give a result. Bytes that are not batches in the order of their offsets make their replica `broken`.

Source: kafka.tools.ReplicaVerificationTool (ReplicaBuffer.verifyCheckSum).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from klamm.base.checksum import crc32c
from klamm.client.verification.newest_values import NewestValues
from klamm.protocol.error_codes import KafkaError, corrupt_message
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import (
    CRC_COVERS_FROM,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    is_partial,
    parse_header,
)
from klamm.protocol.record.records import Record, decode_records

# base offset, length, leader epoch, magic, CRC, attributes, last offset delta.
_FIELDS = struct.Struct(">qiibIhi")
_MAGIC = 2
# A difference is compared with this many earlier differences, because replicas differ in turn.
_COMPARED_BYTES = 128 * 1024
_LOOK_BACK = 8


class DifferenceKind(Enum):
    """How a replica differs."""

    MISSING = "missing"
    BOUNDARIES = "boundaries"
    LEADER_EPOCH = "leader-epoch"
    CHECKSUM = "checksum"
    RECORDS = "records"
    CORRUPT = "corrupt"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Difference:
    """`replica` differs from `other` at these offsets. `count` consecutive batches differ in the same way.

    `value` and `expected` are the checksums, leader epochs or last offsets of the first such batch of `replica` and
    `other`. A CORRUPT batch differs from its own stored checksum, `expected`, and `other` is the same replica.
    """

    kind: DifferenceKind
    first_offset: int
    last_offset: int
    replica: int
    other: int
    value: int | None = None
    expected: int | None = None
    count: int = 1


class Window(NamedTuple):
    """The batches of a replica from a position on.

    `records` begin with the batch at the position or, without one, with the first batch behind it, and may end within a
    batch. With `is_complete` there are no more batches below the high watermark.
    """

    records: Buffer
    high_watermark: int
    is_complete: bool = False


class Batch(NamedTuple):
    """A batch in a window. `crc` is the stored checksum, `computed_crc` that of its bytes."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    computed_crc: int

    @property
    def is_corrupt(self) -> bool:
        return self.crc != self.computed_crc


@dataclass(slots=True)
class Compared:
    """The result for one window of each replica.

    All offsets before `next_offset` are compared. `known_to` is the offset of each replica before which its content is
    in its window and below its high watermark. `broken` are replicas whose window does not begin with the requested
    batches. `consumed_bytes` is the size of each replica's window before `next_offset`.
    """

    next_offset: int
    known_to: dict[int, int]
    differences: list[Difference] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    consumed_bytes: dict[int, int] = field(default_factory=dict)
    batches: int = 0
    # In a compacted topic: records that a replica no longer has and another replica has.
    compacted_batches: int = 0


class Broken(Exception):
    """These bytes are not batches in the order of their offsets. `batches` come before them."""

    def __init__(self, reason: str, batches: list[Batch]) -> None:
        super().__init__(reason)
        self.batches = batches


def compare(
    position: int, windows: Mapping[int, Window], *, is_compacted: bool = False, newest: NewestValues | None = None
) -> Compared:
    """Compares the other replicas with the first replica from `position` on.

    `newest` learns which values of a compacted topic a replica lacks.
    """
    limit = min(window.high_watermark for window in windows.values())
    equal = _compare_equal(position, limit, windows)
    if equal is None:
        return _Comparison(position, limit, windows, is_compacted, newest).run()
    if newest:
        replica, size_bytes = next(iter(equal.consumed_bytes.items()))
        records = memoryview(windows[replica].records)[:size_bytes]
        for batch in batches_of(records, position):
            found = _records(records, batch, batch.base_offset, batch.last_offset + 1)
            if not isinstance(found, KafkaError):
                newest.replaced(found.values())
    return equal


# -- equal bytes ------------------------------------------------------------------------------------------------------


def _compare_equal(position: int, limit: int, windows: Mapping[int, Window]) -> Compared | None:
    """The result if the common part of all windows has the same bytes in whole and valid batches; else None.

    This is the usual case. It takes a comparison of memory, and one look at each batch.
    """
    replicas = list(windows)
    views = [memoryview(window.records) for window in windows.values()]
    size_bytes = min(map(len, views))
    first = views[0][:size_bytes]
    if not all(_are_equal(first, view[:size_bytes]) for view in views[1:]):
        return None
    at, next_offset, count = 0, position, 0
    unpack, size_of_fields = _FIELDS.unpack_from, HEADER_SIZE_BYTES
    while at + size_of_fields <= size_bytes:
        base, length, _, magic, crc, _, delta = unpack(first, at)
        end, last = at + length + LOG_OVERHEAD_BYTES, base + delta
        if end > size_bytes or last >= limit:
            break
        is_expected = magic == _MAGIC and delta >= 0 and length + LOG_OVERHEAD_BYTES >= HEADER_SIZE_BYTES
        follows = base >= next_offset or (count == 0 and last >= position)
        if not is_expected or not follows or crc32c(first[at + CRC_COVERS_FROM : end]) != crc:
            return None
        at, next_offset, count = end, last + 1, count + 1
    if not count:
        return None
    known = dict.fromkeys(replicas, next_offset)
    return Compared(next_offset, known, consumed_bytes=dict.fromkeys(replicas, at), batches=count)


def _are_equal(first: memoryview, second: memoryview) -> bool:
    """Whether two views of the same size have the same bytes."""
    # Python compares a bytearray with memcmp, but a memoryview byte by byte. A small copy stays in the cache.
    return all(
        bytearray(first[at : at + _COMPARED_BYTES]) == second[at : at + _COMPARED_BYTES]
        for at in range(0, len(first), _COMPARED_BYTES)
    )


# -- different bytes --------------------------------------------------------------------------------------------------


def batches_of(records: Buffer, position: int) -> Iterator[Batch]:
    """The whole batches of a window that begins at an offset. Raises Broken."""
    view = memoryview(records)
    at, next_offset = 0, position
    found: list[Batch] = []
    while at < len(view) and not is_partial(view, at):
        try:
            header = parse_header(view, at)
        except KafkaError as error:
            raise Broken(error.message, found) from None
        if header.last_offset_delta < 0:
            raise Broken(f"the batch at offset {header.base_offset} ends before it begins", found)
        if header.last_offset < next_offset or (found and header.base_offset < next_offset):
            what = f"offsets {header.base_offset} to {header.last_offset}"
            raise Broken(f"a batch with {what} comes where offset {next_offset} or a later one belongs", found)
        end = at + header.size_bytes
        batch = Batch(
            at,
            header.size_bytes,
            header.base_offset,
            header.last_offset,
            header.partition_leader_epoch,
            header.crc,
            crc32c(view[at + CRC_COVERS_FROM : end]),
        )
        found.append(batch)
        yield batch
        at, next_offset = end, header.next_offset


def first_batch_holds(records: Buffer, position: int, offset: int) -> bool:
    """Whether the first batch of a window that begins at `position` begins before `offset` and ends behind it."""
    try:
        first = next(batches_of(records, position), None)
    except Broken:
        return False
    return first is not None and first.base_offset < offset <= first.last_offset


@dataclass(slots=True)
class _Cursor:
    """The batches of one replica. `at` is the first batch that does not end before the current offset."""

    replica: int
    records: Buffer
    batches: list[Batch]
    known_to: int
    at: int = 0

    def batch_from(self, offset: int) -> Batch | None:
        while self.at < len(self.batches) and self.batches[self.at].last_offset < offset:
            self.at += 1
        return self.batches[self.at] if self.at < len(self.batches) else None


class _Comparison:
    """Goes through the offsets in segments. In each segment a replica has a part of one batch, or nothing."""

    def __init__(
        self,
        position: int,
        limit: int,
        windows: Mapping[int, Window],
        is_compacted: bool,
        newest: NewestValues | None,
    ) -> None:
        self._position = position
        self._newest = newest
        self._is_compacted = is_compacted
        self._result = Compared(position, {})
        self._cursors = [self._cursor(replica, window) for replica, window in windows.items()]
        self._result.known_to = {cursor.replica: cursor.known_to for cursor in self._cursors}
        self._end = min([limit, *self._result.known_to.values()])
        # The reported corrupt batches: a batch may be part of several segments.
        self._reported: set[tuple[int, int]] = set()

    def run(self) -> Compared:
        result, offset = self._result, self._position
        while not result.broken and offset < self._end:
            found = [(cursor, cursor.batch_from(offset)) for cursor in self._cursors]
            here = [(cursor, batch) for cursor, batch in found if batch is not None and batch.base_offset <= offset]
            bounds = [batch.last_offset + 1 for _, batch in here]
            bounds += [batch.base_offset for _, batch in found if batch is not None and batch.base_offset > offset]
            end = min(bounds, default=self._end)
            if end > self._end:
                if here:
                    break
                end = self._end
            if here:
                absent = [cursor for cursor, batch in found if batch is None or batch.base_offset > offset]
                self._look(offset, end, here, absent)
                if self._newest is not None:
                    self._look_for_values(self._newest, offset, end, here, absent)
                result.batches += 1
            offset = end
        result.next_offset = offset
        for cursor in self._cursors:
            batch = cursor.batch_from(offset)
            last = cursor.batches[-1] if cursor.batches else None
            result.consumed_bytes[cursor.replica] = (
                batch.position if batch is not None else last.position + last.size_bytes if last is not None else 0
            )
        return result

    def _cursor(self, replica: int, window: Window) -> _Cursor:
        batches: list[Batch] = []
        known_to = self._position
        try:
            for batch in batches_of(window.records, self._position):
                if batch.last_offset >= window.high_watermark:
                    known_to = max(known_to, min(batch.base_offset, window.high_watermark))
                    break
                batches.append(batch)
                known_to = batch.last_offset + 1
            if window.is_complete:
                known_to = max(known_to, window.high_watermark)
        except Broken as broken:
            batches = broken.batches
            known_to = batches[-1].last_offset + 1 if batches else known_to
            if not batches:
                self._result.broken[replica] = str(broken)
        return _Cursor(replica, window.records, batches, known_to)

    def _look(self, first: int, end: int, here: Sequence[tuple[_Cursor, Batch]], absent: Iterable[_Cursor]) -> None:
        """Compares the replicas from offset `first` to before `end`."""
        reference, expected = here[0]
        for cursor in absent:
            if self._is_compacted:
                self._result.compacted_batches += 1
            else:
                self._add(Difference(DifferenceKind.MISSING, first, end - 1, cursor.replica, reference.replica))
        for cursor, batch in here:
            if batch.is_corrupt:
                self._corrupt(cursor, batch)
        for cursor, batch in here[1:]:
            if (batch.base_offset, batch.last_offset) != (expected.base_offset, expected.last_offset):
                if not self._is_compacted:
                    bounds = batch.last_offset, expected.last_offset
                    self._add(
                        Difference(
                            DifferenceKind.BOUNDARIES, first, end - 1, cursor.replica, reference.replica, *bounds
                        )
                    )
                    continue
            elif (batch.crc, batch.size_bytes) == (expected.crc, expected.size_bytes):
                self._compare_epochs(cursor, batch, reference, expected)
                continue
            elif not self._is_compacted:
                self._compare_epochs(cursor, batch, reference, expected)
                checksums = batch.crc, expected.crc
                at = expected.base_offset, expected.last_offset
                self._add(Difference(DifferenceKind.CHECKSUM, *at, cursor.replica, reference.replica, *checksums))
                continue
            self._compare_epochs(cursor, batch, reference, expected)
            self._compare_records(first, end, cursor, batch, reference, expected)

    def _look_for_values(
        self,
        newest: NewestValues,
        first: int,
        end: int,
        here: Sequence[tuple[_Cursor, Batch]],
        absent: Sequence[_Cursor],
    ) -> None:
        if not newest and not absent and len({(batch.crc, batch.computed_crc) for _, batch in here}) == 1:
            return
        records: dict[int, dict[int, Record]] = {cursor.replica: {} for cursor in absent}
        is_judged = True
        for cursor, batch in here:
            found = _records(cursor.records, batch, first, end)
            header = parse_header(cursor.records, batch.position)
            # A damaged batch may have had any record; a transaction may be aborted.
            is_judged &= not (isinstance(found, KafkaError) or batch.is_corrupt or header.is_transactional)
            if not isinstance(found, KafkaError) and not header.is_control:
                records[cursor.replica] = found
        for offset in sorted({offset for found in records.values() for offset in found}):
            having = [replica for replica, found in records.items() if offset in found]
            lacking = [replica for replica in records if replica not in having]
            record = records[having[0]][offset]
            if lacking and is_judged:
                newest.only_on(record, having[0], lacking)
            else:
                newest.replaced([record])

    def _compare_epochs(self, cursor: _Cursor, batch: Batch, reference: _Cursor, expected: Batch) -> None:
        if batch.leader_epoch != expected.leader_epoch:
            epochs = batch.leader_epoch, expected.leader_epoch
            at = expected.base_offset, expected.last_offset
            self._add(Difference(DifferenceKind.LEADER_EPOCH, *at, cursor.replica, reference.replica, *epochs))

    def _corrupt(self, cursor: _Cursor, batch: Batch) -> None:
        if (cursor.replica, batch.base_offset) not in self._reported:
            self._reported.add((cursor.replica, batch.base_offset))
            at, replicas = (batch.base_offset, batch.last_offset), (cursor.replica, cursor.replica)
            self._add(Difference(DifferenceKind.CORRUPT, *at, *replicas, batch.computed_crc, batch.crc))

    def _compare_records(
        self, first: int, end: int, cursor: _Cursor, batch: Batch, reference: _Cursor, expected: Batch
    ) -> None:
        """Compares the records that both replicas have."""
        if batch.is_corrupt or expected.is_corrupt:
            return
        ours, theirs = (
            _records(each.records, its_batch, first, end)
            for each, its_batch in ((cursor, batch), (reference, expected))
        )
        for replica, found in ((cursor.replica, ours), (reference.replica, theirs)):
            if isinstance(found, KafkaError):
                self._add(Difference(DifferenceKind.CORRUPT, first, end - 1, replica, replica))
        if isinstance(ours, KafkaError) or isinstance(theirs, KafkaError):
            return
        self._result.compacted_batches += ours.keys() != theirs.keys()
        unlike = [offset for offset, record in ours.items() if theirs.get(offset, record) != record]
        if unlike:
            self._add(Difference(DifferenceKind.RECORDS, unlike[0], unlike[-1], cursor.replica, reference.replica))

    def _add(self, difference: Difference) -> None:
        self._result.differences.append(difference)


def _records(records: Buffer, batch: Batch, first: int, end: int) -> dict[int, Record] | KafkaError:
    """The records of a batch within these offsets, by offset, or why they cannot be decoded."""
    header = parse_header(records, batch.position)
    try:
        decoded = list(decode_records(records, batch.position, header))
        return {record.offset: record for record in decoded if first <= record.offset < end}
    except KafkaError as error:
        return corrupt_message(error.message)


# -- differences ------------------------------------------------------------------------------------------------------


class Differences:
    """The differences of a partition. Consecutive ones of the same kind are merged; only the first `most` are kept."""

    def __init__(self, most: int = 100) -> None:
        self.found: list[Difference] = []
        self.batches = 0
        self._most = most

    def __bool__(self) -> bool:
        return self.batches > 0

    def add(self, difference: Difference) -> bool:
        """Adds a difference. Returns whether it is new: not the continuation of another, and not beyond `most`.

        A batch that was compared twice counts once.
        """
        for index in range(len(self.found) - 1, max(-1, len(self.found) - _LOOK_BACK), -1):
            before = self.found[index]
            is_same = (before.kind, before.replica, before.other) == (
                difference.kind,
                difference.replica,
                difference.other,
            )
            if is_same and before.first_offset <= difference.first_offset <= before.last_offset + 1:
                if difference.last_offset > before.last_offset:
                    again = difference.first_offset <= before.last_offset
                    count = difference.count - again
                    self.batches += count
                    last = difference.last_offset
                    self.found[index] = replace(before, last_offset=last, count=before.count + count)
                return False
        self.batches += difference.count
        if len(self.found) >= self._most:
            return False
        self.found.append(difference)
        return True
