"""Batch queries: the driver plans the ranges once (`planning.py`), and each task reads one, or several
small ones (`task_reader.py`).

What must stay true:
- Planning imports neither pyarrow nor numba.
- A reader is picklable, and `read` changes nothing in it: Spark may run a partition twice.
- PySpark uses a worker process for many tasks. The process is ready for the next task soon after a task has ended.
- `KlammReader` takes no filters (it has no `pushFilters`). PySpark 4.3 would keep the plan of the last condition for
  all uses of a frame, so a frame that is used again would lack rows.
"""

import gc
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from klamm.spark.options import ReadOptions
from klamm.spark.pyspark_versions import arrow_schema
from klamm.spark.read.planning import in_tasks, plan_batch
from klamm.spark.readable_errors import sentences_first
from klamm.spark.sql_types import check_columns

if TYPE_CHECKING:
    import pyarrow as pa


@sentences_first
class KlammReader(DataSourceReader):
    """Reads ranges of offsets, several small ones in one task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_columns(schema, options.typed)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(ranges) for ranges in in_tasks(plan_batch(self._options), self._options)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._schema, partition)


def read_partition(options: ReadOptions, schema: StructType, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """The rows of a task in a worker, in the form that Spark expects. For an empty plan PySpark passes a partition
    without a value, or None (4.0, 4.1)."""
    if partition is None or partition.value is None:
        return
    import pyarrow as pa

    from klamm.spark.read.task_reader import read_apart, read_ranges

    wanted = arrow_schema(schema)
    if options.typed is not None:
        from klamm.spark.read.typed import RowDecoder

        decoder = RowDecoder(options.typed, wanted)
        for records, batch in read_apart(options.fetch, partition.value, decoder.columns):
            yield from decoder.rows([batch], f"{records.topic}-{records.partition}")
        return
    for batch in read_ranges(options.fetch, partition.value, schema.fieldNames()):
        yield batch if batch.schema == wanted else pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
    _spare_loaded_modules()


@cache
def _spare_loaded_modules() -> None:
    """Excludes objects that exist after a process's first range from garbage collections.

    PySpark's worker collects all garbage after each task, before it takes the next task. A walk over every object of
    pyarrow, numba and PySpark takes longer than reading a small range.
    """
    gc.freeze()
