"""Batch queries: what is read is planned once (`planning.py`), and each task reads a range (`partition_reader.py`).

What must stay true:
- Planning imports nothing that decodes: no pyarrow, no numba.
- A reader is picklable, and `read` changes nothing in it: Spark may run a partition twice.
- `KlammReader` has no `pushFilters`: PySpark refuses every read of a reader that has one, unless
  spark.sql.python.filterPushdown.enabled is set. Only the option pushFilters=true chooses the reader that has one.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from klamm.spark.options import OptionError, ReadOptions
from klamm.spark.planning import Narrowing, plan_batch
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


class FilteringReader(KlammReader):
    """Leaves out what the filters on topic, partition, offset and timestamp exclude; Spark applies them all again."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._narrowing = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing = narrowing_of(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(records) for records in plan_batch(self._options, self._narrowing)]


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
        # Spark would believe it, and answer `key IS NULL` without reading.
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

    from klamm.spark.partition_reader import read_range

    wanted = to_arrow_schema(schema, timezone="UTC")
    for batch in read_range(options.fetch, partition.value, schema.fieldNames()):
        yield batch if batch.schema == wanted else pa.RecordBatch.from_arrays(batch.columns, schema=wanted)


def narrowing_of(filters: Iterable[Filter]) -> Narrowing:
    """What filters, all of which hold, say about topics, partitions, offsets and the earliest timestamp."""
    topics: list[frozenset[str]] = []
    partitions: list[frozenset[int]] = []
    first, last, since = [0], [2**63 - 1], [0]
    for pushed in filters:
        column, value = _column_and_value(pushed)
        match column, pushed:
            case "topic", EqualTo() | In():
                topics.append(frozenset(_values(pushed)))
            case "partition", EqualTo() | In():
                partitions.append(frozenset(_values(pushed)))
            case "offset", EqualTo():
                first.append(value)
                last.append(value)
            case "offset", GreaterThan():
                first.append(value + 1)
            case "offset", GreaterThanOrEqual():
                first.append(value)
            case "offset", LessThan():
                last.append(value - 1)
            case "offset", LessThanOrEqual():
                last.append(value)
            case "timestamp", EqualTo() | GreaterThan() | GreaterThanOrEqual() if _can_be_looked_up(value):
                since.append(int(value.timestamp() * 1000) - 1)
    return Narrowing(
        frozenset.intersection(*topics) if topics else None,
        frozenset.intersection(*partitions) if partitions else None,
        max(first),
        min(last) if len(last) > 1 else None,
        max(since) if len(since) > 1 else None,
    )


def _column_and_value(pushed: Filter) -> tuple[str | None, Any]:
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    value = getattr(pushed, "value", None)
    return (path[0] if len(path) == 1 and value is not None else None), value


def _values(pushed: EqualTo | In) -> tuple[Any, ...]:
    return pushed.value if isinstance(pushed, In) else (pushed.value,)


def _can_be_looked_up(value: Any) -> bool:
    """Brokers look for no time before 1970, and records without a timestamp seem to be older."""
    return isinstance(value, datetime) and value.tzinfo is not None and value.timestamp() >= 0
