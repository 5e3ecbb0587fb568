"""The znodes through which brokers and tools send requests to the controller. Pure.

Kafka's classes: DeleteTopicsZNode, ReassignPartitionsZNode, PreferredReplicaElectionZNode,
IsrChangeNotificationSequenceZNode, LogDirEventNotificationSequenceZNode.
"""

from collections.abc import Iterable, Mapping, Sequence

from klamm.base import json_bytes
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.fields import Fields

DELETE_TOPICS_PATH = "/admin/delete_topics"
REASSIGN_PARTITIONS_PATH = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION_PATH = "/admin/preferred_replica_election"
ISR_CHANGES_PATH = "/isr_change_notification"
ISR_CHANGE_PREFIX = f"{ISR_CHANGES_PATH}/isr_change_"
LOG_DIR_EVENTS_PATH = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENTS_PATH}/log_dir_event_"
LOG_DIR_FAILURE = 1


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS_PATH}/{topic}"


def encode_partitions(partitions: Iterable[PartitionKey]) -> bytes:
    """The content of a preferred replica election and of a notification of ISR changes."""
    return json_bytes.encode(
        {"version": 1, "partitions": [{"topic": topic, "partition": number} for topic, number in partitions]}
    )


def decode_partitions(path: str, data: bytes) -> list[PartitionKey]:
    """Each partition once, in the znode's order."""
    fields = Fields.parse(path, data)
    return list(dict.fromkeys(_partition(entry) for entry in fields.each("partitions")))


def encode_reassignment(replicas: Mapping[PartitionKey, Sequence[int]]) -> bytes:
    return json_bytes.encode(
        {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": number, "replicas": list(ids)}
                for (topic, number), ids in replicas.items()
            ],
        }
    )


def decode_reassignment(data: bytes) -> dict[PartitionKey, tuple[int, ...]]:
    """The target replicas of each partition."""
    fields = Fields.parse(REASSIGN_PARTITIONS_PATH, data)
    return {_partition(entry): entry.integers("replicas") for entry in fields.each("partitions")}


def encode_log_dir_event(broker_id: int) -> bytes:
    return json_bytes.encode({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILURE})


def decode_log_dir_event(path: str, data: bytes) -> int:
    """The broker that has a failed log directory."""
    return Fields.parse(path, data).integer("broker")


def _partition(fields: Fields) -> PartitionKey:
    return fields.text("topic"), fields.integer("partition", 0)
