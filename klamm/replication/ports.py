"""The interfaces that replication needs and the rest of the broker implements.

Callbacks run on the loop's thread and return at once.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from klamm.config.topic import TopicConfig
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import PartitionKey
from klamm.replication.fetcher.fetch_state import InitialFetchState


class TopicConfigSource(Protocol):
    """The configurations of topics."""

    def load(self, topics: Sequence[str]) -> Awaitable[None]:
        """Reads the topics' configurations from ZooKeeper, before logs are created. Raises ZooKeeperError."""

    def of(self, topic: str) -> TopicConfig:
        """The last loaded configuration."""


class FollowerFetchers(Protocol):
    """Copies partitions from their leaders."""

    def add_fetchers(self, states: Mapping[PartitionKey, InitialFetchState]) -> None:
        """Starts to fetch these partitions, or continues with the new leader or epoch."""

    def remove_fetchers(self, partitions: Iterable[PartitionKey]) -> None:
        """Stops fetching these partitions. Once this returns, no fetcher appends to them or truncates them."""

    def shutdown(self) -> Awaitable[None]:
        """Ends all fetching."""


@dataclass(frozen=True, slots=True)
class WrittenIsr:
    """The answer to a proposed ISR: the current content of the partition's state znode."""

    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int


@dataclass(frozen=True, slots=True, eq=False)
class IsrChange:
    """A leader's proposal. `zk_version` is the version of the state that it replaces. `controller_epoch` is the epoch
    of the LeaderAndIsr that made this broker the leader.

    `on_result` is called at most once: with the written state, or with the error if the proposal can never be written.
    """

    topic_partition: PartitionKey
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    controller_epoch: int
    on_result: Callable[[WrittenIsr | ErrorCode], None]


class IsrChanges(Protocol):
    """Sends proposals to the controller, or to ZooKeeper."""

    def submit(self, change: IsrChange) -> None:
        """Sends the change repeatedly until it is decided. A partition has at most one pending change."""

    def clear_pending(self, topic_partition: PartitionKey) -> None:
        """Drops the partition's proposal. If it was already sent, its answer may still arrive and is ignored."""


# Host and port of a live broker's inter-broker listener, as the metadata cache knows it.
LiveBroker = Callable[[int], tuple[str, int] | None]
# Called when a hosted partition changes, with whether this broker leads it now, and the current leader epoch. The epoch
# is None when the partition is no longer hosted or its log has failed. A repeated call does nothing.
OnLeadership = Callable[[PartitionKey, bool, int | None], None]
# Whether the metadata cache has this partition of this topic.
IsKnownPartition = Callable[[str, int], bool]
