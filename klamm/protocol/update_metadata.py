"""UpdateMetadata (key 6), versions 0 to 7: messages and hand-written codecs. The controller tells every broker
which brokers are alive and which of them leads each partition.

Messages are the same for every version; the codecs put them into the version's layout.

Versions: 1 several endpoints, 2 rack, 3 listener names, 4 offline replicas, 5 grouped by topic, broker epoch (KIP-380),
6 flexible, 7 topic ids (KIP-516).

What must stay true: a partition's state never changes, and a request's topics and brokers do not change once it is
encoded. The encodings are kept: the requests that `for_broker` makes for many brokers are encoded once.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple

from klamm.base.slices import Steps, in_one_go
from klamm.config.listeners import SECURITY_PROTOCOLS
from klamm.protocol.api_keys import CONTROLLER_MAX_ELEMENTS, ApiKey
from klamm.protocol.control_topics import SHORT_ARRAY, ControlTopic, ControlTopics, complaints_about, count_pairs_steps
from klamm.protocol.primitives import (
    Buffer,
    InvalidFrame,
    check_count,
    check_end,
    compact_nullable_string,
    compact_string,
    int32_array,
    length_prefix,
    nullable_string,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_int32_array,
    read_nullable_string,
    read_string,
    skip_tagged_fields,
    string,
)
from klamm.protocol.schema import WHOLE, Answered, Api

# The leader of a partition whose topic is being deleted (Kafka's `LeaderAndIsr.LeaderDuringDelete`).
LEADER_DURING_DELETE = -2

ENDPOINTS_FROM = 1
RACK_FROM = 2
LISTENER_NAMES_FROM = 3
OFFLINE_REPLICAS_FROM = 4
GROUPED_FROM = 5
FLEXIBLE_FROM = 6
TOPIC_IDS_FROM = 7

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEAD_V0 = struct.Struct(">ii")
_HEAD_V5 = struct.Struct(">iiq")
_STATE_HEAD = struct.Struct(">iiii")

# In versions without listener names a listener is called like its security protocol.
_PLAINTEXT = SECURITY_PROTOCOLS.index("PLAINTEXT")


@dataclass(slots=True)
class UpdateMetadataPartitionState:
    """One partition as clients see it. `leader` is -1 if there is none, or LEADER_DURING_DELETE.

    A state never changes: `_encoded` is (version, the state's encoding in that version).
    """

    partition: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    _encoded: tuple[int, bytes] | None = field(default=None, init=False, repr=False, compare=False)


class UpdateMetadataEndpoint(NamedTuple):
    """One listener of a broker. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    port: int
    host: str
    listener: str
    security_protocol: int


@dataclass(slots=True, frozen=True)
class UpdateMetadataBroker:
    """A live broker."""

    id: int
    endpoints: tuple[UpdateMetadataEndpoint, ...]
    rack: str | None = None


@dataclass(slots=True)
class UpdateMetadataTopic(ControlTopic[UpdateMetadataPartitionState]):
    """The partitions of one topic. `topic_id` is None where the version or the controller does not know it."""


@dataclass(slots=True)
class UpdateMetadataRequest(Answered["UpdateMetadataResponse"]):
    """`broker_epoch` is the receiver's, as the controller knows it; -1 if the version does not have it.

    `_encoded` has the bytes behind the broker epoch, by version; the requests made by `for_broker` share it.
    """

    api: ClassVar[Api] = Api(ApiKey.UPDATE_METADATA, versions="0-7", flexible="6+", size=WHOLE)

    controller_id: int
    controller_epoch: int
    broker_epoch: int = -1
    topics: list[UpdateMetadataTopic] = field(default_factory=list)
    live_brokers: list[UpdateMetadataBroker] = field(default_factory=list)
    _encoded: dict[int, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def for_broker(self, broker_epoch: int) -> "UpdateMetadataRequest":
        """The same request with another broker epoch. Both share topics and brokers: do not change them."""
        request = UpdateMetadataRequest(
            self.controller_id, self.controller_epoch, broker_epoch, self.topics, self.live_brokers
        )
        request._encoded = self._encoded
        return request


@dataclass(slots=True)
class UpdateMetadataResponse:
    """Only an error code."""

    error_code: int = 0


REQUEST_CLASS = UpdateMetadataRequest
RESPONSE_CLASS = UpdateMetadataResponse


# -- requests ---------------------------------------------------------------------------------------------------------


def request_decoder(version: int) -> Callable[[Buffer, int], UpdateMetadataRequest]:
    """A function (frame, position of the body) -> request; it raises InvalidFrame for anything else."""
    decode = request_steps(version)
    return lambda frame, position: in_one_go(decode(frame, position))


def request_steps(version: int) -> Callable[[Buffer, int], Steps[UpdateMetadataRequest]]:
    """Like `request_decoder`, in steps of `PARTITIONS_PER_STEP`."""
    flexible = version >= FLEXIBLE_FROM
    head = _HEAD_V5 if version >= GROUPED_FROM else _HEAD_V0

    def decode(frame: Buffer, position: int) -> Steps[UpdateMetadataRequest]:
        elements = [CONTROLLER_MAX_ELEMENTS]
        with complaints_about("UpdateMetadataRequest", lambda: position):
            request = UpdateMetadataRequest(*head.unpack_from(frame, position))
            request.topics, position = yield from _TOPICS.read(version, frame, position + head.size, elements)
            count, position = read_count(frame, position, flexible)
            check_count(count, 7, frame, position, elements)
            for _ in range(count):
                broker, position = _read_broker(version, frame, position, elements)
                request.live_brokers.append(broker)
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
    states: list[UpdateMetadataPartitionState],
) -> int:
    """Adds `count` partitions to `states`, faster if their arrays are short. Returns the position after them."""
    for _ in range(count):
        try:
            # The lengths if all arrays are short: a null would give -1, a longer array more than SHORT_ARRAY.
            isr = frame[position + 16] - 1
            next_length = position + 21 + 4 * isr
            replicas = frame[next_length] - 1
            offline = frame[next_length + 1 + 4 * replicas] - 1
            short = 0 <= isr | replicas | offline < SHORT_ARRAY
        except IndexError:
            short = False
        if short:
            layout = _layout(isr, replicas, offline)
            values = layout.unpack_from(frame, position)
            if values[-1] == 0:
                elements[0] -= isr + replicas + offline
                position += layout.size
                replicas += isr + 7
                states.append(
                    UpdateMetadataPartitionState(
                        values[0],
                        values[1],
                        values[2],
                        values[3],
                        values[5 : 5 + isr],
                        values[5 + isr],
                        values[7 + isr : replicas],
                        values[replicas + 1 : -1],
                    )
                )
                continue
        state, position = _read_state(version, frame, position, elements)
        states.append(state)
    check_count(0, 0, frame, position, elements)
    return position


def _read_state(
    version: int, frame: Buffer, position: int, elements: list[int]
) -> tuple[UpdateMetadataPartitionState, int]:
    """A partition of any version, without the topic's name."""
    flexible = version >= FLEXIBLE_FROM
    partition, controller_epoch, leader, leader_epoch = _STATE_HEAD.unpack_from(frame, position)
    isr, position = read_int32_array(frame, position + _STATE_HEAD.size, flexible, elements)
    (zk_version,) = _INT32.unpack_from(frame, position)
    replicas, position = read_int32_array(frame, position + 4, flexible, elements)
    offline: tuple[int, ...] = ()
    if version >= OFFLINE_REPLICAS_FROM:
        offline, position = read_int32_array(frame, position, flexible, elements)
    if flexible:
        position = skip_tagged_fields(frame, position, elements)
    state = UpdateMetadataPartitionState(
        partition, controller_epoch, leader, leader_epoch, isr, zk_version, replicas, offline
    )
    return state, position


@lru_cache(maxsize=1024)
def _layout(isr: int, replicas: int, offline: int) -> struct.Struct:
    """A whole partition of a flexible version whose arrays have these lengths, all below SHORT_ARRAY."""
    return struct.Struct(f">4iB{isr}iiB{replicas}iB{offline}iB")


def _read_broker(version: int, frame: Buffer, position: int, elements: list[int]) -> tuple[UpdateMetadataBroker, int]:
    flexible = version >= FLEXIBLE_FROM
    (broker_id,) = _INT32.unpack_from(frame, position)
    position += 4
    if version < ENDPOINTS_FROM:
        host, position = read_string(frame, position)
        (port,) = _INT32.unpack_from(frame, position)
        endpoint = UpdateMetadataEndpoint(port, host, SECURITY_PROTOCOLS[_PLAINTEXT], _PLAINTEXT)
        return UpdateMetadataBroker(broker_id, (endpoint,)), position + 4
    endpoints = []
    count, position = read_count(frame, position, flexible)
    check_count(count, 8, frame, position, elements)
    for _ in range(count):
        endpoint, position = _read_endpoint(version, frame, position, elements)
        endpoints.append(endpoint)
    rack = None
    if version >= RACK_FROM:
        rack, position = (read_compact_nullable_string if flexible else read_nullable_string)(frame, position)
    if flexible:
        position = skip_tagged_fields(frame, position, elements)
    return UpdateMetadataBroker(broker_id, tuple(endpoints), rack), position


def _read_endpoint(
    version: int, frame: Buffer, position: int, elements: list[int]
) -> tuple[UpdateMetadataEndpoint, int]:
    flexible = version >= FLEXIBLE_FROM
    read_text = read_compact_string if flexible else read_string
    (port,) = _INT32.unpack_from(frame, position)
    host, position = read_text(frame, position + 4)
    listener = ""
    if version >= LISTENER_NAMES_FROM:
        listener, position = read_text(frame, position)
    (security_protocol,) = _INT16.unpack_from(frame, position)
    if version < LISTENER_NAMES_FROM:
        if not 0 <= security_protocol < len(SECURITY_PROTOCOLS):
            raise InvalidFrame(f"security protocol {security_protocol}, allowed are 0 to 3", position)
        listener = SECURITY_PROTOCOLS[security_protocol]
    position += 2
    if flexible:
        position = skip_tagged_fields(frame, position, elements)
    return UpdateMetadataEndpoint(port, host, listener, security_protocol), position


def encode_request(version: int, request: UpdateMetadataRequest) -> list[Buffer]:
    """The request's body: the receiver's broker epoch, then the part that all receivers share.

    Raises ValueError in version 0 for a broker without a PLAINTEXT endpoint: that version has no other endpoints.
    """
    shared = request._encoded.get(version)
    if shared is None:
        shared = request._encoded[version] = _encode_shared(version, request)
    if version >= GROUPED_FROM:
        return [_HEAD_V5.pack(request.controller_id, request.controller_epoch, request.broker_epoch), shared]
    return [_HEAD_V0.pack(request.controller_id, request.controller_epoch), shared]


def _encode_shared(version: int, request: UpdateMetadataRequest) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    parts: list[bytes] = []
    parts += _TOPICS.encode(version, request.topics)
    parts.append(length_prefix(len(request.live_brokers), flexible))
    parts += [_encode_broker(version, broker) for broker in request.live_brokers]
    if flexible:
        parts.append(b"\0")
    return b"".join(parts)


def _encode_state(version: int, state: UpdateMetadataPartitionState) -> bytes:
    """A partition of any version, without the topic's name."""
    flexible = version >= FLEXIBLE_FROM
    isr, replicas, offline = state.isr, state.replicas, state.offline_replicas
    head = (state.partition, state.controller_epoch, state.leader, state.leader_epoch)
    lengths = (len(isr), len(replicas), len(offline))
    if flexible and max(lengths) < SHORT_ARRAY:
        return _layout(*lengths).pack(
            *head, lengths[0] + 1, *isr, state.zk_version, lengths[1] + 1, *replicas, lengths[2] + 1, *offline, 0
        )
    encoded = bytearray(_STATE_HEAD.pack(*head))
    encoded += int32_array(isr, flexible)
    encoded += _INT32.pack(state.zk_version)
    encoded += int32_array(replicas, flexible)
    if version >= OFFLINE_REPLICAS_FROM:
        encoded += int32_array(offline, flexible)
    if flexible:
        encoded.append(0)
    return bytes(encoded)


_TOPICS = ControlTopics(
    UpdateMetadataTopic,
    _read_state,
    _read_flexible_states,
    _encode_state,
    GROUPED_FROM,
    FLEXIBLE_FROM,
    TOPIC_IDS_FROM,
    partition_bytes=28,
    flexible_partition_bytes=24,
)
encode_topic = _TOPICS.encode_topic
encode_states = _TOPICS.encode_states


def _encode_broker(version: int, broker: UpdateMetadataBroker) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    text = compact_string if flexible else string
    encoded = bytearray(_INT32.pack(broker.id))
    if version < ENDPOINTS_FROM:
        plain = [endpoint for endpoint in broker.endpoints if endpoint.security_protocol == _PLAINTEXT]
        if not plain:
            raise ValueError(f"UpdateMetadata version 0: broker {broker.id} has no PLAINTEXT endpoint")
        return bytes(encoded + string(plain[0].host) + _INT32.pack(plain[0].port))
    encoded += length_prefix(len(broker.endpoints), flexible)
    for endpoint in broker.endpoints:
        encoded += _INT32.pack(endpoint.port) + text(endpoint.host)
        if version >= LISTENER_NAMES_FROM:
            encoded += text(endpoint.listener)
        encoded += _INT16.pack(endpoint.security_protocol)
        if flexible:
            encoded.append(0)
    if version >= RACK_FROM:
        encoded += compact_nullable_string(broker.rack) if flexible else nullable_string(broker.rack)
    if flexible:
        encoded.append(0)
    return bytes(encoded)


# -- responses --------------------------------------------------------------------------------------------------------


def response_decoder(version: int) -> Callable[[Buffer, int], UpdateMetadataResponse]:
    """A function (frame, position of the body) -> response; it raises InvalidFrame for anything else."""
    flexible = version >= FLEXIBLE_FROM

    def decode(frame: Buffer, position: int) -> UpdateMetadataResponse:
        elements = [CONTROLLER_MAX_ELEMENTS]
        with complaints_about("UpdateMetadataResponse", lambda: position):
            response = UpdateMetadataResponse(*_INT16.unpack_from(frame, position))
            position += 2
            if flexible:
                position = skip_tagged_fields(frame, position, elements)
            check_end(frame, position)
        return response

    return decode


def encode_response(version: int, response: UpdateMetadataResponse) -> list[Buffer]:
    """The response's body."""
    return [_INT16.pack(response.error_code) + (b"\0" if version >= FLEXIBLE_FROM else b"")]


def count_errors_steps(response: UpdateMetadataResponse, counts: dict[int, int]) -> Steps[None]:
    """As `messages.count_errors_steps`."""
    return count_pairs_steps(response.error_code, (), counts)
