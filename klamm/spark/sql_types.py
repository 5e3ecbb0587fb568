"""The source's columns as Spark's types, and the check of a schema that a user gives.

What must stay true:
- Importing this module imports neither pyarrow nor numba: the driver's processes import it to plan.
- A schema that passes the check can be filled: each column exists, has its type, and is nullable where records are.
"""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from klamm.spark.options import OptionError
from klamm.spark.schema import HEADERS

TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    "leaderEpoch": IntegerType(),
}


def check_columns(schema: StructType) -> None:
    """Raises OptionError for a schema that is not made of the source's columns and their types."""
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
