"""Loads the groups of a partition of `__consumer_offsets` from its log.

Most records of a log that is not compacted yet are outdated. So only the newest record of each key is kept, and the
remaining records are decoded at the end.

What must stay true:
- Of equal keys the record with the highest offset counts. A transaction's records come only after its commit, so not
  every batch comes in the order of the log.
- A broken record affects no other record. A key of an unknown kind, which a newer Kafka may have written, is skipped,
  with one warning for the partition.
- No group is returned before all of the log has been read.

Source: kafka.coordinator.group.GroupMetadataManager (doLoadGroupsAndOffsets).
"""

import logging
from collections.abc import AsyncIterator, Generator

from klamm.coordinator.group import Group, GroupState
from klamm.coordinator.group_records import (
    GroupKey,
    OffsetKeyReader,
    UnknownKey,
    read_group_value,
    read_key,
    read_offset_value,
)
from klamm.coordinator.ports import LogBatch
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TopicPartition
from klamm.slices import Slices, in_slices

# The number of records that a step decodes: a few milliseconds.
RECORDS_PER_SLICE = 1000

_OLDEST_OFFSET_KEY = b"\x00\x00"
_OFFSET_KEY = b"\x00\x01"

_log = logging.getLogger(__name__)

# (offset, key, value)
LogRecord = tuple[int, bytes | None, bytes | None]
LatestRecords = dict[bytes, LogRecord]


async def load_groups(partition: int, batches: AsyncIterator[LogBatch], now_ms: int) -> dict[str, Group]:
    """The groups of a partition, by id. Groups that only have offsets are Empty since `now_ms`.

    Raises the errors of `batches`.
    """
    return await in_slices(build_groups(partition, await latest_records(batches), now_ms))


async def latest_records(batches: AsyncIterator[LogBatch]) -> LatestRecords:
    """The last record of each key, including tombstones."""
    latest: LatestRecords = {}
    end = -1
    async for batch in batches:
        is_in_order = batch.base_offset > end
        for record in batch.records:
            key = record[1] or b""
            # Only the version differs: keys of version 0 and 1 are equal otherwise.
            if key.startswith(_OLDEST_OFFSET_KEY):
                key = _OFFSET_KEY + key[2:]
            if is_in_order or key not in latest or latest[key][0] < record[0]:
                latest[key] = record
        if batch.records:
            end = max(end, batch.records[-1][0])
    return latest


def build_groups(partition: int, latest: LatestRecords, now_ms: int) -> Generator[None, None, dict[str, Group]]:
    """The groups that these records describe; in steps. Empties `latest`."""
    groups: dict[str, Group] = {}
    unknown_versions: dict[int, None] = {}
    # Groups first: offsets without a group record belong to a group that only commits.
    slices = Slices(RECORDS_PER_SLICE)
    for key, (record_offset, _, value) in latest.items():
        if slices.is_over():
            yield
        if value is None or key.startswith(_OFFSET_KEY):
            continue
        try:
            match read_key(key):
                case GroupKey(group_id):
                    groups[group_id] = read_group_value(group_id, value)
                case UnknownKey(version):
                    unknown_versions[version] = None
        except ValueError as error:
            _report_broken(partition, record_offset, error)
    if unknown_versions:
        versions = ", ".join(map(str, sorted(unknown_versions)))
        name = TopicPartition(GROUP_METADATA_TOPIC_NAME, partition)
        _log.warning("%s has records with keys of version %s; skipped", name, versions)
    reader = OffsetKeyReader()
    while latest:
        if slices.is_over():
            yield
        # Records are freed as they are decoded: freeing a million at once would hold the loop.
        key, (record_offset, _, value) = latest.popitem()
        if value is None or not key.startswith(_OFFSET_KEY):
            continue
        try:
            group_id, topic_partition = reader.read(key)
            offset = read_offset_value(value)
        except ValueError as error:
            _report_broken(partition, record_offset, error)
            continue
        group = groups.get(group_id)
        if group is None:
            group = groups[group_id] = Group(group_id, GroupState.EMPTY, now_ms)
        group.load_offset(topic_partition, record_offset, offset)
    return groups


def _report_broken(partition: int, record_offset: int, error: ValueError) -> None:
    name = TopicPartition(GROUP_METADATA_TOPIC_NAME, partition)
    _log.error("%s has a broken record at offset %d; skipped: %s", name, record_offset, error)
