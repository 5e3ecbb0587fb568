"""What the controller's requests to many brokers share is encoded once."""

import sys

import pytest

from klamm.base.slices import in_one_go
from klamm.protocol import messages
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from klamm.protocol.apis.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.compiler import decoders
from klamm.protocol.messages import ApiKey, InvalidFrame
from klamm.protocol.primitives import Buffer

COUNT = 50_000


def update_metadata(count: int = 1) -> UpdateMetadataRequest:
    states = [UpdateMetadataPartitionState(number, 1, 2, 3, (2,), 4, (2, 3)) for number in range(count)]
    endpoint = UpdateMetadataEndpoint(9092, "h", "PLAINTEXT", 0)
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=5,
        topic_states=[UpdateMetadataTopicState("t", None, states)],
        live_brokers=[UpdateMetadataBroker(id=1, endpoints=[endpoint])],
    )


def leader_and_isr(*states: LeaderAndIsrPartitionState) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        controller_id=1, controller_epoch=5, topic_states=[LeaderAndIsrTopicState("t", None, list(states))]
    )


def encoded(key: ApiKey, version: int, request: object) -> list[Buffer]:
    return messages._request_encoder(key, version)(request)


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(map(bytes, buffers))


def test_update_metadata_for_many_brokers_is_encoded_once() -> None:
    request = update_metadata()
    bodies = [encoded(ApiKey.UPDATE_METADATA, 7, request.for_broker(epoch)) for epoch in (70, 71)]
    assert bodies[0][1] is bodies[1][1]
    for epoch, body in zip((70, 71), bodies, strict=True):
        decoded = messages.decode_request(ApiKey.UPDATE_METADATA, 7, joined(body), 0)
        assert decoded == request.replaced(broker_epoch=epoch)
    # Another version is encoded anew, and does not spoil the first.
    assert joined(encoded(ApiKey.UPDATE_METADATA, 5, request)) != joined(bodies[0])
    assert joined(encoded(ApiKey.UPDATE_METADATA, 7, request.for_broker(70))) == joined(bodies[0])


def test_a_copy_with_other_topics_shares_nothing() -> None:
    request = update_metadata()
    with_topics = joined(encoded(ApiKey.UPDATE_METADATA, 7, request))
    without = request.replaced(topic_states=[])
    decoded = messages.decode_request(ApiKey.UPDATE_METADATA, 7, joined(encoded(ApiKey.UPDATE_METADATA, 7, without)), 0)
    assert decoded == without
    assert joined(encoded(ApiKey.UPDATE_METADATA, 7, request)) == with_topics


def test_a_partitions_state_is_encoded_once_per_version() -> None:
    state = LeaderAndIsrPartitionState(0, 1, 2, 3, (2,), 4, (2, 3), is_new=True)
    bodies: dict[int, bytes] = {}
    for version in (4, 4, 3, 4, 0):
        before = state._encoded
        body = joined(encoded(ApiKey.LEADER_AND_ISR, version, leader_and_isr(state)))
        assert bodies.setdefault(version, body) == body
        assert (state._encoded is before) == (before is not None and before[0] == version)


@pytest.mark.parametrize("version", [0, 5])
def test_requests_that_are_encoded_side_by_side_share_the_states(version: int) -> None:
    states = [LeaderAndIsrPartitionState(number, 1, 2, 3, (2,), 4, (2, 3)) for number in range(2_000)]
    first, second = (
        messages.encode_request_body_steps(ApiKey.LEADER_AND_ISR, version, leader_and_isr(*states)) for _ in range(2)
    )
    assert first is not None and second is not None
    next(first)
    half = [state._encoded for state in states if state._encoded is not None]
    assert 0 < len(half) < len(states)
    assert joined([*in_one_go(second)]) == joined([*in_one_go(first)])
    assert all(state._encoded is kept for state, kept in zip(states, half, strict=False))


def test_a_partitions_ids_are_kept_as_they_were_received() -> None:
    """As tuples: the metadata cache of a broker with 50,000 partitions holds them."""
    request = update_metadata(10)
    decoded = messages.decode_request(ApiKey.UPDATE_METADATA, 7, joined(encoded(ApiKey.UPDATE_METADATA, 7, request)), 0)
    state = decoded.topic_states[0].partition_states[0]
    ids = state.isr, state.replicas, state.offline_replicas
    assert ids == ((2,), (2, 3), ())
    assert sys.getsizeof(state) + sum(map(sys.getsizeof, ids[:2])) < 250


@pytest.mark.parametrize("many", [3, 100])
def test_the_broker_ids_count_as_elements(many: int) -> None:
    decode = decoders.compile_decoder(LeaderAndIsrRequest, 4, True, 2 + many, has_end=False)
    for replicas, is_allowed in (((), True), ((1,), False)):
        state = LeaderAndIsrPartitionState(0, 1, 2, 3, (1,) * many, 4, replicas)
        body = joined(encoded(ApiKey.LEADER_AND_ISR, 4, leader_and_isr(state)))
        if is_allowed:
            decode(body, 0)
        else:
            with pytest.raises(InvalidFrame, match="more than a message of this kind may hold"):
                decode(body, 0)


def test_no_step_grows_with_the_partitions() -> None:
    """Each step reads or writes the same, however many follow."""
    for key, request in (
        (ApiKey.UPDATE_METADATA, update_metadata(COUNT)),
        (
            ApiKey.LEADER_AND_ISR,
            leader_and_isr(*(LeaderAndIsrPartitionState(n, 1, 2, 3, (2,), 4, (2, 3)) for n in range(COUNT))),
        ),
    ):
        steps = messages.encode_request_body_steps(key, messages.ADVERTISED_MAX[key], request)
        assert steps is not None
        count = 0
        states = request.topic_states[0].partition_states
        done = 0
        for _ in steps:
            now = done
            while now < COUNT and states[now]._encoded is not None:
                now += 1
            assert now - done <= 500
            done, count = now, count + 1
        assert count >= COUNT // 500
        body = joined(encoded(key, messages.ADVERTISED_MAX[key], request))
        assert sum(1 for _ in messages.request_steps(key, messages.ADVERTISED_MAX[key], body, 0)) >= COUNT // 500
