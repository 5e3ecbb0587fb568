"""The sink of the data source: rows of a batch or of a micro-batch become records.

The columns are those of Spark's Kafka connector: `value` (required) and `key`, each string or binary; `topic` (string),
unless the option `topic` names one for all; `partition` (int) and `headers` (array of key and value), both optional.
Other columns are ignored. The timestamp is the time of writing. With `value.format` or `key.format` the column is what
the format writes, a struct as a rule (`typed.py`).

What must stay true:
- A task succeeds only when all in-sync replicas have every one of its records.
- At least once: Spark repeats a failed task, and a micro-batch whose success it does not know; records of the failed
  attempt stay in the topic. Within one attempt no row is written twice, and a partition keeps the order of the
  attempt's rows, whatever happens to brokers meanwhile (`producer.py`).
- Nothing heavy is imported before the first record is written: Spark makes the writers for the driver.

Source: org.apache.spark.sql.kafka010.KafkaWriter, KafkaRowWriter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from klamm.spark.errors import sentences_first
from klamm.spark.options import OptionError, WriteOptions
from klamm.spark.pyspark_versions import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.spark.write.typed import TypedColumns

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_ALLOWED: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The commit message of a task."""

    records: int


@sentences_first
class KlammWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Raises OptionError when `schema` lacks a column, or a column has a wrong type."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options, self._columns = _prepared(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return _write(self._options, self._columns, iterator)


@sentences_first
class KlammStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Like `KlammWriter`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options, self._columns = _prepared(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return _write(self._options, self._columns, iterator)


def _prepared(options: WriteOptions, schema: StructType) -> tuple[WriteOptions, list[str]]:
    """The options, with the formats of typed columns as the rows have them, and the columns that become records."""
    names = _columns(options, schema)
    if options.typed is None:
        return options, names
    # It imports pyarrow, and the libraries of formats.
    from klamm.spark.write.typed import checked

    return replace(options, typed=checked(options.typed, schema, options.topic)), names


def _columns(options: WriteOptions, schema: StructType) -> list[str]:
    typed = () if options.typed is None else tuple(column.column for column in options.typed.formats)
    names = [name for name in _ALLOWED if name in schema.names and not (name == "topic" and options.topic is not None)]
    if "value" not in names:
        raise OptionError(f"the column value is required; the columns are {', '.join(schema.names)}")
    if options.topic is None and "topic" not in names:
        raise OptionError("the option topic is required where there is no column topic")
    for name in (name for name in names if name not in typed):
        found, allowed = schema[name].dataType, _ALLOWED[name]
        if not any(_same(found, one) for one in allowed):
            texts = " or ".join(one.simpleString() for one in allowed)
            raise OptionError(f"the column {name} is of type {found.simpleString()}; allowed: {texts}")
    return names


def _same(found: DataType, wanted: DataType) -> bool:
    """Whether the types are the same, apart from nullability."""
    return found.simpleString() == wanted.simpleString()


def _write(options: WriteOptions, columns: list[str], batches: "Iterator[pa.RecordBatch]") -> Written:
    # Compiled code and its libraries.
    from klamm.spark.write.writing import record_writer

    records = 0
    typed = _typed_columns(options)
    with record_writer(replace(options, typed=None)) as writer:
        for batch in batches:
            rows = batch.select(columns)
            writer.write(rows if typed is None else typed.encode(rows))
            records += batch.num_rows
        writer.flush()
    return Written(records)


def _typed_columns(options: WriteOptions) -> "TypedColumns | None":
    if options.typed is None:
        return None
    from klamm.spark.write.typed import TypedColumns

    return TypedColumns(options.typed, options.topic)
