"""LeaderAndIsr (key 4), versions 0 to 5: messages and hand-written codecs. The controller tells a broker which
partitions it leads and follows.

Messages are the same for every version; the codecs put them into the version's layout.

Versions: 1 new replicas, 2 grouped by topic, broker epoch (KIP-380), 3 replicas being added and removed (KIP-455),
4 flexible, 5 topic ids (KIP-516).

What must stay true: a partition's state never changes. Its encoding is kept with it and shared by the requests to all
brokers.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple
from uuid import UUID

from klamm.base.slices import Steps, in_one_go
from klamm.protocol.api_keys import CONTROLLER_MAX_ELEMENTS, ApiKey
from klamm.protocol.control_topics import (
    SHORT_ARRAY,
    ControlTopic,
    ControlTopics,
    complaints_about,
    count_pairs_steps,
    encode_errors_by_name,
    read_errors_by_name,
)
from klamm.protocol.primitives import (
    PARTITIONS_PER_STEP,
    Buffer,
    check_count,
    check_end,
    compact_string,
    int32_array,
    length_prefix,
    read_compact_string,
    read_count,
    read_int32_array,
    read_string,
    read_uuid,
    skip_tagged_fields,
    string,
    uuid_bytes,
)
from klamm.protocol.schema import WHOLE, Answered, Api

GROUPED_FROM = 2
REASSIGNMENT_FROM = 3
FLEXIBLE_FROM = 4
TOPIC_IDS_FROM = 5

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEAD_V0 = struct.Struct(">ii")
_HEAD_V2 = struct.Struct(">iiq")
_HEAD_V5 = struct.Struct(">iiqb")
_STATE_HEAD = struct.Struct(">iiii")
_ERROR = struct.Struct(">ih")
_FLEXIBLE_ERROR = struct.Struct(">ihB")


@dataclass(slots=True)
class LeaderAndIsrPartitionState:
    """One partition's leadership. `leader` is -1 if there is none; `controller_epoch` is that of the decision.

    A state never changes: `_encoded` is (version, the state's encoding in that version).
    """

    partition: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    is_new: bool = False
    _encoded: tuple[int, bytes] | None = field(default=None, init=False, repr=False, compare=False)


class LiveLeader(NamedTuple):
    """The endpoint of a leader's inter-broker listener, for its followers."""

    broker_id: int
    host: str
    port: int


@dataclass(slots=True)
class LeaderAndIsrTopic(ControlTopic[LeaderAndIsrPartitionState]):
    """The partitions of one topic. `topic_id` is None where the version or the controller does not know it."""


@dataclass(slots=True)
class LeaderAndIsrRequest(Answered["LeaderAndIsrResponse"]):
    """`broker_epoch` is the receiver's, as the controller knows it; -1 if the version does not have it."""

    api: ClassVar[Api] = Api(ApiKey.LEADER_AND_ISR, versions="0-5", flexible="4+", size=WHOLE)

    controller_id: int
    controller_epoch: int
    broker_epoch: int = -1
    topics: list[LeaderAndIsrTopic] = field(default_factory=list)
    live_leaders: list[LiveLeader] = field(default_factory=list)


@dataclass(slots=True)
class LeaderAndIsrTopicErrors:
    """(partition, error code) pairs of one topic: named by `topic` up to version 4, by `topic_id` from version 5 on."""

    topic: str
    topic_id: UUID | None
    partitions: list[tuple[int, int]]


@dataclass(slots=True)
class LeaderAndIsrResponse:
    """`error_code` concerns the request as a whole. Decoded from version 5 on, `topic` is empty."""

    error_code: int = 0
    topics: list[LeaderAndIsrTopicErrors] = field(default_factory=list)


REQUEST_CLASS = LeaderAndIsrRequest
RESPONSE_CLASS = LeaderAndIsrResponse


# -- requests ---------------------------------------------------------------------------------------------------------


def request_decoder(version: int) -> Callable[[Buffer, int], LeaderAndIsrRequest]:
    """A function (frame, position of the body) -> request; it raises InvalidFrame for anything else."""
    decode = request_steps(version)
    return lambda frame, position: in_one_go(decode(frame, position))


def request_steps(version: int) -> Callable[[Buffer, int], Steps[LeaderAndIsrRequest]]:
    """Like `request_decoder`, in steps of `PARTITIONS_PER_STEP`."""
    flexible = version >= FLEXIBLE_FROM

    def decode(frame: Buffer, position: int) -> Steps[LeaderAndIsrRequest]:
        elements = [CONTROLLER_MAX_ELEMENTS]
        with complaints_about("LeaderAndIsrRequest", lambda: position):
            if version >= GROUPED_FROM:
                request = LeaderAndIsrRequest(*_HEAD_V2.unpack_from(frame, position))
                # The type of the request, full or incremental, is not used by 2.8.
                position += _HEAD_V5.size if version >= TOPIC_IDS_FROM else _HEAD_V2.size
            else:
                request = LeaderAndIsrRequest(*_HEAD_V0.unpack_from(frame, position))
                position += _HEAD_V0.size
            request.topics, position = yield from _TOPICS.read(version, frame, position, elements)
            request.live_leaders, position = _read_live_leaders(flexible, frame, position, elements)
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
        return request

    return decode


def _read_flexible_states(
    version: int,
    frame: Buffer,
    position: int,
    elements: list[int],
    count: int,
    states: list[LeaderAndIsrPartitionState],
) -> int:
    """Adds `count` partitions to `states`, faster if their arrays are short. Returns the position after them."""
    for _ in range(count):
        try:
            # The lengths if all arrays are short: a null would give -1, a longer array more than SHORT_ARRAY.
            isr = frame[position + 16] - 1
            next_length = position + 21 + 4 * isr
            replicas = frame[next_length] - 1
            next_length += 1 + 4 * replicas
            adding = frame[next_length] - 1
            removing = frame[next_length + 1 + 4 * adding] - 1
            short = 0 <= isr | replicas | adding | removing < SHORT_ARRAY
        except IndexError:
            short = False
        if short:
            layout = _layout(isr, replicas, adding, removing)
            values = layout.unpack_from(frame, position)
            if values[-1] == 0:
                elements[0] -= isr + replicas + adding + removing
                position += layout.size
                replicas += isr + 7
                adding += replicas + 1
                states.append(
                    LeaderAndIsrPartitionState(
                        values[0],
                        values[1],
                        values[2],
                        values[3],
                        values[5 : 5 + isr],
                        values[5 + isr],
                        values[7 + isr : replicas],
                        values[replicas + 1 : adding],
                        values[adding + 1 : -2],
                        values[-2],
                    )
                )
                continue
        state, position = _read_state(version, frame, position, elements)
        states.append(state)
    check_count(0, 0, frame, position, elements)
    return position


def _read_state(
    version: int, frame: Buffer, position: int, elements: list[int]
) -> tuple[LeaderAndIsrPartitionState, int]:
    """A partition of any version, without the topic's name."""
    flexible = version >= FLEXIBLE_FROM
    partition, controller_epoch, leader, leader_epoch = _STATE_HEAD.unpack_from(frame, position)
    isr, position = read_int32_array(frame, position + _STATE_HEAD.size, flexible, elements)
    (zk_version,) = _INT32.unpack_from(frame, position)
    replicas, position = read_int32_array(frame, position + 4, flexible, elements)
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    if version >= REASSIGNMENT_FROM:
        adding, position = read_int32_array(frame, position, flexible, elements)
        removing, position = read_int32_array(frame, position, flexible, elements)
    is_new = False
    if version >= 1:
        is_new = frame[position] != 0
        position += 1
    if flexible:
        position = skip_tagged_fields(frame, position, elements)
    state = LeaderAndIsrPartitionState(
        partition, controller_epoch, leader, leader_epoch, isr, zk_version, replicas, adding, removing, is_new
    )
    return state, position


@lru_cache(maxsize=1024)
def _layout(isr: int, replicas: int, adding: int, removing: int) -> struct.Struct:
    """A whole partition of a flexible version whose arrays have these lengths, all below SHORT_ARRAY."""
    return struct.Struct(f">4iB{isr}iiB{replicas}iB{adding}iB{removing}i?B")


def _read_live_leaders(
    flexible: bool, frame: Buffer, position: int, elements: list[int]
) -> tuple[list[LiveLeader], int]:
    read_text = read_compact_string if flexible else read_string
    leaders = []
    count, position = read_count(frame, position, flexible)
    check_count(count, 10, frame, position, elements)
    for _ in range(count):
        (broker_id,) = _INT32.unpack_from(frame, position)
        host, position = read_text(frame, position + 4)
        (port,) = _INT32.unpack_from(frame, position)
        position += 4
        if flexible:
            position = skip_tagged_fields(frame, position, elements)
        leaders.append(LiveLeader(broker_id, host, port))
    return leaders, position


def encode_request(version: int, request: LeaderAndIsrRequest) -> list[Buffer]:
    """The request's body."""
    flexible = version >= FLEXIBLE_FROM
    text = compact_string if flexible else string
    parts: list[bytes] = []
    if version >= TOPIC_IDS_FROM:
        parts.append(_HEAD_V5.pack(request.controller_id, request.controller_epoch, request.broker_epoch, 0))
    elif version >= GROUPED_FROM:
        parts.append(_HEAD_V2.pack(request.controller_id, request.controller_epoch, request.broker_epoch))
    else:
        parts.append(_HEAD_V0.pack(request.controller_id, request.controller_epoch))
    parts += _TOPICS.encode(version, request.topics)
    parts.append(length_prefix(len(request.live_leaders), flexible))
    for leader in request.live_leaders:
        parts += (_INT32.pack(leader.broker_id), text(leader.host), _INT32.pack(leader.port))
        if flexible:
            parts.append(b"\0")
    if flexible:
        parts.append(b"\0")
    return [parts[0], b"".join(parts[1:])]


def _encode_state(version: int, state: LeaderAndIsrPartitionState) -> bytes:
    """A partition of any version, without the topic's name."""
    flexible = version >= FLEXIBLE_FROM
    isr, replicas = state.isr, state.replicas
    adding, removing = state.adding_replicas, state.removing_replicas
    head = (state.partition, state.controller_epoch, state.leader, state.leader_epoch)
    lengths = (len(isr), len(replicas), len(adding), len(removing))
    if flexible and max(lengths) < SHORT_ARRAY:
        return _layout(*lengths).pack(
            *head,
            lengths[0] + 1,
            *isr,
            state.zk_version,
            lengths[1] + 1,
            *replicas,
            lengths[2] + 1,
            *adding,
            lengths[3] + 1,
            *removing,
            state.is_new,
            0,
        )
    encoded = bytearray(_STATE_HEAD.pack(*head))
    encoded += int32_array(isr, flexible)
    encoded += _INT32.pack(state.zk_version)
    encoded += int32_array(replicas, flexible)
    if version >= REASSIGNMENT_FROM:
        encoded += int32_array(adding, flexible) + int32_array(removing, flexible)
    if version >= 1:
        encoded.append(state.is_new)
    if flexible:
        encoded.append(0)
    return bytes(encoded)


_TOPICS = ControlTopics(
    LeaderAndIsrTopic,
    _read_state,
    _read_flexible_states,
    _encode_state,
    GROUPED_FROM,
    FLEXIBLE_FROM,
    TOPIC_IDS_FROM,
    partition_bytes=28,
    flexible_partition_bytes=26,
)
encode_topic = _TOPICS.encode_topic
encode_states = _TOPICS.encode_states


# -- responses --------------------------------------------------------------------------------------------------------


def response_decoder(version: int) -> Callable[[Buffer, int], LeaderAndIsrResponse]:
    """A function (frame, position of the body) -> response; it raises InvalidFrame for anything else."""
    decode = response_steps(version)
    return lambda frame, position: in_one_go(decode(frame, position))


def response_steps(version: int) -> Callable[[Buffer, int], Steps[LeaderAndIsrResponse]]:
    """Like `response_decoder`, in steps of `PARTITIONS_PER_STEP`."""
    flexible = version >= FLEXIBLE_FROM

    def decode(frame: Buffer, position: int) -> Steps[LeaderAndIsrResponse]:
        elements = [CONTROLLER_MAX_ELEMENTS]
        with complaints_about("LeaderAndIsrResponse", lambda: position):
            response = LeaderAndIsrResponse(*_INT16.unpack_from(frame, position))
            position += 2
            if version >= TOPIC_IDS_FROM:
                response.topics, position = yield from _read_errors_by_id(frame, position, elements)
            else:
                errors, position = yield from read_errors_by_name(flexible, frame, position, elements)
                response.topics = [LeaderAndIsrTopicErrors(topic, None, of_topic) for topic, of_topic in errors.items()]
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
            check_end(frame, position)
        return response

    return decode


def _read_errors_by_id(
    frame: Buffer, position: int, elements: list[int]
) -> Steps[tuple[list[LeaderAndIsrTopicErrors], int]]:
    topics = []
    topic_count, position = read_count(frame, position, True)
    check_count(topic_count, 18, frame, position, elements)
    left_in_step = PARTITIONS_PER_STEP
    for _ in range(topic_count):
        topic_id, position = read_uuid(frame, position)
        count, position = read_count(frame, position, True)
        check_count(count, 7, frame, position, elements)
        partitions: list[tuple[int, int]] = []
        for _ in range(count):
            partitions.append(_ERROR.unpack_from(frame, position))
            position = skip_tagged_fields(frame, position + _ERROR.size, elements)
            left_in_step -= 1
            if not left_in_step:
                yield
                left_in_step = PARTITIONS_PER_STEP
        position = skip_tagged_fields(frame, position, elements)
        topics.append(LeaderAndIsrTopicErrors("", topic_id, partitions))
    return topics, position


def is_large(response: LeaderAndIsrResponse) -> bool:
    """Whether it has so many partitions that encoding them may take several milliseconds."""
    return sum(len(topic.partitions) for topic in response.topics) > PARTITIONS_PER_STEP


def encode_response(version: int, response: LeaderAndIsrResponse) -> list[Buffer]:
    """The response's body. From version 5 on every topic must have its id, which replaces the name."""
    return in_one_go(encode_response_steps(version, response))


def encode_response_steps(version: int, response: LeaderAndIsrResponse) -> Steps[list[Buffer]]:
    """Like `encode_response`, in steps of `PARTITIONS_PER_STEP`."""
    flexible = version >= FLEXIBLE_FROM
    left_in_step = PARTITIONS_PER_STEP
    parts = [_INT16.pack(response.error_code)]
    if version >= TOPIC_IDS_FROM:
        parts.append(length_prefix(len(response.topics), True))
        for topic in response.topics:
            parts += (uuid_bytes(topic.topic_id), length_prefix(len(topic.partitions), True))
            for partition, error_code in topic.partitions:
                parts.append(_FLEXIBLE_ERROR.pack(partition, error_code, 0))
                left_in_step -= 1
                if not left_in_step:
                    yield
                    left_in_step = PARTITIONS_PER_STEP
            parts.append(b"\0")
    else:
        by_name = [(topic.topic, topic.partitions) for topic in response.topics]
        parts += yield from encode_errors_by_name(flexible, by_name)
    if flexible:
        parts.append(b"\0")
    return [b"".join(parts)]


def count_errors_steps(response: LeaderAndIsrResponse, counts: dict[int, int]) -> Steps[None]:
    """As `messages.count_errors_steps`."""
    return count_pairs_steps(response.error_code, [topic.partitions for topic in response.topics], counts)
