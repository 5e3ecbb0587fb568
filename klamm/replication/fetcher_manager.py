"""The follower side of this broker: a fetcher for each broker that leads a partition followed here.

What must stay true: at most one fetcher copies a partition, and no fetcher copies it once it has been removed.

Source: kafka.server.ReplicaFetcherManager. There is one fetcher for each leader, whatever num.replica.fetchers says,
because several would share one event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from klamm.config.broker import BrokerConfig
from klamm.protocol.vocabulary import PartitionKey
from klamm.replication.fetch_state import FollowerPartition, InitialFetchState
from klamm.replication.fetcher import ReplicaFetcher
from klamm.replication.leader_endpoint import LeaderEndpoint
from klamm.replication.quota import ReplicationQuota
from klamm.tasks import OnFailure, start_task

# A fetcher without partitions lives on for this long: a change of leadership removes partitions and adds them again.
IDLE_FETCHER_MS = 1_000


class ReplicaFetcherManager:
    """Copies partitions from their leaders. `partition` finds a partition that this broker hosts."""

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        partition: Callable[[PartitionKey], FollowerPartition | None],
        quota: ReplicationQuota,
        on_failure: OnFailure,
    ) -> None:
        self._config = config
        self._broker_id = broker_id
        self._partition = partition
        self._quota = quota
        self._on_failure = on_failure
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._failed: dict[PartitionKey, None] = {}
        self._ending: dict[asyncio.Task[None], None] = {}
        self._is_stopping = False

    @property
    def failed_partitions(self) -> list[PartitionKey]:
        """The partitions that should be copied but are not, until the controller names them again."""
        return list(self._failed)

    @property
    def leaders(self) -> list[int]:
        """The brokers that have a fetcher here."""
        return list(self._fetchers)

    @property
    def followed_partitions(self) -> dict[PartitionKey, tuple[int, int]]:
        """Each copied partition, with its leader and leader epoch."""
        return {
            topic_partition: (leader_id, leader_epoch)
            for leader_id, fetcher in self._fetchers.items()
            for topic_partition, leader_epoch in fetcher.leader_epochs().items()
        }

    def add_fetchers(self, initial_states: Mapping[PartitionKey, InitialFetchState]) -> None:
        """Copies these partitions from their leaders. A partition already copied in the same epoch is left as it is."""
        if self._is_stopping:
            return
        for topic_partition, state in initial_states.items():
            partition = self._partition(topic_partition)
            if partition is None:
                continue  # its log directory has failed meanwhile
            self._failed.pop(topic_partition, None)
            for leader_id, other in self._fetchers.items():
                if leader_id != state.leader_id:
                    other.remove([topic_partition])
            self._fetcher(state).add(topic_partition, partition, state.current_leader_epoch)

    def remove_fetchers(self, topic_partitions: Iterable[PartitionKey]) -> None:
        """Once this returns, nothing is copied into these partitions."""
        removed = list(topic_partitions)
        for topic_partition in removed:
            self._failed.pop(topic_partition, None)
        for fetcher in self._fetchers.values():
            if fetcher.remove(removed) and fetcher.is_idle:
                asyncio.get_running_loop().call_later(IDLE_FETCHER_MS / 1000, self._end_if_idle, fetcher)

    async def shutdown(self) -> None:
        """Ends all copying and abandons pending fetches."""
        self._is_stopping = True
        for fetcher in list(self._fetchers.values()):
            self._end(fetcher)
        await asyncio.gather(*self._ending)

    def _fetcher(self, state: InitialFetchState) -> ReplicaFetcher:
        address = (state.host, state.port)
        old = self._fetchers.get(state.leader_id)
        if old is not None and old.endpoint.address == address:
            return old
        endpoint = LeaderEndpoint(self._config, self._broker_id, state.leader_id, *address)
        new = ReplicaFetcher(self._config, self._broker_id, endpoint, self._quota, self._failed, self._on_failure)
        if old is not None:
            # The leader has moved to another address, so its partitions move to the new fetcher.
            moved = old.leader_epochs()
            self._end(old)
            for topic_partition, leader_epoch in moved.items():
                partition = self._partition(topic_partition)
                if partition is not None:
                    new.add(topic_partition, partition, leader_epoch)
        self._fetchers[state.leader_id] = new
        return new

    def _end_if_idle(self, fetcher: ReplicaFetcher) -> None:
        if fetcher.is_idle and self._fetchers.get(fetcher.endpoint.leader_id) is fetcher:
            self._end(fetcher)

    def _end(self, fetcher: ReplicaFetcher) -> None:
        del self._fetchers[fetcher.endpoint.leader_id]
        task = start_task(fetcher.shutdown(), self._on_failure)
        self._ending[task] = None
        task.add_done_callback(self._ending.pop)
