"""What replication needs of the rest of the broker, which supplies it.

Callbacks are called on the loop's thread and return at once.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from klamm.config.topic import TopicConfig
from klamm.protocol.errors import ErrorCode
from klamm.replication.fetch_state import InitialFetchState
from klamm.znodes.topics import TopicPartition


class TopicConfigSource(Protocol):
    """The configurations of topics."""

    def load(self, topics: Sequence[str]) -> Awaitable[None]:
        """Reads them from where they are stored, before logs are created for these topics. Raises ZooKeeperError."""

    def of(self, topic: str) -> TopicConfig:
        """What was loaded last."""


class FollowerFetchers(Protocol):
    """Copies partitions from their leaders."""

    def add_fetchers(self, states: Mapping[TopicPartition, InitialFetchState]) -> None:
        """Begins to fetch these, or goes on with the new leader or epoch."""

    def remove_fetchers(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches these no more: when this returns, nothing will be appended to them or truncated any more."""

    def shutdown(self) -> Awaitable[None]:
        """Ends all fetching."""


@dataclass(frozen=True, slots=True)
class WrittenIsr:
    """The answer to a proposed ISR: what stands in the partition's state znode now."""

    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int


@dataclass(frozen=True, slots=True, eq=False)
class IsrChange:
    """A leader's proposal. `zk_version` is that of the state it wants to replace, `controller_epoch` that of the
    LeaderAndIsr that made it leader.

    `on_result` hears, at most once, what was written, or why it never will be.
    """

    topic_partition: TopicPartition
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    controller_epoch: int
    on_result: Callable[[WrittenIsr | ErrorCode], None]


class IsrChanges(Protocol):
    """The way of proposals to the controller, or to ZooKeeper."""

    def submit(self, change: IsrChange) -> None:
        """Sends it, again and again until it is decided. One per partition at a time."""

    def clear_pending(self, topic_partition: TopicPartition) -> None:
        """What is proposed for the partition has become void; if it has been sent, its answer may still come."""


# Host and port of a live broker's inter-broker listener, as the metadata cache knows it.
LiveBroker = Callable[[int], tuple[str, int] | None]
# Hears what becomes of a hosted partition: whether this broker leads it now, and since which leader epoch; or that it
# does not, in which epoch (None: it is not hosted any more, or its log has failed). Told again what is known, it does
# nothing.
OnLeadership = Callable[[TopicPartition, bool, int | None], None]
# Whether the metadata cache has that partition of that topic.
IsKnownPartition = Callable[[str, int], bool]
