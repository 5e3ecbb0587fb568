"""UpdateMetadata (key 6), versions 0 to 7: the controller tells every broker who lives and who leads what.

Messages are the same for every version; the codecs put them into the version's layout.
"""

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

# The leader of a partition whose topic is being deleted (Kafka's `LeaderAndIsr.LeaderDuringDelete`).
LEADER_DURING_DELETE = -2


@dataclass(slots=True, frozen=True)
class UpdateMetadataPartitionState:
    """One partition as clients shall see it. `leader`: -1 for nobody, LEADER_DURING_DELETE."""

    partition: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


class UpdateMetadataEndpoint(NamedTuple):
    """One listener of a broker. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    port: int
    host: str
    listener: str
    security_protocol: int


@dataclass(slots=True, frozen=True)
class UpdateMetadataBroker:
    """A live broker."""

    id: int
    endpoints: tuple[UpdateMetadataEndpoint, ...]
    rack: str | None = None


@dataclass(slots=True)
class UpdateMetadataTopic:
    """The partitions of one topic. `topic_id` is None where the version or the controller does not know it."""

    topic: str
    topic_id: UUID | None
    partitions: list[UpdateMetadataPartitionState]


@dataclass(slots=True)
class UpdateMetadataRequest:
    """`broker_epoch` is the receiver's, as the controller knows it; -1 where the version does not say."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int = -1
    topics: list[UpdateMetadataTopic] = field(default_factory=list)
    live_brokers: list[UpdateMetadataBroker] = field(default_factory=list)


@dataclass(slots=True)
class UpdateMetadataResponse:
    """Nothing but whether it was taken."""

    error_code: int = 0


REQUEST_CLASS = UpdateMetadataRequest
RESPONSE_CLASS = UpdateMetadataResponse
