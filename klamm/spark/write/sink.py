"""The sink of the data source: rows of a batch or of a micro-batch become records.

The columns are those of Spark's Kafka connector: `value` (required) and `key`, each string or binary; `topic` (string),
unless the option `topic` names one for all; `partition` (int) and `headers` (array of key and value), both optional.
Other columns are ignored. The timestamp is the time of writing.

What must stay true:
- A task succeeds only when all in-sync replicas have every one of its records.
- At least once: Spark repeats a failed task, and a micro-batch whose success it does not know; records of the failed
  attempt stay in the topic. Within one attempt no row is written twice, and a partition keeps the order of the
  attempt's rows, whatever happens to brokers meanwhile (`producer.py`).
- Nothing heavy is imported before the first record is written: Spark makes the writers for the driver.

Source: org.apache.spark.sql.kafka010.KafkaWriter, KafkaRowWriter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from klamm.spark.options import OptionError, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

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


class KlammWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Raises OptionError when `schema` lacks a column, or a column has a wrong type."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = _columns(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return _write(self._options, self._columns, iterator)


class KlammStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Like `KlammWriter`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = _columns(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return _write(self._options, self._columns, iterator)


def _columns(options: WriteOptions, schema: StructType) -> list[str]:
    """The columns that become records."""
    names = [name for name in _ALLOWED if name in schema.names and not (name == "topic" and options.topic is not None)]
    if "value" not in names:
        raise OptionError(f"the column value is required; the columns are {', '.join(schema.names)}")
    if options.topic is None and "topic" not in names:
        raise OptionError("the option topic is required where there is no column topic")
    for name in names:
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
    with record_writer(options) as writer:
        for batch in batches:
            writer.write(batch.select(columns))
            records += batch.num_rows
        writer.flush()
    return Written(records)
