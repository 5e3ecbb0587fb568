"""The sink of the data source: rows of a batch or of a micro-batch become records.

The columns are those of Spark's Kafka connector: `value` (required) and `key`, each string or binary; `topic` (string),
unless the option `topic` names one; `partition` (int) and `headers` (array of struct of key and value), both optional.
Other columns are an error, as they are there. The timestamp is the time of writing.

What must stay true:
- A task succeeds only when all in-sync replicas have every one of its records.
- At least once: Spark repeats a task that failed, and what the failed attempt had already written stays in the topic.
  Within one attempt nothing is written twice and a partition keeps the order of the rows, whatever happens to brokers
  (`producer.py`).
- Nothing heavy is imported before the first record is written: Spark makes the writers on the driver.

Source: org.apache.spark.sql.kafka010.KafkaWriter, KafkaRowWriter, KafkaSourceProvider.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.spark.options import WriteOptions


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has written."""

    records: int


class KlammWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Raises ValueError when `schema` has not the columns that it needs."""

    def __init__(self, options: "WriteOptions", schema: StructType) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        raise NotImplementedError


class KlammStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Like `KlammWriter`."""

    def __init__(self, options: "WriteOptions", schema: StructType) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        raise NotImplementedError
