"""The hand-written codecs of LeaderAndIsr, UpdateMetadata and StopReplica, against their schemas in every version."""

import random
import uuid
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from klamm.protocol import leader_and_isr, messages, stop_replica, update_metadata
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrTopicErrors,
)
from klamm.protocol.messages import InvalidFrame
from klamm.protocol.primitives import PARTITIONS_PER_STEP
from klamm.protocol.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
)
from klamm.protocol.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from support.control_messages import (
    LEADER_AND_ISR_VERSIONS,
    STOP_REPLICA_VERSIONS,
    UPDATE_METADATA_VERSIONS,
    leader_and_isr_request,
    leader_and_isr_response,
    schema_leader_and_isr_request,
    schema_leader_and_isr_response,
    schema_stop_replica_request,
    schema_stop_replica_response,
    schema_update_metadata_request,
    schema_update_metadata_response,
    stop_replica_request,
    stop_replica_response,
    update_metadata_request,
    update_metadata_response,
)
from support.present import present


def joined(buffers):
    return b"".join(bytes(buffer) for buffer in buffers)


# -- LeaderAndIsr -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEADER_AND_ISR_VERSIONS)
def test_leader_and_isr_request(version):
    rng = random.Random(version)
    for _ in range(50):
        request = leader_and_isr_request(rng, version)
        body = bytes(schema_leader_and_isr_request(version, request).encode(version=version))
        assert joined(leader_and_isr.encode_request(version, request)) == body
        assert messages.decode_request(ApiKey.LEADER_AND_ISR, version, bytearray(b"123" + body), 3) == request
        refuses_changes(
            lambda data: messages.decode_request(ApiKey.LEADER_AND_ISR, version, data, 0), body, rng, request
        )


@pytest.mark.parametrize("version", LEADER_AND_ISR_VERSIONS)
def test_leader_and_isr_response(version):
    rng = random.Random(version)
    decode = leader_and_isr.response_decoder(version)
    for _ in range(50):
        response = leader_and_isr_response(rng, version)
        body = bytes(schema_leader_and_isr_response(version, response).encode(version=version))
        assert joined(leader_and_isr.encode_response(version, response)) == body
        assert decode(bytearray(b"12345" + body), 5) == response
        refuses_changes(lambda data: decode(data, 0), body, rng)


def test_the_type_of_a_leader_and_isr_request_is_ignored():
    request = LeaderAndIsrRequest(1, 2, 3)
    body = bytearray(joined(leader_and_isr.encode_request(5, request)))
    body[16] = 1
    assert messages.decode_request(ApiKey.LEADER_AND_ISR, 5, body, 0) == request


# -- UpdateMetadata ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", UPDATE_METADATA_VERSIONS)
def test_update_metadata_request(version):
    rng = random.Random(version)
    for _ in range(50):
        request = update_metadata_request(rng, version)
        body = bytes(schema_update_metadata_request(version, request).encode(version=version))
        assert joined(update_metadata.encode_request(version, request)) == body
        assert messages.decode_request(ApiKey.UPDATE_METADATA, version, bytearray(b"123" + body), 3) == request
        refuses_changes(
            lambda data: messages.decode_request(ApiKey.UPDATE_METADATA, version, data, 0), body, rng, request
        )


@pytest.mark.parametrize("version", UPDATE_METADATA_VERSIONS)
def test_update_metadata_response(version):
    rng = random.Random(version)
    decode = update_metadata.response_decoder(version)
    for _ in range(3):
        response = update_metadata_response(rng, version)
        body = bytes(schema_update_metadata_response(version, response).encode(version=version))
        assert joined(update_metadata.encode_response(version, response)) == body
        assert decode(bytearray(b"12345" + body), 5) == response
        refuses_changes(lambda data: decode(data, 0), body, rng)


def test_version_0_of_update_metadata_knows_plaintext_only():
    secure = UpdateMetadataEndpoint(9093, "h", "SSL", 1)
    plain = UpdateMetadataEndpoint(9092, "h", "PLAINTEXT", 0)
    both = UpdateMetadataRequest(1, 1, live_brokers=[UpdateMetadataBroker(7, (secure, plain))])
    body = joined(update_metadata.encode_request(0, both))
    decoded = messages.decode_request(ApiKey.UPDATE_METADATA, 0, bytearray(body), 0)
    assert decoded.live_brokers == [UpdateMetadataBroker(7, (plain,))]
    with pytest.raises(ValueError, match="broker 7 has no PLAINTEXT endpoint"):
        update_metadata.encode_request(
            0, UpdateMetadataRequest(1, 1, live_brokers=[UpdateMetadataBroker(7, (secure,))])
        )


# -- StopReplica ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", STOP_REPLICA_VERSIONS)
def test_stop_replica_request(version):
    rng = random.Random(version)
    for _ in range(50):
        request = stop_replica_request(rng, version)
        body = bytes(schema_stop_replica_request(version, request).encode(version=version))
        assert joined(stop_replica.encode_request(version, request)) == body
        assert messages.decode_request(ApiKey.STOP_REPLICA, version, bytearray(b"123" + body), 3) == request
        refuses_changes(lambda data: messages.decode_request(ApiKey.STOP_REPLICA, version, data, 0), body, rng, request)


@pytest.mark.parametrize("version", STOP_REPLICA_VERSIONS)
def test_stop_replica_response(version):
    rng = random.Random(version)
    decode = stop_replica.response_decoder(version)
    for _ in range(50):
        response = stop_replica_response(rng, version)
        body = bytes(schema_stop_replica_response(version, response).encode(version=version))
        assert joined(stop_replica.encode_response(version, response)) == body
        assert decode(bytearray(b"12345" + body), 5) == response
        refuses_changes(lambda data: decode(data, 0), body, rng)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_old_stop_replica_deletes_all_or_none(version):
    states = [StopReplicaPartitionState(0, -1, True), StopReplicaPartitionState(1, -1, False)]
    request = StopReplicaRequest(1, 2, topics=[StopReplicaTopic("t", None, states)])
    with pytest.raises(ValueError, match=f"version {version} deletes all partitions or none, not some"):
        stop_replica.encode_request(version, request)


# -- shared encodings -------------------------------------------------------------------------------------------------


def test_update_metadata_for_many_brokers_is_encoded_once():
    state = UpdateMetadataPartitionState(0, 1, 2, 3, (2,), 4, (2, 3))
    request = UpdateMetadataRequest(1, 5, topics=[UpdateMetadataTopic("t", None, [state])])
    encoded = [update_metadata.encode_request(7, request.for_broker(epoch)) for epoch in (70, 71)]
    assert encoded[0][1] is encoded[1][1]
    for epoch, buffers in zip((70, 71), encoded, strict=True):
        decoded = messages.decode_request(ApiKey.UPDATE_METADATA, 7, bytearray(joined(buffers)), 0)
        assert decoded == replace(request, broker_epoch=epoch)
    # Another version is encoded anew, and does not spoil the first.
    assert joined(update_metadata.encode_request(5, request)) != joined(encoded[0])
    assert joined(update_metadata.encode_request(7, request.for_broker(70))) == joined(encoded[0])


def test_a_partitions_state_is_encoded_once_per_version():
    state = LeaderAndIsrPartitionState(0, 1, 2, 3, (2,), 4, (2, 3), is_new=True)
    bodies = {}
    for version in (4, 4, 3, 4, 0):
        request = LeaderAndIsrRequest(1, 5, topics=[LeaderAndIsrTopic("t", None, [state])])
        before = state._encoded
        body = joined(leader_and_isr.encode_request(version, request))
        assert bodies.setdefault(version, body) == body
        assert present(state._encoded)[0] == version
        assert (state._encoded is before) == (before is not None and before[0] == version)


@pytest.mark.parametrize(
    ("api_key", "version", "request_message", "make"),
    [
        (ApiKey.LEADER_AND_ISR, version, leader_and_isr_request, schema_leader_and_isr_request)
        for version in LEADER_AND_ISR_VERSIONS
    ]
    + [
        (ApiKey.UPDATE_METADATA, version, update_metadata_request, schema_update_metadata_request)
        for version in UPDATE_METADATA_VERSIONS
    ]
    + [
        (ApiKey.STOP_REPLICA, version, stop_replica_request, schema_stop_replica_request)
        for version in STOP_REPLICA_VERSIONS
    ],
)
def test_whole_frames(api_key, version, request_message, make):
    request = request_message(random.Random(version), version)
    frame = joined(messages.encode_request(api_key, version, 77, "1", request))
    of_schema = make(version, request)
    of_schema.with_header(correlation_id=77, client_id="1")
    assert frame == bytes(of_schema.encode(header=True, framed=True))
    header = messages.parse_request_header(frame[4:])
    assert messages.decode_request(api_key, version, frame[4:], header.body_position) == request


# -- all --------------------------------------------------------------------------------------------------------------


def refuses_changes(decode, body, rng, request=None):
    """Cut or extended, a message is refused; garbled, it is refused or another message, and nothing else happens. An
    extended `request` is that request."""
    for cut in sorted(rng.sample(range(len(body)), min(len(body), 10))):
        with pytest.raises(InvalidFrame):
            decode(bytearray(body[:cut]))
    if request is not None:
        assert decode(bytearray(body + b"\0")) == request
    else:
        with pytest.raises(InvalidFrame, match="after the end"):
            decode(bytearray(body + b"\0"))
    for _ in range(10):
        garbled = bytearray(body)
        garbled[rng.randrange(min(len(garbled), 80))] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.getrandbits(8)])
        try:
            decode(garbled)
        except InvalidFrame as error:
            assert "at byte" in str(error) and error.path


@given(
    st.sampled_from([ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA]),
    st.integers(0, 7),
    st.binary(max_size=200),
)
@example(ApiKey.LEADER_AND_ISR, 5, bytes(40))
@example(ApiKey.UPDATE_METADATA, 7, bytes(40))
@example(ApiKey.STOP_REPLICA, 3, bytes(40))
def test_garbage_is_refused_or_read_back_as_written(api_key, version, data):
    version = min(version, messages.ADVERTISED_MAX[api_key])
    try:
        request = messages.decode_request(api_key, version, data, 0)
    except InvalidFrame as error:
        assert "at byte" in str(error) and error.path
        return
    body = joined(messages._request_encoder(api_key, version)(request))
    assert messages.decode_request(api_key, version, body, 0) == request


@given(
    st.sampled_from(
        [(leader_and_isr, version) for version in LEADER_AND_ISR_VERSIONS]
        + [(stop_replica, version) for version in STOP_REPLICA_VERSIONS]
    ),
    st.binary(max_size=200),
)
def test_a_garbage_response_is_refused_or_read_back_as_written(codec_and_version, data):
    codec, version = codec_and_version
    decode = codec.response_decoder(version)
    try:
        response = decode(data, 0)
    except InvalidFrame as error:
        assert "at byte" in str(error) and error.path
        return
    assert decode(joined(codec.encode_response(version, response)), 0) == response


STATE = bytes(16)  # partition, controller epoch, leader, leader epoch


@pytest.mark.parametrize(
    ("api_key", "version", "body", "complaint"),
    [
        (ApiKey.STOP_REPLICA, 0, bytes(9) + b"\xff\xff\xff\xff", "null where an array is required"),
        (ApiKey.STOP_REPLICA, 0, bytes(9) + b"\x80\0\0\0", "a count of -2147483648"),
        (ApiKey.STOP_REPLICA, 0, bytes(9) + b"\x7f\xff\xff\xff", "2147483647 elements"),
        (ApiKey.STOP_REPLICA, 0, bytes(9) + b"\0\0\0\1\xff\xff" + bytes(4), "null where text is required"),
        (ApiKey.STOP_REPLICA, 0, bytes(9) + b"\0\0\0\1\xff\xfe" + bytes(4), "a length of -2"),
        (ApiKey.STOP_REPLICA, 0, bytes(3), "the frame ends within a field"),
        (ApiKey.STOP_REPLICA, 1, bytes(17) + b"\0\0\0\1\0\1t\0\0\0\2" + bytes(7), "2 elements, but 7 bytes"),
        (ApiKey.STOP_REPLICA, 2, bytes(17) + b"\2\2t\0\0", "null where an array is required"),
        (ApiKey.STOP_REPLICA, 3, bytes(16) + b"\xff\xff\xff\xff\x0f", "4294967294 elements, but 0 bytes"),
        (ApiKey.STOP_REPLICA, 3, bytes(16) + b"\2\2t\2" + bytes(8), "the frame ends within a field"),
        (ApiKey.LEADER_AND_ISR, 1, bytes(8) + b"\xff\xff\xff\xff", "null where an array is required"),
        (ApiKey.LEADER_AND_ISR, 1, bytes(8) + b"\x7f\xff\xff\xff", "2147483647 elements"),
        (ApiKey.LEADER_AND_ISR, 4, bytes(16) + b"\2\0\1\0", "null where text is required"),
        (ApiKey.LEADER_AND_ISR, 4, bytes(16) + b"\2\2t\2" + STATE + b"\0\0\0\0\0\1\1\1\0\0", "null where an array is"),
        (ApiKey.LEADER_AND_ISR, 4, bytes(16) + b"\2\2t\2" + STATE + b"\1\0\0\0\0\1\0\1\0\0", "null where an array is"),
        (ApiKey.LEADER_AND_ISR, 4, bytes(16) + b"\2\2t\2" + STATE + b"\x7f\0\0\0\0\1\1\1\0\0", "126 elements, but 9"),
        (ApiKey.LEADER_AND_ISR, 4, bytes(16) + b"\1\2" + bytes(4) + b"\0" + bytes(5), "null where text is required"),
        (ApiKey.UPDATE_METADATA, 7, bytes(16) + b"\2\2t" + bytes(16) + b"\2" + bytes(24), "null where an array is"),
        (ApiKey.UPDATE_METADATA, 7, bytes(16) + b"\1\2" + bytes(4) + b"\0\0\0\0", "null where an array is required"),
        (
            ApiKey.UPDATE_METADATA,
            1,
            bytes(12) + b"\0\0\0\1" + bytes(4) + b"\0\0\0\1" + bytes(6) + b"\0\4",
            "security protocol 4, allowed are 0 to 3",
        ),
    ],
)
def test_refused(api_key, version, body, complaint):
    with pytest.raises(InvalidFrame, match=complaint):
        messages.decode_request(api_key, version, bytearray(body), 0)


@pytest.mark.parametrize("many", [3, 100])
def test_the_broker_ids_count_as_elements(many, monkeypatch):
    for module in (leader_and_isr, update_metadata):
        monkeypatch.setattr(module, "CONTROLLER_MAX_ELEMENTS", 2 + many)
    state = LeaderAndIsrPartitionState(0, 1, 2, 3, (1,) * many, 4, ())
    seen = UpdateMetadataPartitionState(0, 1, 2, 3, (1,) * many, 4, ())
    for replicas, allowed in (((), True), ((1,), False)):
        bodies = [
            leader_and_isr.encode_request(
                4,
                LeaderAndIsrRequest(1, 1, topics=[LeaderAndIsrTopic("t", None, [replace(state, replicas=replicas)])]),
            ),
            update_metadata.encode_request(
                6,
                UpdateMetadataRequest(
                    1, 1, topics=[UpdateMetadataTopic("t", None, [replace(seen, replicas=replicas)])]
                ),
            ),
        ]
        for decode, body in zip(
            (leader_and_isr.request_decoder(4), update_metadata.request_decoder(6)), bodies, strict=True
        ):
            if allowed:
                decode(bytearray(joined(body)), 0)
            else:
                with pytest.raises(InvalidFrame, match="more than a message of this kind may hold"):
                    decode(bytearray(joined(body)), 0)


def test_a_partition_may_have_unknown_tags():
    states = [LeaderAndIsrPartitionState(i, 1, 2, 3, (1,), 4, (1, 2)) for i in range(3)]
    body = joined(
        leader_and_isr.encode_request(5, LeaderAndIsrRequest(1, 1, 1, [LeaderAndIsrTopic("t", None, states)]))
    )
    second = body.index(present(states[1]._encoded)[1])
    end = second + len(present(states[1]._encoded)[1])
    tagged = body[: end - 1] + b"\1\x09\2hi" + body[end:]
    (topic,) = messages.decode_request(ApiKey.LEADER_AND_ISR, 5, bytearray(tagged), 0).topics
    assert topic.partitions == states
    seen = [UpdateMetadataPartitionState(i, 1, 2, 3, (1,), 4, (1, 2)) for i in range(3)]
    request = UpdateMetadataRequest(1, 1, 1, [UpdateMetadataTopic("t", None, seen)])
    body = joined(update_metadata.encode_request(7, request))
    end = body.index(present(seen[1]._encoded)[1]) + len(present(seen[1]._encoded)[1])
    tagged = body[: end - 1] + b"\1\x09\2hi" + body[end:]
    assert messages.decode_request(ApiKey.UPDATE_METADATA, 7, bytearray(tagged), 0) == request


@pytest.mark.parametrize("version", [0, 2, 5])
def test_a_large_request_is_decoded_in_steps(version):
    count = 3 * PARTITIONS_PER_STEP
    first = [LeaderAndIsrPartitionState(number, 1, 1, 0, (1,), 0, (1,)) for number in range(count)]
    second = [LeaderAndIsrPartitionState(number, 1, 1, 0, (1,), 0, (1,)) for number in range(10)]
    topics = [LeaderAndIsrTopic("t", None, first), LeaderAndIsrTopic("u", None, second)]
    request = LeaderAndIsrRequest(1, 2, -1, topics)
    body = b"".join(leader_and_isr.encode_request(version, request))
    steps = messages.request_steps(ApiKey.LEADER_AND_ISR, version, body, 0)
    assert len(list(steps)) == 3
    assert messages.decode_request(ApiKey.LEADER_AND_ISR, version, body, 0) == request
    # What is wrong behind what takes several steps is found all the same.
    with pytest.raises(InvalidFrame):
        list(messages.request_steps(ApiKey.LEADER_AND_ISR, version, body[:-1], 0))


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_large_stop_is_decoded_in_steps(version):
    count = 3 * PARTITIONS_PER_STEP
    states = [StopReplicaPartitionState(number, 5 if version == 3 else -1, True) for number in range(count)]
    request = StopReplicaRequest(1, 2, -1, [StopReplicaTopic("t", None, states)])
    body = joined(stop_replica.encode_request(version, request))
    assert len(list(messages.request_steps(ApiKey.STOP_REPLICA, version, body, 0))) == 3
    assert messages.decode_request(ApiKey.STOP_REPLICA, version, body, 0) == request


@pytest.mark.parametrize(
    ("api_key", "version", "response"),
    [
        (
            ApiKey.LEADER_AND_ISR,
            5,
            LeaderAndIsrResponse(
                0, [LeaderAndIsrTopicErrors("", uuid.UUID(int=1), [(n, 0) for n in range(3 * PARTITIONS_PER_STEP)])]
            ),
        ),
        (
            ApiKey.LEADER_AND_ISR,
            4,
            LeaderAndIsrResponse(
                0, [LeaderAndIsrTopicErrors("t", None, [(n, 0) for n in range(3 * PARTITIONS_PER_STEP)])]
            ),
        ),
        (ApiKey.STOP_REPLICA, 3, StopReplicaResponse(0, {"t": [(n, 0) for n in range(3 * PARTITIONS_PER_STEP)]})),
    ],
)
def test_a_large_response_is_decoded_in_steps(api_key, version, response):
    frame = joined(messages.encode_response(api_key, version, 77, response))[4:]
    assert len(list(present(messages.response_steps(api_key, version, frame)))) == 3
    assert messages.decode_response(api_key, version, frame) == response
    with pytest.raises(InvalidFrame, match="after the end"):
        list(present(messages.response_steps(api_key, version, frame + b"\0")))


def test_a_small_response_is_decoded_at_once():
    assert messages.response_steps(ApiKey.METADATA, 9, bytes(5)) is None
