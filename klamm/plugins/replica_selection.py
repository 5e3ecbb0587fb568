"""Which replica a consumer should read from (replica.selector.class, KIP-392).

The leader of a partition asks at each fetch of a consumer, so a selector must be quick and may not wait.

Source: org.apache.kafka.common.replica.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from klamm.plugins.plugin import Plugin


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """The consumer. `rack_id` is its client.rack, empty without one."""

    rack_id: str
    client_id: str
    client_address: str
    principal: str
    listener_name: str


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica that has the wanted offset, with the address of its broker on the consumer's listener."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    log_end_offset: int
    # 0 for the leader.
    time_since_last_caught_up_ms: float


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition and its replicas in sync, the leader first."""

    topic: str
    partition: int
    replicas: Sequence[ReplicaView]

    @property
    def leader(self) -> ReplicaView:
        return self.replicas[0]


class ReplicaSelector(Plugin):
    """Selects the replica that a consumer should read from."""

    @abstractmethod
    def select(self, client: ClientMetadata, partition: PartitionView) -> ReplicaView | None:
        """One of `partition.replicas`; None, or the leader, for the leader itself."""


class RackAwareReplicaSelector(ReplicaSelector):
    """A consumer reads from the most caught-up replica in its own rack, preferably the leader."""

    def select(self, client: ClientMetadata, partition: PartitionView) -> ReplicaView | None:
        rack = client.rack_id
        if not rack or partition.leader.rack == rack:
            return None
        return max((replica for replica in partition.replicas if replica.rack == rack), key=_caught_up, default=None)


def _caught_up(replica: ReplicaView) -> tuple[int, float, int]:
    return replica.log_end_offset, -replica.time_since_last_caught_up_ms, replica.broker_id


KAFKA_SELECTORS: Mapping[str, type[ReplicaSelector]] = MappingProxyType(
    {"org.apache.kafka.common.replica.RackAwareReplicaSelector": RackAwareReplicaSelector}
)
"""Kafka's selector by the name of its Java class."""
