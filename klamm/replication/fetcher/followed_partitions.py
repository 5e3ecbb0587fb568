"""The partitions that one fetcher copies from its leader, and the state of each.

    added -> (truncating) -> changed -> asked for -> changed ...
                ^  |            |
                |  v            v
               waiting after a failure, or failed until the controller names the partition again

What must stay true:
- A partition that is removed, or added again in another epoch, gets a new `PartitionFetch`; waits of the old one are
  void.
- A failure of one partition delays, or ends, the fetching of that partition only. The backoff grows from
  `FIRST_BACKOFF_MS` to replica.fetch.backoff.ms, because usually the leader will soon hear of its leadership.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count

from klamm.config.broker import BrokerConfig
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.vocabulary import PartitionKey
from klamm.replication.fetcher.fetch_session_client import FetchSessionClient
from klamm.replication.fetcher.fetch_state import PartitionFetch
from klamm.replication.fetcher.leader_endpoint import LeaderEndpoint

FIRST_BACKOFF_MS = 20

# Transient errors of an append or a truncation. A full disk is a KAFKA_STORAGE_ERROR, too.
_PASSING_ERRORS = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)

_LOGGER = logging.getLogger(__name__)

Fetches = dict[PartitionKey, PartitionFetch]


class FollowedPartitions:
    """The partitions copied from `leader`. Partitions that have failed go into `failed` until they are added again."""

    def __init__(self, config: BrokerConfig, leader: LeaderEndpoint, failed: dict[PartitionKey, None]) -> None:
        self.session = FetchSessionClient()
        self.fetches: Fetches = {}
        self.truncating: Fetches = {}
        # The partitions whose entry in the session may have to change before the next fetch.
        self.changed: Fetches = {}
        # The leader's high watermarks and log start offsets that are not safe to adopt yet. The leader does not repeat
        # them.
        self.unconfirmed: dict[PartitionKey, tuple[int, int]] = {}
        # The partitions whose log start offset is not on disk yet. Before that, the leader must not hear of it.
        self.settling: Fetches = {}
        # The throttled and out-of-sync partitions: `throttled` are fetched, `held` wait for their turn.
        self.throttled: Fetches = {}
        self.held: Fetches = {}
        self._config = config
        self._leader = leader
        self._failed = failed
        # A heap of the waits after failures: (when, sequence number, partition, its fetch). Some may be void.
        self._waits: list[tuple[float, int, PartitionKey, PartitionFetch]] = []
        self._sequence = count()

    def leader_epochs(self) -> dict[PartitionKey, int]:
        """The partitions copied here and the epoch of each."""
        return {topic_partition: fetch.leader_epoch for topic_partition, fetch in self.fetches.items()}

    def leader_epoch(self, topic_partition: PartitionKey) -> int | None:
        """The epoch in which the partition is copied here; None if it is not copied here."""
        fetch = self.fetches.get(topic_partition)
        return None if fetch is None else fetch.leader_epoch

    def lags(self) -> Iterator[tuple[PartitionKey, int]]:
        """The partitions copied here, and how many offsets below the leader's high watermark each log lacks; -1 before
        the leader's first answer."""
        for topic_partition, fetch in list(self.fetches.items()):
            yield topic_partition, fetch.lag

    def add(self, topic_partition: PartitionKey, fetch: PartitionFetch) -> None:
        """Starts to copy the partition, in another epoch than before."""
        self.session.forget(topic_partition)
        self.fetches[topic_partition] = fetch
        self.resume(topic_partition, fetch)

    def remove(self, topic_partitions: Iterable[PartitionKey]) -> bool:
        """Stops copying these partitions; a pending answer no longer changes them. Returns whether any was copied."""
        count = len(self.fetches)
        for topic_partition in topic_partitions:
            if self.fetches.pop(topic_partition, None) is not None:
                self.session.forget(topic_partition)
                self.truncating.pop(topic_partition, None)
                self.changed.pop(topic_partition, None)
                self.unconfirmed.pop(topic_partition, None)
                self.settling.pop(topic_partition, None)
                self.throttled.pop(topic_partition, None)
                self.held.pop(topic_partition, None)
        return len(self.fetches) < count

    def resume(self, topic_partition: PartitionKey, fetch: PartitionFetch) -> None:
        """Lets the next round truncate or fetch the partition."""
        (self.truncating if fetch.is_truncating else self.changed)[topic_partition] = fetch

    def delay(self, topic_partition: PartitionKey, fetch: PartitionFetch, reason: str) -> None:
        """Leaves the partition out of the fetches for a while."""
        fetch.failures += 1
        level = logging.INFO if fetch.failures == 1 else logging.DEBUG
        _LOGGER.log(level, "Copying %s-%d from %s waits: %s", *topic_partition, self._leader, reason)
        fetch.asked = None
        self.session.forget(topic_partition)
        when = asyncio.get_running_loop().time() + self.backoff_ms(fetch.failures) / 1000
        heappush(self._waits, (when, next(self._sequence), topic_partition, fetch))

    def end_waits(self) -> None:
        """Resumes the partitions whose waits are over."""
        now = asyncio.get_running_loop().time()
        while self._waits and self._waits[0][0] <= now:
            _, _, topic_partition, fetch = heappop(self._waits)
            if self.fetches.get(topic_partition) is fetch:
                self.resume(topic_partition, fetch)
        if self.settling:
            self._end_settling()

    def _end_settling(self) -> None:
        for topic_partition, fetch in list(self.settling.items()):
            log = fetch.partition.log
            if log.durable_log_start_offset == log.log_start_offset:
                del self.settling[topic_partition]
                if fetch.asked is not None:
                    self.changed[topic_partition] = fetch

    def fail(self, topic_partition: PartitionKey, reason: str) -> None:
        """Stops copying the partition until the controller names it again."""
        _LOGGER.error("Copying %s-%d from %s has ended: %s", *topic_partition, self._leader, reason)
        self.remove([topic_partition])
        self._failed[topic_partition] = None

    def is_valid(self, topic_partition: PartitionKey, fetch: PartitionFetch) -> bool:
        """Whether the partition still follows this leader, in the epoch of this fetch."""
        partition = fetch.partition
        return (
            self.fetches.get(topic_partition) is fetch
            and partition.leader_epoch == fetch.leader_epoch
            and partition.leader_id == self._leader.leader_id
        )

    def leader_refused(self, topic_partition: PartitionKey, fetch: PartitionFetch, error_code: int) -> None:
        """Delays the partition for an error of the leader."""
        # No error of the leader is final. FENCED_LEADER_EPOCH usually means that this follower has not heard of an
        # election yet. A leader that has not heard of a topic's deletion also returns it, until it hears of the new
        # topic of that name.
        self.delay(topic_partition, fetch, f"the leader answers {error_name(error_code)}")

    def log_refused(self, topic_partition: PartitionKey, fetch: PartitionFetch, error: KafkaError) -> None:
        """Delays the partition, or stops copying it, for an error of its own log."""
        if error.code in _PASSING_ERRORS and fetch.partition.log.log_directory.failure is None:
            self.delay(topic_partition, fetch, str(error))
        else:
            self.fail(topic_partition, str(error))

    def backoff_ms(self, failures: int) -> int:
        """How long to wait after this many failures in a row."""
        # The exponent is bounded only to keep the number small.
        return min(self._config.replica_fetch_backoff_ms, FIRST_BACKOFF_MS << min(failures - 1, 30))

    @property
    def first_wait_ends_s(self) -> float:
        """When the next backoff of a partition ends."""
        return self._waits[0][0] if self._waits else math.inf
