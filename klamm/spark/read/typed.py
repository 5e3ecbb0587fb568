"""Decodes rows whose key or value has a format into the columns that the query wants.

What must stay true:
- Each row of the result is a record, in the same order. Only the mode DROPMALFORMED leaves records out.
- A record without a value (or key) has a null, and is not bad.
- Only columns of the schema are decoded.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.spark.formats.coding import Decoded, Decoder, Mask, make_decoder
from klamm.spark.formats.settings import ColumnFormat, Mode, TypedRows
from klamm.spark.schema import schema as record_schema


class BadRecord(ValueError):
    """A record that cannot be decoded, in the mode FAILFAST. The message names it and the reason."""


class _Column(NamedTuple):
    format: ColumnFormat
    decoder: Decoder


class RowDecoder:
    """Makes rows of `schema` from record batches with the columns `columns`. Made once for each task.

    Raises ValueError for a type that a format does not have, and MissingLibrary.
    """

    def __init__(self, typed: TypedRows, schema: pa.Schema) -> None:
        self.schema = schema
        self._mode = typed.mode
        names = schema.names
        self._typed = [
            _Column(one, make_decoder(one, schema.field(one.column).type))
            for one in typed.formats
            if one.column in names
        ]
        self._corrupt = typed.corrupt_column if typed.corrupt_column in names else None
        fetched = [name for name in names if name != self._corrupt]
        # The error names the offset.
        extra = ["offset"] if self._mode is Mode.FAILFAST and "offset" not in names else []
        self.columns = (*fetched, *extra)
        # Raises ValueError for a column that records do not have.
        made = record_schema(self.columns)
        for name in fetched:
            if schema.field(name).type != made.field(name).type and name not in {
                one.format.column for one in self._typed
            }:
                raise ValueError(f"the schema has {name} {schema.field(name).type}; allowed: {made.field(name).type}")

    def rows(self, batches: Iterable[pa.RecordBatch], place: str) -> Iterator[pa.RecordBatch]:
        """The rows of record batches. `place` names topic and partition in an error. Raises BadRecord."""
        for batch in batches:
            yield self._decoded(batch, place)

    def _decoded(self, batch: pa.RecordBatch, place: str) -> pa.RecordBatch:
        made = {name: batch.column(name) for name in batch.schema.names}
        bad: Mask | None = None
        corrupt = None
        for column in self._typed:
            data = batch.column(column.format.column)
            decoded = column.decoder.decode(data)
            made[column.format.column] = decoded.column
            if decoded.bad is None:
                continue
            if self._mode is Mode.FAILFAST:
                raise self._error(batch, place, column.format, decoded)
            if self._corrupt is not None and self._mode is Mode.PERMISSIVE:
                texts = pc.if_else(pa.array(decoded.bad), data, pa.nulls(len(data), pa.binary()))
                corrupt = texts if corrupt is None else pc.coalesce(corrupt, texts)
            bad = decoded.bad if bad is None else bad | decoded.bad
        if self._corrupt is not None:
            made[self._corrupt] = pa.nulls(batch.num_rows, pa.binary()) if corrupt is None else corrupt
        rows = pa.RecordBatch.from_arrays([made[name] for name in self.schema.names], schema=self.schema)
        if bad is not None and self._mode is Mode.DROPMALFORMED:
            return rows.filter(pa.array(~bad))
        return rows

    @staticmethod
    def _error(batch: pa.RecordBatch, place: str, column: ColumnFormat, decoded: Decoded) -> BadRecord:
        assert decoded.bad is not None
        offset = batch.column("offset")[int(np.argmax(decoded.bad))].as_py()
        return BadRecord(
            f"{place} at offset {offset}: the {column.column} cannot be decoded as {column.name}: {decoded.reason}."
            " The mode is FAILFAST; PERMISSIVE makes such a record null, DROPMALFORMED leaves it out"
        )
