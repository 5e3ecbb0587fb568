"""Confluent's wire format: a zero byte, the id of the writer's schema in 4 bytes, then the value. In Protobuf the path
to the message is between id and value.

What must stay true:
- Values keep their order, whatever ids they have. A value is bad if it does not have this form, or if the registry does
  not have its schema, or if the format cannot use the schema. A registry that fails is an error.
- A task asks for an id once. After `MAX_UNKNOWN_IDS` ids that the registry does not have, it asks for no further ids,
  and values with further ids are bad. It asks first for the ids that most values of a batch have.

Source: docs.confluent.io, "Wire format" of Schema Registry's formats and serializers.
"""

import base64
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from klamm.spark.formats.coding import Decoded, Decoder, Encoder, Mask
from klamm.spark.formats.settings import AVRO, PROTOBUF, ColumnFormat

logger = logging.getLogger(__name__)

HEAD_BYTES = 5
MAX_UNKNOWN_IDS = 1_000
MAX_MESSAGE_DEPTH = 32

MakeDecoder = Callable[[ColumnFormat, pa.DataType], Decoder]


class WireEncoder:
    """Puts the same prefix before each value."""

    def __init__(self, prefix: bytes, values: Encoder) -> None:
        self._prefix = pa.scalar(prefix, pa.binary())
        self._values = values

    def encode(self, rows: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(self._prefix, self._values.encode(rows), pa.scalar(b"", pa.binary()))


class _Group(NamedTuple):
    """The positions of values that are decoded alike, or are bad for the same reason."""

    rows: npt.NDArray[np.int64]
    values: pa.Array | None
    decoder: Decoder | None
    reason: str = ""


class WireDecoder:
    """Decodes values by the schemas that they name."""

    def __init__(self, column: ColumnFormat, data_type: pa.DataType, make: MakeDecoder) -> None:
        assert column.registry is not None
        self._column = column
        self._type = data_type
        self._make = make
        self._registry = column.registry.registry
        self._of_ids: dict[int, Decoder | str] = {}
        self._of_paths: dict[tuple[int, tuple[int, ...]], str] = {}
        self._unknown = 0
        # JSON describes itself, and Protobuf's fields have numbers. Avro's values need their writers' schemas, but
        # whether the type fits the reader's schema does not depend on them.
        if column.name != AVRO or column.schema is not None:
            made = make(replace(column, registry=None), data_type)
        self._for_all = None if column.name == AVRO else made

    def decode(self, data: pa.Array) -> Decoded:
        ids, framed = _heads(data)
        if self._for_all is not None and self._column.name != PROTOBUF:
            values = _without(data.filter(pa.array(framed)), HEAD_BYTES)
            groups = [_Group(np.flatnonzero(framed), values, self._for_all)]
        else:
            found, counts = np.unique(ids[framed], return_counts=True)
            often = found[np.argsort(-counts, kind="stable")].tolist()
            groups = [one for each in often for one in self._groups(each, ids, framed, data)]
        return self._together(data, framed, groups)

    def _together(self, data: pa.Array, framed: Mask, groups: list[_Group]) -> Decoded:
        bad = ~framed & data.is_valid().to_numpy(zero_copy_only=False)
        reason = "the bytes do not begin with a zero and the id of a schema" if bad.any() else ""
        first_bad = int(np.argmax(bad)) if reason else len(data)
        parts, places = [pa.nulls(int((~framed).sum()), self._type)], [np.flatnonzero(~framed)]
        for group in groups:
            places.append(group.rows)
            if group.decoder is None or group.values is None:
                parts.append(pa.nulls(len(group.rows), self._type))
                wrong, told = np.ones(len(group.rows), np.bool_), group.reason
            else:
                decoded = group.decoder.decode(group.values)
                parts.append(decoded.column)
                if decoded.bad is None:
                    continue
                wrong, told = decoded.bad, decoded.reason
            rows = group.rows[wrong]
            bad[rows] = True
            if len(rows) and rows[0] < first_bad:
                first_bad, reason = int(rows[0]), told
        order = np.concatenate(places)
        column = pa.concat_arrays(parts).take(pa.array(np.argsort(order, kind="stable")))
        return Decoded(column, bad, reason) if bad.any() else Decoded(column)

    def _groups(self, schema_id: int, ids: npt.NDArray[np.int64], framed: Mask, data: pa.Array) -> list[_Group]:
        rows = np.flatnonzero(framed & (ids == schema_id))
        decoder = self._decoder(schema_id)
        if isinstance(decoder, str):
            return [_Group(rows, None, None, decoder)]
        values = _without(data.take(pa.array(rows)), HEAD_BYTES)
        if self._column.name != PROTOBUF:
            return [_Group(rows, values, decoder)]
        return self._by_message(schema_id, rows, values, decoder)

    def _decoder(self, schema_id: int) -> Decoder | str:
        """The decoder for an id, or the reason why its values are bad."""
        from klamm.spark.formats.registry import UnknownSchema, schema_by_id

        known = self._of_ids.get(schema_id)
        if known is not None:
            return known
        if self._unknown >= MAX_UNKNOWN_IDS:
            return f"values name more than {MAX_UNKNOWN_IDS} ids that the registry does not have"
        try:
            schema = schema_by_id(self._registry, schema_id, self._column.name)
            # Avro needs both the writer's and the reader's schema.
            written = replace(
                self._column, registry=None, schema=schema.text, reader_schema=self._column.schema or schema.text
            )
            made: Decoder | str = self._for_all or self._make(written, self._type)
        except UnknownSchema as error:
            self._unknown += 1
            made = str(error)
            if self._unknown == MAX_UNKNOWN_IDS:
                logger.warning(
                    "values name %d ids that the schema registry does not have; it is asked for no other id by this"
                    " task. Are the values in Confluent's wire format?",
                    MAX_UNKNOWN_IDS,
                )
        except ValueError as error:
            made = f"the schema with the id {schema_id} cannot be used: {error}"
        self._of_ids[schema_id] = made
        return made

    # -- Protobuf -----------------------------------------------------------------------------------------------------

    def _by_message(
        self, schema_id: int, rows: npt.NDArray[np.int64], values: pa.Array, decoder: Decoder
    ) -> list[_Group]:
        """Values of the wanted message, without the path to it. Other values are bad."""
        if pc.all(pc.starts_with(values, pattern=b"\x00")).as_py():
            paths: list[tuple[tuple[int, ...], int] | None] = [((0,), 1)] * len(rows)
        else:
            paths = [_message_path(value) for value in values.to_pylist()]
        reasons = [
            "the path to the message is damaged" if path is None else self._reason(schema_id, path[0]) for path in paths
        ]
        good = np.array([not reason for reason in reasons])
        groups = []
        for length in sorted({path[1] for path in paths if path is not None}):
            chosen = good & np.array([path is not None and path[1] == length for path in paths])
            groups.append(_Group(rows[chosen], _without(values.filter(pa.array(chosen)), length), decoder))
        for reason in sorted(set(filter(None, reasons))):
            groups.append(_Group(rows[[each == reason for each in reasons]], None, None, reason))
        return groups

    def _reason(self, schema_id: int, path: tuple[int, ...]) -> str:
        """Why a message is not the wanted one; empty if it is."""
        from klamm.spark.formats.registry import schema_by_id

        if (schema_id, path) not in self._of_paths:
            wanted = self._column.message or message_name(self._column.schema or "", (0,))
            found = message_name(schema_by_id(self._registry, schema_id, PROTOBUF).text, path)
            if found is None:
                told = "the path to the message names none"
            else:
                told = "" if found == wanted else f"the message is {found}, not {wanted}"
            if len(self._of_paths) > MAX_UNKNOWN_IDS:
                self._of_paths.clear()
            self._of_paths[schema_id, path] = told
        return self._of_paths[schema_id, path]


def _without(values: pa.Array, count: int) -> pa.Array:
    """The values without their first `count` bytes. Each has at least these. Arrow's own function fails for short
    values."""
    if len(values) == 0:
        return values
    _, offsets, content = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    found = np.frombuffer(b"" if content is None else content, np.uint8)[bounds[0] : bounds[-1]]
    kept = np.ones(len(found), np.bool_)
    kept[(bounds[:-1, None] - bounds[0] + np.arange(count)).ravel()] = False
    shorter = bounds - bounds[0] - count * np.arange(len(bounds), dtype=np.int32)
    buffers = [None, pa.py_buffer(shorter.astype(np.int32)), pa.py_buffer(found[kept])]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _heads(data: pa.Array) -> tuple[npt.NDArray[np.int64], Mask]:
    """The id of each value, and which values have one."""
    _, offsets, content = data.buffers()
    if len(data) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    bounds = np.frombuffer(offsets, np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
    found = np.frombuffer(b"" if content is None else content, np.uint8)
    framed = (np.diff(bounds) >= HEAD_BYTES) & data.is_valid().to_numpy(zero_copy_only=False)
    starts = bounds[:-1][framed]
    framed[framed] = found[starts] == 0
    starts = bounds[:-1][framed]
    ids = np.zeros(len(data), np.int64)
    for place in range(1, HEAD_BYTES):
        ids[framed] = ids[framed] << 8 | found[starts + place]
    return ids, framed


# -- the path to a message of Protobuf: indexes of messages in their file, or in the message around them --------------


def write_message_path(path: tuple[int, ...]) -> bytes:
    if path == (0,):
        return b"\x00"
    return b"".join(map(_varint, (len(path), *path)))


def _varint(number: int) -> bytes:
    """A non-negative number as zigzag varint."""
    number <<= 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _message_path(data: bytes) -> tuple[tuple[int, ...], int] | None:
    """The path at the beginning of the data, and how many bytes it takes; None if it is damaged."""
    numbers: list[int] = []
    at, wanted = 0, 1
    while len(numbers) < wanted:
        number, shift = 0, 0
        while True:
            if at >= len(data) or shift > 28:
                return None
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if number & 1:
            return None
        numbers.append(number >> 1)
        if len(numbers) == 1:
            wanted = 1 + numbers[0]
            if numbers[0] > MAX_MESSAGE_DEPTH:
                return None
    return (tuple(numbers[1:]) or (0,)), at


def message_name(file_set: str, path: tuple[int, ...]) -> str | None:
    """The full name of the message at the path in the last file of a set."""
    file = _last_file(file_set)
    messages: Any = file.message_type
    names = [file.package] if file.package else []
    for index in path:
        if index >= len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def message_path(file_set: str, name: str) -> tuple[int, ...]:
    """The path to a message of the last file of a set. Raises ValueError."""
    file = _last_file(file_set)
    prefix = f"{file.package}." if file.package else ""
    messages: Any = file.message_type
    path: list[int] = []
    for part in name.removeprefix(prefix).split("."):
        names = [message.name for message in messages]
        if not name.startswith(prefix) or part not in names:
            raise ValueError(f"there is no message {name} in the last file of the schema")
        path.append(names.index(part))
        messages = messages[path[-1]].nested_type
    return tuple(path)


def _last_file(file_set: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return FileDescriptorSet.FromString(base64.b64decode(file_set)).file[-1]
