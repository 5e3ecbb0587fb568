"""OffsetCommit, versions 2 to 8: messages and hand-written codecs. Consumers commit all the time, mostly one partition.

Versions: 3 throttle time, 5 without a retention of the client's own, 6 leader epoch (KIP-320), 7 instance id (KIP-345),
8 flexible. Versions 0 and 1 are not served.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    read_string,
    skip_tagged_fields,
    string,
)
from klamm.protocol.schema import LIST, Answered, Api
from klamm.protocol.vocabulary import NO_EPOCH

THROTTLE_TIME_FROM = 3
LAST_WITH_RETENTION = 4
LEADER_EPOCH_FROM = 6
INSTANCE_ID_FROM = 7
FLEXIBLE_FROM = 8
MAX_ELEMENTS = 100_000
RESPONSE_MAX_ELEMENTS = 10_000_000

NO_RETENTION = -1

_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET = struct.Struct(">iq")
_OFFSET_AND_EPOCH = struct.Struct(">iqi")
_RESULT = struct.Struct(">ih")
# With the count of tagged fields.
_FLEXIBLE_RESULT = struct.Struct(">ihB")


class PartitionOffset(NamedTuple):
    """What is committed for a partition. `leader_epoch` is that of the last record consumed, -1 if it is not known."""

    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str | None = ""


class PartitionResult(NamedTuple):
    """What became of a partition's commit."""

    partition: int
    error_code: int


@dataclass(slots=True)
class OffsetCommitRequest(Answered["OffsetCommitResponse"]):
    """`topics` has, per topic name, what is committed. `retention_time_ms`: how long the offsets are kept; -1: as long
    as the broker keeps them."""

    group_id: str
    topics: list[tuple[str, list[PartitionOffset]]]
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = NO_RETENTION


@dataclass(slots=True)
class OffsetCommitResponse:
    """`topics` has, per topic name, what became of its partitions."""

    topics: Sequence[tuple[str, Sequence[PartitionResult]]]
    throttle_time_ms: int = 0


API = Api(ApiKey.OFFSET_COMMIT, versions="2-8", flexible="8+", size=LIST)
REQUEST_CLASS = OffsetCommitRequest
RESPONSE_CLASS = OffsetCommitResponse


def request_decoder(version: int) -> Callable[[Buffer, int], OffsetCommitRequest]:
    """A function (frame, position of the body) -> request; it raises InvalidFrame for anything else."""
    flexible = version >= FLEXIBLE_FROM
    read_text = read_compact_string if flexible else read_string
    read_nullable_text = read_compact_nullable_string if flexible else read_nullable_string
    has_leader_epoch = version >= LEADER_EPOCH_FROM
    fixed_bytes = _OFFSET_AND_EPOCH.size if has_leader_epoch else _OFFSET.size

    def read_partitions(frame: Buffer, position: int, elements: list[int]) -> tuple[list[PartitionOffset], int]:
        count, position = read_count(frame, position, flexible)
        # The shortest note takes a byte, its length.
        check_count(count, fixed_bytes + 1, frame, position, elements)
        partitions = []
        leader_epoch = NO_EPOCH
        for _ in range(count):
            if has_leader_epoch:
                partition, offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(frame, position)
            else:
                partition, offset = _OFFSET.unpack_from(frame, position)
            metadata, position = read_nullable_text(frame, position + fixed_bytes)
            partitions.append(PartitionOffset(partition, offset, leader_epoch, metadata))
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
        return partitions, position

    def decode(frame: Buffer, position: int) -> OffsetCommitRequest:
        elements = [MAX_ELEMENTS]
        group_instance_id = None
        retention_time_ms = NO_RETENTION
        topics = []
        try:
            group_id, position = read_text(frame, position)
            (generation_id,) = _INT32.unpack_from(frame, position)
            member_id, position = read_text(frame, position + 4)
            if version >= INSTANCE_ID_FROM:
                group_instance_id, position = read_nullable_text(frame, position)
            if version <= LAST_WITH_RETENTION:
                (retention_time_ms,) = _INT64.unpack_from(frame, position)
                position += 8
            topic_count, position = read_count(frame, position, flexible)
            check_count(topic_count, 3 if flexible else 6, frame, position, elements)
            for _ in range(topic_count):
                topic, position = read_text(frame, position)
                partitions, position = read_partitions(frame, position, elements)
                topics.append((topic, partitions))
                if flexible:
                    position = skip_tagged_fields(frame, position, elements)
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
            check_end(frame, position)
        except InvalidFrame as error:
            error.path.insert(0, "OffsetCommitRequest")
            raise
        except (struct.error, IndexError):
            raise InvalidFrame("the frame ends within a field", position, "OffsetCommitRequest") from None
        return OffsetCommitRequest(group_id, topics, generation_id, member_id, group_instance_id, retention_time_ms)

    return decode


def encode_request(version: int, request: OffsetCommitRequest) -> list[Buffer]:
    """The request's body. What the version has no field for is left out."""
    flexible = version >= FLEXIBLE_FROM
    text = compact_string if flexible else string
    nullable_text = compact_nullable_string if flexible else nullable_string
    body = bytearray(text(request.group_id))
    body += _INT32.pack(request.generation_id)
    body += text(request.member_id)
    if version >= INSTANCE_ID_FROM:
        body += nullable_text(request.group_instance_id)
    if version <= LAST_WITH_RETENTION:
        body += _INT64.pack(request.retention_time_ms)
    body += length_prefix(len(request.topics), flexible)
    for topic, partitions in request.topics:
        body += text(topic)
        body += length_prefix(len(partitions), flexible)
        for one in partitions:
            if version >= LEADER_EPOCH_FROM:
                body += _OFFSET_AND_EPOCH.pack(one.partition, one.offset, one.leader_epoch)
            else:
                body += _OFFSET.pack(one.partition, one.offset)
            body += nullable_text(one.metadata)
            if flexible:
                body.append(0)
        if flexible:
            body.append(0)
    if flexible:
        body.append(0)
    return [body]


def encode_response(version: int, response: OffsetCommitResponse) -> list[Buffer]:
    """The response's body."""
    flexible = version >= FLEXIBLE_FROM
    text = compact_string if flexible else string
    body = bytearray()
    if version >= THROTTLE_TIME_FROM:
        body += _INT32.pack(response.throttle_time_ms)
    body += length_prefix(len(response.topics), flexible)
    for topic, results in response.topics:
        body += text(topic)
        body += length_prefix(len(results), flexible)
        for partition, error_code in results:
            if flexible:
                body += _FLEXIBLE_RESULT.pack(partition, error_code, 0)
            else:
                body += _RESULT.pack(partition, error_code)
        if flexible:
            body.append(0)
    if flexible:
        body.append(0)
    return [body]


def response_decoder(version: int) -> Callable[[Buffer, int], OffsetCommitResponse]:
    """A function (frame, position of the body) -> response; it raises InvalidFrame for anything else."""
    flexible = version >= FLEXIBLE_FROM
    read_text = read_compact_string if flexible else read_string

    def decode(frame: Buffer, position: int) -> OffsetCommitResponse:
        elements = [RESPONSE_MAX_ELEMENTS]
        throttle_time_ms = 0
        topics = []
        try:
            if version >= THROTTLE_TIME_FROM:
                (throttle_time_ms,) = _INT32.unpack_from(frame, position)
                position += 4
            topic_count, position = read_count(frame, position, flexible)
            check_count(topic_count, 3 if flexible else 6, frame, position, elements)
            for _ in range(topic_count):
                topic, position = read_text(frame, position)
                count, position = read_count(frame, position, flexible)
                check_count(count, _RESULT.size, frame, position, elements)
                results = []
                for _ in range(count):
                    results.append(PartitionResult(*_RESULT.unpack_from(frame, position)))
                    position += _RESULT.size
                    if flexible:
                        position = skip_tagged_fields(frame, position, elements)
                topics.append((topic, results))
                if flexible:
                    position = skip_tagged_fields(frame, position, elements)
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
            check_end(frame, position)
        except InvalidFrame as error:
            error.path.insert(0, "OffsetCommitResponse")
            raise
        except (struct.error, IndexError):
            raise InvalidFrame("the frame ends within a field", position, "OffsetCommitResponse") from None
        return OffsetCommitResponse(topics, throttle_time_ms)

    return decode
