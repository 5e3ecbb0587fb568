"""The interface of decoders and encoders, and the functions that make them: once for each task, from a format and a
type.

What must stay true:
- A decoder returns for any bytes. It says which rows are bad, and never raises because of the content of a record.
- Decoding takes time in proportion to the bytes, for any bytes and any schema.
- A decoder reads only the fields of the type that it was made with.
- The library of a format is imported when a decoder or encoder is made. If it is missing, the error is one sentence.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from klamm.spark.formats.settings import AVRO, CSV, JSON, PROTOBUF, STRING, ColumnFormat, MissingLibrary

Mask = npt.NDArray[np.bool_]


class EncodingError(ValueError):
    """A row that the format cannot express: its index, and a message with the field and the reason, without the row's
    content.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class Decoded(NamedTuple):
    """The decoded column of a record batch, null where the bytes are null or bad.

    `bad` is True for each row that could not be decoded, and `reason` is the reason of the first of them. Without bad
    rows, `bad` is None and `reason` is empty.
    """

    column: pa.Array
    bad: Mask | None = None
    reason: str = ""


class Decoder(Protocol):
    """Makes values of one type."""

    def decode(self, data: pa.Array) -> Decoded:
        """The values of a column of bytes (`pa.binary()`), which may be a slice. Null stays null."""


class Encoder(Protocol):
    """Makes bytes of values of one type."""

    def encode(self, rows: pa.Array) -> pa.Array:
        """The bytes (`pa.binary()`) of each row; null rows are null. Raises EncodingError."""


# A record may take many times its bytes while it is decoded.
CHUNK_BYTES = 4 * 1024 * 1024


def in_chunks(data: pa.Array, data_type: pa.DataType, decode: Callable[[pa.Array], Decoded]) -> Decoded:
    """The values of a column of bytes. About CHUNK_BYTES, or a single row, are decoded at a time."""
    offsets = np.frombuffer(data.buffers()[1] or b"\0\0\0\0", np.int32)[data.offset : data.offset + len(data) + 1]
    chunks, start = [], 0
    while start < len(data):
        end = int(np.searchsorted(offsets, int(offsets[start]) + CHUNK_BYTES, side="right")) - 1
        end = min(max(end, start + 1), len(data))
        chunks.append(decode(data.slice(start, end - start)))
        start = end
    if len(chunks) == 1:
        return chunks[0]
    column = pa.concat_arrays([chunk.column for chunk in chunks]) if chunks else pa.array([], data_type)
    if all(chunk.bad is None for chunk in chunks):
        return Decoded(column)
    masks = [np.zeros(len(chunk.column), np.bool_) if chunk.bad is None else chunk.bad for chunk in chunks]
    return Decoded(column, np.concatenate(masks), next(chunk.reason for chunk in chunks if chunk.reason))


# Each module has `decoder(format, type)`, and its namesake in `encoders` has `encoder(format, type)`.
_MODULES = {STRING: "strings", JSON: "json", CSV: "csv", AVRO: "avro", PROTOBUF: "protobuf"}


_PACKAGES = {PROTOBUF: "protobuf"}


def make_decoder(column: ColumnFormat, data_type: pa.DataType) -> Decoder:
    """A decoder of the format for this type. Raises ValueError for a type that the format cannot have."""
    if column.registry is not None:
        wired: Decoder = _wire().WireDecoder(column, data_type, make_decoder)
        return wired
    made: Decoder = _module(column.name, "formats").decoder(column, data_type)
    return made


def make_encoder(column: ColumnFormat, data_type: pa.DataType) -> Encoder:
    """An encoder of the format for this type. Raises ValueError for a type that the format cannot have."""
    if column.prefix:
        wired: Encoder = _wire().WireEncoder(column.prefix, make_encoder(replace(column, prefix=b""), data_type))
        return wired
    made: Encoder = _module(column.name, "formats.encoders").encoder(column, data_type)
    return made


def _wire() -> Any:
    return importlib.import_module("klamm.spark.formats.wire")


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(f"klamm.spark.{package}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        missing = _PACKAGES.get(name, error.name)
        raise MissingLibrary(
            f"the format {name} needs the package {missing}: pip install 'klamm[formats]', also on the workers"
        ) from None
