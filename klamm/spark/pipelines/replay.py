"""Writes an archive back into topics, with the same partitions, order, headers and timestamps, and new offsets.

The output directory has the new offsets, and lets another run finish a replay that died:

    plan.json                                      the plan, written before the first record
    offsets/<topic>/<partition>-<start>.parquet    for each file of the archive: runs of old offsets and the new ones
    lock                                           held by the one program that replays

A partition gets the files of the archive one after another, so the new offset of every record is known beforehand. An
attempt that finds records where its file should begin compares them with the file and writes the rest.

What must stay true:
- No other program writes to the partitions meanwhile. A task that finds records of another program fails.
- To the brokers all attempts are the same producer: a plan has one producer id, and the sequence number of a record is
  its index in its partition. So two concurrent attempts, or one that outlived its driver, write no record twice:
  brokers refuse one of them (OUT_OF_ORDER_SEQUENCE_NUMBER). This holds as long as brokers know the producer: for
  `producer.id.expiration.ms` after its last record in a partition. An attempt that begins later still writes nothing
  twice, because it compares. Only an older attempt that is still alive then could write a record twice.
- A file of offsets exists only when all in-sync replicas have the file's records, at those offsets.
- With the topic's message.timestamp.type=LogAppendTime, brokers set their own timestamps.
- At most one row group of Parquet is in memory, to be written or compared.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from klamm.base.system_environment import SystemEnvironment, SystemFileSystem
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import OffsetAndMetadata, alter_consumer_group_offsets, list_offsets
from klamm.client.fan_out import checked
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.batches import Identity
from klamm.client.producer.sender import Sender
from klamm.client.threads import call
from klamm.net.client import ClientError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.record_batch import advance_sequence
from klamm.protocol.vocabulary import CONSUMER_REPLICA_ID, DEBUGGING_REPLICA_ID, LATEST_TIMESTAMP, TopicPartition
from klamm.spark.files import Files, files_at
from klamm.spark.options import OptionError, WriteOptions, write_options
from klamm.spark.pipelines.commit_log import ArchivedRange, ArchiveError, CommitLog, Snapshot, TopicSnapshot
from klamm.spark.pipelines.distribution import distribute
from klamm.spark.pipelines.offset_runs import (
    Runs,
    offsets_file,
    offsets_files,
    read_runs,
    runs_of,
    translate,
    write_runs,
)
from klamm.spark.pipelines.replay_topics import (
    Span,
    Warn,
    expiration_of_producers,
    expiration_warning,
    prepare_topic,
)
from klamm.spark.read.partition_reader import read_range
from klamm.spark.settings import FetchOptions, PartitionRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

WRITTEN_COLUMNS = ("key", "value", "headers", "timestamp", "partition")
# The compared columns; a broker may have changed the timestamps.
COMPARED_COLUMNS = ("key", "value", "headers")
# The bytes of files that a partition gets between two reports of progress, or one larger file. After these, partitions
# wait for each other, so that the remaining partitions share the rate.
ROUND_BYTES = 256 * 1024 * 1024
_ROWS_PER_BATCH = 10_000
# How long the end of a partition must stay unchanged before it counts, because a dead task may have left requests in
# flight; and the longest wait for this.
_QUIET_S = 1.0
_SETTLE_TIMEOUT_S = 60.0
_BACKOFF_S = 0.2
_COMMIT_TIMEOUT_MS = 30_000


class ReplayError(Exception):
    """A topic has changed since the replay wrote to it; the message names the place."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a replay."""

    records_done: int
    records_total: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay.

    `groups` has the committed offsets, `{group: {topic: {partition: offset}}}`. `refused` has the reason for each group
    without a commit.
    """

    records: int
    groups: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A file of the archive, whose records go to a partition of `topic`, from `new_offset` on.

    `place` is the number of the archive's earlier records in the partition.
    """

    file: str
    topic: str
    partition: int
    new_offset: int
    place: int
    rows: int
    size_bytes: int
    offsets_file: str


def replay(
    spark: "SparkSession",
    directory: str,
    output: str,
    options: Mapping[str, str],
    *,
    topics: Mapping[str, str] | None = None,
    max_records_per_second: int | None = None,
    commit_groups: bool = False,
    storage_options: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    on_warning: Callable[[str], object] = logger.warning,
) -> Replayed:
    """Writes the records of an archive to topics. After a replay has died, the same call finishes it.

    - `directory`: a path, or the URL of a prefix in an object store, with its `storage_options` (`files_at`).
    - `output`: a directory for the new offsets. All executors must see it and the archive.
    - `options`: `kafka.*`, as for the sink.
    - `topics`: archived topics, and the names of the topics to write; by default all, under their own names. A missing
      topic is created with the archived configs and number of partitions, as far as the brokers can
      (`replay_topics.py`). If a topic was deleted and created again, only the last one is written.
    - `max_records_per_second`: for all partitions together. Each partition with remaining files gets an equal share,
      also if Spark has fewer cores than partitions.
    - `commit_groups`: translates and commits the groups' offsets of the archive's last snapshot.
    - `on_warning`: called with each difference from the archived state, and with each problem that a user should know.

    Raises OptionError, ArchiveError, ReplayError, KafkaError, ClientError, and Spark's errors when a task fails.
    """
    if max_records_per_second is not None and max_records_per_second < 1:
        raise OptionError(f"max_records_per_second is {max_records_per_second}; allowed: 1 and more")
    if "://" in output:
        raise OptionError(f"output is {output}; it must be a directory, also when the archive is in an object store")
    writing = write_options({name: value for name, value in options.items() if name.lower() != "topic"})
    if not writing.producer.enable_idempotence:
        raise OptionError("a replay writes each record once, which needs kafka.acks=all, kafka.enable.idempotence=true")
    output = os.path.abspath(output)
    log = CommitLog(files_at(directory, storage_options))
    with _locked(output):
        plan = _load_plan(output)
        if plan is None:
            plan = _make_plan(writing.producer, log, output, topics, on_warning)
        elif topics is not None and dict(topics) != plan["topics"]:
            raise OptionError(f"{output} belongs to a replay of other topics: {plan['topics']}")
        else:
            _warn_of_rest(writing.producer.client, output, on_warning)
        pieces = _pieces(log, plan, output)
        total, done = sum(piece.rows for of_partition in pieces for piece in of_partition), 0
        on_progress(Progress(0, total))
        for part in _rounds(pieces):
            share = None if max_records_per_second is None else max_records_per_second / len(part)
            distribute(spark, part, partial(_replay_files, log.files, writing, plan["producer"], share), _size)
            done += sum(piece.rows for found in part for piece in found)
            on_progress(Progress(done, total))
        groups, refused = (
            _commit_groups(writing.producer.client, log, output, plan, on_warning) if commit_groups else ({}, {})
        )
    return Replayed(total, groups, refused)


@contextmanager
def _locked(output: str) -> Iterator[None]:
    """Locks the output directory, which is created if missing. Raises ReplayError when another program has the lock."""
    disk = SystemFileSystem()
    disk.make_durable_directories(output)
    try:
        lock = disk.lock(os.path.join(output, "lock"))
    except BlockingIOError:
        raise ReplayError(f"another program replays to {output} at this moment") from None
    try:
        yield
    finally:
        lock.close()


def _warn_of_rest(client: ClientOptions, output: str, on_warning: Warn) -> None:
    """Warns when the brokers may have forgotten the producer since the last attempt's latest file."""
    disk = SystemFileSystem()
    files = [os.path.join(output, "plan.json"), *offsets_files(output)]
    idle_ms = SystemEnvironment().now_ms() - max(map(disk.modified_time_ms, files))
    warning = expiration_warning(idle_ms, call(client, expiration_of_producers))
    if warning is not None:
        on_warning(warning)


# -- the plan ---------------------------------------------------------------------------------------------------------


def _load_plan(output: str) -> dict[str, Any] | None:
    path, disk = os.path.join(output, "plan.json"), SystemFileSystem()
    if not disk.exists(path):
        return None
    try:
        plan = json.loads(disk.read_file(path))
        begins = {topic: {int(number): begin for number, begin in of.items()} for topic, of in plan["begins"].items()}
        producer = Identity(*map(int, plan["producer"]))
        return {
            "topics": dict(plan["topics"]),
            "ranges": int(plan["ranges"]),
            "begins": begins,
            "producer": producer,
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArchiveError(f"{path} is no plan of a replay: {error!r}") from None


def _make_plan(
    options: ProducerOptions, log: CommitLog, output: str, topics: Mapping[str, str] | None, on_warning: Warn
) -> dict[str, Any]:
    """Creates missing topics, checks that all topics accept the records, and stores the plan."""
    archived = _newest(log.ranges)
    chosen = {name: name for name in archived} if topics is None else dict(topics)
    missing = [name for name in chosen if name not in archived]
    if missing:
        raise OptionError(f"the archive has no topic {missing[0]}; it has {', '.join(archived) or 'none'}")
    if len(set(chosen.values())) < len(chosen):
        raise OptionError(f"two topics cannot be replayed into one: {chosen}")
    known = (log.snapshot or Snapshot()).topics
    begins = {}
    for name, target in chosen.items():
        numbers = sorted({each.partition for each in archived[name]})
        topic = known.get(name) or TopicSnapshot("", numbers[-1] + 1, {})
        span = partial(_span, log.files, [each.file for each in archived[name] if each.file])
        prepared = partial(
            prepare_topic, target=target, topic=topic, span=span, now_ms=SystemEnvironment().now_ms(), warn=on_warning
        )
        count = call(options.client, prepared)
        if count and count <= numbers[-1]:
            raise OptionError(
                f"topic {target} has {count} partitions; the archive has records of partition {numbers[-1]}"
            )
        # Groups may have committed offsets of partitions without a record, too.
        every = sorted({*numbers, *range(min(count, topic.partitions))})
        begins[target] = call(options.client, partial(_begins, target=target, numbers=every))
    producer = call(options.client, lambda client: Sender(client, options).init_producer_id())
    plan = {"topics": chosen, "ranges": len(log.ranges), "begins": begins, "producer": producer}
    SystemFileSystem().replace_file(os.path.join(output, "plan.json"), json.dumps(plan).encode())
    return plan


async def _begins(client: ClusterClient, *, target: str, numbers: Sequence[int]) -> dict[int, int]:
    ends = await _log_ends(client, [TopicPartition(target, number) for number in numbers], DEBUGGING_REPLICA_ID)
    return {partition.partition: end for partition, end in ends.items()}


def _span(files: Files, paths: Sequence[str]) -> Span | None:
    """The timestamps of the records in these files, from the statistics of their row groups."""
    oldest_us, youngest_us = list[int](), list[int]()
    for path in paths:
        file = pq.ParquetFile(files.open(path))
        column = file.schema_arrow.get_field_index("timestamp")
        for number in range(file.num_row_groups):
            statistics = file.metadata.row_group(number).column(column).statistics
            first, last = statistics.min_raw, statistics.max_raw
            if first < 0:
                # Without a timestamp in the records, there are no statistics.
                times = file.read_row_group(number, ["timestamp"])["timestamp"].cast(pa.int64())
                first = pc.min(times.filter(pc.greater_equal(times, 0))).as_py()
            if first is not None:
                oldest_us.append(first)
                youngest_us.append(last)
    return Span(min(oldest_us) // 1000, max(youngest_us) // 1000) if oldest_us else None


def _newest(ranges: Iterable[ArchivedRange]) -> dict[str, list[ArchivedRange]]:
    """The ranges of each topic, for its last id only."""
    found: dict[str, list[ArchivedRange]] = {}
    for each in ranges:
        of_topic = found.setdefault(each.topic, [])
        if of_topic and of_topic[-1].topic_id != each.topic_id:
            of_topic.clear()
        of_topic.append(each)
    return found


def _pieces(log: CommitLog, plan: Mapping[str, Any], output: str) -> list[list[_Piece]]:
    """The files of each partition, in order."""
    archived = _newest(log.ranges[: plan["ranges"]])
    pieces = []
    for name, target in plan["topics"].items():
        for number, begin in plan["begins"][target].items():
            of_partition: list[_Piece] = []
            place = 0
            for each in archived[name]:
                if each.partition == number and each.file is not None:
                    offsets = offsets_file(output, target, number, each.start_offset)
                    of_partition.append(
                        _Piece(each.file, target, number, begin + place, place, each.rows, each.size_bytes, offsets)
                    )
                    place += each.rows
            pieces.append(of_partition)
    return pieces


def _rounds(pieces: Sequence[Sequence[_Piece]]) -> Iterator[list[list[_Piece]]]:
    """Rounds of files: in each round about ROUND_BYTES of every partition with remaining files."""
    left = [list(of_partition) for of_partition in pieces]
    while left := [of_partition for of_partition in left if of_partition]:
        part = []
        for number, of_partition in enumerate(left):
            sizes = accumulate(piece.size_bytes for piece in of_partition)
            count = max(1, sum(size <= ROUND_BYTES for size in sizes))
            part.append(of_partition[:count])
            left[number] = of_partition[count:]
        yield part


def _size(part: Sequence[_Piece]) -> int:
    return sum(piece.size_bytes for piece in part)


# -- on executors -----------------------------------------------------------------------------------------------------


def _replay_files(
    files: Files,
    options: WriteOptions,
    producer: Identity,
    records_per_second: float | None,
    pieces: Sequence[_Piece],
) -> str:
    """Writes the records of files that are not in the topic yet. Then writes the file of offsets for each."""
    client = options.producer.client
    for piece in pieces:
        if os.path.exists(piece.offsets_file):
            continue
        source = files.open(piece.file)
        done = call(client, partial(_end, piece=piece)) - piece.new_offset
        if done:
            _check_same(client, piece, source, done)
        if done < piece.rows:
            _write_rows(options, producer, records_per_second, piece, source, done)
        _write_offsets(piece, pq.read_table(source, columns=["offset"], partitioning=None)["offset"].combine_chunks())
    return ""


def _batches(source: Any, skip: int, columns: Sequence[str] = WRITTEN_COLUMNS) -> Iterator[pa.RecordBatch]:
    """The rows of a file after the first `skip` rows."""
    file = pq.ParquetFile(source)
    for group in range(file.num_row_groups):
        # By default a batch of pyarrow may have rows of many row groups, however large these are.
        for batch in file.iter_batches(_ROWS_PER_BATCH, row_groups=[group], columns=list(columns)):
            left = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - left.num_rows
            if left.num_rows:
                yield left


def _write_rows(
    options: WriteOptions,
    producer: Identity,
    records_per_second: float | None,
    piece: _Piece,
    source: Any,
    done: int,
) -> None:
    """Writes the records of a file after the first `done` records."""
    # This import loads compiled code and its libraries.
    from klamm.spark.write.writing import Continued, record_writer

    client = options.producer.client
    sequences = {(piece.topic, piece.partition): advance_sequence(0, piece.place + done)}
    continued = Continued(producer, sequences)
    with record_writer(WriteOptions(piece.topic, options.producer), continued=continued) as writer:
        began = call(client, _now)
        written = 0
        for batch in _batches(source, done):
            step = batch.num_rows if records_per_second is None else max(1, int(records_per_second / 10))
            for start in range(0, batch.num_rows, step):
                part = batch.slice(start, step)
                writer.write(part)
                if records_per_second is not None:
                    writer.flush()
                    written += part.num_rows
                    call(client, partial(_sleep_until, time=began + written / records_per_second))
        writer.flush()
        end = writer.end_offset(piece.topic, piece.partition)
        if end != piece.new_offset + piece.rows:
            raise ReplayError(
                f"{piece.topic}-{piece.partition} ends at offset {end}, and not at {piece.new_offset + piece.rows}:"
                " another program writes to it"
            )


def _check_same(client: ClientOptions, piece: _Piece, source: Any, done: int) -> None:
    """Raises ReplayError unless the partition has the first `done` records of the file at their offsets."""
    what = f"{piece.topic}-{piece.partition} from offset {piece.new_offset} on"
    if not 0 <= done <= piece.rows:
        raise ReplayError(f"{what}: {done} records are there, of {piece.rows} that belong there")
    wanted = PartitionRange(piece.topic, piece.partition, piece.new_offset, piece.new_offset + done)
    batches = _batches(source, 0, COMPARED_COLUMNS)
    belongs = next(batches)
    for found in read_range(FetchOptions(client), wanted, COMPARED_COLUMNS):
        rest = found
        while rest.num_rows:
            belongs = belongs if belongs.num_rows else next(batches)
            count = min(rest.num_rows, belongs.num_rows)
            if not rest.slice(0, count).equals(belongs.slice(0, count)):
                raise ReplayError(
                    f"{what} there are other records than those of the archive: another program writes to it"
                )
            rest, belongs, done = rest.slice(count), belongs.slice(count), done - count
    if done:
        raise ReplayError(f"{what} there are fewer records than offsets")


def _write_offsets(piece: _Piece, offsets: pa.Array) -> None:
    write_runs(piece.offsets_file, piece.topic, piece.partition, runs_of(offsets.to_numpy(), piece.new_offset))


# -- requests to brokers ----------------------------------------------------------------------------------------------


async def _end(client: ClusterClient, *, piece: _Piece) -> int:
    """The end of a partition once all in-sync replicas have reached it. If the file was begun, the end must also have
    settled."""
    began, quiet_since, last = await _now(client), 0.0, -1
    while True:
        end = await _log_end(client, piece.topic, piece.partition, DEBUGGING_REPLICA_ID)
        committed = await _log_end(client, piece.topic, piece.partition, CONSUMER_REPLICA_ID)
        now = await _now(client)
        if end != last:
            quiet_since, last = now, end
        if end == committed and (end == piece.new_offset or now - quiet_since >= _QUIET_S):
            return end
        if now - began >= _SETTLE_TIMEOUT_S:
            raise ReplayError(
                f"{piece.topic}-{piece.partition} ends at offset {end}, all in-sync replicas have it to {committed},"
                f" and has not settled for {_SETTLE_TIMEOUT_S:g} s: another program writes to it, or a replica lags"
            )
        await asyncio.sleep(_BACKOFF_S)


async def _log_end(client: ClusterClient, topic: str, number: int, replica_id: int) -> int:
    partition = TopicPartition(topic, number)
    return (await _log_ends(client, [partition], replica_id))[partition]


async def _log_ends(
    client: ClusterClient, partitions: Sequence[TopicPartition], replica_id: int
) -> dict[TopicPartition, int]:
    """The high watermarks for the replica id of a consumer; the leaders' log end offsets for that of a debugging
    consumer."""
    results = await list_offsets(
        client,
        dict.fromkeys(partitions, LATEST_TIMESTAMP),
        replica_id=replica_id,
        missing_timeout_ms=client.retry.deadline_ms,
    )
    return {partition: checked(results[partition]).offset for partition in partitions}


async def _now(client: ClusterClient) -> float:
    return asyncio.get_running_loop().time()


async def _sleep_until(client: ClusterClient, *, time: float) -> None:
    await asyncio.sleep(max(0.0, time - asyncio.get_running_loop().time()))


# -- groups -----------------------------------------------------------------------------------------------------------


def _commit_groups(
    client: ClientOptions, log: CommitLog, output: str, plan: Mapping[str, Any], on_warning: Warn
) -> tuple[dict[str, dict[str, dict[int, int]]], dict[str, str]]:
    """Commits the offsets of the archive's groups. Returns the offsets by group, and the reasons for refused groups."""
    committed: dict[str, dict[str, dict[int, int]]] = {}
    refused: dict[str, str] = {}
    snapshot = log.snapshot or Snapshot()
    topics = dict(plan["topics"])
    for name, ranges in _newest(log.ranges[: plan["ranges"]]).items():
        # The archive may have grown since the plan was made.
        if name in topics and name in snapshot.topics and snapshot.topics[name].topic_id != ranges[0].topic_id:
            on_warning(f"the offsets of groups are not translated for topic {name}, which was created again since")
            del topics[name]
    runs_of_partition = cache(partial(read_runs, output))
    for group, archived in snapshot.groups.items():
        translated = _translated(runs_of_partition, topics, plan["begins"], archived)
        if not translated:
            continue
        try:
            _commit(client, group, translated)
            committed[group] = translated
        except (KafkaError, ClientError) as error:
            refused[group] = str(error)
    return committed, refused


def _translated(
    runs_of_partition: Callable[[str, int], Runs],
    topics: Mapping[str, str],
    begins: Mapping[str, Mapping[int, int]],
    committed: Mapping[str, Mapping[int, int]],
) -> dict[str, dict[int, int]]:
    """A group's archived offsets as offsets of the replayed topics. Without replayed records, the partition's begin."""
    found: dict[str, dict[int, int]] = {}
    for name, target in topics.items():
        for number, offset in committed.get(name, {}).items():
            runs = runs_of_partition(target, number)
            if len(runs.old):
                found.setdefault(target, {})[number] = translate(runs, offset)
            elif number in begins[target]:
                found.setdefault(target, {})[number] = begins[target][number]
    return found


def _commit(options: ClientOptions, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
    """Commits for a group without members. Raises KafkaError and ClientError."""
    flat = {
        TopicPartition(topic, number): OffsetAndMetadata(offset)
        for topic, of in offsets.items()
        for number, offset in of.items()
    }

    async def commit(client: ClusterClient) -> None:
        retry = replace(client.retry, deadline_ms=_COMMIT_TIMEOUT_MS)
        for result in (await alter_consumer_group_offsets(client, group, flat, retry=retry)).values():
            checked(result)

    call(options, commit)
