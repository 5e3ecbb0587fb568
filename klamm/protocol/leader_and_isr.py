"""LeaderAndIsr (key 4), versions 0 to 5: the controller tells a broker what it leads and what it follows.

Messages are the same for every version; the codecs put them into the version's layout.
"""

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID


@dataclass(slots=True, frozen=True)
class LeaderAndIsrPartitionState:
    """One partition's leadership. `leader` is -1 for nobody; `controller_epoch` is that of the decision."""

    partition: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    is_new: bool = False


class LiveLeader(NamedTuple):
    """Where followers reach a leader: the endpoint of its inter-broker listener."""

    broker_id: int
    host: str
    port: int


@dataclass(slots=True)
class LeaderAndIsrTopic:
    """The partitions of one topic. `topic_id` is None where the version or the controller does not know it."""

    topic: str
    topic_id: UUID | None
    partitions: list[LeaderAndIsrPartitionState]


@dataclass(slots=True)
class LeaderAndIsrRequest:
    """`broker_epoch` is the receiver's, as the controller knows it; -1 where the version does not say."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int = -1
    topics: list[LeaderAndIsrTopic] = field(default_factory=list)
    live_leaders: list[LiveLeader] = field(default_factory=list)


@dataclass(slots=True)
class LeaderAndIsrTopicErrors:
    """(partition, error code) pairs of one topic: named by `topic` up to version 4, by `topic_id` from version 5 on."""

    topic: str
    topic_id: UUID | None
    partitions: list[tuple[int, int]]


@dataclass(slots=True)
class LeaderAndIsrResponse:
    """`error_code` concerns the request as a whole. Decoded from version 5 on, `topic` is empty."""

    error_code: int = 0
    topics: list[LeaderAndIsrTopicErrors] = field(default_factory=list)


REQUEST_CLASS = LeaderAndIsrRequest
RESPONSE_CLASS = LeaderAndIsrResponse
