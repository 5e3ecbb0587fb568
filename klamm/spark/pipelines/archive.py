"""Archives topics as Parquet files, exactly once: each record is in the archive once, however often a run dies.

The offsets of a partition are cut at multiples of `offsets_per_file`. Executors write each range to a file whose name
has its offsets. The driver commits several ranges at a time (`commit_log.py`). After a restart, a program continues
where the last commit ended, and takes over files that were finished but not committed.

A row has all columns of the data source, including headers and leader epochs. Records that retention removes before
they are archived are missing in the files. The log names their offsets.

What must stay true:
- A file has its name only when it is complete and on disk; it is never replaced, because it may have been committed.
- In an object store several programs may archive at once. One of them commits, and the others continue after the
  commit.
- A file itself names the lost offsets of its range, so that a later run that takes over the file knows them too.
- A task has the same effect on any executor and any number of times: a task may outlive its driver.
- A topic that was deleted and created again has another id, and counts as another topic.

All executors must see the directory under the same path, or reach the object store (`klamm.spark.files`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, TopicPartition
from klamm.spark import schema
from klamm.spark.files import Files, files_at
from klamm.spark.options import Bound, Limit, OptionError, ReadOptions, read_options
from klamm.spark.pipelines.commit_log import DATA, ArchivedRange, CommitLog, OvertakenError, adding_to, parse_range
from klamm.spark.pipelines.delta import check_deltalake
from klamm.spark.pipelines.delta import publish as publish_delta
from klamm.spark.pipelines.distribution import distribute_in_rounds
from klamm.spark.pipelines.iceberg import IcebergTable
from klamm.spark.pipelines.snapshots import take_snapshot
from klamm.spark.read.partition_reader import Loss, read_range
from klamm.spark.read.planning import Position, initial_position, latest_position
from klamm.spark.settings import DataLoss, FetchOptions, PartitionRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = schema.ALL_COLUMNS
DEFAULT_OFFSETS_PER_FILE = 1_000_000

# The size of a row group before compression. A whole row group is in memory.
ROW_GROUP_BYTES = 64 * 1024 * 1024

_LOST = b"klamm.lost"
# The result of a task whose file was removed before the task could return its name.
_GONE = "gone"
# Measured: dictionaries of keys and values cost time and save little space, because zstd follows.
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
    iceberg: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> Archived:
    """Adds the topics' current records that the archive does not have yet.

    `directory` is a path, or the URL of a prefix in an object store with `storage_options` (`files_at`). `options` are
    those of a batch query: subscribe, subscribePattern or assign; startingOffsets for partitions that the archive lacks
    (default earliest); failOnDataLoss; kafka.*, with kafka.isolation.level=read_committed by default. A run ends at the
    current ends of the topics. It commits `ranges_per_commit` at a time, by default several for each task that the
    cluster can run at the same time.

    With `delta` the archive's directory `data` becomes a Delta table, or an existing table gets the missing records.
    With `iceberg` the same holds for the Iceberg table of this name, CATALOG.NAMESPACE.TABLE.

    Raises OptionError, ArchiveError, FilesError, DataLoss when records were removed before they were archived (with
    failOnDataLoss=false the archive notes which), KafkaError and ClientError when the cluster does not answer, and
    Spark's errors when a task fails.
    """
    if offsets_per_file < 1:
        raise OptionError(f"offsets_per_file is {offsets_per_file}; allowed: 1 and more")
    given = {name.lower(): value for name, value in options.items()}
    parsed = read_options({"kafka.isolation.level": "read_committed", **given}, streaming=False)
    publishers: list[Callable[[CommitLog], None]] = []
    if delta:
        check_deltalake()
        publishers.append(publish_delta)
    if iceberg is not None:
        publishers.append(IcebergTable(iceberg).publish)
    place = files_at(directory, storage_options)
    added: list[ArchivedRange] = []
    with adding_to(place) as opened:
        log = opened
        while True:
            try:
                _add(spark, log, parsed, offsets_per_file, ranges_per_commit, publishers, on_progress, added)
                break
            except OvertakenError:
                present = CommitLog(place)
                if present.next_number == log.next_number:
                    raise
                # Another program adds at the same time. This program continues after the other's commit.
                log = present
        log.remove_leftovers()
    return Archived(
        sum(each.rows for each in added),
        sum(each.file is not None for each in added),
        sum(each.size_bytes for each in added),
        sum(each.lost_offsets for each in added),
    )


def _add(
    spark: "SparkSession",
    log: CommitLog,
    options: ReadOptions,
    offsets_per_file: int,
    ranges_per_commit: int | None,
    publishers: Sequence[Callable[[CommitLog], None]],
    on_progress: Callable[[Progress], object],
    added: list[ArchivedRange],
) -> None:
    """Archives the current records after the log's end. Appends the committed ranges to `added`."""
    for publish in publishers:
        publish(log)
    snapshot = take_snapshot(options)
    first = initial_position(options)
    earliest = initial_position(replace(options, starting=Limit(Bound.OFFSETS, all=EARLIEST_TIMESTAMP)))
    last = latest_position(options, Position(log.ends_of(first.topic_ids), first.topic_ids, {}))
    ranges = plan(log, options, first, earliest, last, offsets_per_file)
    log.commit_snapshot(snapshot)
    total, done = sum(each.end_offset - each.start_offset for each in ranges), 0
    on_progress(Progress(0, total))
    write = partial(write_range, log.files, options.fetch)
    for results in distribute_in_rounds(spark, ranges, write, _size, round_size=ranges_per_commit):
        if _GONE in results:
            raise OvertakenError(f"{log.files.place}: a file was removed before the log could name it")
        written = [parse_range(json.loads(result)) for result in results]
        log.commit(written)
        added += written
        for publish in publishers:
            publish(log)
        done += sum(each.end_offset - each.start_offset for each in written)
        on_progress(Progress(done, total))


def _size(records: ArchivedRange) -> int:
    return records.end_offset - records.start_offset


def files(directory: str, topic: str | None = None, *, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """The absolute paths, or the URLs, of all files of an archive, or of the files of a topic."""
    log = CommitLog(files_at(directory, storage_options))
    return [log.files.address(file) for file in _files_of(log, topic)]


def read(
    spark: "SparkSession",
    directory: str,
    topic: str | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    storage_options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """The records of an archive, or of a topic in it, with these columns. An object store needs no jar.

    Reads the current files of the archive, each in a task.
    """
    unknown = [column for column in columns if column not in COLUMNS]
    if unknown:
        raise OptionError(f"column {unknown[0]} is unknown; allowed: {', '.join(COLUMNS)}")
    log = CommitLog(files_at(directory, storage_options))
    place, paths = log.files, _files_of(log, topic)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from pq.ParquetFile(place.open(paths[number])).iter_batches(columns=list(columns))

    from pyspark.sql.pandas.types import from_arrow_schema

    numbers = spark.range(0, len(paths), 1, max(1, len(paths)))
    return numbers.mapInArrow(run, from_arrow_schema(schema.schema(columns)))


def _files_of(log: CommitLog, topic: str | None) -> list[str]:
    return [each.file for each in log.ranges if each.file is not None and topic in (None, each.topic)]


def plan(
    log: CommitLog, options: ReadOptions, first: Position, earliest: Position, last: Position, offsets_per_file: int
) -> list[ArchivedRange]:
    """The ranges to archive, without files: from the archive's ends, or `first`, to `last`.

    `earliest` are the log start offsets. Reading finds out which offsets before them are lost.
    """
    archived_to = log.ends_of(last.topic_ids)
    ranges: list[ArchivedRange] = []
    for partition, end in sorted(last.offsets.items()):
        topic_id = last.topic_ids.get(partition.topic)
        if topic_id is None:
            raise OptionError(f"the cluster tells no id of topic {partition.topic}; archives need Kafka 2.8 or later")
        # The next run archives a topic that was created a moment ago.
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
    """Cuts at the same offsets in every run, so that files that an earlier run finished can be taken over.

    Removed records before `begin` are not a range of their own.
    """
    ranges = []
    while start < end:
        stop = min(end, (max(start, begin) // offsets_per_file + 1) * offsets_per_file)
        ranges.append(ArchivedRange(*partition[:1], topic_id, partition.partition, start, stop, 0, 0, None))
        start = stop
    return ranges


def write_range(files: Files, fetch: FetchOptions, records: ArchivedRange) -> str:
    """Writes the file of a range, unless it exists. Returns the range with its file, as JSON. Runs on executors.

    Returns _GONE when another program, which has committed these offsets, has removed the file.
    """
    stem = f"{DATA}/{records.topic_id}/{_stem(fetch, records)}"
    file = files.find(stem)
    if file is None:
        lost, has_file = _write_file(files, stem, fetch, records)
        if not has_file:
            return json.dumps({**asdict(records), "lost": lost})
        file = files.find(stem)
        if file is None:
            return _GONE
    try:
        # The file itself names its lost offsets.
        footer = pq.read_metadata(files.open(file))
        size_bytes = files.status(file).size_bytes
    except FileNotFoundError:
        return _GONE
    lost = json.loads(footer.metadata[_LOST])
    found = replace(records, rows=footer.num_rows, size_bytes=size_bytes, file=file)
    return json.dumps({**asdict(found), "lost": lost})


def _stem(fetch: FetchOptions, records: ArchivedRange) -> str:
    """The name of a file. It includes how the records were read, so that a run never takes over files of records that
    were read in another way."""
    name = f"{records.partition:05}-{records.start_offset:020}-{records.end_offset:020}"
    ways = ("" if fetch.read_committed else "-uncommitted") + ("" if fetch.fail_on_data_loss else "-lossy")
    return name + ways


def _write_file(
    files: Files, stem: str, fetch: FetchOptions, records: ArchivedRange
) -> tuple[list[tuple[int, int]], bool]:
    """Writes a file with the records of a range, or no file without records. Returns the lost offsets, and whether it
    wrote a file."""
    wanted = PartitionRange(
        records.topic, records.partition, records.start_offset, records.end_offset, records.topic_id
    )
    losses: list[Loss] = []
    groups = _row_groups(read_range(fetch, wanted, COLUMNS, losses.append))
    first = next(groups, None)
    if first is None:
        return _offsets(losses), False
    is_of_another_topic = False

    def fill(sink: Any) -> bool:
        nonlocal is_of_another_topic
        with pq.ParquetWriter(sink, schema.schema(COLUMNS), **_PARQUET) as writer:
            writer.write_table(first)
            for group in groups:
                writer.write_table(group)
            writer.add_key_value_metadata({_LOST: json.dumps(_offsets(losses))})
        # The records may belong to another topic with this name.
        is_of_another_topic = any(
            loss.start_offset <= wanted.start_offset and loss.end_offset == wanted.end_offset for loss in losses
        )
        return not is_of_another_topic

    files.write(stem, fill)
    if is_of_another_topic:
        return [(wanted.start_offset, wanted.end_offset)], False
    return _offsets(losses), True


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
