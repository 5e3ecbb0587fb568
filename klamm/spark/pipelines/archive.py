"""Topics to Parquet files, exactly once: every record that a topic had is in the archive once, however often it dies.

The offsets of a partition are cut at multiples of `offsets_per_file`. Executors write the ranges, each to a file whose
name says which records it has; the driver commits them (`commit_log.py`), some at a time. A program that begins again
goes on where the last commit ended, and takes over files that were finished but not committed.

A row has all columns of the data source, headers among them. The leader epochs of batches are not kept: the reader has
no column for them.

What must stay true:
- A file has its name only when it is complete and on disk; it is never replaced, because it may have been committed.
- What a task does is the same whoever does it and however often: a task may outlive its driver.
- A topic that was deleted and created again is another topic: it has another id.

All executors must see the directory under the same path, and its file system must have hard links.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from klamm.environment import SystemFileSystem
from klamm.spark import schema
from klamm.spark.options import OptionError, ReadOptions, TopicPartition, read_options
from klamm.spark.partition_reader import read_range
from klamm.spark.pipelines.commit_log import ArchivedRange, CommitLog, data_file, locked
from klamm.spark.pipelines.distribution import distribute
from klamm.spark.pipelines.snapshots import take_snapshot
from klamm.spark.planning import Position, initial_position, latest_position
from klamm.spark.settings import DataLoss, FetchOptions, PartitionRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = schema.columns(include_headers=True)
DEFAULT_OFFSETS_PER_FILE = 1_000_000
# How many ranges are written between two commits.
RANGES_PER_COMMIT = 16


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come, in offsets, of which some may have no record."""

    offsets_done: int
    offsets_total: int


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run has added."""

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
    ranges_per_commit: int = RANGES_PER_COMMIT,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> Archived:
    """Adds to the archive what the topics have now and the archive does not have yet.

    `options` are those of a batch query: subscribe, subscribePattern or assign; where a partition begins that is not in
    the archive yet (startingOffsets, earliest by default); failOnDataLoss; kafka.*, of which kafka.isolation.level is
    read_committed unless it is given. A run ends at the present ends of the topics.

    Raises OptionError, ArchiveError, DataLoss when records were removed before they were archived (with
    failOnDataLoss=false the archive says which), KafkaError and ClientError when the cluster does not answer, and
    Spark's errors when a task fails.
    """
    if offsets_per_file < 1:
        raise OptionError(f"offsets_per_file is {offsets_per_file}; allowed: 1 and more")
    given = {name.lower(): value for name, value in options.items()}
    parsed = read_options({"kafka.isolation.level": "read_committed", **given}, streaming=False)
    directory = os.path.abspath(directory)
    with locked(directory) as log:
        snapshot = take_snapshot(parsed)
        begin = initial_position(parsed)
        last = latest_position(parsed, Position(log.ends_of(begin.topic_ids), begin.topic_ids, {}))
        ranges = plan(log, parsed, begin, last, offsets_per_file)
        log.commit_snapshot(snapshot)
        total, done = sum(each.end_offset - each.start_offset for each in ranges), 0
        on_progress(Progress(0, total))
        added: list[ArchivedRange] = []
        for first in range(0, len(ranges), ranges_per_commit):
            part = ranges[first : first + ranges_per_commit]
            results = distribute(spark, part, partial(write_range, directory, parsed.fetch))
            written = [ArchivedRange(**json.loads(result)) for result in results]
            log.commit(written)
            added += written
            done += sum(each.end_offset - each.start_offset for each in written)
            on_progress(Progress(done, total))
        log.remove_leftovers()
    return Archived(
        sum(each.rows for each in added),
        sum(each.file is not None for each in added),
        sum(each.size_bytes for each in added),
        sum(each.start_offset - each.lost_from for each in added if each.lost_from is not None),
    )


def files(directory: str, topic: str | None = None) -> list[str]:
    """The absolute paths of all files of an archive, or of a topic's: for `spark.read.parquet(*files(...))`."""
    log = CommitLog(os.path.abspath(directory))
    chosen = (each for each in log.ranges if topic in (None, each.topic))
    return [os.path.join(log.directory, each.file) for each in chosen if each.file is not None]


def plan(
    log: CommitLog, options: ReadOptions, first: Position, last: Position, offsets_per_file: int
) -> list[ArchivedRange]:
    """What is to be archived, as ranges without files: from the archive's ends, or `first`, to `last`."""
    archived_to = log.ends_of(last.topic_ids)
    ranges: list[ArchivedRange] = []
    for partition, end in sorted(last.offsets.items()):
        topic_id = last.topic_ids.get(partition.topic)
        if topic_id is None:
            raise OptionError(f"the cluster tells no id of topic {partition.topic}; archives need Kafka 2.8 or later")
        # A topic that was created a moment ago is archived by the next run.
        if partition not in first.offsets or first.topic_ids.get(partition.topic) != topic_id:
            continue
        begin = first.offsets[partition]
        archived = archived_to.get(partition, begin)
        if options.fail_on_data_loss:
            _check_no_loss(partition, archived, begin, end)
        lost_from = archived if archived < begin else None
        start = max(begin, archived)
        ranges += _cut(partition, topic_id, start, end, lost_from, offsets_per_file)
    return ranges


def _check_no_loss(partition: TopicPartition, archived: int, begin: int, end: int) -> None:
    if archived < begin:
        raise DataLoss(
            f"{partition}: the offsets from {archived} to {begin - 1} were removed before they were archived;"
            " with failOnDataLoss=false the archive goes on behind them, and says so"
        )
    if archived > end:
        raise DataLoss(
            f"{partition} ends at offset {end}, but was archived to {archived}; with failOnDataLoss=false the archive"
            " goes on when the partition has come further than that"
        )


def _cut(
    partition: TopicPartition, topic_id: str, start: int, end: int, lost_from: int | None, offsets_per_file: int
) -> list[ArchivedRange]:
    """The same cuts in every run, so that files which an earlier run finished can be taken over."""
    ranges = []
    while start < end:
        stop = min(end, (start // offsets_per_file + 1) * offsets_per_file)
        ranges.append(ArchivedRange(*partition[:1], topic_id, partition.partition, start, stop, 0, 0, None, lost_from))
        start, lost_from = stop, None
    return ranges


def write_range(directory: str, fetch: FetchOptions, records: ArchivedRange) -> str:
    """Writes the file of a range, unless it is there; returns the range with its file, as JSON. Runs on executors."""
    file = data_file(records.topic_id, _file_name(fetch, records))
    path = os.path.join(directory, file)
    if not os.path.exists(path):
        _write_file(path, fetch, records)
    if not os.path.exists(path):
        return json.dumps(asdict(records))
    rows = pq.read_metadata(path).num_rows
    return json.dumps(asdict(replace(records, rows=rows, size_bytes=os.path.getsize(path), file=file)))


def _file_name(fetch: FetchOptions, records: ArchivedRange) -> str:
    """What another way of reading left behind is not taken over: the name says how the records were read."""
    name = f"{records.partition:05}-{records.start_offset:020}-{records.end_offset:020}"
    ways = ("" if fetch.read_committed else "-uncommitted") + ("" if fetch.fail_on_data_loss else "-lossy")
    return f"{name}{ways}.parquet"


def _write_file(path: str, fetch: FetchOptions, records: ArchivedRange) -> None:
    """Writes the records of a range; no file when it has none."""
    disk = SystemFileSystem()
    disk.make_durable_directories(os.path.dirname(path))
    # No two attempts write to the same file, not even on two machines.
    temporary = f"{path}.{os.uname().nodename}-{os.getpid()}.tmp"
    wanted = PartitionRange(
        records.topic, records.partition, records.start_offset, records.end_offset, records.topic_id
    )
    batches = read_range(fetch, wanted, COLUMNS)
    first = next(batches, None)
    if first is None:
        return
    with pq.ParquetWriter(temporary, schema.schema(COLUMNS), compression="zstd") as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    written = disk.open(temporary)
    written.sync()
    written.close()
    with suppress(FileExistsError):
        os.link(temporary, path)
    disk.remove(temporary)
    disk.sync_directory(os.path.dirname(path))
