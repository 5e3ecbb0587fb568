"""Random messages of LeaderAndIsr, UpdateMetadata and StopReplica, and the same as objects of the library's classes."""

import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrTopicErrors,
    LiveLeader,
)
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
    UpdateMetadataResponse,
    UpdateMetadataTopic,
)
from support.message_oracle import library_class

LEADER_AND_ISR_VERSIONS = range(6)
UPDATE_METADATA_VERSIONS = range(8)
STOP_REPLICA_VERSIONS = range(4)
NAMES = ["a", "topic-ü", "x" * 249]
LISTENERS = ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

S = TypeVar("S")
T = TypeVar("T")


def struct_class(message_class: Any, name: str) -> Any:
    return message_class._struct.fields[name].data_class


def integer(rng: random.Random, bits: int = 31) -> int:
    return rng.choice([-1, 0, 1, (1 << bits) - 1, -(1 << bits), rng.getrandbits(bits)])


def brokers(rng: random.Random) -> tuple[int, ...]:
    """Broker ids: mostly few, sometimes so many that their count takes two bytes."""
    return tuple(integer(rng) for _ in range(rng.choice([0, 1, 2, 3, 3, 3, 63, 64, 127, 300])))


def topic_id(rng: random.Random, known: bool) -> uuid.UUID | None:
    return rng.choice([None, uuid.UUID(int=rng.getrandbits(128) | 1)]) if known else None


def topics(
    rng: random.Random,
    topic_class: Callable[[str, uuid.UUID | None, list[S]], T],
    ids: bool,
    partition: Callable[[random.Random], S],
    ungrouped: bool,
) -> list[T]:
    """Topics; a version that does not group by topic cannot say that one has no partitions."""
    counts = [1, 4] if ungrouped else [0, 1, 4]
    return [
        topic_class(name, topic_id(rng, ids), [partition(rng) for _ in range(rng.choice(counts))])
        for name in NAMES[: rng.randrange(4)]
    ]


def leader_and_isr_request(rng: random.Random, version: int) -> LeaderAndIsrRequest:
    def state(rng: random.Random) -> LeaderAndIsrPartitionState:
        return LeaderAndIsrPartitionState(
            integer(rng),
            integer(rng),
            integer(rng),
            integer(rng),
            brokers(rng),
            integer(rng),
            brokers(rng),
            brokers(rng) if version >= 3 else (),
            brokers(rng) if version >= 3 else (),
            rng.choice([False, True]) if version >= 1 else False,
        )

    return LeaderAndIsrRequest(
        integer(rng),
        integer(rng),
        integer(rng, 63) if version >= 2 else -1,
        topics(rng, LeaderAndIsrTopic, version >= 5, state, version < 2),
        [LiveLeader(integer(rng), name, integer(rng)) for name in NAMES[: rng.randrange(4)]],
    )


def schema_leader_and_isr_request(version: int, request: LeaderAndIsrRequest) -> Any:
    cls = library_class(ApiKey.LEADER_AND_ISR, "Request")
    topic_class = struct_class(cls, "topic_states")
    grouped = version >= 2
    state_class = struct_class(topic_class, "partition_states")
    if not grouped:
        state_class = struct_class(cls, "ungrouped_partition_states")
    leader_class = struct_class(cls, "live_leaders")

    def state(topic: LeaderAndIsrTopic, value: LeaderAndIsrPartitionState) -> Any:
        return state_class(
            version=version,
            topic_name=topic.topic,
            partition_index=value.partition,
            controller_epoch=value.controller_epoch,
            leader=value.leader,
            leader_epoch=value.leader_epoch,
            isr=list(value.isr),
            zk_version=value.zk_version,
            replicas=list(value.replicas),
            adding_replicas=list(value.adding_replicas),
            removing_replicas=list(value.removing_replicas),
            is_new=value.is_new,
        )

    return cls(
        version=version,
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        request_type=0,
        ungrouped_partition_states=[state(topic, value) for topic in request.topics for value in topic.partitions]
        if not grouped
        else [],
        topic_states=[
            topic_class(
                version=version,
                topic_name=topic.topic,
                topic_id=topic.topic_id,
                partition_states=[state(topic, value) for value in topic.partitions],
            )
            for topic in request.topics
        ]
        if grouped
        else [],
        live_leaders=[
            leader_class(version=version, broker_id=leader.broker_id, host_name=leader.host, port=leader.port)
            for leader in request.live_leaders
        ],
    )


def leader_and_isr_response(rng: random.Random, version: int) -> LeaderAndIsrResponse:
    def error(rng: random.Random) -> tuple[int, int]:
        return integer(rng), integer(rng, 15)

    answered = topics(rng, LeaderAndIsrTopicErrors, version >= 5, error, version < 5)
    if version >= 5:
        answered = [replace(topic, topic="") for topic in answered]
    return LeaderAndIsrResponse(integer(rng, 15), answered)


def schema_leader_and_isr_response(version: int, response: LeaderAndIsrResponse) -> Any:
    cls = library_class(ApiKey.LEADER_AND_ISR, "Response")
    topic_class = struct_class(cls, "topics")
    by_id = version >= 5
    error_class = struct_class(topic_class if by_id else cls, "partition_errors")

    def errors(topic: LeaderAndIsrTopicErrors) -> list[Any]:
        return [
            error_class(version=version, topic_name=topic.topic, partition_index=partition, error_code=error_code)
            for partition, error_code in topic.partitions
        ]

    return cls(
        version=version,
        error_code=response.error_code,
        partition_errors=[error for topic in response.topics for error in errors(topic)] if not by_id else [],
        topics=[
            topic_class(version=version, topic_id=topic.topic_id, partition_errors=errors(topic))
            for topic in response.topics
        ]
        if by_id
        else [],
    )


def update_metadata_request(rng: random.Random, version: int) -> UpdateMetadataRequest:
    def state(rng: random.Random) -> UpdateMetadataPartitionState:
        return UpdateMetadataPartitionState(
            integer(rng),
            integer(rng),
            integer(rng),
            integer(rng),
            brokers(rng),
            integer(rng),
            brokers(rng),
            brokers(rng) if version >= 4 else (),
        )

    def endpoint(rng: random.Random) -> UpdateMetadataEndpoint:
        protocol = rng.randrange(4) if version >= 1 else 0
        listener = rng.choice([*NAMES, ""]) if version >= 3 else LISTENERS[protocol]
        return UpdateMetadataEndpoint(integer(rng), rng.choice(NAMES), listener, protocol)

    def broker(rng: random.Random) -> UpdateMetadataBroker:
        endpoints = tuple(endpoint(rng) for _ in range(rng.choice([0, 1, 3]) if version >= 1 else 1))
        return UpdateMetadataBroker(integer(rng), endpoints, rng.choice([None, "", "rack-1"]) if version >= 2 else None)

    return UpdateMetadataRequest(
        integer(rng),
        integer(rng),
        integer(rng, 63) if version >= 5 else -1,
        topics(rng, UpdateMetadataTopic, version >= 7, state, version < 5),
        [broker(rng) for _ in range(rng.randrange(4))],
    )


def schema_update_metadata_request(version: int, request: UpdateMetadataRequest) -> Any:
    cls = library_class(ApiKey.UPDATE_METADATA, "Request")
    topic_class = struct_class(cls, "topic_states")
    grouped = version >= 5
    state_class = struct_class(topic_class, "partition_states")
    if not grouped:
        state_class = struct_class(cls, "ungrouped_partition_states")
    broker_class = struct_class(cls, "live_brokers")
    endpoint_class = struct_class(broker_class, "endpoints")

    def state(topic: UpdateMetadataTopic, value: UpdateMetadataPartitionState) -> Any:
        return state_class(
            version=version,
            topic_name=topic.topic,
            partition_index=value.partition,
            controller_epoch=value.controller_epoch,
            leader=value.leader,
            leader_epoch=value.leader_epoch,
            isr=list(value.isr),
            zk_version=value.zk_version,
            replicas=list(value.replicas),
            offline_replicas=list(value.offline_replicas),
        )

    def broker(value: UpdateMetadataBroker) -> Any:
        return broker_class(
            version=version,
            id=value.id,
            v0_host=value.endpoints[0].host if version == 0 else "",
            v0_port=value.endpoints[0].port if version == 0 else 0,
            endpoints=[
                endpoint_class(
                    version=version,
                    port=endpoint.port,
                    host=endpoint.host,
                    listener=endpoint.listener,
                    security_protocol=endpoint.security_protocol,
                )
                for endpoint in value.endpoints
                if version >= 1
            ],
            rack=value.rack,
        )

    return cls(
        version=version,
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        ungrouped_partition_states=[state(topic, value) for topic in request.topics for value in topic.partitions]
        if not grouped
        else [],
        topic_states=[
            topic_class(
                version=version,
                topic_name=topic.topic,
                topic_id=topic.topic_id,
                partition_states=[state(topic, value) for value in topic.partitions],
            )
            for topic in request.topics
        ]
        if grouped
        else [],
        live_brokers=[broker(value) for value in request.live_brokers],
    )


def update_metadata_response(rng: random.Random, version: int) -> UpdateMetadataResponse:
    return UpdateMetadataResponse(integer(rng, 15))


def schema_update_metadata_response(version: int, response: UpdateMetadataResponse) -> Any:
    return library_class(ApiKey.UPDATE_METADATA, "Response")(version=version, error_code=response.error_code)


def stop_replica_request(rng: random.Random, version: int) -> StopReplicaRequest:
    """Before version 3 all partitions of a request are deleted, or none, and no epoch is known."""
    delete_all = rng.choice([False, True])

    def state(rng: random.Random) -> StopReplicaPartitionState:
        if version < 3:
            return StopReplicaPartitionState(integer(rng), -1, delete_all)
        return StopReplicaPartitionState(integer(rng), integer(rng), rng.choice([False, True]))

    return StopReplicaRequest(
        integer(rng),
        integer(rng),
        integer(rng, 63) if version >= 1 else -1,
        topics(rng, StopReplicaTopic, False, state, version < 1),
    )


def schema_stop_replica_request(version: int, request: StopReplicaRequest) -> Any:
    cls = library_class(ApiKey.STOP_REPLICA, "Request")
    ungrouped_class = struct_class(cls, "ungrouped_partitions")
    old_topic_class = struct_class(cls, "topics")
    topic_class = struct_class(cls, "topic_states")
    state_class = struct_class(topic_class, "partition_states")
    states = [(topic.topic, state) for topic in request.topics for state in topic.partitions]
    return cls(
        version=version,
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        delete_partitions=any(state.delete for _, state in states),
        ungrouped_partitions=[
            ungrouped_class(version=version, topic_name=topic, partition_index=state.partition)
            for topic, state in states
            if version == 0
        ],
        topics=[
            old_topic_class(
                version=version, name=topic.topic, partition_indexes=[state.partition for state in topic.partitions]
            )
            for topic in request.topics
            if version in (1, 2)
        ],
        topic_states=[
            topic_class(
                version=version,
                topic_name=topic.topic,
                partition_states=[
                    state_class(
                        version=version,
                        partition_index=state.partition,
                        leader_epoch=state.leader_epoch,
                        delete_partition=state.delete,
                    )
                    for state in topic.partitions
                ],
            )
            for topic in request.topics
            if version == 3
        ],
    )


def stop_replica_response(rng: random.Random, version: int) -> StopReplicaResponse:
    errors = {
        name: [(integer(rng), integer(rng, 15)) for _ in range(rng.choice([1, 4]))]
        for name in NAMES[: rng.randrange(4)]
    }
    return StopReplicaResponse(integer(rng, 15), errors)


def schema_stop_replica_response(version: int, response: StopReplicaResponse) -> Any:
    cls = library_class(ApiKey.STOP_REPLICA, "Response")
    error_class = struct_class(cls, "partition_errors")
    return cls(
        version=version,
        error_code=response.error_code,
        partition_errors=[
            error_class(version=version, topic_name=topic, partition_index=partition, error_code=code)
            for topic, of_topic in response.topics.items()
            for partition, code in of_topic
        ],
    )


CONTROL_MESSAGES: dict[tuple[ApiKey, str], tuple[Callable[[random.Random, int], Any], Callable[[int, Any], Any]]] = {
    (ApiKey.LEADER_AND_ISR, "Request"): (leader_and_isr_request, schema_leader_and_isr_request),
    (ApiKey.LEADER_AND_ISR, "Response"): (leader_and_isr_response, schema_leader_and_isr_response),
    (ApiKey.UPDATE_METADATA, "Request"): (update_metadata_request, schema_update_metadata_request),
    (ApiKey.UPDATE_METADATA, "Response"): (update_metadata_response, schema_update_metadata_response),
    (ApiKey.STOP_REPLICA, "Request"): (stop_replica_request, schema_stop_replica_request),
    (ApiKey.STOP_REPLICA, "Response"): (stop_replica_response, schema_stop_replica_response),
}
"""By API and kind: a function (random, version) -> message, and one (version, message) -> the library's object."""
