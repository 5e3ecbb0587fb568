"""A walk through the records of a batch: checks the key, timestamp and sizes of each record, without keeping them.

Used for the checks of Kafka's LogValidator at an append, and for lookups by timestamp. A walk can stop after any number
of steps and continue later, so that a batch of a million records blocks no other work.

What must stay true:
- No length is trusted before it has been checked against the available bytes. For any bytes, a walk ends with a result
  or a KafkaError.
- A step is a record or one of its headers, and a walk can stop after each step. Steps cost about the same, whatever the
  size of a record.
- The numbers are Java's: 32 and 64 bits, which wrap around.

Source: org.apache.kafka.common.record.DefaultRecord (readPartiallyFrom), kafka.log.LogValidator.
"""

from enum import IntEnum
from typing import NamedTuple

from klamm.protocol.error_codes import corrupt_message
from klamm.protocol.record.record_batch import NO_TIMESTAMP, BatchHeader
from klamm.protocol.record.records import wrapped_int64

# Refused records above this number are only counted, so that the response is not much larger than the request.
MAX_NAMED_RECORDS = 10_000


class Refusal(IntEnum):
    """The reason why a record is refused."""

    NO_KEY = 1
    TIMESTAMP_OUT_OF_RANGE = 2


class RefusedRecord(NamedTuple):
    """A record that the topic does not accept, by its index in the batch."""

    batch_index: int
    refusal: Refusal
    timestamp_ms: int


class Wanted(NamedTuple):
    """What a walk looks for. Timestamps are checked from `earliest_ms` to `latest_ms`, except -1, which means no
    timestamp.

    With `from_timestamp_ms` the walk ends at the first record that is not older, and whose offset is not below
    `from_offset`.
    """

    needs_keys: bool = False
    earliest_ms: int = -(2**63)
    latest_ms: int = 2**63 - 1
    from_timestamp_ms: int | None = None
    from_offset: int = 0


class Begun(NamedTuple):
    """A record that a walk has entered, and in whose headers the walk has stopped."""

    end: int
    headers_left: int
    has_key: bool
    timestamp_delta: int
    offset_delta: int


class RecordWalk:
    """A walk through `body`, the uncompressed records of the batch with this header.

    `max_timestamp_ms` is the largest timestamp so far, -1 without timestamps. `match` is the (timestamp, offset) of the
    wanted record. `refused` names the first of the records that `keyless_count` and `out_of_range_count` count.
    """

    __slots__ = (
        "begun",
        "body",
        "header",
        "index",
        "is_numbered",
        "keyless_count",
        "match",
        "max_timestamp_ms",
        "out_of_range_count",
        "position",
        "refused",
        "wanted",
    )

    def __init__(self, body: bytes | memoryview, header: BatchHeader, wanted: Wanted) -> None:
        self.body = body
        self.header = header
        self.wanted = wanted
        self.position = 0
        self.index = 0
        self.begun: Begun | None = None
        self.max_timestamp_ms = NO_TIMESTAMP
        self.match: tuple[int, int] | None = None
        self.refused: list[RefusedRecord] = []
        self.keyless_count = 0
        self.out_of_range_count = 0
        # Whether the offset deltas of the records are 0, 1, 2 ... as in batches of producers.
        self.is_numbered = True

    def advance(self, most_steps: int) -> bool:
        """Continues for about this many steps. Returns whether the walk is over.

        Raises KafkaError(CORRUPT_MESSAGE) when the bytes are not the records that the header announces.
        """
        body, size = self.body, len(self.body)
        header, count = self.header, self.header.record_count
        append_time = header.max_timestamp if header.is_log_append_time else None
        try:
            while self.index < count:
                if most_steps <= 0:
                    return False
                if self.begun is None:
                    most_steps -= 1
                    length, position = varint(body, self.position)
                    end = position + length
                    if length < 0 or end > size:
                        raise corrupt_message(f"record {self.index} does not fit into its batch")
                    delta, position = varlong(body, position + 1)  # after the attributes, which are unused
                    offset_delta, position = varint(body, position)
                    key_length, position = skip_field(body, position)
                    has_key = key_length >= 0
                    _, position = skip_field(body, position)
                    headers, position = varint(body, position)
                    if not 0 <= headers <= (end - position) // 2:
                        raise corrupt_message(f"record {self.index} cannot have {headers} headers")
                else:
                    position = self.position
                    end, headers, has_key, delta, offset_delta = self.begun
                    self.begun = None
                if headers > 0:
                    passed = min(headers, most_steps)
                    position = self._pass_headers(position, passed)
                    most_steps -= passed
                    if passed < headers:
                        self.position = position
                        self.begun = Begun(end, headers - passed, has_key, delta, offset_delta)
                        return False
                if position != end:
                    raise corrupt_message(f"the fields of record {self.index} do not end where its length says")
                self.position = position
                timestamp_ms = append_time
                if timestamp_ms is None:
                    timestamp_ms = wrapped_int64(header.base_timestamp + delta)
                if self._is_over_after(has_key, timestamp_ms, offset_delta):
                    return True
        except IndexError:
            raise corrupt_message("the records end within a number") from None
        if self.position != size:
            raise corrupt_message(f"{size - self.position} bytes follow the last record")
        return True

    def _pass_headers(self, position: int, count: int) -> int:
        body = self.body
        for _ in range(count):
            name_length, position = skip_field(body, position)
            if name_length < 0:
                raise corrupt_message(f"a header of record {self.index} has no name")
            _, position = skip_field(body, position)
        return position

    def _is_over_after(self, has_key: bool, timestamp_ms: int, offset_delta: int) -> bool:
        """Counts one record. Returns whether it is the wanted record."""
        index, wanted = self.index, self.wanted
        self.index += 1
        if offset_delta != index:
            self.is_numbered = False
        self.max_timestamp_ms = max(self.max_timestamp_ms, timestamp_ms)
        if wanted.needs_keys and not has_key:
            self.keyless_count += 1
            self._name(RefusedRecord(index, Refusal.NO_KEY, timestamp_ms))
        elif not wanted.earliest_ms <= timestamp_ms <= wanted.latest_ms and timestamp_ms != NO_TIMESTAMP:
            self.out_of_range_count += 1
            self._name(RefusedRecord(index, Refusal.TIMESTAMP_OUT_OF_RANGE, timestamp_ms))
        if wanted.from_timestamp_ms is not None and timestamp_ms >= wanted.from_timestamp_ms:
            offset = wrapped_int64(self.header.base_offset + offset_delta)
            if offset >= wanted.from_offset:
                self.match = timestamp_ms, offset
                return True
        return False

    def _name(self, record: RefusedRecord) -> None:
        if len(self.refused) < MAX_NAMED_RECORDS:
            self.refused.append(record)


def varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """(number of 32 bits, position after it). Raises IndexError at the end of the data, KafkaError(CORRUPT_MESSAGE)."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, position = _long_number(data, position, 5)
    value &= 0xFFFF_FFFF
    return (value >> 1) ^ -(value & 1), position


def varlong(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Like `varint`, with 64 bits."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, position = _long_number(data, position, 10)
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return (value >> 1) ^ -(value & 1), position


def _long_number(data: bytes | memoryview, position: int, max_size_bytes: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * max_size_bytes, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise corrupt_message(f"a number has more than {max_size_bytes} bytes")


def skip_field(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """(length, -1 for null; position after the field). The position may be after the end, where nothing can be read."""
    length, position = varint(data, position)
    if length < -1:
        raise corrupt_message(f"a field has {length} bytes")
    return length, position + max(length, 0)
