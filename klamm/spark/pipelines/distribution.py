"""Spreads a pipeline's work over Spark's executors: one task for each piece of work, also with Spark Connect.

What must stay true: a piece of work may be done twice, also at the same time, because Spark repeats tasks and a task
may outlive its driver. So functions must be idempotent.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


def distribute(spark: "SparkSession", work: "Sequence[T]", do: "Callable[[T], str]") -> list[str]:
    """The results of `do`, in the order of the work. Raises Spark's error for a failed task."""
    if not work:
        return []

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.record_batch({"number": [number], "result": [do(work[number])]})

    frame = spark.range(0, len(work), 1, len(work)).mapInArrow(run, "number long, result string")
    table = frame.toArrow()
    results = dict(zip(table["number"].to_pylist(), table["result"].to_pylist(), strict=True))
    return [results[number] for number in range(len(work))]
