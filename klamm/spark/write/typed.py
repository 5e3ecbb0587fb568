"""Typed keys and values of the sink: encodes columns of structs as bytes, by `value.format` and `key.format`.

What must stay true:
- The driver reports types and options that cannot be written before the first task begins.
- A batch with a row that cannot be encoded is not sent. The error names topic, row and field, but not the content.
- Without these options nothing imports this module: it needs pyarrow.
"""

from dataclasses import replace

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from klamm.spark.formats.coding import Encoder, EncodingError, make_encoder
from klamm.spark.formats.encoders.arrays import refuse_wrong_texts
from klamm.spark.formats.options import WRITE_SETTINGS
from klamm.spark.formats.resolving import with_prefix, with_schema
from klamm.spark.formats.settings import STRING, ColumnFormat, MissingLibrary, TypedRows
from klamm.spark.options import OptionError


def checked(typed: TypedRows, schema: StructType, topic: str | None) -> TypedRows:
    """The formats of the columns that the rows have, with their schemas. Registers the schemas in a registry.

    `topic` is None if rows name their topics. Raises OptionError for a column that cannot be written.
    """
    return replace(typed, key=_checked(typed.key, schema, topic), value=_checked(typed.value, schema, topic))


def _checked(column: ColumnFormat | None, schema: StructType, topic: str | None) -> ColumnFormat | None:
    if column is None or column.column not in schema.names:
        return None
    for name, _ in column.settings:
        if name not in WRITE_SETTINGS.get(column.name, ()):
            raise OptionError(
                f"option {name} is for readers; to write dates and times in another way, make strings of them before"
                if "Format" in name or name == "locale"
                else f"option {name} is for readers; allowed: {', '.join(WRITE_SETTINGS[column.name])}"
            )
    data_type = schema[column.column].dataType
    try:
        column = with_schema(column, data_type, topic)
        # A schema is registered only if it can be written.
        make_encoder(column, arrow_type(data_type))
        return with_prefix(column, topic)
    except (ValueError, MissingLibrary) as error:
        raise OptionError(f"the column {column.column} cannot be written: {error}") from None


def arrow_type(data_type: DataType) -> pa.DataType:
    """The Arrow type of a column that Spark passes to Python. Raises ValueError for a type that Arrow lacks."""
    try:
        return to_arrow_type(data_type, timezone="UTC")
    except Exception as error:
        raise ValueError(f"Spark does not hand the type {data_type.simpleString()} to Python") from error


class UnwritableRow(ValueError):
    """A row that its format cannot express. The message names topic, row, column and field."""


class TypedColumns:
    """Encodes the batches of one task. Errors number the task's rows from 1."""

    def __init__(self, typed: TypedRows, topic: str | None) -> None:
        self._formats = typed.formats
        self._topic = topic
        self._encoders: dict[str, Encoder] = {}
        self._rows = 0

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with bytes in place of typed columns. Raises UnwritableRow."""
        for column in self._formats:
            index = batch.schema.get_field_index(column.column)
            values = batch.column(index)
            if column.column not in self._encoders:
                self._encoders[column.column] = make_encoder(column, values.type)
            try:
                if column.name != STRING:
                    refuse_wrong_texts(values)
                encoded = self._encoders[column.column].encode(values)
            except EncodingError as error:
                raise UnwritableRow(
                    f"row {self._rows + error.row + 1} of this task, for the topic {self._topic_of(batch, error.row)},"
                    f" cannot be written as {column.name}: {error}"
                ) from None
            batch = batch.set_column(index, column.column, encoded)
        self._rows += batch.num_rows
        return batch

    def _topic_of(self, batch: pa.RecordBatch, row: int) -> str:
        return self._topic if self._topic is not None else str(batch.column("topic")[row].as_py())
