"""Batch queries: the driver plans the ranges once (`planning.py`), and each task reads one (`partition_reader.py`).

What must stay true:
- Planning imports nothing that decodes: no pyarrow, no numba.
- A reader is picklable, and `read` changes nothing in it: Spark may run a partition twice.
- `KlammReader` takes no filters (it has no `pushFilters`): PySpark 4.3 keeps the plan of the last condition for all
  uses of a frame, so a frame that is used again would lack rows.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from klamm.spark.options import OptionError, ReadOptions
from klamm.spark.read.planning import plan_batch
from klamm.spark.schema import HEADERS
from klamm.spark.source import TYPES

if TYPE_CHECKING:
    import pyarrow as pa


class KlammReader(DataSourceReader):
    """Reads a range of offsets of each partition in a task of its own."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(records) for records in plan_batch(self._options)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(self._options, self._schema, partition)


def check_columns(schema: StructType) -> None:
    """Raises OptionError for a schema that is not made of the source's columns and their types."""
    allowed = ", ".join(f"{name} {data_type.simpleString()}" for name, data_type in TYPES.items())
    for field in schema.fields:
        expected = TYPES.get(field.name)
        if expected is None:
            raise OptionError(f"the schema has a column {field.name}; allowed: {allowed}")
        if field.dataType != expected:
            raise OptionError(
                f"the schema has {field.name} {field.dataType.simpleString()}; allowed: {allowed}."
                " Cast the column after reading"
            )
        # Spark would trust NOT NULL, and answer `key IS NULL` without reading.
        if not field.nullable and field.name in ("key", "value", HEADERS):
            raise OptionError(f"the schema has {field.name} NOT NULL, but a record may have none; allowed: {allowed}")
        if schema.names.count(field.name) > 1:
            raise OptionError(f"the schema has the column {field.name} twice; allowed: {allowed}")
    if not schema.fields:
        raise OptionError(f"the schema has no column; allowed: {allowed}")


def read_partition(options: ReadOptions, schema: StructType, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """The rows of a range in a worker, exactly as Spark wants them. PySpark makes an empty plan one None."""
    if partition.value is None:
        return
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from klamm.spark.read.partition_reader import read_range

    wanted = to_arrow_schema(schema, timezone="UTC")
    for batch in read_range(options.fetch, partition.value, schema.fieldNames()):
        yield batch if batch.schema == wanted else pa.RecordBatch.from_arrays(batch.columns, schema=wanted)
