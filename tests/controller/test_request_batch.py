"""What the brokers are told, in which order, and with what in it."""

import asyncio
import logging
from typing import Any
from uuid import UUID

import pytest

from klamm.base.log_lines import STATE_CHANGE_LOGGER, TRACE
from klamm.base.slices import in_one_go
from klamm.controller.context import ControllerContext, ReplicaAssignment
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrLiveLeader, LeaderAndIsrPartitionState
from klamm.protocol.apis.stop_replica import StopReplicaPartitionError as Stopped
from klamm.protocol.apis.stop_replica import StopReplicaResponse
from klamm.protocol.apis.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
)
from klamm.protocol.messages import encode_request
from klamm.znodes.brokers import BrokerRegistration, Endpoint
from klamm.znodes.store import LiveBroker
from klamm.znodes.topics import LeaderAndIsr
from support.controller.state_machines import Batch, live_brokers

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
ASSIGNMENT = ReplicaAssignment((1, 2, 3))
STATE = LeaderAndIsr(2, 10, (2, 1), 4, 6)
EPOCH = 5


def batch_of(*brokers: int, **properties: str) -> tuple[ControllerContext, Batch]:
    """Partitions t-0, t-1, u-0 on brokers 1, 2, 3 are led by 2; a new batch is open."""
    context = ControllerContext()
    context.set_live_brokers(live_brokers(*(brokers or (1, 2, 3))))
    for partition in (T0, T1, U0):
        context.all_topics.add(partition[0])
        context.update_partition_full_replica_assignment(partition, ASSIGNMENT)
        context.put_partition_leadership_info(partition, STATE)
    collected = Batch(context, **properties)
    collected.batch.new_batch()
    return context, collected


def test_an_empty_batch_sends_nothing() -> None:
    _, collected = batch_of()
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert collected.sent == []


def test_who_gets_a_leader_and_isr_makes_all_get_an_update_metadata() -> None:
    context, collected = batch_of()
    context.add_topic_id("t", UUID(int=1))
    context.add_shutting_down_broker(3)
    collected.batch.add_leader_and_isr_request_for_brokers((2, 1), T0, STATE, ASSIGNMENT, is_new=False)
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert [(request.api_key, request.broker_id) for request in collected.sent] == [
        (ApiKey.LEADER_AND_ISR, 1),
        (ApiKey.LEADER_AND_ISR, 2),
        (ApiKey.UPDATE_METADATA, 1),
        (ApiKey.UPDATE_METADATA, 2),
        (ApiKey.UPDATE_METADATA, 3),
    ]
    told = LeaderAndIsrPartitionState(0, 4, 2, 10, (2, 1), 6, (1, 2, 3))
    first, second, *metadata = (request.body for request in collected.sent)
    assert (first.controller_id, first.controller_epoch, first.broker_epoch) == (7, EPOCH, 101)
    assert second.broker_epoch == 102
    assert first.live_leaders == [LeaderAndIsrLiveLeader(2, "host2", 9092)]
    (topic,) = first.topic_states
    assert (topic.topic_name, topic.topic_id, topic.partition_states) == ("t", UUID(int=1), [told])
    assert topic.partition_states[0] is second.topic_states[0].partition_states[0]
    assert [body.broker_epoch for body in metadata] == [101, 102, 103]
    (topic,) = metadata[2].topic_states
    assert (topic.topic_name, topic.topic_id) == ("t", UUID(int=1))
    assert topic.partition_states == [UpdateMetadataPartitionState(0, 4, 2, 10, (2, 1), 6, (1, 2, 3), (3,))]
    assert [broker.id for broker in metadata[0].live_brokers] == [1, 2, 3]


def test_a_reassignment_is_part_of_what_a_replica_is_told() -> None:
    _, collected = batch_of()
    assignment = ReplicaAssignment((4, 1, 2), (4,), (2,))
    collected.batch.add_leader_and_isr_request_for_brokers((1,), T0, STATE, assignment, is_new=True)
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    state = collected.leader_and_isr[1][T0]
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((4, 1, 2), (4,), (2,))


def test_brokers_that_are_not_alive_get_nothing() -> None:
    _, collected = batch_of(1, 2)
    collected.batch.add_leader_and_isr_request_for_brokers((-1, 3, 1), T0, STATE, ASSIGNMENT, is_new=False)
    collected.batch.add_stop_replica_request_for_brokers((3, 2), T0, delete_partition=False)
    collected.batch.add_update_metadata_request_for_brokers((-1, 3), ())
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert sorted(collected.leader_and_isr) == [1]
    assert sorted(collected.update_metadata) == [1, 2]
    assert sorted(collected.stop_replica) == [2]


def test_the_later_change_counts_but_new_stays_new() -> None:
    context, collected = batch_of()
    later = LeaderAndIsr(1, 11, (1,), EPOCH, 7)
    collected.batch.add_leader_and_isr_request_for_brokers((1, 2), T0, STATE, ASSIGNMENT, is_new=True)
    context.put_partition_leadership_info(T0, later)
    collected.batch.add_leader_and_isr_request_for_brokers((1, 3), T0, later, ASSIGNMENT, is_new=False)
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    told = {key: (states[T0].leader_epoch, states[T0].is_new) for key, states in collected.leader_and_isr.items()}
    assert told == {1: (11, True), 2: (10, True), 3: (11, False)}
    assert {states[T0].leader_epoch for states in collected.update_metadata.values()} == {11}


def test_a_change_of_the_assignment_alone_is_told() -> None:
    context, collected = batch_of()
    moving = ASSIGNMENT.reassign_to((1, 2))
    collected.batch.add_leader_and_isr_request_for_brokers((1,), T0, STATE, ASSIGNMENT, is_new=False)
    context.update_partition_full_replica_assignment(T0, moving)
    collected.batch.add_leader_and_isr_request_for_brokers((1,), T0, STATE, moving, is_new=False)
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert collected.leader_and_isr[1][T0].removing_replicas == (3,)
    assert collected.update_metadata[1][T0].replicas == (1, 2, 3)


def test_a_partition_without_a_leader_so_far_is_told_to_nobody() -> None:
    _, collected = batch_of(1, 2)
    collected.batch.add_update_metadata_request_for_brokers((1, 2), [("new", 3)])
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert [request.body.topic_states for request in collected.sent] == [[], []]
    assert collected.announced == ["Leader not yet assigned for partition new-3. Skip sending UpdateMetadataRequest."]


def test_the_same_leadership_is_new_for_one_and_not_for_another() -> None:
    _, collected = batch_of()
    for broker_id, is_new in ((1, False), (2, True), (2, False), (3, False), (1, True)):
        collected.batch.add_leader_and_isr_request_for_brokers((broker_id,), T0, STATE, ASSIGNMENT, is_new=is_new)
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert {key: states[T0].is_new for key, states in collected.leader_and_isr.items()} == {
        1: True,
        2: True,
        3: False,
    }


def test_only_leaders_of_the_request_are_named_and_only_if_they_can_be_reached() -> None:
    context, collected = batch_of(1, 2, 3, 4)
    internal = BrokerRegistration(3, (Endpoint("OTHER", "x", 1), Endpoint("PLAINTEXT", "y", 2)))
    foreign = BrokerRegistration(4, (Endpoint("OTHER", "z", 3),))
    context.add_live_brokers({3: LiveBroker(internal, 1), 4: LiveBroker(foreign, 1)})
    for number, leader in enumerate((3, 4, 9, -1)):
        state = LeaderAndIsr(leader, 0, (1,), EPOCH, 0)
        collected.batch.add_leader_and_isr_request_for_brokers((1,), ("t", number), state, ASSIGNMENT, is_new=False)
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert collected.sent[0].body.live_leaders == [LeaderAndIsrLiveLeader(3, "y", 2)]


def test_update_metadata_names_all_live_brokers_with_all_their_endpoints() -> None:
    context, collected = batch_of(1)
    endpoints = (Endpoint("IN", "a", 1, "SASL_SSL"), Endpoint("OUT", "b", 2, "SSL"))
    context.add_live_brokers({2: LiveBroker(BrokerRegistration(2, endpoints, rack="r"), 1)})
    context.add_shutting_down_broker(2)
    collected.batch.add_update_metadata_request_for_brokers((1,), ())
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    (request,) = collected.sent
    assert request.body.topic_states == []
    assert request.body.live_brokers == [
        UpdateMetadataBroker(id=1, endpoints=[UpdateMetadataEndpoint(9091, "host1", "PLAINTEXT", 0)]),
        UpdateMetadataBroker(
            id=2,
            endpoints=[UpdateMetadataEndpoint(1, "a", "IN", 3), UpdateMetadataEndpoint(2, "b", "OUT", 1)],
            rack="r",
        ),
    ]


def test_partitions_that_were_never_led_have_no_metadata() -> None:
    context, collected = batch_of()
    in_one_go(context.remove_topic("u"))
    collected.batch.add_update_metadata_request_for_brokers((1,), (U0, T1))
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert list(collected.update_metadata[1]) == [T1]


def test_partitions_without_a_broker_to_be_told_are_forgotten() -> None:
    _, collected = batch_of()
    collected.batch.add_update_metadata_request_for_brokers((), (T0,))
    collected.batch.new_batch()
    collected.batch.add_update_metadata_request_for_brokers((1,), (T1,))
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert list(collected.update_metadata[1]) == [T1]


def test_clients_are_told_that_a_topic_is_being_deleted() -> None:
    context, collected = batch_of(1, 2)
    context.queue_topic_deletion(["t"])
    collected.batch.add_update_metadata_request_for_brokers((1,), (T0, U0))
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert collected.update_metadata[1] == {
        T0: UpdateMetadataPartitionState(0, 4, -2, 0, (2, 1), 0, (1, 2, 3), (3,)),
        U0: UpdateMetadataPartitionState(0, 4, 2, 10, (2, 1), 6, (1, 2, 3), (3,)),
    }


def test_a_stop_carries_the_leader_epoch_and_a_deletion_stays_one() -> None:
    context, collected = batch_of()
    context.queue_topic_deletion(["u"])
    batch = collected.batch
    batch.add_stop_replica_request_for_brokers((1, 2), T0, delete_partition=True)
    batch.add_stop_replica_request_for_brokers((1,), T0, delete_partition=False)
    batch.add_stop_replica_request_for_brokers((1,), U0, delete_partition=False)
    batch.add_stop_replica_request_for_brokers((1,), ("new", 0), delete_partition=False)
    asyncio.run(batch.send_requests_to_brokers(EPOCH))
    assert collected.stop_replica == {
        1: {T0: (10, True), U0: (-2, False), ("new", 0): (-1, False)},
        2: {T0: (10, True)},
    }
    body = collected.sent[0].body
    assert (body.controller_id, body.controller_epoch, body.broker_epoch) == (7, EPOCH, 101)
    encode_request(ApiKey.STOP_REPLICA, 3, 1, "7", body)


@pytest.mark.parametrize(("protocol", "version"), [("2.5-IV0", 2), ("2.4-IV0", 1)])
def test_before_2_6_deletions_are_requests_of_their_own(protocol: str, version: int) -> None:
    _, collected = batch_of(**{"inter.broker.protocol.version": protocol})
    batch = collected.batch
    batch.add_stop_replica_request_for_brokers((1,), T0, delete_partition=False)
    batch.add_stop_replica_request_for_brokers((1,), T1, delete_partition=True)
    batch.add_stop_replica_request_for_brokers((1, 2), U0, delete_partition=True)
    asyncio.run(batch.send_requests_to_brokers(EPOCH))

    def content(body: Any) -> tuple[bool, dict[str, list[int]]]:
        [delete] = {state.delete_partition for topic in body.topic_states for state in topic.partition_states}
        assert body.delete_partitions is delete
        return delete, {
            topic.topic_name: [state.partition_index for state in topic.partition_states] for topic in body.topic_states
        }

    assert [(request.broker_id, *content(request.body)) for request in collected.sent] == [
        (1, True, {"t": [1], "u": [0]}),
        (1, False, {"t": [0]}),
        (2, True, {"u": [0]}),
    ]
    assert [request.on_response is None for request in collected.sent] == [False, True, False]
    for request in collected.sent:
        encode_request(ApiKey.STOP_REPLICA, version, 1, "7", request.body)
    sent = [record.record.described() for record in collected.log.records()]
    assert [(record["brokers"], record["size"], record["delete"]) for record in sent] == [
        ((1,), 2, True),
        ((1,), 1, False),
        ((2,), 1, True),
    ]


def test_every_request_leaves_a_record_and_with_trace_a_line_for_each_partition() -> None:
    STATE_CHANGE_LOGGER.setLevel(TRACE)
    context, collected = batch_of()
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.extend(record.getMessage().splitlines())
    STATE_CHANGE_LOGGER.addHandler(handler)
    try:
        assignment = context.partition_full_replica_assignment(T0)
        for partition in (T0, T1):
            collected.batch.add_leader_and_isr_request_for_brokers((1, 2), partition, STATE, assignment, is_new=False)
        collected.batch.add_stop_replica_request_for_brokers((3,), U0, delete_partition=True)
        asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
        collected.log.close()
    finally:
        STATE_CHANGE_LOGGER.removeHandler(handler)
        STATE_CHANGE_LOGGER.setLevel(logging.NOTSET)
    assert [(line.split(" request ")[0].split("] ")[1], line.split(" to broker")[1]) for line in written] == [
        ("Sending become-follower LeaderAndIsr", " 1 for partition t-0"),
        ("Sending become-follower LeaderAndIsr", " 1 for partition t-1"),
        ("Sending LeaderAndIsr", " 1 with 0 become-leader and 2 become-follower partitions"),
        ("Sending become-leader LeaderAndIsr", " 2 for partition t-0"),
        ("Sending become-leader LeaderAndIsr", " 2 for partition t-1"),
        ("Sending LeaderAndIsr", " 2 with 2 become-leader and 0 become-follower partitions"),
        ("Sending UpdateMetadata", "s HashSet(1, 2, 3) for 2 partitions"),
        ("Sending StopReplica", " 3 for partition u-0"),
        ("Sending StopReplica", " 3"),
    ]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers_name_the_broker_that_gave_them() -> None:
    _, collected = batch_of(1)
    collected.batch.add_leader_and_isr_request_for_brokers((1,), T0, STATE, ASSIGNMENT, is_new=False)
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    for request in collected.sent:
        assert request.on_response is not None
        request.on_response(request.api_key.name)
    assert collected.responses == [("leader_and_isr", 1, "LEADER_AND_ISR"), ("update_metadata", 1, "UPDATE_METADATA")]


def test_of_a_stop_only_topics_that_are_being_deleted_are_heard() -> None:
    context, collected = batch_of(1)
    for partition, delete in ((T0, True), (T1, False), (U0, True)):
        collected.batch.add_stop_replica_request_for_brokers((1,), partition, delete_partition=delete)
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    on_response = collected.sent[0].on_response
    assert on_response is not None
    answer = StopReplicaResponse(0, [Stopped("t", 0, 56), Stopped("t", 1, 0), Stopped("u", 0, 0)])
    on_response(answer)
    assert collected.responses == []
    context.begin_topic_deletion(["t"])
    on_response(answer)
    assert collected.responses == [("stop_replica", 1, answer, [collected.sent[0].body.topic_states[0]])]


def test_nobody_waits_for_the_answer_to_a_stop_without_deletions() -> None:
    _, collected = batch_of(1)
    collected.batch.add_stop_replica_request_for_brokers((1,), T0, delete_partition=False)
    asyncio.run(collected.batch.send_requests_to_brokers(EPOCH))
    assert collected.sent[0].on_response is None


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["leader_and_isr", "update_metadata", "stop_replica"])
def test_a_batch_must_be_sent_before_the_next_one(kind: str) -> None:
    _, collected = batch_of()
    batch = collected.batch
    if kind == "leader_and_isr":
        batch.add_leader_and_isr_request_for_brokers((1,), T0, STATE, ASSIGNMENT, is_new=False)
    elif kind == "update_metadata":
        batch.add_update_metadata_request_for_brokers((1,), ())
    else:
        batch.add_stop_replica_request_for_brokers((1,), T0, delete_partition=False)
    with pytest.raises(RuntimeError, match=r"\[1\]|\[1, 2, 3\]"):
        batch.new_batch()
    batch.clear()
    batch.new_batch()
    asyncio.run(batch.send_requests_to_brokers(EPOCH))
    assert collected.sent == []
