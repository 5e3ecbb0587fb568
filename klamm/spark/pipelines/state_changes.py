"""The state-change logs of a fleet as a DataFrame: one row for each entry, and Parquet files sorted by time.

A task reads a part of a file; a gzipped file is one part. The executors must see the files under the same paths.

What must stay true: an entry is in the part in which it begins, so each entry is a row exactly once.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from klamm.base.system_environment import SystemFileSystem
from klamm.spark.options import OptionError
from klamm.state_changes.entries import EARLIEST, END_OF_TIME, first_partition, names, parse
from klamm.state_changes.files import StateChangeFile
from klamm.state_changes.merging import Wanted, entries_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PART_BYTES = 64 * 1024 * 1024
ROWS_PER_BATCH = 10_000
_BLOCK_BYTES = 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"

SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us")),
        ("file", pa.string()),
        ("sequence", pa.int64()),
        ("level", pa.string()),
        ("broker", pa.int32()),
        ("is_controller", pa.bool_()),
        ("controller_epoch", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("leader", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("isr", pa.list_(pa.int32())),
        ("replica", pa.int32()),
        ("from_state", pa.string()),
        ("to_state", pa.string()),
        ("text", pa.string()),
        ("lost", pa.string()),
    ]
)
_SPARK_TYPES = {
    pa.timestamp("us"): "timestamp_ntz",
    pa.string(): "string",
    pa.int64(): "long",
    pa.int32(): "int",
    pa.bool_(): "boolean",
    pa.list_(pa.int32()): "array<int>",
}
_DDL = ", ".join(f"`{field.name}` {_SPARK_TYPES[field.type]}" for field in SCHEMA)


class Part(NamedTuple):
    """The entries of a file that begin between two positions; `end` is None for a whole gzipped file."""

    path: str
    begin: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Written:
    """How many entries were written, and a line about each part of a file that could not be read."""

    entries: int
    lost: list[str]


def write_history(
    spark: "SparkSession",
    paths: Sequence[str],
    output: str,
    *,
    topic: str | None = None,
    partitions: Sequence[int] = (),
    start: bytes = EARLIEST,
    end: bytes = END_OF_TIME,
) -> Written:
    """Writes the entries of all files to Parquet files in `output`, in the order of time.

    Raises OptionError when `output` exists, OSError, and Spark's errors.
    """
    if os.path.exists(output):
        raise OptionError(f"{output} exists already")
    rows = history(spark, paths, topic=topic, partitions=partitions, start=start, end=end).cache()
    try:
        found = rows.where("lost is null").drop("lost").sort("time", "file", "sequence")
        found.write.parquet(os.path.abspath(output))
        lost = [row["lost"] for row in rows.where("lost is not null").select("lost").distinct().sort("lost").collect()]
        return Written(found.count(), lost)
    finally:
        rows.unpersist()


def history(
    spark: "SparkSession",
    paths: Sequence[str],
    *,
    topic: str | None = None,
    partitions: Sequence[int] = (),
    start: bytes = EARLIEST,
    end: bytes = END_OF_TIME,
) -> "DataFrame":
    """The entries of all files, a row each, in no order. `sequence` ascends in a file. A row with `lost` has no entry:
    it says which part of a file could not be read. Raises OSError when a file cannot be opened."""
    parts = plan(paths)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Compiled here, because workers use the pattern.
        selects = None if topic is None else names(topic, partitions)
        wanted = Wanted(selects, (topic or "").encode(), start, end)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_part(parts[number], wanted)

    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(run, _DDL)


def plan(paths: Sequence[str], part_bytes: int = PART_BYTES) -> list[Part]:
    """The parts of all files."""
    parts = []
    for path in map(os.path.abspath, paths):
        file = SystemFileSystem().open_to_read(path)
        try:
            size, is_gzipped = file.size(), file.read(0, len(_GZIP_MAGIC)) == _GZIP_MAGIC
        finally:
            file.close()
        if is_gzipped:
            parts.append(Part(path, 0, None))
        else:
            parts += [Part(path, begin, min(begin + part_bytes, size)) for begin in range(0, size, part_bytes)]
    return parts


def read_part(part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The rows of a part."""
    lost: list[str] = []
    file = StateChangeFile(
        SystemFileSystem(), part.path, lost.append, block_bytes=_BLOCK_BYTES, begin=part.begin, end=part.end
    )
    rows: list[dict[str, Any]] = []
    for number, entry in enumerate(entries_of(file, wanted)):
        # An entry has at least one byte, so numbers from the part's first byte on ascend through the file.
        rows.append({**_row(entry), "file": part.path, "sequence": part.begin + number})
        if len(rows) == ROWS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(rows, SCHEMA)
            rows = []
    rows += [{"file": part.path, "lost": text} for text in lost]
    if rows:
        yield pa.RecordBatch.from_pylist(rows, SCHEMA)


def _row(entry: bytes) -> dict[str, Any]:
    said = parse(entry)
    named = first_partition(entry)
    return {
        **said._asdict(),
        "time": _moment(said.time),
        "topic": named[0] if named else None,
        "partition": named[1] if named else None,
    }


def _moment(text: str) -> datetime | None:
    """The time of a text; None for digits that are not a time."""
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f")
    except ValueError:
        return None
