"""Structs of Spark's, whose own functions promise less."""

from pyspark.sql.types import DataType, StructType


def struct(schema: DataType | str) -> StructType:
    """The struct that a schema is; a text is DDL."""
    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(found, StructType)
    return found
