"""Reassignments of partitions to other replicas: start, cancel and list (KIP-455)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import (
    ANSWER_MARGIN_MS,
    CONTROLLER_ERRORS,
    answers,
    ask_controller,
    by_topic,
    checked,
    error_of,
)
from klamm.net.client import Connection
from klamm.protocol.apis.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from klamm.protocol.apis.list_partition_reassignments import ListPartitionReassignmentsRequest
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A reassignment in progress. `replicas` are all current replicas, including adding and removing replicas."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


async def alter_partition_reassignments(
    client: ClusterClient, replicas: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int | None = None
) -> dict[TopicPartition, KafkaError | None]:
    """Starts to move each partition to these brokers; None cancels its reassignment.

    The request is sent again when its answer was lost. Then NO_REASSIGNMENT_IN_PROGRESS may mean that this call has
    cancelled the reassignment.
    """
    wait_ms = client.request_timeout_ms if timeout_ms is None else timeout_ms
    struct = AlterPartitionReassignmentsRequest.ReassignableTopic

    def partition(
        topic: str, number: int
    ) -> AlterPartitionReassignmentsRequest.ReassignableTopic.ReassignablePartition:
        target = replicas[TopicPartition(topic, number)]
        return struct.ReassignablePartition(partition_index=number, replicas=None if target is None else list(target))

    async def ask(
        connection: Connection, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        request = AlterPartitionReassignmentsRequest(
            topics=[
                struct(name=topic, partitions=[partition(topic, number) for number in numbers])
                for topic, numbers in by_topic(partitions).items()
            ],
            timeout_ms=wait_ms,
        )
        response = await connection.send(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, lambda version: request, timeout_ms=wait_ms + ANSWER_MARGIN_MS
        )
        if (error := error_of(response.error_code, response.error_message)) is not None:
            return dict.fromkeys(partitions, error)
        return {
            partition: error_of(each.error_code, each.error_message) for partition, each in answers(response.responses)
        }

    return await ask_controller(client, replicas, ask, repeatable=True)


async def list_partition_reassignments(
    client: ClusterClient, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: int | None = None
) -> dict[TopicPartition, PartitionReassignment]:
    """The reassignments in progress of these partitions or of all. Raises KafkaError and ClientError."""
    wait_ms = client.request_timeout_ms if timeout_ms is None else timeout_ms
    struct = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    topics = None
    if partitions is not None:
        topics = [struct(name=name, partition_indexes=numbers) for name, numbers in by_topic(partitions).items()]
    request = ListPartitionReassignmentsRequest(topics=topics, timeout_ms=wait_ms)

    async def ask(
        connection: Connection, whole: Sequence[None]
    ) -> dict[None, dict[TopicPartition, PartitionReassignment] | KafkaError]:
        response = await connection.send(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, lambda version: request, timeout_ms=wait_ms + ANSWER_MARGIN_MS
        )
        error = error_of(response.error_code, response.error_message)
        found = {
            partition: PartitionReassignment(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for partition, each in answers(response.topics)
        }
        return {None: found if error is None else error}

    results = await ask_controller(client, [None], ask, retriable=CONTROLLER_ERRORS, repeatable=True)
    return checked(results[None])
