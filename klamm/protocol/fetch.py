"""Fetch, versions 4 to 12: messages and hand-written codecs. The records are never copied.

Brokers encode responses and decode requests; the follower fetchers and other readers do the reverse. A response is
encoded as a list of buffers in which each partition's records appear as they were given; a decoded response's records
are parts of its frame's memory.

Versions: 5 log start offset, 7 sessions and forgotten topics (KIP-227), 9 current leader epoch (KIP-320), 11 rack and
preferred read replica (KIP-392), 12 flexible, last fetched and diverging epoch (KIP-595), current leader.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.primitives import (
    PARTITIONS_PER_STEP,
    Buffer,
    InvalidFrame,
    Steps,
    check_count,
    check_end,
    compact_nullable_string,
    compact_string,
    in_one_go,
    length_prefix,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_length,
    read_records,
    read_string,
    read_tagged_fields,
    skip_tagged_fields,
    string,
    unsigned_varint,
)
from klamm.protocol.schema import LIST, Answered, Api

FLEXIBLE_FROM = 12
MAX_ELEMENTS = 100_000
RESPONSE_MAX_ELEMENTS = 1_000_000
# Copying fewer bytes than this into the head of a frame costs less than another buffer in the system call.
INLINE_BYTES = 4096

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEAD_V4 = struct.Struct(">iiiib")
_HEAD_V7 = struct.Struct(">iiiibii")
# A partition to fetch; with the byte of its (empty) tagged fields in version 12.
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqix")
_RESPONSE_HEAD_V7 = struct.Struct(">ihi")
_RESULT_V4 = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING_EPOCH = struct.Struct(">iq")
_CURRENT_LEADER = struct.Struct(">ii")

_CLUSTER_ID_TAG = 0
_DIVERGING_EPOCH_TAG = 0
_CURRENT_LEADER_TAG = 1


class FetchPartition(NamedTuple):
    """A partition to fetch from. An unknown epoch is -1. `log_start_offset` is a follower's own, -1 for a consumer."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


@dataclass(slots=True)
class FetchRequest(Answered["FetchResponse"]):
    """The partitions to fetch, by topic. `replica_id` is -1 for a consumer. Session epoch -1 means no session."""

    replica_id: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[tuple[str, list[FetchPartition]]] = field(default_factory=list)
    forgotten_topics: list[tuple[str, list[int]]] = field(default_factory=list)
    rack_id: str = ""
    cluster_id: str | None = None


@dataclass(slots=True)
class FetchResponsePartition:
    """One partition's records and state.

    `aborted_transactions` has (producer id, first offset) pairs; None unless the isolation level is read_committed.
    `diverging_epoch` is (epoch, end offset) where a follower must truncate; `current_leader` is (leader id, epoch).
    """

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: list[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: Buffer | None = b""
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


@dataclass(slots=True)
class FetchResponse:
    """The partitions' results, by topic."""

    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    topics: list[tuple[str, list[FetchResponsePartition]]] = field(default_factory=list)


API = Api(ApiKey.FETCH, versions="4-12", flexible="12+", size=LIST)
REQUEST_CLASS = FetchRequest
RESPONSE_CLASS = FetchResponse


def is_large(message: FetchRequest | FetchResponse) -> bool:
    """Whether it has so many partitions that encoding them may take several milliseconds."""
    return sum(len(partitions) for _, partitions in message.topics) > PARTITIONS_PER_STEP


# -- requests ---------------------------------------------------------------------------------------------------------


def request_decoder(version: int) -> Callable[[Buffer, int], FetchRequest]:
    """A function (frame, position of the body) -> request; it raises InvalidFrame for anything else."""
    steps = request_steps(version)
    return lambda frame, position: in_one_go(steps(frame, position))


def request_steps(version: int) -> Callable[[Buffer, int], Steps[FetchRequest]]:
    """As `request_decoder`, in steps."""
    flexible = version >= FLEXIBLE_FROM
    read_text = read_compact_string if flexible else read_string
    head = _HEAD_V7 if version >= 7 else _HEAD_V4

    def decode(frame: Buffer, position: int) -> Steps[FetchRequest]:
        elements = [MAX_ELEMENTS]
        in_step = 0
        try:
            request = FetchRequest(*head.unpack_from(frame, position))
            topic_count, position = read_count(frame, position + head.size, flexible)
            check_count(topic_count, 3 if flexible else 6, frame, position, elements)
            for _ in range(topic_count):
                topic, position = read_text(frame, position)
                partitions, position = _read_partitions(version, frame, position, elements)
                request.topics.append((topic, partitions))
                if flexible:
                    position = skip_tagged_fields(frame, position, elements)
                in_step += len(partitions)
                if in_step >= PARTITIONS_PER_STEP:
                    in_step = 0
                    yield
            if version >= 7:
                topic_count, position = read_count(frame, position, flexible)
                check_count(topic_count, 3 if flexible else 6, frame, position, elements)
                for _ in range(topic_count):
                    topic, position = read_text(frame, position)
                    count, position = read_count(frame, position, flexible)
                    check_count(count, 4, frame, position, elements)
                    request.forgotten_topics.append((topic, list(struct.unpack_from(f">{count}i", frame, position))))
                    position += 4 * count
                    if flexible:
                        position = skip_tagged_fields(frame, position, elements)
            if version >= 11:
                request.rack_id, position = read_text(frame, position)
            if flexible:
                tagged, position = read_tagged_fields(frame, position, elements)
                if _CLUSTER_ID_TAG in tagged:
                    start, end = tagged[_CLUSTER_ID_TAG]
                    request.cluster_id, start = read_compact_nullable_string(frame, start)
                    _check_tag_end(start, end)
            check_end(frame, position)
        except InvalidFrame as error:
            error.path.insert(0, "FetchRequest")
            raise
        except (struct.error, IndexError):
            raise InvalidFrame("the frame ends within a field", position, "FetchRequest") from None
        return request

    return decode


def _read_partitions(
    version: int, frame: Buffer, position: int, elements: list[int]
) -> tuple[list[FetchPartition], int]:
    if version >= 12:
        return _read_flexible_partitions(frame, position, elements)
    count, position = read_count(frame, position, False)
    fixed = _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4
    check_count(count, fixed.size, frame, position, elements)
    end = position + count * fixed.size
    values = fixed.iter_unpack(memoryview(frame)[position:end])
    if version >= 9:
        return [
            FetchPartition(index, epoch, offset, -1, start, size) for index, epoch, offset, start, size in values
        ], end
    if version >= 5:
        return [FetchPartition(index, -1, offset, -1, start, size) for index, offset, start, size in values], end
    return [FetchPartition(index, -1, offset, -1, -1, size) for index, offset, size in values], end


def _read_flexible_partitions(frame: Buffer, position: int, elements: list[int]) -> tuple[list[FetchPartition], int]:
    count, position = read_count(frame, position, True)
    size = _PARTITION_V12.size
    check_count(count, size, frame, position, elements)
    end = position + count * size
    # Partitions hardly ever have tagged fields. Without tagged fields all have one size and are read at once.
    if not any(memoryview(frame)[position + size - 1 : end : size]):
        return list(map(FetchPartition._make, _PARTITION_V12.iter_unpack(memoryview(frame)[position:end]))), end
    partitions = []
    for _ in range(count):
        partitions.append(FetchPartition._make(_PARTITION_V12.unpack_from(frame, position)))
        position = skip_tagged_fields(frame, position + size - 1, elements)
    return partitions, position


def encode_request(version: int, request: FetchRequest) -> list[Buffer]:
    """The request's body."""
    return in_one_go(encode_request_steps(version, request))


def encode_request_steps(version: int, request: FetchRequest) -> Steps[list[Buffer]]:
    """As `encode_request`, in steps."""
    in_step = 0
    flexible = version >= FLEXIBLE_FROM
    text = compact_string if flexible else string
    values = (request.replica_id, request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= 7:
        body = bytearray(_HEAD_V7.pack(*values, request.session_id, request.session_epoch))
    else:
        body = bytearray(_HEAD_V4.pack(*values))
    body += length_prefix(len(request.topics), flexible)
    for topic, partitions in request.topics:
        body += text(topic)
        body += length_prefix(len(partitions), flexible)
        for index, epoch, offset, last_epoch, start, max_bytes in partitions:
            if version >= 12:
                body += _PARTITION_V12.pack(index, epoch, offset, last_epoch, start, max_bytes)
            elif version >= 9:
                body += _PARTITION_V9.pack(index, epoch, offset, start, max_bytes)
            elif version >= 5:
                body += _PARTITION_V5.pack(index, offset, start, max_bytes)
            else:
                body += _PARTITION_V4.pack(index, offset, max_bytes)
        if flexible:
            body.append(0)
        in_step += len(partitions)
        if in_step >= PARTITIONS_PER_STEP:
            in_step = 0
            yield
    if version >= 7:
        body += length_prefix(len(request.forgotten_topics), flexible)
        for topic, indexes in request.forgotten_topics:
            body += text(topic)
            body += length_prefix(len(indexes), flexible)
            body += struct.pack(f">{len(indexes)}i", *indexes)
            if flexible:
                body.append(0)
    if version >= 11:
        body += text(request.rack_id)
    if flexible:
        cluster_id = request.cluster_id
        body += b"\0" if cluster_id is None else _tagged({_CLUSTER_ID_TAG: compact_nullable_string(cluster_id)})
    return [body]


# -- responses --------------------------------------------------------------------------------------------------------


def encode_response(version: int, response: FetchResponse) -> list[Buffer]:
    """The response's body as buffers. Records are not copied, so they must not change until they are sent."""
    return in_one_go(encode_response_steps(version, response))


def encode_response_steps(version: int, response: FetchResponse) -> Steps[list[Buffer]]:
    """As `encode_response`, in steps."""
    in_step = 0
    flexible = version >= FLEXIBLE_FROM
    text = compact_string if flexible else string
    if version >= 7:
        head = bytearray(_RESPONSE_HEAD_V7.pack(response.throttle_time_ms, response.error_code, response.session_id))
    else:
        head = bytearray(_INT32.pack(response.throttle_time_ms))
    head += length_prefix(len(response.topics), flexible)
    buffers: list[Buffer] = []
    for topic, partitions in response.topics:
        head += text(topic)
        head += length_prefix(len(partitions), flexible)
        for result in partitions:
            _encode_partition_head(version, flexible, result, head)
            records = result.records
            if records is not None:
                if len(records) < INLINE_BYTES:
                    head += records
                else:
                    buffers += (head, records)
                    head = bytearray()
            if flexible:
                head += _partition_tags(result)
            in_step += 1
            if in_step == PARTITIONS_PER_STEP:
                in_step = 0
                yield
        if flexible:
            head.append(0)
    if flexible:
        head.append(0)
    buffers.append(head)
    return buffers


def _encode_partition_head(version: int, flexible: bool, result: FetchResponsePartition, head: bytearray) -> None:
    """The part of a partition before its records."""
    values = (result.partition, result.error_code, result.high_watermark, result.last_stable_offset)
    head += _RESULT_V5.pack(*values, result.log_start_offset) if version >= 5 else _RESULT_V4.pack(*values)
    aborted = result.aborted_transactions
    if aborted is None:
        head += length_prefix(-1, flexible)
    else:
        head += length_prefix(len(aborted), flexible)
        for producer_id, first_offset in aborted:
            head += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                head.append(0)
    if version >= 11:
        head += _INT32.pack(result.preferred_read_replica)
    head += length_prefix(-1 if result.records is None else len(result.records), flexible)


def _partition_tags(result: FetchResponsePartition) -> bytes:
    if result.diverging_epoch is None and result.current_leader is None:
        return b"\0"
    tags = {}
    if result.diverging_epoch is not None:
        tags[_DIVERGING_EPOCH_TAG] = _DIVERGING_EPOCH.pack(*result.diverging_epoch) + b"\0"
    if result.current_leader is not None:
        tags[_CURRENT_LEADER_TAG] = _CURRENT_LEADER.pack(*result.current_leader) + b"\0"
    return _tagged(tags)


def _tagged(fields: dict[int, bytes]) -> bytes:
    """A tagged-field section; `fields` is in the order of its tags."""
    section = bytearray(unsigned_varint(len(fields)))
    for tag, value in fields.items():
        section += unsigned_varint(tag) + unsigned_varint(len(value)) + value
    return bytes(section)


def response_decoder(version: int) -> Callable[[Buffer, int], FetchResponse]:
    """A function (frame, position of the body) -> response; it raises InvalidFrame for anything else."""
    steps = response_steps(version)
    return lambda frame, position: in_one_go(steps(frame, position))


def response_steps(version: int) -> Callable[[Buffer, int], Steps[FetchResponse]]:
    """As `response_decoder`, in steps."""
    flexible = version >= FLEXIBLE_FROM
    read_text = read_compact_string if flexible else read_string

    def decode(frame: Buffer, position: int) -> Steps[FetchResponse]:
        elements = [RESPONSE_MAX_ELEMENTS]
        in_step = 0
        try:
            if version >= 7:
                response = FetchResponse(*_RESPONSE_HEAD_V7.unpack_from(frame, position))
                position += _RESPONSE_HEAD_V7.size
            else:
                response = FetchResponse(*_INT32.unpack_from(frame, position))
                position += 4
            topic_count, position = read_count(frame, position, flexible)
            check_count(topic_count, 3 if flexible else 6, frame, position, elements)
            for _ in range(topic_count):
                topic, position = read_text(frame, position)
                count, position = read_count(frame, position, flexible)
                check_count(count, _RESULT_V4.size, frame, position, elements)
                partitions = []
                for _ in range(count):
                    result, position = _read_response_partition(version, flexible, frame, position, elements)
                    partitions.append(result)
                    in_step += 1
                    if in_step == PARTITIONS_PER_STEP:
                        in_step = 0
                        yield
                response.topics.append((topic, partitions))
                if flexible:
                    position = skip_tagged_fields(frame, position, elements)
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
            check_end(frame, position)
        except InvalidFrame as error:
            error.path.insert(0, "FetchResponse")
            raise
        except (struct.error, IndexError):
            raise InvalidFrame("the frame ends within a field", position, "FetchResponse") from None
        return response

    return decode


def _read_response_partition(
    version: int, flexible: bool, frame: Buffer, position: int, elements: list[int]
) -> tuple[FetchResponsePartition, int]:
    fixed = _RESULT_V5 if version >= 5 else _RESULT_V4
    result = FetchResponsePartition(*fixed.unpack_from(frame, position))
    result.aborted_transactions, position = _read_aborted(flexible, frame, position + fixed.size, elements)
    if version >= 11:
        (result.preferred_read_replica,) = _INT32.unpack_from(frame, position)
        position += 4
    result.records, position = read_records(frame, position, flexible)
    if not flexible:
        return result, position
    if frame[position] == 0:
        return result, position + 1
    tagged, position = read_tagged_fields(frame, position, elements)
    if _DIVERGING_EPOCH_TAG in tagged:
        result.diverging_epoch = _read_tagged_pair(_DIVERGING_EPOCH, frame, *tagged[_DIVERGING_EPOCH_TAG], elements)
    if _CURRENT_LEADER_TAG in tagged:
        result.current_leader = _read_tagged_pair(_CURRENT_LEADER, frame, *tagged[_CURRENT_LEADER_TAG], elements)
    return result, position


def _read_aborted(
    flexible: bool, frame: Buffer, position: int, elements: list[int]
) -> tuple[list[tuple[int, int]] | None, int]:
    if flexible:
        count, position = read_length(frame, position)
    else:
        (count,) = _INT32.unpack_from(frame, position)
        position += 4
    if count < 0:
        if count != -1:
            raise InvalidFrame(f"a count of {count}", position)
        return None, position
    check_count(count, _ABORTED.size, frame, position, elements)
    aborted = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(frame, position))
        position += _ABORTED.size
        if flexible:
            position = skip_tagged_fields(frame, position, elements)
    return aborted, position


def _read_tagged_pair(
    fixed: struct.Struct, frame: Buffer, start: int, end: int, elements: list[int]
) -> tuple[int, int]:
    first, second = fixed.unpack_from(frame, start)
    _check_tag_end(skip_tagged_fields(frame, start + fixed.size, elements), end)
    return first, second


def _check_tag_end(position: int, end: int) -> None:
    if position != end:
        raise InvalidFrame(f"a tagged field ends at byte {end}, its value at {position}", position)
