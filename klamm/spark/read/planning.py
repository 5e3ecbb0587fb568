"""Plans the offsets that a batch query, or a micro-batch of a streaming query, reads from each partition.

Planning runs on the driver. It asks the brokers for topics and offsets, and reads no records.

What must stay true:
- The ranges of a plan do not overlap, and together hold every offset from where reading begins to where it ends.
- A plan depends only on its arguments and on the brokers' answers, in sorted order: Spark compares positions as text.
- Removed records are reported (`DataLoss`, or a warning with failOnDataLoss=false), and never skipped silently. A range
  that would begin after its end is reported as well.
- The begin of a micro-batch comes from the checkpoint. A batch never begins at an initial position that was read after
  the batch was planned.

Source: org.apache.spark.sql.kafka010.KafkaOffsetReaderAdmin, KafkaMicroBatchStream, KafkaOffsetRangeCalculator.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from klamm.base.patterns import Pattern
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import list_offsets
from klamm.client.fan_out import checked
from klamm.client.metadata import TopicMetadata
from klamm.client.threads import call
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import (
    EARLIEST_TIMESTAMP,
    INTERNAL_TOPICS,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    UNKNOWN_OFFSET,
    TopicPartition,
)
from klamm.spark.options import Bound, Limit, OptionError, ReadOptions, Topics
from klamm.spark.settings import DataLoss, PartitionRange

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]

# Not every broker knows a new topic at once, and a broker that has just started knows no topics: a topic or partition
# counts as missing only after this time.
MISSING_TIMEOUT_MS = 5_000
BACKOFF_MS = 50
# Small ranges share tasks when a plan has more ranges than this. PySpark does not tell a Python data source how many
# cores the cluster has.
MIN_TASKS = 32
# The offsets of a task of small ranges. A separate task costs as much time as reading some ten thousand records.
TASK_OFFSETS = 100_000

# The position of a missing topic is kept as long as Kafka keeps the offsets of a group without members. Only the topics
# that went missing last are kept, so that positions stay small.
MISSING_KEPT_MS = 7 * 24 * 3600 * 1000
MISSING_KEPT_PARTITIONS = 20_000

# No topic can have these names.
_TOPIC_IDS = "$topicIds"
_BEGIN = "$begin"
_MISSING = "$missing"


@dataclass(frozen=True, slots=True)
class MissingTopic:
    """The next offsets of partitions that the brokers no longer report, by number, and since when they are missing.

    If the topic comes back with its id, as after a long outage, reading continues at these offsets.
    """

    topic_id: str
    since_ms: int
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a streaming query: the next offset of each partition.

    `topic_ids` are the topics' ids, if the brokers have them. `begin` is the begin of the micro-batch that ends here,
    for partitions that the previous position lacks: new ones, and all partitions of a query's first batch. Spark stores
    the end of a batch before the batch runs. After a restart it asks again for the begin of the first batch; with
    `begin` this is the same batch. An initial position is the end of an empty batch.

    The JSON is that of Spark's Kafka connector, `{"topic": {"0": 23}}`, with the other fields under names that no topic
    can have. So checkpoints of that connector can be read, too.
    """

    offsets: Offsets
    topic_ids: dict[str, str]
    begin: Offsets
    missing: dict[str, MissingTopic] = field(default_factory=dict)

    @property
    def is_initial(self) -> bool:
        return self.begin == self.offsets

    def to_json(self) -> dict[str, dict[str, Any]]:
        json: dict[str, dict[str, Any]] = _offsets_to_json(self.offsets)
        if self.topic_ids:
            json[_TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        if self.begin:
            json[_BEGIN] = _offsets_to_json(self.begin)
        if self.missing:
            json[_MISSING] = {topic: _missing_to_json(self.missing[topic]) for topic in sorted(self.missing)}
        return json

    @classmethod
    def from_json(cls, json: Mapping[str, Mapping[str, Any]]) -> "Position":
        offsets = {topic: numbers for topic, numbers in json.items() if topic not in (_TOPIC_IDS, _BEGIN, _MISSING)}
        return cls(
            _offsets_from_json(offsets),
            dict(json.get(_TOPIC_IDS, {})),
            _offsets_from_json(json.get(_BEGIN, {})),
            {topic: _missing_from_json(missing) for topic, missing in json.get(_MISSING, {}).items()},
        )


def _offsets_to_json(offsets: Offsets) -> dict[str, dict[str, Any]]:
    json: dict[str, dict[str, Any]] = {}
    for partition in sorted(offsets):
        json.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return json


def _offsets_from_json(json: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in json.items()
        for number, offset in numbers.items()
    }


def _missing_to_json(missing: MissingTopic) -> dict[str, Any]:
    offsets = {str(number): missing.offsets[number] for number in sorted(missing.offsets)}
    return {"id": missing.topic_id, "since": missing.since_ms, "offsets": offsets}


def _missing_from_json(json: Mapping[str, Any]) -> MissingTopic:
    return MissingTopic(json["id"], json["since"], {int(number): offset for number, offset in json["offsets"].items()})


# -- batch queries ----------------------------------------------------------------------------------------------------


def plan_batch(options: ReadOptions) -> list[PartitionRange]:
    """The ranges that a batch query reads, by topic and partition.

    Raises OptionError when the options do not fit the topics, DataLoss when a partition ends before its start
    offset, KafkaError and ClientError when the cluster does not answer or a topic does not exist.
    """

    async def plan(client: ClusterClient) -> list[PartitionRange]:
        described = await _describe(client, options, must_exist=True)
        partitions = _partitions(options.topics, described)
        starting = await _resolve(client, options, options.starting, partitions)
        ending = await _resolve(client, options, options.ending, partitions, is_end=True)
        await _check_beginnings(client, options, starting, ending)
        return _ranges(starting, ending, _topic_ids(described))

    return split(call(options.client, plan), options)


async def _check_beginnings(client: ClusterClient, options: ReadOptions, starting: Offsets, ending: Offsets) -> None:
    """Reports partitions that begin after their end, with the reason.

    Only one reason is harmless: the partition is read up to its current end, its log is long enough, and read_committed
    waits for a transaction.
    """
    late = [partition for partition in sorted(ending) if starting[partition] > ending[partition]]
    uncommitted = replace(options, fetch=replace(options.fetch, read_committed=False))
    log_ends = await _list_offsets(client, uncommitted, dict.fromkeys(late, LATEST_TIMESTAMP))
    present_ends = await _list_offsets(client, options, dict.fromkeys(late, LATEST_TIMESTAMP))
    chosen = dict(options.starting.each or ())
    for partition in late:
        start, end = starting[partition], ending[partition]
        if start > log_ends[partition]:
            _report_loss(
                options, f"partition {partition} ends at {log_ends[partition]}, but is to be read from {start}"
            )
        elif options.starting.bound is Bound.OFFSETS and (
            chosen.get(partition, options.starting.all) == EARLIEST_TIMESTAMP
        ):
            _report_loss(options, f"partition {partition} begins at {start}, but is to be read up to {end}")
        elif end < present_ends[partition]:
            raise OptionError(
                f"{partition} begins at {start} ({options.starting.option}) and ends at {end} ({options.ending.option})"
            )


# -- streaming queries ------------------------------------------------------------------------------------------------


def initial_position(options: ReadOptions) -> Position:
    """The position where a new streaming query begins. Raises the errors of `plan_batch`."""

    async def find(client: ClusterClient) -> Position:
        described = await _describe(client, options, must_exist=True)
        partitions = _partitions(options.topics, described)
        offsets = await _resolve(client, options, options.starting, partitions)
        return Position(offsets, _topic_ids(described), offsets)

    return call(options.client, find)


def latest_position(options: ReadOptions, start: Position) -> Position:
    """The current end of every partition.

    Asks again for a while for partitions of `start` that the brokers do not report: a broker that was just started may
    know no topic yet, and a new leader may not know its end.
    """

    async def find(client: ClusterClient) -> Position:
        attempts_left, patience, was_deleted = options.fetch_offset_retries, _Patience(), False
        while True:
            described = await _describe(client, options, must_exist=False, elsewhere=patience.has_begun)
            partitions = _partitions(options.topics, described)
            try:
                ends = await _list_offsets(client, options, dict.fromkeys(partitions, LATEST_TIMESTAMP))
            except KafkaError as error:
                if was_deleted or error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                was_deleted = True
                continue
            latest = Position(ends, _topic_ids(described), {})
            if not _missing(start, latest) or (patience.is_over() and attempts_left <= 0):
                return latest
            attempts_left -= 1
            await asyncio.sleep(max(BACKOFF_MS, options.fetch_offset_retry_interval_ms) / 1000)

    return call(options.client, find)


def with_begin(options: ReadOptions, start: Position, latest: Position, now_ms: int) -> Position:
    """`latest` as the end of the micro-batch that begins at `start`, with the begins of new partitions.

    Raises DataLoss for topics and partitions of `start` that are gone, for recreated topics, for partitions that
    end before `start` and for new partitions with removed records. With failOnDataLoss=false these are warnings. Then a
    recreated topic is read from its beginning. The offsets of missing partitions are kept for a while: a topic that
    comes back with its id is read from these. Offsets of topics without ids are not kept, because a topic that comes
    back may be another one.
    """
    for loss in _losses(start, latest):
        _report_loss(options, loss)
    recreated = _recreated(start, latest)
    known = {tp: start.offsets[tp] for tp in latest.offsets if tp in start.offsets and tp.topic not in recreated}
    back = _back(start, latest)
    new = {tp: EARLIEST_TIMESTAMP for tp in latest.offsets if tp not in known and tp not in back}
    begin = call(options.client, lambda client: _list_offsets(client, options, new)) if new else {}
    for partition, offset in sorted(begin.items()):
        if offset > 0:
            _report_loss(options, f"partition {partition} is new, but its records before offset {offset} were removed")
    begin = {**begin, **back}
    return replace(
        latest,
        begin={**known, **begin} if start.is_initial else begin,
        missing=_kept(_gone(start, latest, now_ms), now_ms),
    )


def _back(start: Position, latest: Position) -> Offsets:
    """Where reading continues in partitions that were missing in `start` and have come back."""
    return {
        partition: offset
        for topic, missing in start.missing.items()
        if latest.topic_ids.get(topic) == missing.topic_id
        for number, offset in missing.offsets.items()
        if (partition := TopicPartition(topic, number)) in latest.offsets
    }


def _gone(start: Position, latest: Position, now_ms: int) -> dict[str, MissingTopic]:
    """The topics with partitions of `start` that `latest` lacks, except those that another topic has replaced."""
    offsets: dict[str, dict[int, int]] = {
        topic: {
            number: offset
            for number, offset in missing.offsets.items()
            if TopicPartition(topic, number) not in latest.offsets
        }
        for topic, missing in start.missing.items()
    }
    for partition, offset in start.offsets.items():
        if partition not in latest.offsets:
            offsets.setdefault(partition.topic, {})[partition.partition] = offset
    known = _known_ids(start)
    return {
        topic: MissingTopic(known[topic], start.missing[topic].since_ms if topic in start.missing else now_ms, numbers)
        for topic, numbers in sorted(offsets.items())
        if numbers and topic in known and latest.topic_ids.get(topic, known[topic]) == known[topic]
    }


def _kept(missing: Mapping[str, MissingTopic], now_ms: int) -> dict[str, MissingTopic]:
    """The missing topics whose offsets are kept. The others are dropped, so that positions do not grow forever."""
    kept: dict[str, MissingTopic] = {}
    partitions = 0
    for topic, one in sorted(missing.items(), key=lambda item: (-item[1].since_ms, item[0])):
        partitions += len(one.offsets)
        if now_ms - one.since_ms < MISSING_KEPT_MS and (partitions <= MISSING_KEPT_PARTITIONS or not kept):
            kept[topic] = one
    return kept


def count_offsets(start: Position, end: Position) -> int:
    """The number of offsets in the micro-batch from `start` to `end`."""
    begin = _begin(start, end)
    return sum(max(0, offset - begin[partition]) for partition, offset in end.offsets.items())


def limit_position(start: Position, end: Position, max_offsets: int) -> Position:
    """An earlier end of the micro-batch from `start` to `end`, so that it has about `max_offsets`.

    Each partition gets a share in proportion to its offsets, and at least one offset.
    """
    begin = _begin(start, end)
    sizes = {partition: max(0, offset - begin[partition]) for partition, offset in end.offsets.items()}
    total = sum(sizes.values())
    limited = {
        partition: min(end.offsets[partition], begin[partition] + max(1, max_offsets * size // total))
        for partition, size in sizes.items()
        if size
    }
    return replace(end, offsets={**end.offsets, **limited})


def plan_micro_batch(options: ReadOptions, start: Position, end: Position) -> list[PartitionRange]:
    """The ranges of a micro-batch. They are the same for the same `end`, because no broker is asked.

    Raises OptionError for the first batch of another connector's checkpoint, and DataLoss if a partition begins after
    its end. With failOnDataLoss=false the loss is a warning.
    """
    if start.is_initial and end.offsets.keys() - end.begin.keys():
        raise OptionError(
            "the checkpoint is of Spark's own Kafka connector, and its first batch has not been committed: only that"
            ' connector knows where the batch begins. Run the query with format("kafka") once more, until the'
            ' checkpoint has the file commits/0, and then with format("klamm"); or begin with a new checkpoint'
        )
    begin = _begin(start, end)
    for partition, offset in sorted(end.offsets.items()):
        if begin[partition] > offset:
            _report_loss(options, f"partition {partition} ends at {offset}, but was read up to {begin[partition]}")
    return split(_ranges(begin, end.offsets, end.topic_ids), options)


def _begin(start: Position, end: Position) -> Offsets:
    """The begin of the micro-batch that ends at `end`.

    Spark's own connector does not store the begins of new partitions, so they begin at their first offset. Readers find
    the loss of records that were removed since.
    """
    return {**dict.fromkeys(end.offsets, 0), **start.offsets, **end.begin}


def _known_ids(position: Position) -> dict[str, str]:
    """The ids of the topics of a position, including missing topics."""
    return {**{topic: missing.topic_id for topic, missing in position.missing.items()}, **position.topic_ids}


def _recreated(start: Position, end: Position) -> dict[str, str]:
    """The ids of the topics in `end` that are not the topics of these names in `start`."""
    known = _known_ids(start)
    return {topic: topic_id for topic, topic_id in end.topic_ids.items() if known.get(topic, topic_id) != topic_id}


def _losses(start: Position, end: Position) -> list[str]:
    """A sentence for each topic or partition of `start` whose records are missing in `end`."""
    return [
        *(f"topic {topic} was deleted and created again" for topic in _recreated(start, end)),
        *_missing(start, end),
    ]


def _missing(start: Position, end: Position) -> list[str]:
    """A sentence for partitions that are gone or end too early, except those of recreated topics."""
    recreated = _recreated(start, end)
    missing = []
    for partition, offset in {**_back(start, end), **start.offsets}.items():
        if partition.topic in recreated:
            continue
        if partition not in end.offsets:
            missing.append(f"partition {partition} is gone, its records from offset {offset} on cannot be read")
        elif end.offsets[partition] < offset:
            missing.append(f"partition {partition} ends at {end.offsets[partition]}, but was read up to {offset}")
    return missing


def _report_loss(options: ReadOptions, loss: str) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(f"{loss}; with the option failOnDataLoss=false the query continues with the remaining records")
    logger.warning("%s; the query continues (failOnDataLoss=false)", loss)


# -- ranges -----------------------------------------------------------------------------------------------------------


def _ranges(starting: Offsets, ending: Offsets, topic_ids: Mapping[str, str]) -> list[PartitionRange]:
    return [
        PartitionRange(tp.topic, tp.partition, starting[tp], ending[tp], topic_ids.get(tp.topic))
        for tp in sorted(ending)
        if starting[tp] < ending[tp]
    ]


def split(ranges: Sequence[PartitionRange], options: ReadOptions) -> list[PartitionRange]:
    """Cuts large ranges: each has at most maxRecordsPerPartition, and there are about minPartitions."""
    limit = options.max_records_per_partition
    if limit is not None:
        ranges = [part for records in ranges for part in _cut(records, -(-_size(records) // limit))]
    wanted = options.min_partitions
    if wanted is None or len(ranges) >= wanted or not ranges:
        return list(ranges)
    # Ranges that are too small to be cut do not count when the others are divided.
    total = sum(map(_size, ranges))
    is_large = [_share_of(_size(records), total, wanted) > 1 for records in ranges]
    large_total = sum(_size(records) for records, large in zip(ranges, is_large, strict=True) if large)
    large_parts = max(1, wanted - is_large.count(False))
    return [
        part
        for records, large in zip(ranges, is_large, strict=True)
        for part in _cut(records, _share_of(_size(records), large_total, large_parts) if large else 1)
    ]


def in_tasks(ranges: Sequence[PartitionRange], options: ReadOptions) -> list[tuple[PartitionRange, ...]]:
    """The ranges of each Spark task.

    With up to MIN_TASKS ranges (or minPartitions), each range is a task. So is each range of TASK_OFFSETS or more. Of
    the other ranges, neighbours share a task, so that there are about MIN_TASKS tasks (or minPartitions). There are
    more tasks if a task would have more offsets than TASK_OFFSETS or maxRecordsPerPartition.
    """
    wanted = max(MIN_TASKS, options.min_partitions or 1)
    if len(ranges) <= wanted:
        return [(records,) for records in ranges]
    # The longest tasks come first.
    together: list[tuple[PartitionRange, ...]] = [(each,) for each in ranges if _size(each) >= TASK_OFFSETS]
    small = [records for records in ranges if _size(records) < TASK_OFFSETS]
    total = sum(map(_size, small))
    tasks = max(1, wanted - len(together), -(-total // TASK_OFFSETS))
    most = min(total // tasks, options.max_records_per_partition or total)
    begun: list[PartitionRange] = []
    size = 0
    for records in small:
        if begun and size + _size(records) > most:
            together.append(tuple(begun))
            begun, size = [], 0
        begun.append(records)
        size += _size(records)
    return [*together, tuple(begun)] if begun else together


def _size(records: PartitionRange) -> int:
    return records.end_offset - records.start_offset


def _share_of(size: int, total: int, parts: int) -> int:
    return max(1, (2 * size * parts + total) // (2 * total))


def _cut(records: PartitionRange, parts: int) -> list[PartitionRange]:
    """The range in this many parts that differ by at most one offset; fewer when it is shorter."""
    size = _size(records)
    parts = min(parts, size)
    edges = [records.start_offset + size * part // parts for part in range(parts + 1)]
    return [replace(records, start_offset=low, end_offset=high) for low, high in pairwise(edges) if low < high]


# -- requests to brokers ----------------------------------------------------------------------------------------------


class _Patience:
    """The time until a topic or partition counts as missing. It runs from the first miss, because the client itself may
    have waited for brokers before that."""

    def __init__(self) -> None:
        self._deadline: float | None = None

    @property
    def has_begun(self) -> bool:
        return self._deadline is not None

    def is_over(self) -> bool:
        """Call it on each miss. Returns whether the topic or partition now counts as missing."""
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + MISSING_TIMEOUT_MS / 1000
        return now >= self._deadline


async def _describe(
    client: ClusterClient, options: ReadOptions, *, must_exist: bool, elsewhere: bool = False
) -> dict[str, TopicMetadata]:
    """The topics to read, sorted by name. With `must_exist` a topic that does not exist is an error; otherwise it is
    left out.

    A pattern that no topic matches selects no topic. With `must_exist` this counts only after a while, too. `elsewhere`
    is as in `ClusterClient.refresh_metadata`.
    """
    topics, patience = options.topics, _Patience()
    while True:
        elsewhere = elsewhere or patience.has_begun
        if topics.subscribe_pattern is not None:
            known = (await client.refresh_metadata(None, elsewhere=elsewhere)).topics
            pattern = Pattern(topics.subscribe_pattern)
            names = sorted(name for name in known if pattern.fullmatch(name) and name not in INTERNAL_TOPICS)
        else:
            names = list(topics.subscribe) or sorted({partition.topic for partition in topics.assign})
            known = (await client.refresh_metadata(names, elsewhere=elsewhere)).topics
        missing = [name for name in names if _is_missing(name, known)]
        if (names and not missing) or not must_exist or patience.is_over():
            break
        await asyncio.sleep(BACKOFF_MS / 1000)
    if missing and must_exist:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {', '.join(missing)}")
    described = {name: known[name] for name in names if not _is_missing(name, known)}
    for name, topic in described.items():
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            raise KafkaError(ErrorCode(topic.error_code), f"topic {name}")
    return described


def _is_missing(name: str, known: Mapping[str, TopicMetadata]) -> bool:
    return name not in known or known[name].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _partitions(topics: Topics, described: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    existing = [
        TopicPartition(name, number) for name, topic in described.items() for number in sorted(topic.partitions)
    ]
    if not topics.assign:
        return existing
    known = set(existing)
    for partition in topics.assign:
        if partition.topic in described and partition not in known:
            count = len(described[partition.topic].partitions)
            raise OptionError(f"option assign has {partition}, but topic {partition.topic} has {count} partitions")
    return [partition for partition in topics.assign if partition.topic in described]


def _topic_ids(described: Mapping[str, TopicMetadata]) -> dict[str, str]:
    return {name: topic.topic_id.hex for name, topic in described.items() if topic.topic_id is not None}


async def _resolve(
    client: ClusterClient,
    options: ReadOptions,
    limit: Limit,
    partitions: Collection[TopicPartition],
    *,
    is_end: bool = False,
) -> Offsets:
    """The offset of a limit for each partition."""
    if limit.each is None:
        wanted = dict.fromkeys(partitions, limit.all)
    else:
        wanted = dict(limit.each)
        different = sorted(wanted.keys() ^ set(partitions))
        if different:
            raise OptionError(
                f"option {limit.option} must name exactly the partitions that are read; missing or too many:"
                f" {', '.join(map(str, different))}"
            )
    if limit.bound is Bound.OFFSETS:
        words = {
            partition: value for partition, value in wanted.items() if value in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        }
        return {**wanted, **await _list_offsets(client, options, words)}
    found = await _list_offsets(client, options, wanted)
    late = [partition for partition in partitions if found[partition] == UNKNOWN_OFFSET]
    if late and not is_end and not options.no_match_is_latest:
        raise OptionError(
            f"option {limit.option}: {late[0]} has no record at or after {wanted[late[0]]};"
            " startingOffsetsByTimestampStrategy=latest reads such a partition from its end"
        )
    return {**found, **await _list_offsets(client, options, dict.fromkeys(late, LATEST_TIMESTAMP))}


async def _list_offsets(client: ClusterClient, options: ReadOptions, wanted: Mapping[TopicPartition, int]) -> Offsets:
    """For each partition, the first offset at or after a timestamp (UNKNOWN_OFFSET without such a record), or the
    offset of EARLIEST_TIMESTAMP or LATEST_TIMESTAMP. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION when a topic stays
    missing."""
    found = await list_offsets(
        client,
        wanted,
        isolation_level=READ_COMMITTED if options.fetch.read_committed else READ_UNCOMMITTED,
        missing_timeout_ms=MISSING_TIMEOUT_MS,
    )
    return {partition: checked(listed).offset for partition, listed in found.items()}
