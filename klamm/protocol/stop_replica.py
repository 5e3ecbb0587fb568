"""StopReplica (key 5), versions 0 to 3: messages and hand-written codecs. The controller tells a broker to stop
replicas, and which of them to delete.

Messages are the same for every version; the codecs put them into the version's layout.

Versions: 1 grouped by topic, broker epoch (KIP-380), 2 flexible, 3 leader epoch (KIP-570) and
deletion for each partition: before, a request deletes all its partitions or none of them.

What must stay true: a partition's state never changes. Its encoding is kept with it and shared by the requests to all
brokers.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from klamm.base.slices import Steps, in_one_go
from klamm.protocol.api_keys import CONTROLLER_MAX_ELEMENTS, ApiKey
from klamm.protocol.control_topics import (
    ControlTopic,
    ControlTopics,
    complaints_about,
    count_pairs_steps,
    encode_errors_by_name,
    read_errors_by_name,
)
from klamm.protocol.primitives import PARTITIONS_PER_STEP, Buffer, check_end, skip_tagged_fields
from klamm.protocol.schema import WHOLE, Answered, Api
from klamm.protocol.vocabulary import NO_EPOCH

# Special leader epochs: unknown to the version or the controller; the topic is being deleted.
EPOCH_DURING_DELETE = -2

GROUPED_FROM = 1
FLEXIBLE_FROM = 2
STATES_FROM = 3
_NO_TOPIC_IDS = 4

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEAD_V0 = struct.Struct(">ii?")
_HEAD_V1 = struct.Struct(">iiq?")
_HEAD_V3 = struct.Struct(">iiq")
# With the count of tagged fields.
_STATE = struct.Struct(">ii?B")


@dataclass(slots=True)
class StopReplicaPartitionState:
    """One partition that stops: whether its data is deleted, and in which leader epoch (NO_EPOCH, EPOCH_DURING_DELETE).

    A state never changes: `_encoded` is (version, the state's encoding in that version).
    """

    partition: int
    leader_epoch: int
    delete: bool
    _encoded: tuple[int, bytes] | None = field(default=None, init=False, repr=False, compare=False)


@dataclass(slots=True)
class StopReplicaTopic(ControlTopic[StopReplicaPartitionState]):
    """The partitions of one topic. `topic_id` is always None: no version has it."""


@dataclass(slots=True)
class StopReplicaRequest(Answered["StopReplicaResponse"]):
    """`broker_epoch` is the receiver's, as the controller knows it; -1 if the version does not have it."""

    api: ClassVar[Api] = Api(ApiKey.STOP_REPLICA, versions="0-3", flexible="2+", size=WHOLE)

    controller_id: int
    controller_epoch: int
    broker_epoch: int = -1
    topics: list[StopReplicaTopic] = field(default_factory=list)


@dataclass(slots=True)
class StopReplicaResponse:
    """`error_code` concerns the request as a whole. `topics`: for each topic (partition, error code) pairs."""

    error_code: int = 0
    topics: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


REQUEST_CLASS = StopReplicaRequest
RESPONSE_CLASS = StopReplicaResponse


# -- requests ---------------------------------------------------------------------------------------------------------


def request_decoder(version: int) -> Callable[[Buffer, int], StopReplicaRequest]:
    """A function (frame, position of the body) -> request; it raises InvalidFrame for anything else."""
    decode = request_steps(version)
    return lambda frame, position: in_one_go(decode(frame, position))


def request_steps(version: int) -> Callable[[Buffer, int], Steps[StopReplicaRequest]]:
    """Like `request_decoder`, in steps of `PARTITIONS_PER_STEP`."""

    def decode(frame: Buffer, position: int) -> Steps[StopReplicaRequest]:
        elements = [CONTROLLER_MAX_ELEMENTS]
        with complaints_about("StopReplicaRequest", lambda: position):
            broker_epoch, delete = -1, False
            if version >= STATES_FROM:
                controller_id, controller_epoch, broker_epoch = _HEAD_V3.unpack_from(frame, position)
                position += _HEAD_V3.size
            elif version >= GROUPED_FROM:
                controller_id, controller_epoch, broker_epoch, delete = _HEAD_V1.unpack_from(frame, position)
                position += _HEAD_V1.size
            else:
                controller_id, controller_epoch, delete = _HEAD_V0.unpack_from(frame, position)
                position += _HEAD_V0.size
            topics, position = yield from _TOPICS[delete].read(version, frame, position, elements)
            if version >= FLEXIBLE_FROM:
                position = skip_tagged_fields(frame, position, elements)
        return StopReplicaRequest(controller_id, controller_epoch, broker_epoch, topics)

    return decode


def _read_state(
    delete: bool, version: int, frame: Buffer, position: int, elements: list[int]
) -> tuple[StopReplicaPartitionState, int]:
    """A partition of any version, without the topic's name. Older versions have `delete` once for the request."""
    if version < STATES_FROM:
        (partition,) = _INT32.unpack_from(frame, position)
        return StopReplicaPartitionState(partition, NO_EPOCH, delete), position + 4
    partition, leader_epoch, delete, tags = _STATE.unpack_from(frame, position)
    position += _STATE.size
    if tags:
        position = skip_tagged_fields(frame, position - 1, elements)
    return StopReplicaPartitionState(partition, leader_epoch, delete), position


def encode_request(version: int, request: StopReplicaRequest) -> list[Buffer]:
    """The request's body.

    Raises ValueError before version 3 for a request that deletes only some of its partitions.
    """
    if version >= STATES_FROM:
        head = _HEAD_V3.pack(request.controller_id, request.controller_epoch, request.broker_epoch)
    elif version >= GROUPED_FROM:
        delete = _deletes(version, request)
        head = _HEAD_V1.pack(request.controller_id, request.controller_epoch, request.broker_epoch, delete)
    else:
        head = _HEAD_V0.pack(request.controller_id, request.controller_epoch, _deletes(version, request))
    parts = _TOPICS[False].encode(version, request.topics)
    if version >= FLEXIBLE_FROM:
        parts.append(b"\0")
    return [head, b"".join(parts)]


def _deletes(version: int, request: StopReplicaRequest) -> bool:
    """Whether the request deletes its partitions, in versions that have this once for all of them."""
    found = {state.delete for topic in request.topics for state in topic.partitions}
    if len(found) > 1:
        raise ValueError(f"StopReplica version {version} deletes all partitions or none, not some")
    return found == {True}


def _encode_state(version: int, state: StopReplicaPartitionState) -> bytes:
    """A partition of any version, without the topic's name."""
    if version < STATES_FROM:
        return _INT32.pack(state.partition)
    return _STATE.pack(state.partition, state.leader_epoch, state.delete, 0)


# By whether the request deletes its partitions, in versions that have this once.
_TOPICS = {
    delete: ControlTopics(
        StopReplicaTopic,
        partial(_read_state, delete),
        None,
        _encode_state,
        GROUPED_FROM,
        FLEXIBLE_FROM,
        _NO_TOPIC_IDS,
        partition_bytes=4,
        flexible_partition_bytes=4,
    )
    for delete in (False, True)
}
encode_topic = _TOPICS[False].encode_topic
encode_states = _TOPICS[False].encode_states


# -- responses --------------------------------------------------------------------------------------------------------


def response_decoder(version: int) -> Callable[[Buffer, int], StopReplicaResponse]:
    """A function (frame, position of the body) -> response; it raises InvalidFrame for anything else."""
    decode = response_steps(version)
    return lambda frame, position: in_one_go(decode(frame, position))


def response_steps(version: int) -> Callable[[Buffer, int], Steps[StopReplicaResponse]]:
    """Like `response_decoder`, in steps of `PARTITIONS_PER_STEP`."""
    flexible = version >= FLEXIBLE_FROM

    def decode(frame: Buffer, position: int) -> Steps[StopReplicaResponse]:
        elements = [CONTROLLER_MAX_ELEMENTS]
        with complaints_about("StopReplicaResponse", lambda: position):
            response = StopReplicaResponse(*_INT16.unpack_from(frame, position))
            response.topics, position = yield from read_errors_by_name(flexible, frame, position + 2, elements)
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
            check_end(frame, position)
        return response

    return decode


def is_large(response: StopReplicaResponse) -> bool:
    """Whether it has so many partitions that encoding them may take several milliseconds."""
    return sum(map(len, response.topics.values())) > PARTITIONS_PER_STEP


def encode_response(version: int, response: StopReplicaResponse) -> list[Buffer]:
    """The response's body."""
    return in_one_go(encode_response_steps(version, response))


def encode_response_steps(version: int, response: StopReplicaResponse) -> Steps[list[Buffer]]:
    """Like `encode_response`, in steps of `PARTITIONS_PER_STEP`."""
    flexible = version >= FLEXIBLE_FROM
    parts = [_INT16.pack(response.error_code)]
    parts += yield from encode_errors_by_name(flexible, list(response.topics.items()))
    if flexible:
        parts.append(b"\0")
    return [b"".join(parts)]


def count_errors_steps(response: StopReplicaResponse, counts: dict[int, int]) -> Steps[None]:
    """As `messages.count_errors_steps`."""
    return count_pairs_steps(response.error_code, response.topics.values(), counts)
