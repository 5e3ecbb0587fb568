"""What this broker tells clients about the cluster: brokers, topics, leaders (Kafka's `MetadataCache`).

It is filled only by the controller (UpdateMetadata) and read by every handler.

What must stay true:
- A snapshot never changes. A reader that took one sees one state of the cluster, also across an `await`.
- An update makes a new snapshot and copies only the topics that it touches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

NO_LEADER = -1
# The leader of a topic that is being deleted, as UpdateMetadata says it (`LeaderAndIsr.LeaderDuringDelete`).
LEADER_DURING_DELETE = -2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a broker can be reached through one listener."""

    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """A live broker and its endpoints by listener name."""

    id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The leadership of one partition."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The cluster at one moment. `topics` is topic -> partition -> leadership, partitions in ascending order."""

    controller_id: int = -1
    brokers: Mapping[int, BrokerMetadata] = field(default_factory=dict)
    topics: Mapping[str, Mapping[int, PartitionMetadata]] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        partitions = self.topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def leader_endpoint(self, partition: PartitionMetadata, listener_name: str) -> Endpoint | None:
        """Where the partition's leader listens under this listener name; None if it is not alive or not there."""
        broker = self.brokers.get(partition.leader)
        return None if broker is None else broker.endpoints.get(listener_name)


class MetadataCache:
    """Holds the current snapshot."""

    def __init__(self) -> None:
        self.snapshot = MetadataSnapshot()

    def update(
        self,
        controller_id: int,
        brokers: Mapping[int, BrokerMetadata],
        partitions: Mapping[str, Mapping[int, PartitionMetadata]],
        topic_ids: Mapping[str, UUID],
    ) -> list[tuple[str, int]]:
        """Takes over an UpdateMetadata: the brokers and the controller are replaced, the named partitions merged.

        A partition with leader LEADER_DURING_DELETE is removed. Returns the removed partitions.
        """
        old = self.snapshot
        if not partitions:
            self.snapshot = replace(old, controller_id=controller_id, brokers=brokers)
            return []
        topics = dict(old.topics)
        ids = {**old.topic_ids, **topic_ids}
        removed = []
        for topic, changes in partitions.items():
            merged = {**topics.get(topic, {}), **changes}
            for number, state in changes.items():
                if state.leader == LEADER_DURING_DELETE:
                    del merged[number]
                    removed.append((topic, number))
            if merged:
                topics[topic] = dict(sorted(merged.items()))
            else:
                topics.pop(topic, None)
                ids.pop(topic, None)
        self.snapshot = MetadataSnapshot(controller_id, brokers, topics, ids)
        return removed
