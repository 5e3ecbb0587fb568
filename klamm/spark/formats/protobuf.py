"""The format `protobuf`: a message in each record, as Spark's `from_protobuf` reads it.

protobuf's own parser (upb) parses one message at a time. Columns are built field by field, only for the wanted fields.

What must stay true: a field is null if `from_protobuf` has a null: the field is absent, or has no presence (proto3) and
is zero. For an absent field with a default (proto2), the value is the default.

Source: org.apache.spark.sql.protobuf.ProtobufDeserializer.
"""

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from klamm.spark.formats import building
from klamm.spark.formats.building import Builder
from klamm.spark.formats.coding import Decoded, in_chunks
from klamm.spark.formats.schemas import is_map, message_descriptor
from klamm.spark.formats.settings import ColumnFormat, SchemaError

_Field = FieldDescriptor
_ALLOWED: dict[int, tuple[pa.DataType, ...]] = {
    _Field.CPPTYPE_INT32: (pa.int32(), pa.int64()),
    _Field.CPPTYPE_INT64: (pa.int64(),),
    _Field.CPPTYPE_UINT32: (pa.int32(), pa.int64()),
    _Field.CPPTYPE_UINT64: (pa.int64(), pa.decimal128(20, 0)),
    _Field.CPPTYPE_DOUBLE: (pa.float64(),),
    _Field.CPPTYPE_FLOAT: (pa.float32(), pa.float64()),
    _Field.CPPTYPE_BOOL: (pa.bool_(),),
    _Field.CPPTYPE_ENUM: (pa.string(), pa.int32()),
    _Field.CPPTYPE_STRING: (pa.string(), pa.binary()),
}


def decoder(column: ColumnFormat, data_type: pa.DataType) -> "ProtobufDecoder":
    return ProtobufDecoder(message_descriptor(column), data_type)


class ProtobufDecoder:
    """Decodes messages of one type."""

    def __init__(self, message: Descriptor, data_type: pa.DataType) -> None:
        self._builder = _message(message, data_type)
        self._type = data_type
        try:
            self._parse = GetMessageClass(message).FromString
        except RecursionError:
            raise SchemaError(f"the Protobuf message {message.full_name} has messages nested too deep") from None

    def decode(self, data: pa.Array) -> Decoded:
        return in_chunks(data, self._type, self._decode)

    def _decode(self, data: pa.Array) -> Decoded:
        rows: list[Any] = []
        bad = np.zeros(len(data), np.bool_)
        reason, parse = "", self._parse
        for index, value in enumerate(data.to_pylist()):
            row = None
            if value is not None:
                try:
                    row = parse(value)
                except DecodeError as error:
                    bad[index] = True
                    reason = reason or f"not a valid Protobuf message ({error})"
                else:
                    if not type(row).IsInitialized(row):
                        row, bad[index] = None, True
                        reason = reason or "a required field of the Protobuf message is missing"
            rows.append(row)
        return building.build_rows(self._builder, rows, bad, reason)


def _message(message: Descriptor, data_type: pa.DataType) -> Builder:
    """The builder of a message. Raises ValueError for a type that does not fit the message."""
    if pa.types.is_timestamp(data_type) and message.full_name == "google.protobuf.Timestamp":
        return building.simple(data_type, lambda value: value.seconds * 1_000_000 + value.nanos // 1000)
    if not pa.types.is_struct(data_type):
        raise ValueError(f"the Protobuf message {message.full_name} cannot become {data_type}")
    fields = []
    for index in range(data_type.num_fields):
        wanted = data_type.field(index)
        field = message.fields_by_name.get(wanted.name)
        if field is None:
            raise ValueError(f"the Protobuf message {message.full_name} has no field {wanted.name}")
        fields.append((_getter(field), _field(field, wanted.type)))
    return building.struct(data_type, fields)


def _field(field: FieldDescriptor, data_type: pa.DataType) -> Builder:
    if field.message_type is not None and is_map(field):
        if not pa.types.is_map(data_type):
            raise ValueError(f"the Protobuf field {field.full_name} is a map, which cannot become {data_type}")
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return building.pairs(data_type, _single(key, data_type.key_type), _single(value, data_type.item_type))
    if field.is_repeated:
        if not pa.types.is_list(data_type):
            raise ValueError(f"the Protobuf field {field.full_name} is repeated, which cannot become {data_type}")
        return building.items(data_type, _single(field, data_type.value_type))
    return _single(field, data_type)


def _single(field: FieldDescriptor, data_type: pa.DataType) -> Builder:
    if field.message_type is not None:
        return _message(field.message_type, data_type)
    allowed = (pa.binary(),) if field.type == field.TYPE_BYTES else _ALLOWED[field.cpp_type]
    if data_type not in allowed:
        raise ValueError(f"the Protobuf field {field.full_name} cannot become {data_type}; allowed: {allowed[0]}")
    convert: Callable[[Any], Any] | None = None
    if field.enum_type is not None and data_type == pa.string():
        convert = _enum_name(field.enum_type)
    elif (field.cpp_type, data_type) == (field.CPPTYPE_UINT32, pa.int32()):
        convert = _signed32
    elif (field.cpp_type, data_type) == (field.CPPTYPE_UINT64, pa.int64()):
        convert = _signed64
    return building.simple(data_type, convert)


def _getter(field: FieldDescriptor) -> Callable[[Any], Any]:
    name = field.name
    get = attrgetter(name)
    if field.is_repeated or field.has_default_value:
        return get
    if field.has_presence:
        # A field may be called HasField, so the class's method is called.
        return lambda message: get(message) if type(message).HasField(message, name) else None
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        # Minus zero is not the default and must stay. NaN is true.
        return lambda message: value if (value := getattr(message, name)) or math.copysign(1, value) < 0 else None
    return lambda message: getattr(message, name) or None


def _enum_name(enum: EnumDescriptor) -> Callable[[int], str]:
    names = {number: value.name for number, value in enum.values_by_number.items()}
    return lambda number: names.get(number) or f"UNKNOWN_ENUM_VALUE_{enum.name}_{number}"


def _signed32(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


def _signed64(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
