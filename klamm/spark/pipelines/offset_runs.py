"""The new offsets of replayed records, as runs: records with consecutive old offsets and consecutive new offsets.

    offsets/<topic>/<partition>-<start>.parquet    the runs of one file of the archive

An old offset without a record (compaction, control records, aborted transactions, lost records) ends a run. So the
size grows with the number of gaps, not with the number of records.

What must stay true:
- The runs of a partition are in the order of their old offsets, which is also the order of their new offsets.
- An old offset without a record stands for the next record. After the last record it stands for the end of the replayed
  records.
"""

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from klamm.base.system_environment import SystemFileSystem

Offsets = npt.NDArray[np.int64]

_DIRECTORY = "offsets"
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("old_offset", pa.int64()),
        ("new_offset", pa.int64()),
        ("count", pa.int64()),
    ]
)
_NUMBERS = ("old_offset", "new_offset", "count")


class Runs(NamedTuple):
    """The runs of a partition: the first old offset of each run, its new offset, and the number of records."""

    old: Offsets
    new: Offsets
    counts: Offsets


def runs_of(old_offsets: Offsets, new_offset: int) -> Runs:
    """The runs of records with these old offsets, whose new offsets begin at `new_offset`."""
    places = np.arange(len(old_offsets), dtype=np.int64)
    return merged([Runs(old_offsets, new_offset + places, np.ones_like(places))])


def merged(parts: Iterable[Runs]) -> Runs:
    """The runs of several files of a partition, in order. Adjacent runs become one run."""
    old, new, count = (np.concatenate(each) for each in zip(_NO_RUNS, *parts, strict=True))
    if not len(old):
        return _NO_RUNS
    is_first = np.ones(len(old), bool)
    is_first[1:] = (old[1:] != old[:-1] + count[:-1]) | (new[1:] != new[:-1] + count[:-1])
    firsts = np.flatnonzero(is_first)
    return Runs(old[firsts], new[firsts], np.add.reduceat(count, firsts))


_NO_RUNS = Runs(*(np.zeros(0, np.int64) for _ in range(3)))


def translate(runs: Runs, offset: int) -> int:
    """The new offset of the first record at or after an old offset; after the last record, the end. `runs` is not
    empty."""
    place = int(np.searchsorted(runs.old + runs.counts, offset, side="right"))
    if place == len(runs.old):
        return int(runs.new[-1] + runs.counts[-1])
    return int(runs.new[place] + max(0, offset - runs.old[place]))


def offsets_file(output: str, topic: str, partition: int, start_offset: int) -> str:
    """The path of the runs of the archive's file that begins at `start_offset`."""
    return os.path.join(output, _DIRECTORY, topic, f"{partition:05}-{start_offset:020}.parquet")


def offsets_files(output: str) -> list[str]:
    """The paths of all files of runs."""
    directory = os.path.join(output, _DIRECTORY)
    return [
        os.path.join(directory, topic, name)
        for topic in _names(directory)
        for name in _names(os.path.join(directory, topic))
    ]


def write_runs(path: str, topic: str, partition: int, runs: Runs) -> None:
    """Writes the file. Returns when it is on disk. The file exists as a whole or not at all."""
    sink = pa.BufferOutputStream()
    encodings = dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED")
    pq.write_table(
        _table(topic, partition, runs),
        sink,
        compression="zstd",
        use_dictionary=["topic", "partition"],
        column_encoding=encodings,
    )
    disk = SystemFileSystem()
    disk.make_durable_directories(os.path.dirname(path))
    disk.replace_file(path, memoryview(sink.getvalue()))


def read_runs(output: str, topic: str, partition: int) -> Runs:
    """All recorded runs of a partition."""
    return dict(_partitions(output, topic, only=partition)).get(partition, _NO_RUNS)


def offset_map(output: str) -> pa.Table:
    """The new offsets: topic, partition, old_offset, new_offset, count. A row is a run of `count` records."""
    output = os.path.abspath(output)
    tables = [
        _table(topic, partition, runs)
        for topic in _names(os.path.join(output, _DIRECTORY))
        for partition, runs in _partitions(output, topic)
    ]
    return pa.concat_tables(tables) if tables else _SCHEMA.empty_table()


def _partitions(output: str, topic: str, only: int | None = None) -> Iterator[tuple[int, Runs]]:
    """The partitions of a topic in order, with their runs."""
    directory = os.path.join(output, _DIRECTORY, topic)
    files: dict[int, list[str]] = {}
    # The names are sorted: by partition, then by offset.
    for name in _names(directory):
        if name.endswith(".parquet"):
            files.setdefault(int(name.partition("-")[0]), []).append(os.path.join(directory, name))
    for partition, paths in files.items():
        if only in (None, partition):
            yield partition, merged(map(_read, paths))


def _names(directory: str) -> list[str]:
    """The files of a directory; empty until the first file is finished."""
    disk = SystemFileSystem()
    return disk.list_directory(directory) if disk.is_directory(directory) else []


def _read(path: str) -> Runs:
    table = pq.read_table(path, columns=list(_NUMBERS), partitioning=None)
    return Runs(*(table[name].to_numpy() for name in _NUMBERS))


def _table(topic: str, partition: int, runs: Runs) -> pa.Table:
    names = pa.repeat(pa.scalar(topic), len(runs.old))
    numbers = pa.repeat(pa.scalar(partition, pa.int32()), len(runs.old))
    return pa.table([names, numbers, *map(pa.array, runs)], schema=_SCHEMA)
