"""The load of a cluster, from the headers of its batches: bytes and records of each partition in windows of time.

A task reads ranges of offsets from one replica of each partition: from the leader if it answers, otherwise from a
follower, because all replicas have the same bytes. It counts in the worker, so no batch reaches the driver. Kafka has
no request for headers only, so whole batches are fetched. Records are decoded only for a sample of keys, if one is
requested.

A whole batch counts at the time of its largest timestamp. A batch of control records (the end of a transaction) counts
with its bytes and no record. Records of aborted transactions count, because brokers have stored them.

What must stay true:
- A batch counts once: in the range that has its last offset.
- A task holds one window of a replica. The driver holds the windows of all partitions, at most `MAX_CELLS`.
- If a partition cannot be read, the reason is reported, and the others are read.
"""

import asyncio
import base64
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions
from klamm.client.threads import call
from klamm.client.verification.compare import Batch, Broken
from klamm.client.verification.partition import PATIENCE_S
from klamm.client.verification.verifier import Replicated, in_order, start_offsets
from klamm.net.client import ClientError
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import NO_TIMESTAMP, BatchHeader, parse_header
from klamm.protocol.record.records import decode_records
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from klamm.spark.pipelines.distribution import distribute
from klamm.spark.pipelines.hot_keys import Estimate, KeySample, Summary, estimate, likely_records
from klamm.spark.pipelines.load_options import LoadOptions
from klamm.spark.pipelines.load_windows import NOTHING, WIDTHS_MS, Traffic, Windows
from klamm.spark.pipelines.replicas import ReplicaLog, read_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Limited, because even a short range costs some requests.
MAX_RANGES_PER_TASK: Final = 50
# How many tasks run between two reports of progress.
TASKS_AT_A_TIME: Final = 64
# The most windows of all partitions together.
MAX_CELLS: Final = 1_000_000
MIN_KEYS_PER_RANGE: Final = 100


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a partition to be read from the first of these brokers that has them."""

    partition: TopicPartition
    brokers: tuple[int, ...]
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        return self.end_offset - self.start_offset


@dataclass(slots=True)
class Counted:
    """The traffic of a range or a partition in the chosen time. `untimed` has batches without a timestamp; `total` is
    the sum of `windows` and `untimed`, without `corrupt_batches`. `failure` says why offsets at the end are missing."""

    windows: Windows
    untimed: Traffic = NOTHING
    corrupt_batches: int = 0
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None
    failure: str | None = None

    @property
    def total(self) -> Traffic:
        return self.windows.total().plus(self.untimed)

    def add(self, timestamp_ms: int, traffic: Traffic) -> None:
        if timestamp_ms <= NO_TIMESTAMP:
            self.untimed = self.untimed.plus(traffic)
            return
        self.windows.add(timestamp_ms, traffic)
        self._cover(timestamp_ms, timestamp_ms)

    def merge(self, other: "Counted") -> None:
        self.windows.merge(other.windows)
        self.untimed = self.untimed.plus(other.untimed)
        self.corrupt_batches += other.corrupt_batches
        self.failure = self.failure or other.failure
        if other.first_timestamp_ms is not None and other.last_timestamp_ms is not None:
            self._cover(other.first_timestamp_ms, other.last_timestamp_ms)

    def _cover(self, first_ms: int, last_ms: int) -> None:
        self.first_timestamp_ms = (
            first_ms if self.first_timestamp_ms is None else min(self.first_timestamp_ms, first_ms)
        )
        self.last_timestamp_ms = last_ms if self.last_timestamp_ms is None else max(self.last_timestamp_ms, last_ms)


@dataclass(slots=True)
class PartitionCount:
    """A partition's replicas (the leader first) and its counts. `is_cut`: its log begins after offset 0, and has no
    record from before the chosen time, so records of the chosen time may have been removed."""

    replicas: tuple[int, ...]
    counted: Counted
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class HotKey:
    partition: TopicPartition
    key: bytes
    records: Estimate


@dataclass(slots=True)
class ClusterCount:
    """The counts of a cluster. `skipped` has the reason for each topic or partition that was not read.
    `sampled_records` is the number of records whose keys were decoded."""

    partitions: dict[TopicPartition, PartitionCount] = field(default_factory=dict)
    brokers: tuple[int, ...] = ()
    skipped: list[tuple[str, str]] = field(default_factory=list)
    hot_keys: list[HotKey] = field(default_factory=list)
    sampled_records: int = 0

    @property
    def window_ms(self) -> int:
        return max((each.counted.windows.width_ms for each in self.partitions.values()), default=WIDTHS_MS[0])

    def widen(self, width_ms: int) -> None:
        for each in self.partitions.values():
            each.counted.windows.widen(width_ms)


# -- on the driver ----------------------------------------------------------------------------------------------------


def count_load(
    spark: "SparkSession",
    client: ClientOptions,
    matches: Callable[[str], bool],
    options: LoadOptions,
    *,
    on_progress: Callable[[int, int], object] = lambda offsets_done, offsets_total: None,
) -> ClusterCount:
    """The load of all topics whose name matches. Raises KafkaError, ClientError, and Spark's errors."""
    count, ranges = call(client, partial(_plan, matches=matches, options=options))
    tasks = pack(cut(ranges, options.offsets_per_task), options.offsets_per_task)
    total, done = sum(each.size for each in ranges), 0
    sampled = _Sampled(options.hot_keys)
    on_progress(0, total)
    for first in range(0, len(tasks), TASKS_AT_A_TIME):
        part = tasks[first : first + TASKS_AT_A_TIME]
        for task, result in zip(part, distribute(spark, part, partial(_count_task, client, options)), strict=True):
            found: list[tuple[Counted, Summary | None]] = pickle.loads(base64.b64decode(result))
            for each, (counted, summary) in zip(task, found, strict=True):
                count.partitions[each.partition].counted.merge(counted)
                sampled.add(each.partition, summary)
        _align(count, options.max_windows)
        done += sum(each.size for task in part for each in task)
        on_progress(done, total)
    count.hot_keys, count.sampled_records = sampled.hottest(), sampled.records
    return count


async def _plan(
    client: ClusterClient, *, matches: Callable[[str], bool], options: LoadOptions
) -> tuple[ClusterCount, list[OffsetRange]]:
    """The partitions, with nothing counted, and the offsets to read."""
    metadata = await client.refresh_metadata()
    count = ClusterCount(brokers=tuple(sorted(metadata.brokers)))
    replicated = []
    for name, topic in sorted(metadata.topics.items()):
        if not matches(name):
            continue
        if topic.error_code != ErrorCode.NONE:
            count.skipped.append((name, f"the brokers answer {error_name(topic.error_code)}"))
            continue
        replicated += [
            Replicated(TopicPartition(name, number), in_order(state), tuple(state.isr), False)
            for number, state in sorted(topic.partitions.items())
        ]
    start_time = EARLIEST_TIMESTAMP if options.start_ms is None else options.start_ms
    # Concurrently, because each may wait for partitions without a leader.
    earliest, starts, ends = await asyncio.gather(
        *(
            start_offsets(client, replicated, time, PATIENCE_S)
            for time in (EARLIEST_TIMESTAMP, start_time, LATEST_TIMESTAMP)
        )
    )
    ranges = []
    for each in replicated:
        first, start, end = earliest[each.partition], starts[each.partition], ends[each.partition]
        if isinstance(first, KafkaError) or isinstance(start, KafkaError) or isinstance(end, KafkaError):
            error = next(found for found in (first, start, end) if isinstance(found, KafkaError))
            count.skipped.append((str(each.partition), f"its leader tells no offsets: {error_name(error.code)}"))
            continue
        is_cut = 0 < first == start
        count.partitions[each.partition] = PartitionCount(each.replicas, Counted(Windows(options.window_ms)), is_cut)
        brokers = tuple(replica for replica in each.replicas if replica in metadata.brokers)
        if start < end:
            ranges.append(OffsetRange(each.partition, brokers, start, end))
    return count, ranges


def cut(ranges: Iterable[OffsetRange], max_offsets: int) -> list[OffsetRange]:
    """The ranges in pieces of at most `max_offsets` offsets."""
    return [
        replace(each, start_offset=start, end_offset=min(start + max_offsets, each.end_offset))
        for each in ranges
        for start in range(each.start_offset, each.end_offset, max_offsets)
    ]


def pack(ranges: Iterable[OffsetRange], max_offsets: int) -> list[list[OffsetRange]]:
    """The ranges in tasks, in order. A task has one range, or several with at most `max_offsets` offsets together."""
    tasks: list[list[OffsetRange]] = []
    size = 0
    for each in ranges:
        if not tasks or size + each.size > max_offsets or len(tasks[-1]) == MAX_RANGES_PER_TASK:
            tasks.append([])
            size = 0
        tasks[-1].append(each)
        size += each.size
    return tasks


def _align(count: ClusterCount, max_windows: int) -> None:
    """Gives all partitions windows of the same width, which is large enough for the allowed number of windows."""
    count.widen(count.window_ms)
    while True:
        cells = sum(len(each.counted.windows.cells) for each in count.partitions.values())
        used = {number for each in count.partitions.values() for number in each.counted.windows.cells}
        if len(used) <= max_windows and cells <= MAX_CELLS:
            return
        every = Windows(count.window_ms, dict.fromkeys(used, NOTHING))
        every.limit(min(max_windows, len(used) - 1))
        count.widen(every.width_ms)


class _Candidate(NamedTuple):
    """A key that may be one of the hottest. The limits are computed at the end."""

    records: float
    partition: TopicPartition
    key: bytes
    summaries: list[Summary]


class _Sampled:
    """The keys with the most records. A partition's samples come one after another."""

    def __init__(self, hot_keys: int) -> None:
        self.records = 0
        self._wanted = hot_keys
        self._partition: TopicPartition | None = None
        self._summaries: list[Summary] = []
        self._hottest: list[_Candidate] = []

    def add(self, partition: TopicPartition, summary: Summary | None) -> None:
        if summary is None:
            return
        if partition != self._partition:
            self._finish()
            self._partition = partition
        self._summaries.append(summary)
        self.records += summary.sampled_records

    def hottest(self) -> list[HotKey]:
        self._finish()
        return [HotKey(each.partition, each.key, estimate(each.summaries, each.key)) for each in self._hottest]

    def _finish(self) -> None:
        partition, summaries, self._summaries = self._partition, self._summaries, []
        if partition is None:
            return
        found = [_Candidate(records, partition, key, summaries) for key, records in likely_records(summaries).items()]
        found = sorted([*self._hottest, *found], key=lambda each: (-each.records, each.partition, each.key))
        self._hottest = found[: self._wanted]


# -- on executors -----------------------------------------------------------------------------------------------------


def _count_task(client: ClientOptions, options: LoadOptions, task: Sequence[OffsetRange]) -> str:
    return base64.b64encode(pickle.dumps([_count_range(client, options, each) for each in task])).decode()


def _count_range(client: ClientOptions, options: LoadOptions, each: OffsetRange) -> tuple[Counted, Summary | None]:
    """Reads from the first broker. Where it fails, the next broker continues."""
    counter = RangeCounter(options)
    offset, reasons = each.start_offset, list[str]()
    for broker in each.brokers:
        try:
            for records, batches in read_batches(client, ReplicaLog(each.partition, broker), offset, each.end_offset):
                counter.add(records, batches)
                offset = batches[-1].last_offset + 1
            break
        except KafkaError as error:
            reasons.append(error.message or error_name(error.code))
        except ClientError as error:
            reasons.append(str(error))
        except Broken as error:
            reasons.append(f"{each.partition} on broker {broker}: {error}")
    else:
        counter.counted.failure = "; ".join([f"not read from offset {offset} on", *reasons])
    return counter.counted, counter.summary()


class RangeCounter:
    """Counts the batches of a range."""

    def __init__(self, options: LoadOptions) -> None:
        self.counted = Counted(Windows(options.window_ms))
        self._options = options
        self._sample = KeySample() if options.hot_keys else None

    def add(self, records: Buffer, batches: Sequence[Batch]) -> None:
        for batch in batches:
            if batch.is_corrupt:
                self.counted.corrupt_batches += 1
                continue
            header = parse_header(records, batch.position)
            if not self._is_wanted(header.max_timestamp):
                continue
            record_count = 0 if header.is_control else max(0, header.record_count)
            self.counted.add(header.max_timestamp, Traffic(1, record_count, header.size_bytes))
            if record_count and self._sample is not None:
                self._look_at_keys(self._sample, records, batch.position, header)
        self.counted.windows.limit(self._options.max_windows)

    @staticmethod
    def _look_at_keys(sample: KeySample, records: Buffer, position: int, header: BatchHeader) -> None:
        if not sample.wants(header.base_offset, header.crc, header.record_count):
            return
        # A batch that cannot be decompressed counts with its bytes, but is not in the sample.
        with suppress(KafkaError):
            keys = [record.key for record in decode_records(records, position, header)]
            sample.add(header.base_offset, header.crc, keys)

    def summary(self) -> Summary | None:
        return None if self._sample is None else self._sample.summary(max(MIN_KEYS_PER_RANGE, self._options.hot_keys))

    def _is_wanted(self, timestamp_ms: int) -> bool:
        start_ms, end_ms = self._options.start_ms, self._options.end_ms
        if timestamp_ms <= NO_TIMESTAMP:
            # A batch without a timestamp is not part of a chosen time.
            return start_ms is None and end_ms is None
        return (start_ms is None or timestamp_ms >= start_ms) and (end_ms is None or timestamp_ms < end_ms)
