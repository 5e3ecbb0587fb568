"""Archives topics as Parquet files, exactly once: each record is in the archive once, however often a run dies.

The offsets of a partition are cut at multiples of `offsets_per_file`. Executors write the ranges, each to a file whose
name gives its offsets; the driver commits several at a time (`commit_log.py`). A program that begins again
continues where the last commit ended, and takes over files that were finished but not committed.

A row has all columns of the data source, headers and leader epochs among them. Records that retention removes before
they are archived are missing in the files; the log names their offsets.

What must stay true:
- A file has its name only when it is complete and on disk; it is never replaced, because it may have been committed.
- A file itself names the lost offsets of its range, so a later run that takes over the file knows them too.
- A task has the same effect on any executor and any number of times: a task may outlive its driver.
- A topic that was deleted and created again is another topic: it has another id.

All executors must see the directory under the same path, and its file system must have hard links.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from klamm.environment import SystemFileSystem
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, TopicPartition
from klamm.spark import schema
from klamm.spark.options import Bound, Limit, OptionError, ReadOptions, read_options
from klamm.spark.pipelines.commit_log import ArchivedRange, CommitLog, data_file, locked, parse_range
from klamm.spark.pipelines.delta import check_deltalake, publish
from klamm.spark.pipelines.distribution import distribute_in_rounds
from klamm.spark.pipelines.snapshots import take_snapshot
from klamm.spark.read.partition_reader import Loss, read_range
from klamm.spark.read.planning import Position, initial_position, latest_position
from klamm.spark.settings import DataLoss, FetchOptions, PartitionRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = schema.ALL_COLUMNS
DEFAULT_OFFSETS_PER_FILE = 1_000_000

# The size of a row group before compression; a row group is in memory as a whole.
ROW_GROUP_BYTES = 64 * 1024 * 1024

_LOST = b"klamm.lost"
# Measured: dictionaries of keys and values cost more time than they save in space, because zstd follows.
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["topic", "partition", "timestampType", "leaderEpoch", "headers.list.element.key"],
    "column_encoding": dict.fromkeys(("offset", "timestamp"), "DELTA_BINARY_PACKED"),
    "write_statistics": ["topic", "partition", "offset", "timestamp"],
}


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run in offsets, some of which may have no record."""

    offsets_done: int
    offsets_total: int


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of a run: the additions to the archive."""

    records: int
    files: int
    size_bytes: int
    lost_offsets: int


def archive(
    spark: "SparkSession",
    directory: str,
    options: Mapping[str, str],
    *,
    offsets_per_file: int = DEFAULT_OFFSETS_PER_FILE,
    ranges_per_commit: int | None = None,
    delta: bool = False,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> Archived:
    """Adds to the archive the topics' present records that it does not have yet.

    `options` are those of a batch query: subscribe, subscribePattern or assign; the beginning of partitions that the
    archive lacks (startingOffsets, earliest by default); failOnDataLoss; kafka.*, of which kafka.isolation.level is
    read_committed unless it is given. A run ends at the present ends of the topics. It commits `ranges_per_commit` at a
    time, by default several for each task that the cluster runs at the same time. With `delta` the archive's
    directory `data` becomes a Delta table, or catches up when it is one.

    Raises OptionError, ArchiveError, DataLoss when records were removed before they were archived (with
    failOnDataLoss=false the archive says which), KafkaError and ClientError when the cluster does not answer, and
    Spark's errors when a task fails.
    """
    if offsets_per_file < 1:
        raise OptionError(f"offsets_per_file is {offsets_per_file}; allowed: 1 and more")
    given = {name.lower(): value for name, value in options.items()}
    parsed = read_options({"kafka.isolation.level": "read_committed", **given}, streaming=False)
    if delta:
        check_deltalake()
    directory = os.path.abspath(directory)
    with locked(directory) as log:
        if delta:
            publish(log)
        snapshot = take_snapshot(parsed)
        first = initial_position(parsed)
        earliest = initial_position(replace(parsed, starting=Limit(Bound.OFFSETS, all=EARLIEST_TIMESTAMP)))
        last = latest_position(parsed, Position(log.ends_of(first.topic_ids), first.topic_ids, {}))
        ranges = plan(log, parsed, first, earliest, last, offsets_per_file)
        log.commit_snapshot(snapshot)
        total, done = sum(each.end_offset - each.start_offset for each in ranges), 0
        on_progress(Progress(0, total))
        added: list[ArchivedRange] = []
        write = partial(write_range, directory, parsed.fetch)
        for results in distribute_in_rounds(spark, ranges, write, _size, round_size=ranges_per_commit):
            written = [parse_range(json.loads(result)) for result in results]
            log.commit(written)
            if delta:
                publish(log)
            added += written
            done += sum(each.end_offset - each.start_offset for each in written)
            on_progress(Progress(done, total))
        log.remove_leftovers()
    return Archived(
        sum(each.rows for each in added),
        sum(each.file is not None for each in added),
        sum(each.size_bytes for each in added),
        sum(each.lost_offsets for each in added),
    )


def _size(records: ArchivedRange) -> int:
    return records.end_offset - records.start_offset


def files(directory: str, topic: str | None = None) -> list[str]:
    """The absolute paths of all files of an archive, or of a topic's: for `spark.read.parquet(*files(...))`."""
    log = CommitLog(os.path.abspath(directory))
    chosen = (each for each in log.ranges if topic in (None, each.topic))
    return [os.path.join(log.directory, each.file) for each in chosen if each.file is not None]


def plan(
    log: CommitLog, options: ReadOptions, first: Position, earliest: Position, last: Position, offsets_per_file: int
) -> list[ArchivedRange]:
    """The ranges to archive, without files: from the archive's ends, or `first`, to `last`.

    `earliest` are the first offsets of the logs; reading finds out which offsets before them are lost.
    """
    archived_to = log.ends_of(last.topic_ids)
    ranges: list[ArchivedRange] = []
    for partition, end in sorted(last.offsets.items()):
        topic_id = last.topic_ids.get(partition.topic)
        if topic_id is None:
            raise OptionError(f"the cluster tells no id of topic {partition.topic}; archives need Kafka 2.8 or later")
        # A topic that was created a moment ago is archived by the next run.
        if not all(
            partition in seen.offsets and seen.topic_ids.get(partition.topic) == topic_id for seen in (first, earliest)
        ):
            continue
        start, begin = archived_to.get(partition, first.offsets[partition]), earliest.offsets[partition]
        if options.fail_on_data_loss:
            _check_no_loss(partition, start, begin, end)
        ranges += _cut(partition, topic_id, start, begin, end, offsets_per_file)
    return ranges


def _check_no_loss(partition: TopicPartition, start: int, begin: int, end: int) -> None:
    if start < begin:
        raise DataLoss(
            f"{partition}: the offsets from {start} to {begin - 1} were removed before they were archived;"
            " with failOnDataLoss=false the archive continues behind them and reports the loss"
        )
    if start > end:
        raise DataLoss(
            f"{partition} ends at offset {end}, but the archive continues at {start}; with failOnDataLoss=false it"
            " waits until the partition has come further than that"
        )


def _cut(
    partition: TopicPartition, topic_id: str, start: int, begin: int, end: int, offsets_per_file: int
) -> list[ArchivedRange]:
    """The same cuts in every run, so that files which an earlier run finished can be taken over.

    Removed records before `begin` are not a range of their own.
    """
    ranges = []
    while start < end:
        stop = min(end, (max(start, begin) // offsets_per_file + 1) * offsets_per_file)
        ranges.append(ArchivedRange(*partition[:1], topic_id, partition.partition, start, stop, 0, 0, None))
        start = stop
    return ranges


def write_range(directory: str, fetch: FetchOptions, records: ArchivedRange) -> str:
    """Writes the file of a range, unless it is there; returns the range with its file, as JSON. Runs on executors."""
    file = data_file(records.topic_id, _file_name(fetch, records))
    path = os.path.join(directory, file)
    lost = [] if os.path.exists(path) else _write_file(path, fetch, records)
    if not os.path.exists(path):
        return json.dumps({**asdict(records), "lost": lost})
    # The task that named the file may have died since, so this task does the rest.
    SystemFileSystem().sync_directory(os.path.dirname(path))
    # The file itself names its lost offsets.
    footer = pq.read_metadata(path)
    lost = json.loads(footer.metadata[_LOST])
    found = replace(records, rows=footer.num_rows, size_bytes=os.path.getsize(path), file=file)
    return json.dumps({**asdict(found), "lost": lost})


def _file_name(fetch: FetchOptions, records: ArchivedRange) -> str:
    """The name of a file; it names how the records were read, so a run never takes over files read in another way."""
    name = f"{records.partition:05}-{records.start_offset:020}-{records.end_offset:020}"
    ways = ("" if fetch.read_committed else "-uncommitted") + ("" if fetch.fail_on_data_loss else "-lossy")
    return f"{name}{ways}.parquet"


def _write_file(path: str, fetch: FetchOptions, records: ArchivedRange) -> list[tuple[int, int]]:
    """Writes the records of a range, or no file when it has none. Returns the lost offsets."""
    disk = SystemFileSystem()
    disk.make_durable_directories(os.path.dirname(path))
    # No two attempts write to the same file, not even on two machines.
    temporary = f"{path}.{os.uname().nodename}-{os.getpid()}.tmp"
    wanted = PartitionRange(
        records.topic, records.partition, records.start_offset, records.end_offset, records.topic_id
    )
    losses: list[Loss] = []
    groups = _row_groups(read_range(fetch, wanted, COLUMNS, losses.append))
    first = next(groups, None)
    if first is None:
        return _offsets(losses)
    with pq.ParquetWriter(temporary, schema.schema(COLUMNS), **_PARQUET) as writer:
        writer.write_table(first)
        for group in groups:
            writer.write_table(group)
        writer.add_key_value_metadata({_LOST: json.dumps(_offsets(losses))})
    if any(loss.start_offset <= wanted.start_offset and loss.end_offset == wanted.end_offset for loss in losses):
        # Perhaps these are the records of another topic of this name.
        disk.remove(temporary)
        return [(wanted.start_offset, wanted.end_offset)]
    written = disk.open(temporary)
    written.sync()
    written.close()
    with suppress(FileExistsError):
        os.link(temporary, path)
    disk.remove(temporary)
    return _offsets(losses)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        gathered.append(batch)
        if sum(each.nbytes for each in gathered) >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered = []
    if gathered:
        yield pa.Table.from_batches(gathered)


def _offsets(losses: Sequence[Loss]) -> list[tuple[int, int]]:
    return [(loss.start_offset, loss.end_offset) for loss in losses]
