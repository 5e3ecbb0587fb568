"""Structs as messages of Protobuf, as `to_protobuf` makes them: a null field is not set.

Arrow checks and converts whole columns first; then protobuf makes one message after another.

What must stay true: a value that the message cannot have is an error that names row and field. Equal rows give equal
bytes, because entries of maps are sorted.

Source: org.apache.spark.sql.protobuf.ProtobufSerializer.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from klamm.spark.formats.coding import EncodingError
from klamm.spark.formats.encoders.arrays import is_binary, is_list, is_string
from klamm.spark.formats.encoders.row_objects import RowObjects, Rows, refuse
from klamm.spark.formats.settings import ColumnFormat

_INT32 = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32}
_INT64 = {FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64}
_UINT32 = {FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32}
_UINT64 = {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64}
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_MICROSECONDS = 1_000_000
_MAX_DEPTH = 100


def encoder(column: ColumnFormat, data_type: pa.DataType) -> "ProtobufEncoder":
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(column.schema or "", validate=True))
        pool = DescriptorPool()
        for file in files.file:
            pool.Add(file)
        descriptor = pool.FindMessageTypeByName(column.message or "")
    except (binascii.Error, DecodeError, TypeError, KeyError) as error:
        raise ValueError(
            f"{column.column}.schema is no FileDescriptorSet in base64 with the message {column.message}: {error}"
        ) from None
    if not pa.types.is_struct(data_type):
        raise ValueError(f"the format protobuf writes a struct, not {data_type}")
    _check_fields(descriptor, data_type, column.column, _MAX_DEPTH)
    return ProtobufEncoder(descriptor)


class ProtobufEncoder(RowObjects):
    """Makes messages in their binary form."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor
        self._message: Callable[..., Any] = GetMessageClass(descriptor)

    def encode(self, rows: pa.Array) -> pa.Array:
        values = enumerate(self.objects(self._descriptor, rows))
        return pa.array([self._written(row, value) for row, value in values], pa.binary())

    def field(self, schema: Any, name: str) -> Any:
        """`schema` is the descriptor of a message, or of a field with one."""
        return getattr(schema, "message_type", schema).fields_by_name[name]

    def element(self, schema: Any) -> Any:
        return schema.message_type.fields_by_name["value"] if _is_map(schema) else schema

    def check_field(self, schema: Any, nulls: pa.Array, rows: Rows, path: str) -> None:
        """A field that is null is not set."""

    def check_elements(self, schema: Any, nulls: pa.Array, rows: Rows, path: str) -> None:
        refuse(nulls, rows, path, "has a null among its elements, which Protobuf does not have")

    def converted(self, schema: Any, values: pa.Array, rows: Rows, path: str) -> pa.Array:
        if pa.types.is_timestamp(values.type):
            return _seconds_and_nanos(values.cast(pa.timestamp("us", values.type.tz)), toward_zero=False)
        if pa.types.is_duration(values.type):
            return _seconds_and_nanos(values.cast(pa.duration("us")), toward_zero=True)
        return values

    def _written(self, row: int, value: dict[str, Any] | None) -> bytes | None:
        if value is None:
            return None
        try:
            written: bytes = self._message(**value).SerializeToString(deterministic=True)
        except (ValueError, TypeError) as error:
            raise EncodingError(row, self._fault(value, error)) from None
        return written

    def _fault(self, value: dict[str, Any], error: Exception) -> str:
        for name, one in value.items():
            try:
                self._message(**{name: one}).SerializeToString()
            except (ValueError, TypeError):
                return f"the field {name} has a value that the type of the message's field does not have"
        return f"the message lacks a required field, or is too large ({type(error).__name__})"


# -- types ------------------------------------------------------------------------------------------------------------


def _check_fields(descriptor: Any, data_type: pa.DataType, path: str, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"{path} is nested deeper than {_MAX_DEPTH} levels")
    for column in data_type:
        name = f"{path}.{column.name}"
        field = descriptor.fields_by_name.get(column.name)
        if field is None:
            raise ValueError(f"{name}: the message {descriptor.full_name} has no such field")
        if _is_map(field) != bool(pa.types.is_map(column.type)):
            raise ValueError(f"{name} is of type {column.type}, and the message's field is another kind of value")
        if _is_map(field):
            _check(field.message_type.fields_by_name["key"], column.type.key_type, name, depth - 1)
            _check(field.message_type.fields_by_name["value"], column.type.item_type, name, depth - 1)
        elif field.is_repeated != is_list(column.type):
            raise ValueError(f"{name} is of type {column.type}; arrays, and only they, are for repeated fields")
        else:
            _check(field, column.type.value_type if field.is_repeated else column.type, name, depth - 1)
    given = set(data_type.names) if hasattr(data_type, "names") else {column.name for column in data_type}
    for field in descriptor.fields:
        if field.is_required and field.name not in given:
            raise ValueError(f"{path} lacks the required field {field.name} of the message {descriptor.full_name}")


def _check(field: Any, data_type: pa.DataType, path: str, depth: int) -> None:
    if field.message_type is not None and pa.types.is_struct(data_type):
        _check_fields(field.message_type, data_type, path, depth)
    elif not _fits(field, data_type):
        kind = (
            field.message_type.full_name
            if field.message_type is not None
            else FieldDescriptorProto.Type.Name(field.type)
        )
        raise ValueError(f"{path} is of type {data_type}, which the message's {kind} does not take")


def _fits(field: Any, data_type: pa.DataType) -> bool:
    types, kind = pa.types, field.type
    if field.message_type is not None:
        name = field.message_type.full_name
        known = {_TIMESTAMP: types.is_timestamp, _DURATION: types.is_duration}
        return name in known and bool(known[name](data_type))
    if types.is_boolean(data_type):
        return bool(kind == FieldDescriptor.TYPE_BOOL)
    if types.is_int64(data_type):
        return kind in _INT64 | _UINT64 | _UINT32
    if types.is_integer(data_type):
        return kind in _INT32 | _INT64 | _UINT32 | {FieldDescriptor.TYPE_ENUM}
    if types.is_float32(data_type) or types.is_float64(data_type):
        wide = kind == FieldDescriptor.TYPE_DOUBLE
        return bool(wide or (kind == FieldDescriptor.TYPE_FLOAT and types.is_float32(data_type)))
    if is_string(data_type):
        return kind in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_ENUM)
    return bool(is_binary(data_type) and kind == FieldDescriptor.TYPE_BYTES)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _seconds_and_nanos(values: pa.Array, *, toward_zero: bool) -> pa.Array:
    """Seconds and nanoseconds. The seconds of timestamps are rounded down; the two parts of a duration have the same
    sign."""
    microseconds = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
    seconds = microseconds // _MICROSECONDS
    if toward_zero:
        seconds = seconds + ((microseconds < 0) & (microseconds % _MICROSECONDS != 0))
    nanos = (microseconds - seconds * _MICROSECONDS) * 1_000
    parts = [pa.array(seconds), pa.array(nanos.astype(np.int32))]
    return pa.StructArray.from_arrays(parts, ["seconds", "nanos"], mask=values.is_null())
