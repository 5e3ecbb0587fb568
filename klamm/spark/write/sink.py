"""The sink of the data source: writes rows of a batch or of a micro-batch as records.

The columns are those of Spark's Kafka connector: `value` (required) and `key`, each string or binary; `topic` (string),
unless the option `topic` names one for all; `partition` (int) and `headers` (array of key and value), both optional.
Other columns are ignored. The timestamp is the time of writing. With `value.format` or `key.format` the column has a
type that the format writes, usually a struct (`typed.py`).

What must stay true:
- A task succeeds only when all in-sync replicas have every one of its records.
- At least once: Spark repeats a failed task, and a micro-batch whose success it does not know. Records of the failed
  attempt stay in the topic. Within one attempt no row is written twice, and a partition keeps the order of the
  attempt's rows, whatever happens to brokers meanwhile (`klamm.client.producer.sender`).
- Exactly once with `kafka.transactional.id`, see `transactions.py`. Spark makes new writers for each step, so all their
  state is in the checkpoint.
- Nothing heavy is imported before the first record is written: Spark makes the writers for the driver.

Source: org.apache.spark.sql.kafka010.KafkaWriter, KafkaRowWriter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from klamm.spark.options import OptionError, WriteOptions
from klamm.spark.pyspark_versions import DataSourceStreamArrowWriter
from klamm.spark.readable_errors import sentences_first

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.spark.write.transaction_log import Prepared
    from klamm.spark.write.typed import TypedColumns
    from klamm.spark.write.writing import RecordWriter

# The number of a batch write, which is not a micro-batch of a stream.
ONLY_BATCH = 0
# The local property with which Spark passes the number of the micro-batch to the tasks of a stream.
BATCH_PROPERTY = "streaming.sql.batchId"

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
    """The commit message of a task.

    - `records`: how many rows the task had.
    - `prepared`, `attempt`: with `kafka.transactional.id`, the prepared transaction, unless the task had no rows, and
      the number of this attempt of the task.
    - `is_recorded`: the micro-batch was recorded already, so the task wrote nothing.
    """

    records: int
    prepared: "Prepared | None" = None
    attempt: int = 0
    is_recorded: bool = False


@sentences_first
class KlammWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Raises OptionError when `schema` lacks a column, or a column has a wrong type."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._sink = _Sink(options, schema, is_stream=False)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return self._sink.write(iterator, ONLY_BATCH)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(messages, ONLY_BATCH)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages, ONLY_BATCH)


@sentences_first
class KlammStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Like `KlammWriter`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._sink = _Sink(options, schema, is_stream=True)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return self._sink.write(iterator, _batch_of_task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.abort(messages, batchId)


class _Sink:
    """The common part of both writers. The driver makes one for each step; the tasks get the one that planned the
    job."""

    def __init__(self, options: WriteOptions, schema: StructType, *, is_stream: bool) -> None:
        self._options, self._columns = _resolved(options, schema)
        # The micro-batch that was recorded last.
        self._recorded: int | None = None
        if self._is_transactional:
            from klamm.spark.write import transactions

            self._recorded = transactions.last_recorded(self._options, is_stream=is_stream)

    @property
    def _is_transactional(self) -> bool:
        return self._options.producer.transactional_id is not None

    def write(self, batches: "Iterator[pa.RecordBatch]", batch: int | None) -> Written:
        if not self._is_transactional:
            return _write(self._options, self._columns, batches)
        if batch is None:
            raise RuntimeError(f"the task does not know its micro-batch: Spark has not set {BATCH_PROPERTY}")
        return _write_prepared(self._options, self._columns, batches, batch, self._recorded)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        if self._is_transactional:
            from klamm.spark.write import transactions

            written = [each for each in messages if isinstance(each, Written)]
            job = transactions.Job(
                _prepared(written),
                # Spark passes the messages of all tasks, in the order of the tasks.
                [each.attempt if isinstance(each, Written) else 0 for each in messages],
                sum(each.records for each in written),
                any(each.is_recorded for each in written),
            )
            transactions.commit(self._options, batch, job)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        if self._is_transactional:
            from klamm.spark.write import transactions

            written = [each for each in messages if isinstance(each, Written)]
            transactions.abort(self._options, batch, _prepared(written))


def _prepared(written: Sequence[Written]) -> "list[Prepared]":
    return [each.prepared for each in written if each.prepared is not None]


def _batch_of_task() -> int | None:
    """The number of this task's micro-batch; None if Spark has not set it."""
    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
    return None if batch is None else int(batch)


def _resolved(options: WriteOptions, schema: StructType) -> tuple[WriteOptions, list[str]]:
    """The options, with resolved formats of typed columns, and the columns that are written."""
    names = _columns(options, schema)
    if options.typed is None:
        return options, names
    # This import loads pyarrow and the libraries of formats.
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
    # This import loads compiled code and its libraries.
    from klamm.spark.write.writing import record_writer

    with record_writer(replace(options, typed=None)) as writer:
        records = _write_all(writer, options, columns, batches)
        writer.flush()
    return Written(records)


def _write_prepared(
    options: WriteOptions,
    columns: list[str],
    batches: "Iterator[pa.RecordBatch]",
    batch: int,
    recorded: int | None,
) -> Written:
    """Step 2 of `transactions.py`."""
    from klamm.spark.write import transactions
    from klamm.spark.write.transaction_log import Prepared
    from klamm.spark.write.writing import record_writer

    if recorded is not None and batch <= recorded:
        transactions.require_newest(batch, recorded)
        # Spark's operators with state must see the rows.
        return Written(sum(each.num_rows for each in batches), is_recorded=True)
    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    filled = (each for each in batches if each.num_rows)
    first = next(filled, None)
    if first is None:
        return Written(0, None, attempt)
    own_id = transactions.transactional_id(options, context.partitionId(), attempt)
    own = replace(options, typed=None, producer=replace(options.producer, transactional_id=own_id))
    with record_writer(own) as writer:
        records = _write_all(writer, options, columns, chain([first], filled))
        prepared = writer.prepare()
    assert prepared is not None
    return Written(records, Prepared(prepared, tuple(writer.partitions)), attempt)


def _write_all(
    writer: "RecordWriter", options: WriteOptions, columns: list[str], batches: "Iterable[pa.RecordBatch]"
) -> int:
    """Gives all rows to the writer. Returns their number."""
    records = 0
    typed = _typed_columns(options)
    for batch in batches:
        rows = batch.select(columns)
        writer.write(rows if typed is None else typed.encode(rows))
        records += batch.num_rows
    return records


def _typed_columns(options: WriteOptions) -> "TypedColumns | None":
    if options.typed is None:
        return None
    from klamm.spark.write.typed import TypedColumns

    return TypedColumns(options.typed, options.topic)
