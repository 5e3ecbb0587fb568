"""Large messages are encoded and decoded in steps, to the same bytes and values as in one go."""

import uuid

import pytest

from klamm.protocol import messages
from klamm.protocol.apis.fetch import FetchRequest, FetchResponse, PartitionData
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.messages import ADVERTISED_MAX, ADVERTISED_MIN, ApiKey, InvalidFrame, request_class, response_class
from support.fetch_messages import fetch_request, fetch_response, to_fetch

PARTITIONS = 2500


def taken(steps):
    """(what the last step returns, how many there were)."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def metadata(version, topics, partitions):
    response = response_class(ApiKey.METADATA)
    topic = response.MetadataResponseTopic
    return response(
        cluster_id="c",
        controller_id=1,
        brokers=[response.MetadataResponseBroker(node_id=1, host="h", port=9, rack=None)],
        topics=[
            topic(
                error_code=0,
                name=f"topic-{index}",
                topic_id=None,
                is_internal=False,
                partitions=[
                    topic.MetadataResponsePartition(
                        error_code=0,
                        partition_index=number,
                        leader_id=1,
                        leader_epoch=number,
                        replica_nodes=[1, 2],
                        isr_nodes=[1],
                        offline_replicas=[],
                    )
                    for number in range(partitions)
                ],
                authorized_operations=None,
            )
            for index in range(topics)
        ],
        authorized_operations=None,
    )


def list_offsets(version, topics, partitions):
    request = request_class(ApiKey.LIST_OFFSETS)
    topic = request.ListOffsetsTopic
    return request(
        replica_id=-1,
        isolation_level=0,
        topics=[
            topic(
                name=f"topic-{index}",
                partitions=[
                    topic.ListOffsetsPartition(partition_index=number, current_leader_epoch=-1, timestamp=-1)
                    for number in range(partitions)
                ],
            )
            for index in range(topics)
        ],
    )


SHAPES = [(1, PARTITIONS), (PARTITIONS, 1), (25, 100)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", range(ADVERTISED_MIN[ApiKey.METADATA], ADVERTISED_MAX[ApiKey.METADATA] + 1))
def test_a_large_response(version, shape):
    message = metadata(version, *shape)
    at_once = b"".join(messages.encode_response(ApiKey.METADATA, version, 7, message))
    buffers, steps = taken(messages.encode_response_steps(ApiKey.METADATA, version, 7, message))
    assert b"".join(buffers) == at_once
    assert steps >= 3
    decoded, steps = taken(messages.response_steps(ApiKey.METADATA, version, at_once[4:]))
    assert steps >= 3
    assert b"".join(messages.encode_response(ApiKey.METADATA, version, 7, decoded)) == at_once


def test_a_small_response_is_encoded_and_decoded_at_once():
    message = metadata(9, 4, 99)
    assert messages.encode_response_steps(ApiKey.METADATA, 9, 7, message) is None
    frame = b"".join(messages.encode_response(ApiKey.METADATA, 9, 7, metadata(9, 2, 50)))[4:]
    assert messages.response_steps(ApiKey.METADATA, 9, frame) is None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", [1, 5, 6])
def test_a_large_request(version, shape):
    data = b"".join(messages.encode_request(ApiKey.LIST_OFFSETS, version, 1, "c", list_offsets(version, *shape)))
    frame = data[4:]
    header = messages.parse_request_header(frame)
    decoded, steps = taken(messages.request_steps(ApiKey.LIST_OFFSETS, version, frame, header.body_position))
    assert steps >= 3
    assert b"".join(messages.encode_request(ApiKey.LIST_OFFSETS, version, 1, "c", decoded)) == data


@pytest.mark.parametrize("cut", [1, 10, 5000])
def test_a_cut_request_is_refused_in_steps_as_it_is_at_once(cut):
    data = b"".join(messages.encode_request(ApiKey.LIST_OFFSETS, 6, 1, "c", list_offsets(6, 25, 100)))
    frame = data[4:-cut]
    position = messages.parse_request_header(frame).body_position
    with pytest.raises(InvalidFrame) as at_once:
        messages.decode_request(ApiKey.LIST_OFFSETS, 6, frame, position)
    with pytest.raises(InvalidFrame) as in_steps:
        taken(messages.request_steps(ApiKey.LIST_OFFSETS, 6, frame, position))
    assert str(in_steps.value) == str(at_once.value)


def by_topic(shape, make):
    topics, partitions = shape
    return [(f"topic-{index}", [make(number) for number in range(partitions)]) for index in range(topics)]


@pytest.mark.parametrize("shape", [(2500, 1), (25, 100)])
@pytest.mark.parametrize("version", range(4, 13))
def test_a_large_fetch(version, shape):
    request = fetch_request(
        *by_topic(
            shape,
            lambda number: to_fetch(
                number,
                5,
                99,
                epoch=3 if version >= 9 else -1,
                last_epoch=2 if version >= 12 else -1,
                log_start_offset=1 if version >= 5 else -1,
            ),
        )
    )
    body, steps = taken(messages.encode_request_body_steps(ApiKey.FETCH, version, request))
    assert steps >= 3
    data = b"".join(messages.encode_request(ApiKey.FETCH, version, 1, "c", request))
    assert b"".join(messages.encode_request(ApiKey.FETCH, version, 1, "c", request, body)) == data
    position = messages.parse_request_header(data[4:]).body_position
    decoded, steps = taken(messages.request_steps(ApiKey.FETCH, version, data[4:], position))
    assert steps >= 3
    assert decoded == request


@pytest.mark.parametrize("size", [10, 4095, 5000])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_large_fetch_response_has_as_many_steps_whatever_the_size_of_the_records(version, shape, size):
    records = b"x" * size
    start = 1 if version >= 5 else -1
    response = fetch_response(
        *by_topic(
            shape,
            lambda number: PartitionData(
                partition_index=number,
                high_watermark=9,
                last_stable_offset=8,
                log_start_offset=start,
                records=records,
            ),
        )
    )
    at_once = b"".join(messages.encode_response(ApiKey.FETCH, version, 7, response))
    buffers, steps = taken(messages.encode_response_steps(ApiKey.FETCH, version, 7, response))
    assert b"".join(buffers) == at_once
    assert 10 <= steps <= 30
    decoded, steps = taken(messages.response_steps(ApiKey.FETCH, version, at_once[4:]))
    assert 10 <= steps <= 30
    assert decoded == response


def test_a_small_fetch_is_encoded_at_once():
    assert messages.encode_request_body_steps(ApiKey.FETCH, 12, FetchRequest()) is None
    assert messages.encode_response_steps(ApiKey.FETCH, 12, 7, FetchResponse()) is None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", [0, 4, 5])
def test_a_large_leader_and_isr_response(version, shape):
    topics = [
        LeaderAndIsrTopicError(topic if version < 5 else "", uuid.UUID(int=index + 1) if version == 5 else None, errors)
        for index, (topic, errors) in enumerate(by_topic(shape, lambda number: LeaderAndIsrPartitionError(number, 9)))
    ]
    response = LeaderAndIsrResponse(3, topics)
    at_once = b"".join(messages.encode_response(ApiKey.LEADER_AND_ISR, version, 7, response))
    buffers, steps = taken(messages.encode_response_steps(ApiKey.LEADER_AND_ISR, version, 7, response))
    assert b"".join(buffers) == at_once
    assert steps >= 3
    decoded, steps = taken(messages.response_steps(ApiKey.LEADER_AND_ISR, version, at_once[4:]))
    assert decoded == response
    assert steps >= 3


@pytest.mark.parametrize(
    ("partitions", "size", "least", "most"), [(5_000, 0, 3, 12), (5_000, 99, 3, 12), (9, 10**6, 1, 1)]
)
def test_the_steps_of_a_produce_request_depend_on_its_partitions_and_not_on_its_records(partitions, size, least, most):
    records = bytes(size)
    request = ProduceRequest.of(None, -1, 1, [("t", [(number, records) for number in range(partitions)])])
    frame = b"".join(messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", request))[4:]
    position = messages.parse_request_header(frame).body_position
    decoded, steps = taken(messages.request_steps(ApiKey.PRODUCE, 9, frame, position))
    assert decoded == request
    assert least <= steps <= most
