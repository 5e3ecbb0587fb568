"""The source's columns as Spark's types, and the check of a schema that a user gives.

What must stay true:
- Importing this module imports neither pyarrow nor numba: the driver's processes import it to plan.
- A schema that passes the check can be filled: each column exists, has its type, and is nullable if records may lack
  it.
"""

from collections.abc import Sequence

from pyspark.sql import types as T

from klamm.spark.formats.schemas import column_type
from klamm.spark.formats.settings import AVRO, STRING, ColumnFormat, TypedRows
from klamm.spark.options import OptionError
from klamm.spark.schema import HEADERS

TYPES: dict[str, T.DataType] = {
    "key": T.BinaryType(),
    "value": T.BinaryType(),
    "topic": T.StringType(),
    "partition": T.IntegerType(),
    "offset": T.LongType(),
    "timestamp": T.TimestampType(),
    "timestampType": T.IntegerType(),
    "headers": T.ArrayType(
        T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
    ),
    "leaderEpoch": T.IntegerType(),
}


_SIMPLE = (
    T.BinaryType,
    T.BooleanType,
    T.ByteType,
    T.DateType,
    T.DecimalType,
    T.DoubleType,
    T.FloatType,
    T.IntegerType,
    T.LongType,
    T.NullType,
    T.ShortType,
    T.StringType,
    T.TimestampNTZType,
    T.TimestampType,
)


def check_columns(schema: T.StructType, typed: TypedRows | None = None) -> None:
    """Raises OptionError for a schema that is not made of the source's columns and their types.

    If `typed` has a format for a column, the column may have any type of the format.
    """
    schema = _without_decoded(schema, typed) if typed is not None else schema
    allowed = ", ".join(f"{name} {data_type.simpleString()}" for name, data_type in TYPES.items())
    for field in schema.fields:
        expected = TYPES.get(field.name)
        if expected is None:
            raise OptionError(f"the schema has a column {field.name}; allowed: {allowed}")
        if field.dataType != expected:
            raise OptionError(
                f"the schema has {field.name} {field.dataType.simpleString()}; allowed: {allowed}."
                " Cast the column after reading"
            )
        # Spark would trust NOT NULL, and answer `key IS NULL` without reading.
        if not field.nullable and field.name in ("key", "value", HEADERS):
            raise OptionError(f"the schema has {field.name} NOT NULL, but a record may have none; allowed: {allowed}")
        if schema.names.count(field.name) > 1:
            raise OptionError(f"the schema has the column {field.name} twice; allowed: {allowed}")
    if not schema.fields:
        raise OptionError(f"the schema has no column; allowed: {allowed}")


def _without_decoded(schema: T.StructType, typed: TypedRows) -> T.StructType:
    """Checks the typed columns. Returns the schema with the binary columns from which they are decoded."""
    formats = {one.column: one for one in typed.formats}
    if typed.corrupt_column in TYPES:
        raise OptionError(f"option columnNameOfCorruptRecord is {typed.corrupt_column}, which is another column")
    fields = []
    for field in schema.fields:
        if field.name in formats:
            _check_decoded(field.name, field.dataType, formats[field.name])
            fields.append(T.StructField(field.name, T.BinaryType(), field.nullable))
        elif field.name == typed.corrupt_column:
            if field.dataType != T.BinaryType() or not field.nullable:
                raise OptionError(
                    f"the schema has {field.name} {field.dataType.simpleString()}; allowed: {field.name} binary,"
                    " which is null for other records"
                )
            if not formats.keys() & set(schema.names):
                raise OptionError(f"the schema has {field.name} without {' or '.join(sorted(formats))}")
        else:
            fields.append(field)
    return T.StructType(fields)


def _check_decoded(column: str, data_type: T.DataType, column_format: ColumnFormat) -> None:
    if column_format.name == STRING:
        if data_type != T.StringType():
            raise OptionError(f"the schema has {column} {data_type.simpleString()}; allowed: {column} string")
        return
    if not isinstance(data_type, T.StructType) and column_format.name != AVRO:
        raise OptionError(
            f"the schema has {column} {data_type.simpleString()}; allowed with {column}.format={column_format.name}:"
            f" {column} struct<...>"
        )
    _check_type(column, data_type)


def _check_type(path: str, data_type: T.DataType) -> None:
    if isinstance(data_type, T.StructType):
        for field in data_type.fields:
            # Spark would trust NOT NULL.
            if not field.nullable:
                raise OptionError(f"the schema has {path}.{field.name} NOT NULL, but a record may lack it")
            if data_type.names.count(field.name) > 1:
                raise OptionError(f"the schema has the field {path}.{field.name} twice")
            _check_type(f"{path}.{field.name}", field.dataType)
    elif isinstance(data_type, T.ArrayType):
        if not data_type.containsNull:
            raise OptionError(f"the schema has {path} with elements that are NOT NULL, but a record may lack one")
        _check_type(f"{path}.element", data_type.elementType)
    elif isinstance(data_type, T.MapType):
        if not data_type.valueContainsNull:
            raise OptionError(f"the schema has {path} with values that are NOT NULL, but a record may lack one")
        _check_type(f"{path}.key", data_type.keyType)
        _check_type(f"{path}.value", data_type.valueType)
    elif type(data_type) not in _SIMPLE:
        raise OptionError(f"the schema has {path} {data_type.simpleString()}, which no format has")


def typed_schema(names: Sequence[str], typed: TypedRows) -> str:
    """The rows as DDL, for a reader without a schema. Raises SchemaError."""
    formats = {one.column: one for one in typed.formats}
    types = ((name, column_type(formats[name]) if name in formats else TYPES[name].simpleString()) for name in names)
    return ", ".join(f"{name} {data_type}" for name, data_type in types)
