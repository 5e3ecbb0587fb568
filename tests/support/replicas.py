"""What the replication tests share: broker 1 with real logs on real files, virtual time, stand-ins for the ports."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from klamm.base.environment import FileSystem
from klamm.config.broker import BrokerConfig
from klamm.config.topic import TopicConfig
from klamm.net.server.response_memory import ResponseMemory
from klamm.protocol.apis.fetch import FetchPartition
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import Record, build_batch, decode_records
from klamm.replication.partition.isr import IsrStatistics
from klamm.replication.partition.partition import Partition
from klamm.replication.partition.topic_metrics import TopicCounts
from klamm.replication.ports import FollowerFetchers, IsrChanges, TopicConfigSource
from klamm.replication.quota import ReplicationQuota
from klamm.replication.replica_manager import ReplicaManager, log_config
from klamm.simulation.machine.loop import simulated_loop
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.segments.log_directory import MetaProperties
from support.failing_disk import FailingDisk
from support.fetch_messages import to_fetch

ME = 1
NOW_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=42)
T0 = ("t", 0)


def in_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs a scenario in which waiting takes no time."""
    simulated_loop().run_until_complete(scenario)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Machine(FailingDisk):
    """Real files; blocking work is done at once, the wall clock stands still."""

    async def run_blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    run_long = run_blocking

    def now_ms(self) -> int:
        return NOW_MS


class Proposals(IsrChanges):
    """Collects ISR changes instead of sending them."""

    def __init__(self) -> None:
        self.submitted: list[Any] = []
        self.cleared: list[tuple[str, int]] = []

    def submit(self, change: Any) -> None:
        self.submitted.append(change)

    def clear_pending(self, topic_partition: tuple[str, int]) -> None:
        self.cleared.append(topic_partition)


class Fetchers(FollowerFetchers):
    """Writes down what is to be fetched; `told` has every call in its order."""

    def __init__(self) -> None:
        self.following: dict[tuple[str, int], Any] = {}
        self.told: list[tuple[str, list[tuple[str, int]]]] = []

    def add_fetchers(self, states: Any) -> None:
        self.told.append(("add", list(states)))
        self.following.update(states)

    def remove_fetchers(self, partitions: Any) -> None:
        keys = list(partitions)
        self.told.append(("remove", keys))
        for key in keys:
            self.following.pop(key, None)

    async def shutdown(self) -> None:
        self.told.append(("shutdown", []))


class Configs(TopicConfigSource):
    """The topics' configurations."""

    def __init__(self, config: BrokerConfig, overrides: dict[str, str]) -> None:
        self._broker_config = config
        self.change(**overrides)
        self.loaded: list[list[str]] = []
        self.failure: Exception | None = None

    def change(self, **overrides: str) -> None:
        named = {key.replace("_", "."): value for key, value in overrides.items()}
        self._config = TopicConfig.from_overrides(self._broker_config, named)

    async def load(self, topics: Any) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.loaded.append(list(topics))

    def of(self, topic: str) -> TopicConfig:
        return self._config


class Broker:
    """Broker 1: its log and replica managers. `failures` has faults of the program."""

    def __init__(self, path: Path, *, directories: int = 1, **overrides: str) -> None:
        self.paths = [str(path / f"d{number}") for number in range(directories)]
        self.machine: FailingDisk = Machine()
        self.config = BrokerConfig.from_properties(
            {"broker.id": str(ME), "zookeeper.connect": "localhost:1", "log.dirs": ",".join(self.paths)}
        )
        self.configs = Configs(self.config, overrides)
        self.leader_quota = ReplicationQuota(samples=11, window_ms=1000)
        self.log_dirs_quota = ReplicationQuota(samples=11, window_ms=1000)
        self.proposals = Proposals()
        self.fetchers = Fetchers()
        self.live = {2: ("host2", 9092), 3: ("host3", 9093)}
        self.known: set[tuple[str, int]] = set()
        self.notified = 0
        self.failures: list[BaseException] = []
        self.advanced: list[int] = []
        # (partition, whether this broker leads it, the leader epoch)
        self.leaderships: list[tuple[tuple[str, int], bool, int | None]] = []

    @property
    def files(self) -> FileSystem:
        return self.machine.file_system

    async def start(self) -> None:
        self.log_manager = LogManager(
            self.machine,
            self.paths,
            meta_properties=MetaProperties("cluster", ME),
            default_config=log_config(self.configs.of("")),
            on_directory_failure=lambda path, error: self.manager.directory_failed(path),
            on_failure=self.failures.append,
        )
        await self.log_manager.load({})
        self.manager = ReplicaManager(
            self.config,
            self.machine,
            ME,
            self.log_manager,
            response_memory=ResponseMemory(128 * 1024 * 1024),
            leader_quota=self.leader_quota,
            log_dirs_quota=self.log_dirs_quota,
            topic_configs=self.configs,
            followers=self.fetchers,
            isr_changes=self.proposals,
            live_broker=self.live.get,
            on_leadership=lambda *change: self.leaderships.append(change),
            is_known_partition=lambda topic, partition: (topic, partition) in self.known,
            notify_log_dir_failure=self._notify,
            on_failure=self.failures.append,
        )

    async def stop(self) -> None:
        await self.manager.stop()
        await self.log_manager.stop()
        self.machine.close()
        assert not self.failures

    def _notify(self) -> None:
        self.notified += 1

    def lone_partition(self) -> Partition:
        """t-0 with a log, but without a manager; `advanced` has its high watermarks."""
        config = self.configs.of("t")
        log = self.log_manager.get_or_create("t", 0, TOPIC_ID, log_config(config), is_new=True)
        loop = asyncio.get_running_loop()
        return Partition(
            "t",
            0,
            ME,
            log,
            config,
            replica_lag_time_max_ms=30_000,
            clock_ms=lambda: loop.time() * 1000,
            isr_changes=self.proposals,
            isr_statistics=IsrStatistics(),
            topic_counts=TopicCounts(),
            on_high_watermark=lambda partition: self.advanced.append(partition.log.high_watermark),
            on_low_watermark=lambda partition: None,
        )

    async def tell(self, *states: LeaderAndIsrPartitionState, **request: Any) -> list[int]:
        """LeaderAndIsr for topic t; the error codes of the partitions."""
        response = await self.manager.become_leader_or_follower(leader_and_isr(*states, **request))
        assert response.error_code == 0
        return [one.error_code for topic in response.topics for one in topic.partition_errors]


@asynccontextmanager
async def hosting_broker(path: Path, **options: Any) -> AsyncIterator[Broker]:
    """Runs a scenario with a broker, in virtual time."""
    broker = Broker(path, **options)
    await broker.start()
    yield broker
    await broker.stop()


def scenario(function: Any = None, **options: Any) -> Any:
    """A test with a broker: `async def test(broker)`."""
    if function is None:
        return lambda wrapped: scenario(wrapped, **options)

    async def test(tmp_path: Path) -> None:
        async with hosting_broker(tmp_path, **options) as broker:
            await function(broker)

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


def state(partition: int = 0, *, leader: int = ME, epoch: int = 0, isr: Any = (1, 2, 3), **more: Any) -> Any:
    """What LeaderAndIsr says of a partition with replicas 1, 2, 3."""
    fields = {"controller_epoch": 1, "zk_version": epoch, "replicas": (1, 2, 3), "is_new": epoch == 0, **more}
    return LeaderAndIsrPartitionState(partition_index=partition, leader=leader, leader_epoch=epoch, isr=isr, **fields)


def leader_and_isr(
    *states: Any,
    controller_epoch: int = 1,
    topic: str = "t",
    topic_id: UUID | None = TOPIC_ID,
    live_leaders: tuple[tuple[int, str, int], ...] = (),
) -> LeaderAndIsrRequest:
    leaders = [LeaderAndIsrLiveLeader(*leader) for leader in live_leaders]
    return LeaderAndIsrRequest(
        controller_id=9,
        controller_epoch=controller_epoch,
        broker_epoch=-1,
        topic_states=[LeaderAndIsrTopicState(topic, topic_id, list(states))],
        live_leaders=leaders,
    )


def batch(*values: bytes, **header: Any) -> memoryview:
    return memoryview(build_batch([Record(None, value, NOW_MS) for value in values], **header))


def values_in(data: Any) -> list[bytes | None]:
    return [
        record.value for position, header in iterate_batches(data) for record in decode_records(data, position, header)
    ]


def want(
    offset: int, *, partition: int = 0, epoch: int = -1, last_fetched_epoch: int = -1, max_bytes: int = 1_000_000
) -> tuple[str, FetchPartition]:
    return "t", to_fetch(partition, offset, max_bytes, epoch=epoch, last_epoch=last_fetched_epoch)
