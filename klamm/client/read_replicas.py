"""Chooses the replica that a consumer with a `client.rack` reads from (KIP-392).

A consumer sends its rack to the leader, whose `replica.selector.class` may redirect it to a follower in that rack. The
selector may also redirect a consumer without a rack. A follower only counts for the records that it returns: only the
leader can tell missing records and the end of the log. A consumer that leaves a follower reads from the leader for a
while, in a version of Fetch without redirection, so that the leader does not redirect it back at once.

What must stay true:
- A follower is used only in the leader epoch in which the leader named it, and for `CHOICE_S`.
- Between two answers of a leader with records, or with an error, there are at most one redirection and one request to a
  follower.

Source: org.apache.kafka.clients.consumer.internals.SubscriptionState (preferred read replica).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from klamm.net.client import Connection
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import TopicPartition

# How long a consumer reads from a follower before it asks the leader again (Java's metadata.max.age.ms).
CHOICE_S = 300.0
# How long a consumer reads from the leader after it left a follower. Doubles until a follower returns records.
MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0

NO_FOLLOWER = -1
LAST_VERSION_WITHOUT_REDIRECTION = 10


class LedPartition(Protocol):
    """A partition in the metadata."""

    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def replicas(self) -> Sequence[int]: ...


class Source(NamedTuple):
    """The broker to fetch from, and the largest allowed version of Fetch, or None."""

    broker: int
    is_follower: bool
    max_version: int | None = None

    def version_of(self, connection: Connection) -> int:
        """The version of a Fetch on this connection. Raises UnsupportedVersion."""
        version = connection.version_of(ApiKey.FETCH)
        return version if self.max_version is None else min(version, self.max_version)


@dataclass(slots=True)
class _Choice:
    """The choice of `follower`, or of NO_FOLLOWER, until `until_s`, a time of the loop's clock."""

    follower: int
    leader_epoch: int
    until_s: float
    pause_s: float = MIN_PAUSE_S


class ReadReplicas:
    """The choices of one client, by partition."""

    def __init__(self, rack: str) -> None:
        self.rack = rack
        self._choices: dict[TopicPartition, _Choice] = {}

    def source(self, partition: TopicPartition, state: LedPartition) -> Source:
        """The source of the next fetch of a partition."""
        choice = self._choices.get(partition)
        if choice is None or choice.until_s <= _now_s() or choice.leader_epoch != state.leader_epoch:
            return Source(state.leader, False)
        if choice.follower == NO_FOLLOWER:
            return Source(state.leader, False, LAST_VERSION_WITHOUT_REDIRECTION)
        return Source(choice.follower, True)

    def redirect(self, partition: TopicPartition, state: LedPartition, follower: int) -> None:
        """The leader redirects to a follower."""
        if follower == state.leader or follower not in state.replicas:
            self.leave(partition, state)
            return
        before = self._choices.get(partition)
        pause_s = MIN_PAUSE_S if before is None else before.pause_s
        self._choices[partition] = _Choice(follower, state.leader_epoch, _now_s() + CHOICE_S, pause_s)

    def serves(self, partition: TopicPartition) -> None:
        """The follower has returned records."""
        choice = self._choices.get(partition)
        if choice is not None:
            choice.pause_s = MIN_PAUSE_S

    def leave(self, partition: TopicPartition, state: LedPartition) -> None:
        """Reads from the leader for a while, because the follower does not help."""
        before = self._choices.get(partition)
        pause_s = MIN_PAUSE_S if before is None else before.pause_s
        self._choices[partition] = _Choice(
            NO_FOLLOWER, state.leader_epoch, _now_s() + pause_s, min(2 * pause_s, MAX_PAUSE_S)
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
