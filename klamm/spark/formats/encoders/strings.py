"""Texts as UTF-8."""

import pyarrow as pa

from klamm.spark.formats.settings import ColumnFormat


def encoder(column: ColumnFormat, data_type: pa.DataType) -> "StringEncoder":
    if not (pa.types.is_string(data_type) or pa.types.is_large_string(data_type)):
        raise ValueError(f"the format string writes a string, not {data_type}")
    return StringEncoder()


class StringEncoder:
    """Makes bytes from texts."""

    def encode(self, rows: pa.Array) -> pa.Array:
        return rows.cast(pa.binary())
