"""ListOffsets requests: the earliest and latest offset of a partition, and the offset at a timestamp.

What must stay true: a request carries the leader epoch that the client knows, so that neither a former leader nor a
follower answers with an end that is not the leader's (KIP-320).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from klamm.client.cluster import PartitionMetadata
from klamm.protocol.apis.list_offsets import ListOffsetsRequest
from klamm.protocol.vocabulary import (
    CONSUMER_REPLICA_ID,
    NO_EPOCH,
    READ_UNCOMMITTED,
    TopicPartition,
)


class Asked(NamedTuple):
    """A timestamp in milliseconds, EARLIEST or LATEST; and the leader epoch."""

    timestamp: int
    leader_epoch: int


def asked_at(timestamp: int, state: PartitionMetadata | None) -> Asked:
    """The question for a partition; `state` is None when its metadata is not known."""
    return Asked(timestamp, NO_EPOCH if state is None else state.leader_epoch)


def list_offsets_request(
    version: int,
    partitions: Mapping[TopicPartition, Asked],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    replica_id: int = CONSUMER_REPLICA_ID,
) -> Any:
    """The request for these partitions."""
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    topics: dict[str, list[Any]] = {}
    for partition, each in partitions.items():
        topics.setdefault(partition.topic, []).append(
            topic_class.ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=each.leader_epoch,
                timestamp=each.timestamp,
            )
        )
    return ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[topic_class(name=name, partitions=asked) for name, asked in topics.items()],
    )
