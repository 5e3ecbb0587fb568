"""What tests of pipelines share: Spark's part without Spark, and an archive compared with its topics."""

import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from klamm.spark.pipelines.archive import files
from support.spark.reading import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def one_process(slots: int = 16) -> "SparkSession":
    """As much of a session as `distribute` needs; tasks run in this process, the tasks of a job one by one."""
    return _OneProcess(slots)  # type: ignore[return-value]  # a session of Spark's own has a JVM


class _OneProcess:
    def __init__(self, slots: int) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=slots)

    def range(self, start: int, end: int, step: int, partitions: int) -> "_OneFrame":
        return _OneFrame([pa.record_batch({"id": [number]}) for number in range(start, end, step)])


class _OneFrame:
    def __init__(self, numbers: list[pa.RecordBatch]) -> None:
        self._numbers = numbers

    def mapInArrow(self, function: Any, schema: str) -> "_OneFrame":
        self._function = function
        return self

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(batch for number in self._numbers for batch in self._function(iter([number])))


def archived(directory: str, topic: str) -> list[tuple[Any, ...]]:
    """All rows of a topic in an archive, in the order of partitions and offsets."""
    return as_rows(row for file in files(directory, topic) for row in pq.read_table(file).to_pylist())


def as_rows(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows of an archive as `in_topic` has them."""
    return sorted(map(_row, rows), key=lambda row: row[:2])


def in_delta_table(directory: "os.PathLike[str]") -> list[tuple[Any, ...]]:
    """All rows of the archive's Delta table, in the same order; none when there is no table."""
    path = os.path.join(directory, "data")
    if not DeltaTable.is_deltatable(path):
        return []
    return as_rows(DeltaTable(path).to_pyarrow_table().to_pylist())


def elsewhere(work: Callable[[], object]) -> int:
    """Does the work in a process of its own, as deltalake wants it: where it has been used, no fork can use it."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = row["headers"] and [(header["key"], header["value"]) for header in row["headers"]]
    milliseconds = row["timestamp"].value // 1_000_000 if hasattr(row["timestamp"], "value") else _ms(row["timestamp"])
    return row["partition"], row["offset"], row["key"], row["value"], headers, milliseconds, row["timestampType"]


def _ms(timestamp: Any) -> int:
    milliseconds: int = round(timestamp.timestamp() * 1000)
    return milliseconds


def in_topic(cluster: Any, topic: str) -> list[tuple[Any, ...]]:
    """The same of what librdkafka reads from the topic, whose timestamp types are numbered from 1."""
    return sorted(_messages(cluster, topic), key=lambda row: row[:2])


def _messages(cluster: Any, topic: str) -> Iterator[tuple[Any, ...]]:
    for partition, messages in read(cluster, topic).items():
        for m in messages:
            kind, timestamp = m.timestamp()
            yield partition, m.offset(), m.key(), m.value(), m.headers(), timestamp, kind - 1
