"""Decoder of the format `string`: bytes as UTF-8 text, like `CAST(value AS STRING)`.

What must stay true: the text is valid UTF-8. Malformed bytes become U+FFFD, as when Java decodes them. Spark's cast
would keep them, but Arrow does not allow them in text.
"""

import pyarrow as pa

from klamm.spark.formats.coding import Decoded
from klamm.spark.formats.settings import ColumnFormat


def decoder(column: ColumnFormat, data_type: pa.DataType) -> "StringDecoder":
    if data_type != pa.string():
        raise ValueError(f"the format string makes {column.column} a string, not {data_type}")
    return StringDecoder()


class StringDecoder:
    """Makes text."""

    def decode(self, data: pa.Array) -> Decoded:
        return Decoded(utf8(data))


def utf8(data: pa.Array) -> pa.Array:
    """Bytes as text, with U+FFFD for bytes that are not UTF-8."""
    texts = data.view(pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([each and each.decode(errors="replace") for each in data.to_pylist()], pa.string())
    return texts
