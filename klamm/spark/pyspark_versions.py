"""Hides the differences between PySpark 4.0, 4.1, 4.2 and 4.3: the data source is written once, for the newest version.

- Readers of streams (4.2): `latestOffset` gets the begin of the micro-batch and a limit, and the trigger availableNow
  is announced. `stream_reader` adapts a reader to older versions.
- Writers of streams (4.1): they get Arrow record batches. `stream_writer` adapts a writer to 4.0, which gives rows.

Spark 4.0 is what Amazon EMR 8.0 has (docs/spark-emr.md): the adapters serve its users, and checkpoints from there.

What must stay true:
- A version that cannot do what an option asks for refuses the option; no option is silently ignored.
- The code looks for a feature and not for a version number, because vendors backport features.
- Importing this module imports neither pyarrow nor numba. With a PySpark that klamm cannot use it raises ImportError.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyspark

try:
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceStreamWriter,
        InputPartition,
        WriterCommitMessage,
    )
except ImportError as error:
    raise ImportError(
        f"klamm needs PySpark 4.0 or newer, and this is PySpark {pyspark.__version__}; pip install 'klamm[spark]'"
    ) from error

from pyspark.sql.types import StructType

from klamm.spark.options import OptionError, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
    HAS_STREAM_ARROW_WRITERS = True
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_READ_LIMITS = True
    except ImportError:

        class ReadLimit: ...

        class ReadAllAvailable(ReadLimit): ...

        @dataclass
        class ReadMaxRows(ReadLimit):
            max_rows: int

        class SupportsTriggerAvailableNow: ...

        HAS_READ_LIMITS = False

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter

        HAS_STREAM_ARROW_WRITERS = True
    except ImportError:
        DataSourceStreamArrowWriter = DataSourceStreamWriter
        HAS_STREAM_ARROW_WRITERS = False

__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "stream_reader",
    "stream_writer",
]

ROWS_PER_BATCH = 10_000


def arrow_schema(schema: StructType) -> "pa.Schema":
    """The Arrow schema that PySpark expects for the rows of a reader."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before 4.2 timestamps are always in UTC.
    has_time_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    options: dict[str, Any] = {"timezone": "UTC"} if has_time_zone else {}
    return to_arrow_schema(schema, **options)


def stream_reader(reader: DataSourceStreamReader, options: ReadOptions) -> DataSourceStreamReader:
    """Adapts the reader to this PySpark. Raises OptionError for an option that this PySpark does not allow."""
    if HAS_READ_LIMITS:
        return reader
    if options.max_offsets_per_trigger is not None:
        # The trigger availableNow would end after the first batch, and a reader cannot find out which trigger is used.
        raise OptionError(
            "option maxOffsetsPerTrigger needs PySpark 4.2 or newer, because older ones cannot limit a micro-batch;"
            f" this is PySpark {pyspark.__version__}"
        )
    return _ReaderThatRemembers(reader)


def stream_writer(writer: DataSourceStreamArrowWriter, schema: StructType) -> DataSourceStreamWriter:
    """Adapts the writer to this PySpark."""
    return writer if HAS_STREAM_ARROW_WRITERS else _RowWriter(writer, schema)


class _ReaderThatRemembers(DataSourceStreamReader):
    """Remembers where the next micro-batch begins, because PySpark 4.0 and 4.1 do not tell `latestOffset`.

    A new query begins with `latestOffset`. A restarted query begins with `partitions`, with the last end in Spark's
    checkpoint. Every end that `latestOffset` returns is the begin of the next batch.
    """

    def __init__(self, reader: DataSourceStreamReader) -> None:
        self._reader = reader
        self._initial: dict[str, Any] | None = None
        self._start: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        # Spark calls this after `latestOffset`. A new answer would lose the records in between.
        if self._initial is None:
            self._initial = self._reader.initialOffset()
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # the signature before 4.2
        start = self.initialOffset() if self._start is None else self._start
        self._start = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        return self._start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._start is None:
            self._start = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)


class _RowWriter(DataSourceStreamWriter):
    """Makes Arrow record batches from the rows that PySpark 4.0 gives to a stream's writer."""

    def __init__(self, writer: DataSourceStreamArrowWriter, schema: StructType) -> None:
        self._writer = writer
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._writer.write(self._batches(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.abort(messages, batchId)

    def _batches(self, rows: Iterator[Any]) -> "Iterator[pa.RecordBatch]":
        from pyspark.sql.conversion import LocalDataToArrowConversion

        while chunk := list(islice(rows, ROWS_PER_BATCH)):
            yield from LocalDataToArrowConversion.convert(chunk, self._schema, False).to_batches()
