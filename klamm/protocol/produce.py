"""Produce, versions 0 to 9: messages and hand-written codecs. The records are never copied.

A decoded request's records are parts of its frame's memory, and writable if the frame is a bytearray, so that the log
can put offsets into them in place.

Versions: 1 throttle time, 2 log append time, 3 transactional id, 5 log start offset, 8 record errors (KIP-467),
9 flexible. Versions 0 to 2 are decoded so that they can be answered: their records are message sets, which klamm
refuses.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.primitives import (
    Buffer,
    InvalidFrame,
    check_count,
    check_end,
    compact_nullable_string,
    compact_string,
    length_prefix,
    nullable_string,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_nullable_string,
    read_records,
    read_string,
    skip_tagged_fields,
    string,
)
from klamm.protocol.schema import WHOLE, Answered, Api

FLEXIBLE_FROM = 9
MAX_ELEMENTS = 100_000
# Copying fewer bytes than this into the head of a frame costs less than another buffer in the system call.
INLINE_BYTES = 4096

_INT32 = struct.Struct(">i")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_RESULT_V0 = struct.Struct(">ihq")
_RESULT_V2 = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")


@dataclass(slots=True)
class ProduceRequest(Answered["ProduceResponse"]):
    """Records to append. `topics` has, per topic name, the partitions' indexes and records (None: null)."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[tuple[int, memoryview | bytes | bytearray | None]]]]


class PartitionProduceResponse(NamedTuple):
    """What became of one partition's records. `record_errors` has (index in the batch, message) of refused records."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None


@dataclass(slots=True)
class ProduceResponse:
    """The answer, per topic name."""

    topics: list[tuple[str, list[PartitionProduceResponse]]] = field(default_factory=list)
    throttle_time_ms: int = 0


API = Api(ApiKey.PRODUCE, versions="0-9", flexible="9+", size=WHOLE)
REQUEST_CLASS = ProduceRequest
RESPONSE_CLASS = ProduceResponse


def request_decoder(version: int) -> Callable[[Buffer, int], ProduceRequest]:
    """A function (frame, position of the body) -> request; it raises InvalidFrame for anything else."""
    flexible = version >= FLEXIBLE_FROM
    read_text = read_compact_string if flexible else read_string
    read_nullable_text = read_compact_nullable_string if flexible else read_nullable_string

    def decode(frame: Buffer, position: int) -> ProduceRequest:
        elements = [MAX_ELEMENTS]
        transactional_id = None
        try:
            if version >= 3:
                transactional_id, position = read_nullable_text(frame, position)
            acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
            topic_count, position = read_count(frame, position + 6, flexible)
            check_count(topic_count, 3 if flexible else 6, frame, position, elements)
            topics = []
            for _ in range(topic_count):
                topic, position = read_text(frame, position)
                count, position = read_count(frame, position, flexible)
                check_count(count, 6 if flexible else 8, frame, position, elements)
                partitions: list[tuple[int, memoryview | bytes | bytearray | None]] = []
                for _ in range(count):
                    (partition,) = _INT32.unpack_from(frame, position)
                    records, position = read_records(frame, position + 4, flexible)
                    partitions.append((partition, records))
                    if flexible:
                        position = skip_tagged_fields(frame, position, elements)
                topics.append((topic, partitions))
                if flexible:
                    position = skip_tagged_fields(frame, position, elements)
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
            check_end(frame, position)
        except InvalidFrame as error:
            error.path.insert(0, "ProduceRequest")
            raise
        except (struct.error, IndexError):
            raise InvalidFrame("the frame ends within a field", position, "ProduceRequest") from None
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)

    return decode


def encode_request(version: int, request: ProduceRequest) -> list[Buffer]:
    """The request's body as buffers; the records are among them as they are."""
    flexible = version >= FLEXIBLE_FROM
    text = compact_string if flexible else string
    head = bytearray()
    if version >= 3:
        head += (compact_nullable_string if flexible else nullable_string)(request.transactional_id)
    head += _ACKS_AND_TIMEOUT.pack(request.acks, request.timeout_ms)
    head += length_prefix(len(request.topics), flexible)
    buffers: list[Buffer] = []
    for topic, partitions in request.topics:
        head += text(topic)
        head += length_prefix(len(partitions), flexible)
        for partition, records in partitions:
            head += _INT32.pack(partition)
            head += length_prefix(-1 if records is None else len(records), flexible)
            if records is not None:
                if len(records) < INLINE_BYTES:
                    head += records
                else:
                    buffers += (head, records)
                    head = bytearray()
            if flexible:
                head.append(0)
        if flexible:
            head.append(0)
    if flexible:
        head.append(0)
    buffers.append(head)
    return buffers


def encode_response(version: int, response: ProduceResponse) -> list[Buffer]:
    """The response's body."""
    flexible = version >= FLEXIBLE_FROM
    text = compact_string if flexible else string
    nullable_text = compact_nullable_string if flexible else nullable_string
    body = bytearray(length_prefix(len(response.topics), flexible))
    for topic, partitions in response.topics:
        body += text(topic)
        body += length_prefix(len(partitions), flexible)
        for result in partitions:
            if version >= 5:
                body += _RESULT_V5.pack(*result[:5])
            elif version >= 2:
                body += _RESULT_V2.pack(*result[:4])
            else:
                body += _RESULT_V0.pack(*result[:3])
            if version >= 8:
                body += length_prefix(len(result.record_errors), flexible)
                for index, message in result.record_errors:
                    body += _INT32.pack(index)
                    body += nullable_text(message)
                    if flexible:
                        body.append(0)
                body += nullable_text(result.error_message)
            if flexible:
                body.append(0)
        if flexible:
            body.append(0)
    if version >= 1:
        body += _INT32.pack(response.throttle_time_ms)
    if flexible:
        body.append(0)
    return [body]


def response_decoder(version: int) -> Callable[[Buffer, int], ProduceResponse]:
    """A function (frame, position of the body) -> response; it raises InvalidFrame for anything else."""
    flexible = version >= FLEXIBLE_FROM
    read_text = read_compact_string if flexible else read_string
    read_nullable_text = read_compact_nullable_string if flexible else read_nullable_string
    fixed = _RESULT_V5 if version >= 5 else _RESULT_V2 if version >= 2 else _RESULT_V0

    def read_record_errors(
        frame: Buffer, position: int, elements: list[int]
    ) -> tuple[list[tuple[int, str | None]], int]:
        count, position = read_count(frame, position, flexible)
        check_count(count, 6, frame, position, elements)
        errors = []
        for _ in range(count):
            (index,) = _INT32.unpack_from(frame, position)
            message, position = read_nullable_text(frame, position + 4)
            errors.append((index, message))
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
        return errors, position

    def decode(frame: Buffer, position: int) -> ProduceResponse:
        elements = [MAX_ELEMENTS]
        response = ProduceResponse()
        try:
            topic_count, position = read_count(frame, position, flexible)
            check_count(topic_count, 3 if flexible else 6, frame, position, elements)
            for _ in range(topic_count):
                topic, position = read_text(frame, position)
                count, position = read_count(frame, position, flexible)
                check_count(count, fixed.size, frame, position, elements)
                partitions = []
                for _ in range(count):
                    result = PartitionProduceResponse(*fixed.unpack_from(frame, position))
                    position += fixed.size
                    if version >= 8:
                        errors, position = read_record_errors(frame, position, elements)
                        message, position = read_nullable_text(frame, position)
                        result = result._replace(record_errors=errors, error_message=message)
                    partitions.append(result)
                    if flexible:
                        position = skip_tagged_fields(frame, position, elements)
                response.topics.append((topic, partitions))
                if flexible:
                    position = skip_tagged_fields(frame, position, elements)
            if version >= 1:
                (response.throttle_time_ms,) = _INT32.unpack_from(frame, position)
                position += 4
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
            check_end(frame, position)
        except InvalidFrame as error:
            error.path.insert(0, "ProduceResponse")
            raise
        except (struct.error, IndexError):
            raise InvalidFrame("the frame ends within a field", position, "ProduceResponse") from None
        return response

    return decode
