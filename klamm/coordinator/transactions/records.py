"""Encodes and decodes the records of `__transaction_state`, in Kafka's format. Pure.

Each key and each value begins with its version (int16).

| part  | version 0                                     | version 1 (Kafka 4), flexible                              |
|-------|-----------------------------------------------|------------------------------------------------------------|
| key   | transactional id                              |                                                            |
| value | producer id int64, epoch int16, timeout       | the same, with compact text and arrays and tagged fields:  |
|       | int32 (ms), state int8, [topic, [partition    | 0 the last producer id, 1 the next producer id, 2 the      |
|       | int32]]?, last update int64, start int64      | client's transaction version                               |

What must stay true:
- Keys and values are written in version 0, as Kafka does until 3.x. The partitions of an Empty id are null.
- Values of version 1 can be read. Their tagged fields are ignored: they belong to transactions of version 2 (KIP-890),
  which brokers of this protocol level do not offer.
- Invalid bytes raise ValueError with the reason. Bytes after the end are ignored, as in Kafka.

Source: kafka.coordinator.transaction.TransactionLog, TransactionLogKey.json, TransactionLogValue.json.
"""

import struct
from collections.abc import Callable
from typing import TypeVar

from klamm.coordinator.transactions.states import TransactionState
from klamm.coordinator.transactions.transaction import (
    NO_PARTITIONS,
    Partitions,
    ProducerIdAndEpoch,
    TransactionMetadata,
)
from klamm.protocol.primitives import (
    MAX_STRING_BYTES,
    InvalidFrame,
    read_compact_string,
    read_length,
    read_string,
    read_tagged_fields,
)
from klamm.protocol.vocabulary import PartitionKey

KEY_VERSION = 0
VALUE_VERSION = 0
FLEXIBLE_VALUE_VERSION = 1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_TWO_INT64 = struct.Struct(">qq")
_HEAD = struct.Struct(">hqhib")
_NO_ARRAY = _INT32.pack(-1)

T = TypeVar("T")


class UnknownKeyVersion(ValueError):
    """The key belongs to a record kind of a later Kafka version."""


# -- writing ----------------------------------------------------------------------------------------------------------


def transaction_key(transactional_id: str) -> bytes:
    return _INT16.pack(KEY_VERSION) + _string(transactional_id)


def transaction_value(metadata: TransactionMetadata) -> bytes:
    return b"".join(
        (
            _HEAD.pack(VALUE_VERSION, *metadata.producer, metadata.timeout_ms, metadata.state),
            _NO_ARRAY if metadata.state is TransactionState.EMPTY else _partitions(metadata.partitions),
            _TWO_INT64.pack(metadata.last_update_timestamp_ms, metadata.start_timestamp_ms),
        )
    )


def _partitions(partitions: Partitions) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    parts = [_INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += (_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > MAX_STRING_BYTES:
        raise ValueError(f"text of {len(data)} bytes, allowed are {MAX_STRING_BYTES}: {text[:50]}...")
    return _INT16.pack(len(data)) + data


# -- reading ----------------------------------------------------------------------------------------------------------


def read_transaction_key(data: bytes) -> str:
    """The transactional id. UnknownKeyVersion for a record of another kind; ValueError for invalid bytes."""
    return _whole(_read_key, data)


def read_transaction_value(data: bytes) -> TransactionMetadata:
    """ValueError for an unknown version or state, or invalid bytes."""
    return _whole(_read_value, data)


def _whole(read: Callable[[bytes], T], data: bytes) -> T:
    try:
        return read(data)
    except (struct.error, IndexError):
        raise InvalidFrame("the record ends too early", len(data)) from None


def _read_key(data: bytes) -> str:
    (version,) = _INT16.unpack_from(data)
    if version != KEY_VERSION:
        raise UnknownKeyVersion(f"a key of version {version}, known is {KEY_VERSION}")
    return read_string(data, 2)[0]


def _read_value(data: bytes) -> TransactionMetadata:
    (version,) = _INT16.unpack_from(data)
    if not 0 <= version <= FLEXIBLE_VALUE_VERSION:
        raise InvalidFrame(f"a value of version {version}, known are 0 to {FLEXIBLE_VALUE_VERSION}", 0)
    _, producer_id, epoch, timeout_ms, status = _HEAD.unpack_from(data)
    try:
        state = TransactionState(status)
    except ValueError:
        raise InvalidFrame(f"a transaction in state {status}, known are 0 to 5", _HEAD.size - 1) from None
    is_flexible = version == FLEXIBLE_VALUE_VERSION
    partitions, position = _read_partitions(data, _HEAD.size, is_flexible)
    last_update_timestamp_ms, start_timestamp_ms = _TWO_INT64.unpack_from(data, position)
    if is_flexible:
        read_tagged_fields(data, position + _TWO_INT64.size, [len(data)])
    return TransactionMetadata(
        ProducerIdAndEpoch(producer_id, epoch),
        timeout_ms,
        state,
        NO_PARTITIONS if state is TransactionState.EMPTY else partitions,
        last_update_timestamp_ms,
        start_timestamp_ms,
    )


def _read_partitions(data: bytes, position: int, is_flexible: bool) -> tuple[Partitions, int]:
    count, position = _read_count(data, position, is_flexible)
    partitions: dict[PartitionKey, None] = {}
    for _ in range(count):
        topic, position = read_compact_string(data, position) if is_flexible else read_string(data, position)
        number_count, position = _read_count(data, position, is_flexible)
        for number in struct.unpack_from(f">{max(number_count, 0)}i", data, position):
            partitions[topic, number] = None
        position += 4 * max(number_count, 0)
        if is_flexible:
            _, position = read_tagged_fields(data, position, [len(data)])
    return partitions or NO_PARTITIONS, position


def _read_count(data: bytes, position: int, is_flexible: bool) -> tuple[int, int]:
    """The length of an array; -1 is null."""
    if is_flexible:
        count, position = read_length(data, position)
    else:
        (count,) = _INT32.unpack_from(data, position)
        position += 4
    # Each element takes at least two bytes.
    if count < -1 or 2 * count > len(data) - position:
        raise InvalidFrame(f"{count} elements, but {len(data) - position} bytes are left", position)
    return count, position
