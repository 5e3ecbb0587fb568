"""Replicas on Spark: verifies replicas on executors, and gives every replica's batches as a DataFrame.

Both fetch from each replica, like `klamm verify replicas`. A task verifies a range of one partition's offsets on all of
its replicas (`klamm.client.verification`), so no batch is shuffled. The driver merges the results of the ranges.

What must stay true:
- The ranges of a partition are cut at offsets, not at batches. A batch across a cut is compared in both ranges, and a
  difference in it counts once.
- A task holds the windows of one partition, or of one replica.
"""

import asyncio
import base64
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions
from klamm.client.threads import call
from klamm.client.verification.compare import Batch, Window, batches_of
from klamm.client.verification.fetcher import ReplicaFetcher
from klamm.client.verification.partition import PATIENCE_S, Failed, OutOfRange, PartitionCheck, merged
from klamm.client.verification.verifier import (
    Replicated,
    VerifyOptions,
    partitions_to_verify,
    start_offsets,
    verify_replicas,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import is_partial, parse_header
from klamm.protocol.vocabulary import LATEST_TIMESTAMP, TopicPartition
from klamm.spark.options import OptionError, read_options
from klamm.spark.pipelines.distribution import distribute
from klamm.spark.read.planning import initial_position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_OFFSETS_PER_TASK = 1_000_000
# How many ranges are verified between two reports of progress.
RANGES_AT_A_TIME = 64
FETCH_BYTES = 4 * 1024 * 1024
_PAUSE_S = 0.1

BATCH_COLUMNS = (
    "topic string, partition int, replica int, baseOffset bigint, lastOffset bigint, leaderEpoch int, checksum bigint,"
    " isCorrupt boolean, recordCount int, sizeBytes int, maxTimestamp timestamp"
)
_BATCHES = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("replica", pa.int32()),
        ("baseOffset", pa.int64()),
        ("lastOffset", pa.int64()),
        ("leaderEpoch", pa.int32()),
        ("checksum", pa.int64()),
        ("isCorrupt", pa.bool_()),
        ("recordCount", pa.int32()),
        ("sizeBytes", pa.int32()),
        ("maxTimestamp", pa.timestamp("us", tz="UTC")),
    ]
)


class ReplicaLog(NamedTuple):
    """One replica of a partition."""

    partition: TopicPartition
    replica: int


# -- the verification -------------------------------------------------------------------------------------------------


def verify(
    spark: "SparkSession",
    client: ClientOptions,
    partitions: Sequence[Replicated],
    options: VerifyOptions,
    *,
    offsets_per_task: int = DEFAULT_OFFSETS_PER_TASK,
    on_progress: Callable[[int, int], object] = lambda offsets_done, offsets_total: None,
) -> list[PartitionCheck]:
    """Verifies these partitions (`partitions_to_verify`) up to their current high watermarks."""
    ranges = call(client, partial(_ranges, partitions=partitions, options=options, offsets_per_task=offsets_per_task))
    total, done = sum(map(_size, ranges)), 0
    on_progress(0, total)
    found: dict[TopicPartition, list[PartitionCheck]] = {each.partition: [] for each in partitions}
    for first in range(0, len(ranges), RANGES_AT_A_TIME):
        part = ranges[first : first + RANGES_AT_A_TIME]
        for result in distribute(spark, part, partial(_verify_range, client, options)):
            check: PartitionCheck = pickle.loads(base64.b64decode(result))
            found[check.partition].append(check)
        done += sum(map(_size, part))
        on_progress(done, total)
    return [merged(checks) for checks in found.values()]


def _size(each: Replicated) -> int:
    return 0 if each.start_offset is None or each.end_offset is None else max(0, each.end_offset - each.start_offset)


async def _ranges(
    client: ClusterClient, *, partitions: Sequence[Replicated], options: VerifyOptions, offsets_per_task: int
) -> list[Replicated]:
    """Cuts the partitions into ranges. A partition is verified as a whole if its leader returns no offsets."""
    starts = await start_offsets(client, partitions, options.time, options.patience_s)
    ends = await start_offsets(client, partitions, LATEST_TIMESTAMP, options.patience_s)
    ranges = []
    for each in partitions:
        start, end = starts[each.partition], ends[each.partition]
        if isinstance(start, KafkaError) or isinstance(end, KafkaError) or end <= start:
            ranges.append(each)
            continue
        cuts = range(start, end, offsets_per_task)
        ranges += [replace(each, start_offset=cut, end_offset=min(cut + offsets_per_task, end)) for cut in cuts]
    return ranges


def _verify_range(client: ClientOptions, options: VerifyOptions, records: Replicated) -> str:
    """Verifies a range. Runs on executors."""

    async def run(client: ClusterClient) -> list[PartitionCheck]:
        await client.refresh_metadata([records.partition.topic])
        return await verify_replicas(client, [records], options)

    (check,) = call(client, run)
    return base64.b64encode(pickle.dumps(check)).decode()


# -- every replica's batches ------------------------------------------------------------------------------------------


def replica_batches(spark: "SparkSession", options: Mapping[str, str]) -> "DataFrame":
    """A row with `BATCH_COLUMNS` for each batch of each replica, up to the replica's high watermark.

    `options` are those of a batch query that name topics, and `kafka.*`. `checksum` is the stored checksum; `isCorrupt`
    says that the batch's bytes have another checksum. The replicas are the current ones, without replicas on brokers
    that are down.

    Raises OptionError, KafkaError, ClientError; a query fails when a replica does not answer.
    """
    read = read_options(options, streaming=False)
    client = read.fetch.client
    chosen = {partition for partition in initial_position(read).offsets}
    if not chosen:
        raise OptionError("the options select no partition")
    logs = call(client, partial(_logs, chosen=chosen))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_replica(client, logs[number])

    return spark.range(0, len(logs), 1, max(1, len(logs))).mapInArrow(run, BATCH_COLUMNS)


async def _logs(client: ClusterClient, *, chosen: set[TopicPartition]) -> list[ReplicaLog]:
    topics = {partition.topic for partition in chosen}
    planned = await partitions_to_verify(client, topics.__contains__)
    return [
        ReplicaLog(each.partition, replica)
        for each in planned.partitions
        if each.partition in chosen
        for replica in sorted(each.replicas)
        if replica in client.metadata.brokers
    ]


def read_replica(client: ClientOptions, log: ReplicaLog) -> Iterator[pa.RecordBatch]:
    """The batches of a replica up to its current high watermark. Runs on executors."""
    for records, batches in read_batches(client, log):
        yield pa.RecordBatch.from_pylist([_row(log, records, batch) for batch in batches], schema=_BATCHES)


def read_batches(
    client: ClientOptions, log: ReplicaLog, start_offset: int = 0, end_offset: int | None = None
) -> Iterator[tuple[Buffer, list[Batch]]]:
    """The records and batches of a replica whose last offset is in a range, or below the current high watermark.

    Raises Broken, and KafkaError when the replica does not answer, or its log ends before `end_offset`.
    """

    async def begin(client: ClusterClient) -> tuple[ClusterClient, ReplicaFetcher]:
        await client.refresh_metadata([log.partition.topic])
        own = client.another()
        return own, ReplicaFetcher(own, log.replica, PATIENCE_S)

    async def end(_: ClusterClient) -> None:
        fetcher.close()
        await own.close()

    own, fetcher = call(client, begin)
    try:
        offset, target = start_offset, end_offset
        while target is None or offset < target:
            wanted = partial(_window, fetcher=fetcher, partition=log.partition, offset=offset, end_offset=end_offset)
            window, offset = call(client, wanted)
            target = window.high_watermark if target is None else target
            if end_offset is not None and not window.records and offset < end_offset:
                what = f"{log.partition} on broker {log.replica}: its high watermark is {window.high_watermark}"
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{what}, before offset {end_offset}")
            if window.records and is_partial(window.records, 0):
                what = f"{log.partition} on broker {log.replica} has no whole batch in its answer from offset {offset}"
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, what)
            batches = list(_below(batches_of(window.records, offset), target))
            if not batches:
                return
            yield window.records, batches
            offset = batches[-1].last_offset + 1
    finally:
        call(client, end)


def _below(batches: Iterable[Batch], target: int) -> Iterator[Batch]:
    return takewhile(lambda batch: batch.last_offset < target, batches)


async def _window(
    _: ClusterClient, *, fetcher: ReplicaFetcher, partition: TopicPartition, offset: int, end_offset: int | None
) -> tuple[Window, int]:
    """A window of the replica, and the offset for which it was requested. Raises KafkaError.

    Waits for the high watermark to reach `end_offset`, because followers learn it after their leader.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + PATIENCE_S
    while True:
        answer = await fetcher.fetch(partition, offset, FETCH_BYTES, is_alone=True)
        is_awaited = end_offset is not None and offset < end_offset
        if isinstance(answer, Window) and (answer.records or (answer.high_watermark <= offset and not is_awaited)):
            return answer, offset
        if isinstance(answer, OutOfRange) and answer.log_start_offset > offset:
            offset = answer.log_start_offset
            continue
        if loop.time() >= deadline_s or (isinstance(answer, Failed) and answer.is_final):
            if isinstance(answer, Window):
                return answer, offset
            reason = answer.reason if isinstance(answer, Failed) else f"its log ends at offset {answer.log_end_offset}"
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{partition} on broker {fetcher.broker_id}: {reason}")
        await asyncio.sleep(_PAUSE_S)


def _row(log: ReplicaLog, records: Buffer, batch: Batch) -> dict[str, Any]:
    header = parse_header(records, batch.position)
    return {
        "topic": log.partition.topic,
        "partition": log.partition.partition,
        "replica": log.replica,
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "leaderEpoch": batch.leader_epoch,
        "checksum": batch.crc,
        "isCorrupt": batch.is_corrupt,
        "recordCount": header.record_count,
        "sizeBytes": batch.size_bytes,
        "maxTimestamp": _microseconds(header.max_timestamp),
    }


def _microseconds(timestamp_ms: int) -> int | None:
    """The timestamp in microseconds; None for a batch without a timestamp, and for one that the column cannot hold."""
    return 1000 * timestamp_ms if 0 <= timestamp_ms <= (2**63 - 1) // 1000 else None
