"""Makes Arrow arrays from Python objects, for formats whose libraries decode one record at a time.

A `Builder` is made once for a type, and makes one array from the objects of a batch. What must stay true: a value that
does not fit raises NotFitting, and `build_rows` finds the rows with such a value.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from klamm.spark.formats.coding import Decoded, Mask

Builder = Callable[[Sequence[Any]], pa.Array]
"""Makes an array from a sequence of objects. None becomes null."""


# The errors that conversions raise for a value that does not fit the type.
_WRONG = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError)


class NotFitting(ValueError):
    """A value does not fit the type."""


def build_rows(builder: Builder, rows: list[Any], bad: Mask, reason: str) -> Decoded:
    """The array of the rows. Rows in `bad` are None already; rows with a value that does not fit become bad too."""
    try:
        made = builder(rows)
    except NotFitting as error:
        wrong = [index for index, row in enumerate(rows) if row is not None and not _fits(builder, row)]
        assert wrong
        if not bad.any() or wrong[0] < np.argmax(bad):
            reason = str(error)
        for index in wrong:
            rows[index] = None
        bad[wrong] = True
        made = builder(rows)
    return Decoded(made, bad, reason) if bad.any() else Decoded(made)


def _fits(builder: Builder, row: Any) -> bool:
    try:
        builder([row])
    except NotFitting:
        return False
    return True


def simple(data_type: pa.DataType, convert: Callable[[Any], Any] | None = None) -> Builder:
    """Numbers, texts and bytes. `convert` is applied to each value first."""
    storage = data_type
    if pa.types.is_timestamp(data_type):
        storage = pa.int64()
    elif pa.types.is_date32(data_type):
        storage = pa.int32()

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            if convert is not None:
                values = [None if value is None else convert(value) for value in values]
            made = pa.array(values, storage)
        except _WRONG:
            raise NotFitting(f"a value does not fit into {data_type}") from None
        return made if storage is data_type else made.cast(data_type)

    return build


def nulls(data_type: pa.DataType) -> Builder:
    return lambda values: pa.nulls(len(values), data_type)


def struct(data_type: pa.DataType, fields: Sequence[tuple[Callable[[Any], Any], Builder]]) -> Builder:
    """A struct. `fields` has, for each field, a function that gets it from an object, and its builder."""

    def build(values: Sequence[Any]) -> pa.Array:
        children = []
        for get, builder in fields:
            try:
                found = [None if value is None else get(value) for value in values]
            except _WRONG:
                raise NotFitting("a field of a struct cannot be read") from None
            children.append(builder(found))
        return pa.Array.from_buffers(data_type, len(values), [validity(values)], children=children)

    return build


def items(data_type: pa.DataType, builder: Builder) -> Builder:
    """A list, from sequences of its elements."""

    def build(values: Sequence[Any]) -> pa.Array:
        children = [builder([element for value in values if value is not None for element in value])]
        return pa.Array.from_buffers(data_type, len(values), [validity(values), offsets(values)], children=children)

    return build


def pairs(data_type: pa.DataType, keys: Builder, entries: Builder) -> Builder:
    """A map, from mappings."""

    def build(values: Sequence[Any]) -> pa.Array:
        arrays = [
            keys([key for value in values if value is not None for key in value]),
            entries([value[key] for value in values if value is not None for key in value]),
        ]
        found = pa.StructArray.from_arrays(arrays, fields=[data_type.key_field, data_type.item_field])
        return pa.Array.from_buffers(data_type, len(values), [validity(values), offsets(values)], children=[found])

    return build


def validity(values: Sequence[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array([value is not None for value in values], np.bool_), bitorder="little"))


def offsets(values: Sequence[Any]) -> pa.Buffer:
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=ends[1:])
    return pa.py_buffer(ends)
