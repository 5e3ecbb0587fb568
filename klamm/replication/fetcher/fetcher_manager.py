"""The fetchers of this broker, for each broker that leads a partition followed here.

A leader's partitions are spread over num.replica.fetchers fetchers, each with a connection of its own. So a fetch of
many old records holds up only the partitions of its own fetcher.

What must stay true: at most one fetcher copies a partition, and no fetcher copies it once it has been removed.

Source: kafka.server.ReplicaFetcherManager.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from klamm.base.metrics import MetricName, Metrics
from klamm.base.slices import Slices, Steps, slices
from klamm.base.tasks import OnFailure, start_task
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.protocol.vocabulary import PartitionKey
from klamm.replication.fetcher.fetch_state import FollowerPartition, InitialFetchState
from klamm.replication.fetcher.fetcher import ReplicaFetcher
from klamm.replication.fetcher.leader_endpoint import LeaderEndpoint
from klamm.replication.quota import ReplicationQuota

# A fetcher without partitions is kept for this long: a change of leadership removes partitions and adds them again.
IDLE_FETCHER_MS = 1_000

# A leader, and the number of one of the fetchers that copy from it.
FetcherId = tuple[int, int]


class ReplicaFetcherManager:
    """Copies partitions from their leaders. `partition` finds a partition that this broker hosts."""

    def __init__(
        self,
        config: CurrentConfig,
        broker_id: int,
        partition: Callable[[PartitionKey], FollowerPartition | None],
        quota: ReplicationQuota,
        on_failure: OnFailure,
    ) -> None:
        self._config = config.current
        self._fetchers_per_leader = config.current.num_replica_fetchers
        self._broker_id = broker_id
        self._partition = partition
        self._quota = quota
        self._on_failure = on_failure
        self._fetchers: dict[FetcherId, ReplicaFetcher] = {}
        self._failed: dict[PartitionKey, None] = {}
        self._ending: dict[asyncio.Task[None], None] = {}
        self._is_stopping = False
        # As of the last walk.
        self._max_lag = 0
        config.subscribe(self._changed)

    @property
    def failed_partitions(self) -> list[PartitionKey]:
        """The partitions that should be copied but are not, until the controller names them again."""
        return list(self._failed)

    @property
    def leaders(self) -> list[int]:
        """The brokers that have fetchers here."""
        return list(dict.fromkeys(leader_id for leader_id, _ in self._fetchers))

    @property
    def followed_partitions(self) -> dict[PartitionKey, tuple[int, int]]:
        """Each copied partition, with its leader and leader epoch."""
        return {
            topic_partition: (leader_id, leader_epoch)
            for (leader_id, _), fetcher in self._fetchers.items()
            for topic_partition, leader_epoch in fetcher.followed.leader_epochs().items()
        }

    def register(self, metrics: Metrics) -> None:
        """Under Kafka's names."""
        metrics.walk(self._find_max_lag)
        for name, documentation, read in (
            ("MaxLag", "Offsets that the partition lacks that is furthest behind its leader.", lambda: self._max_lag),
            ("FailedPartitionsCount", "Partitions that are no longer copied.", lambda: len(self._failed)),
            ("DeadThreadCount", "Always 0: a fetcher that dies ends the broker.", lambda: 0),
        ):
            metrics.gauges(
                MetricName("kafka.server", "ReplicaFetcherManager", name),
                documentation,
                "clientId",
                lambda read=read: {"Replica": read()},  # type: ignore[misc]
            )
        metrics.gauges(
            MetricName("kafka.server", "FetcherLagMetrics", "ConsumerLag"),
            "Offsets that a partition lacks; -1 before the leader's first answer.",
            ("clientId", "topic", "partition"),
            self._lags,
        )

    def _lags(self) -> Iterator[tuple[tuple[str, ...], int]]:
        for (leader_id, number), fetcher in list(self._fetchers.items()):
            for (topic, partition), lag in fetcher.followed.lags():
                yield (f"ReplicaFetcherThread-{number}-{leader_id}", topic, str(partition)), lag

    def _find_max_lag(self) -> Steps[None]:
        max_lag, looked_at = 0, Slices()
        for fetcher in list(self._fetchers.values()):
            for _, lag in fetcher.followed.lags():
                max_lag = max(max_lag, lag)
                if looked_at.spend():
                    yield
        self._max_lag = max_lag

    def add_fetchers(self, initial_states: Mapping[PartitionKey, InitialFetchState]) -> None:
        """Copies these partitions from their leaders. Does nothing for a partition already copied in the same epoch."""
        if self._is_stopping:
            return
        for topic_partition, state in initial_states.items():
            partition = self._partition(topic_partition)
            if partition is None:
                continue  # its log directory has failed meanwhile
            self._failed.pop(topic_partition, None)
            fetcher = self._fetcher(self._id(state.leader_id, topic_partition), (state.host, state.port))
            for other in self._fetchers.values():
                if other is not fetcher:
                    other.followed.remove([topic_partition])
            fetcher.add(topic_partition, partition, state.current_leader_epoch)

    def remove_fetchers(self, topic_partitions: Iterable[PartitionKey]) -> None:
        """Stops copying these partitions. Once this returns, no fetcher changes their logs."""
        removed = list(topic_partitions)
        for topic_partition in removed:
            self._failed.pop(topic_partition, None)
        for fetcher in self._fetchers.values():
            if fetcher.followed.remove(removed):
                self._end_later_if_idle(fetcher)

    async def shutdown(self) -> None:
        """Ends all copying and abandons pending fetches."""
        self._is_stopping = True
        for fetcher_id in list(self._fetchers):
            self._end(fetcher_id)
        await asyncio.gather(*self._ending)

    def _id(self, leader_id: int, topic_partition: PartitionKey) -> FetcherId:
        """The fetcher of a partition."""
        if self._fetchers_per_leader == 1:
            return leader_id, 0
        topic, partition = topic_partition
        return leader_id, (zlib.crc32(topic.encode()) + partition) % self._fetchers_per_leader

    def _fetcher(self, fetcher_id: FetcherId, address: tuple[str, int]) -> ReplicaFetcher:
        old = self._fetchers.get(fetcher_id)
        if old is not None and old.endpoint.address == address:
            return old
        endpoint = LeaderEndpoint(self._config, self._broker_id, fetcher_id[0], *address)
        new = ReplicaFetcher(self._config, self._broker_id, endpoint, self._quota, self._failed, self._on_failure)
        if old is not None:
            # The leader has another address now, so its partitions move to the new fetcher.
            moved = old.followed.leader_epochs()
            self._end(fetcher_id)
            for topic_partition, leader_epoch in moved.items():
                partition = self._partition(topic_partition)
                if partition is not None:
                    new.add(topic_partition, partition, leader_epoch)
        self._fetchers[fetcher_id] = new
        return new

    def _changed(self, old: BrokerConfig, new: BrokerConfig) -> None:
        if new.num_replica_fetchers != old.num_replica_fetchers and not self._is_stopping:
            self._fetchers_per_leader = new.num_replica_fetchers
            start_task(self._spread(), self._on_failure)

    async def _spread(self) -> None:
        """Moves each partition to the fetcher that now copies it."""
        for old_id, fetcher in list(self._fetchers.items()):
            async for piece in slices(list(fetcher.followed.leader_epochs())):
                if self._fetchers.get(old_id) is not fetcher:
                    break  # It has been ended since.
                for topic_partition in piece:
                    self._move(topic_partition, fetcher, old_id)
            self._end_later_if_idle(fetcher)

    def _move(self, topic_partition: PartitionKey, fetcher: ReplicaFetcher, old_id: FetcherId) -> None:
        fetcher_id, partition = self._id(old_id[0], topic_partition), self._partition(topic_partition)
        leader_epoch = fetcher.followed.leader_epoch(topic_partition)
        if fetcher_id != old_id and partition is not None and leader_epoch is not None:
            fetcher.followed.remove([topic_partition])
            self._fetcher(fetcher_id, fetcher.endpoint.address).add(topic_partition, partition, leader_epoch)

    def _end_later_if_idle(self, fetcher: ReplicaFetcher) -> None:
        if fetcher.is_idle:
            asyncio.get_running_loop().call_later(IDLE_FETCHER_MS / 1000, self._end_if_idle, fetcher)

    def _end_if_idle(self, fetcher: ReplicaFetcher) -> None:
        for fetcher_id, each in list(self._fetchers.items()):
            if each is fetcher and fetcher.is_idle:
                self._end(fetcher_id)

    def _end(self, fetcher_id: FetcherId) -> None:
        task = start_task(self._fetchers.pop(fetcher_id).shutdown(), self._on_failure)
        self._ending[task] = None
        task.add_done_callback(self._ending.pop)
