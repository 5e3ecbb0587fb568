"""Loads the groups of a partition of `__consumer_offsets` from its log.

Most records of a log that is not compacted yet are outdated. So only the newest record of each key is kept, and the
remaining records are decoded at the end.

What must stay true:
- Among records with equal keys the highest offset counts, whether a transaction wrote the record or not.
- The records of a transaction count from its COMMIT marker on. The records of a transaction without a marker are
  pending, unless they were deleted since.
- A broken record affects no other record. A key of an unknown kind, which a newer Kafka may have written, is skipped,
  with one warning for the partition.
- No group is returned before all of the log has been read.

Source: kafka.coordinator.group.GroupMetadataManager (doLoadGroupsAndOffsets).
"""

import logging
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from klamm.base.slices import Slices, Steps, each, in_slices
from klamm.coordinator.groups.group import Group, GroupState
from klamm.coordinator.groups.group_records import (
    GroupKey,
    OffsetKeyReader,
    UnknownKey,
    read_group_steps,
    read_key,
    read_offset_value,
)
from klamm.coordinator.ports import LogBatch
from klamm.protocol.record.record_batch import NO_PRODUCER_ID
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TopicPartition

# How many records a step decodes, in a few milliseconds.
RECORDS_PER_SLICE = 1000

_OLDEST_OFFSET_KEY = b"\x00\x00"
_OFFSET_KEY = b"\x00\x01"

_log = logging.getLogger(__name__)

# (offset, key, value)
LogRecord = tuple[int, bytes | None, bytes | None]
LatestRecords = dict[bytes, LogRecord]


class Records(NamedTuple):
    """The last record of each key, including tombstones."""

    latest: LatestRecords
    # In transactions without a marker, by producer id.
    pending: dict[int, LatestRecords]


async def load_groups(partition: int, batches: AsyncIterator[LogBatch], now_ms: int) -> dict[str, Group]:
    """The groups of a partition, by id. A group without a group record is Empty since `now_ms`.

    Raises the errors of `batches`.
    """
    return await in_slices(build_groups(partition, await latest_records(batches), now_ms))


async def latest_records(batches: AsyncIterator[LogBatch]) -> Records:
    """The records that count at the end of the log. The loop has turns between `batches`."""
    found = Records({}, {})
    async for batch in batches:
        if batch.is_committed is not None:
            ended = found.pending.pop(batch.producer_id, {})
            async for key, record in each(_freed(ended), RECORDS_PER_SLICE):
                if batch.is_committed and (key not in found.latest or found.latest[key][0] < record[0]):
                    found.latest[key] = record
            continue
        counting = (
            found.latest if batch.producer_id == NO_PRODUCER_ID else found.pending.setdefault(batch.producer_id, {})
        )
        for record in batch.records:
            key = record[1] or b""
            # Keys of version 0 and 1 differ only in the version.
            if key.startswith(_OLDEST_OFFSET_KEY):
                key = _OFFSET_KEY + key[2:]
            counting[key] = record
    return found


def _freed(records: LatestRecords) -> Iterator[tuple[bytes, LogRecord]]:
    """The records one by one: freeing a million at once would hold the loop."""
    while records:
        yield records.popitem()


def build_groups(partition: int, records: Records, now_ms: int) -> Steps[dict[str, Group]]:
    """The groups that these records describe, in steps. Empties `records`."""
    slices = Slices(RECORDS_PER_SLICE)
    # Groups first: offsets without a group record belong to a group that only commits.
    groups = yield from _read_groups(partition, records.latest, slices)
    reader = OffsetKeyReader()
    for producer_id, written in (*records.pending.items(), (NO_PRODUCER_ID, records.latest)):
        while written:
            if slices.spend():
                yield
            # Records are freed as they are decoded: freeing a million at once would hold the loop.
            key, (record_offset, _, value) = written.popitem()
            if value is None or not key.startswith(_OFFSET_KEY):
                continue
            newer = records.latest.get(key)
            if newer is not None and newer[0] > record_offset and newer[2] is None:
                continue  # The offset was deleted during the transaction.
            try:
                group_id, topic_partition = reader.read(key)
                offset = read_offset_value(value)
            except ValueError as error:
                _report_broken(partition, record_offset, error)
                continue
            group = groups.get(group_id)
            if group is None:
                group = groups[group_id] = Group(group_id, GroupState.EMPTY, now_ms)
            if producer_id == NO_PRODUCER_ID:
                group.offsets.load(topic_partition, record_offset, offset)
            else:
                group.offsets.load_transactional_commit(producer_id, topic_partition, record_offset, offset)
    return groups


def _read_groups(partition: int, latest: LatestRecords, slices: Slices) -> Steps[dict[str, Group]]:
    """The groups with a group record, without offsets."""
    groups: dict[str, Group] = {}
    unknown_versions: dict[int, None] = {}
    for key, (record_offset, _, value) in latest.items():
        if slices.spend():
            yield
        if value is None or key.startswith(_OFFSET_KEY):
            continue
        try:
            match read_key(key):
                case GroupKey(group_id):
                    groups[group_id] = yield from read_group_steps(group_id, value)
                case UnknownKey(version):
                    unknown_versions[version] = None
        except ValueError as error:
            _report_broken(partition, record_offset, error)
    if unknown_versions:
        versions = ", ".join(map(str, sorted(unknown_versions)))
        name = TopicPartition(GROUP_METADATA_TOPIC_NAME, partition)
        _log.warning("%s has records with keys of version %s; skipped", name, versions)
    return groups


def _report_broken(partition: int, record_offset: int, error: ValueError) -> None:
    name = TopicPartition(GROUP_METADATA_TOPIC_NAME, partition)
    _log.error("%s has a broken record at offset %d; skipped: %s", name, record_offset, error)
