"""Reads the state of a running cluster, from any thread or event loop of a test.

What must stay true: the cluster's state (controller, leaders, ISRs) is read from ZooKeeper, where it is decided, so a
later read never returns an older state.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from klamm.base.system_environment import SystemEnvironment
from klamm.client.admin.topics import NewTopic, create_topics, delete_topics
from klamm.client.cluster import ClusterClient
from klamm.diagnosis.cluster_view import ClusterView, read_znodes
from klamm.net.client import Address, ClientError, ConnectionOptions
from klamm.processes.readiness import CLIENT_ID
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.testing.cluster_errors import ClusterError
from klamm.znodes.cluster import CONTROLLER_PATH, Controller
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.client import State, ZooKeeperClient, retrying
from klamm.zookeeper.keeper_exceptions import NoNode, SessionExpired, ZooKeeperError

T = TypeVar("T")

ANSWER_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_MS = 10_000


class Observer:
    """Reads one cluster's ZooKeeper and asks its brokers. All methods belong to one running loop.

    Raises ClusterError when ZooKeeper does not answer.
    """

    def __init__(self, zookeeper: str, session_timeout_ms: int) -> None:
        self._connect = zookeeper
        self._session_timeout_ms = session_timeout_ms
        self._environment = SystemEnvironment(blocking_workers=1)
        self._connecting = asyncio.Lock()
        self._store: KafkaZooKeeper | None = None

    async def controller_id(self) -> int | None:
        """The broker that /controller names; None when that znode does not exist."""

        async def read(store: KafkaZooKeeper) -> int | None:
            try:
                data, _ = await retrying(store.client.get, CONTROLLER_PATH)
            except NoNode:
                return None
            return Controller.decode(data).broker_id

        return await self._read(read)

    async def topics(self) -> list[str]:
        """All topics, sorted."""
        return await self._read(lambda store: store.topic_names())

    async def replicas(self, topic: str | None = None) -> dict[PartitionKey, list[int]]:
        """The assigned brokers of each partition of a topic, or of all topics."""

        async def read(store: KafkaZooKeeper) -> dict[PartitionKey, list[int]]:
            assignments = await store.topic_assignments(await store.topic_names() if topic is None else [topic])
            return {
                (name, partition): list(brokers)
                for name, assignment in assignments.items()
                for partition, brokers in assignment.partitions.items()
            }

        return await self._read(read)

    async def states(self, topic: str | None = None) -> dict[PartitionKey, LeaderAndIsr | None]:
        """Leader and ISR of each partition of a topic, or of all topics; None for a partition without a state yet."""
        partitions = list(await self.replicas(topic))
        found = await self._read(lambda store: store.partition_states(partitions))
        states: dict[PartitionKey, LeaderAndIsr | None] = {}
        for partition in partitions:
            state = found.get(partition)
            if isinstance(state, Exception):
                raise ClusterError(str(state))
            states[partition] = state
        return states

    async def view(self) -> ClusterView:
        """All brokers and partitions."""
        try:
            return await self._read(read_znodes)
        except ZnodeError as error:
            raise ClusterError(str(error)) from error

    async def close(self) -> None:
        """Ends the ZooKeeper session."""
        if self._store is not None:
            # If ZooKeeper is gone or paused, the session expires later.
            try:
                async with asyncio.timeout(0.2):
                    await self._store.client.close()
            except TimeoutError:
                pass
        self._environment.close()

    async def _read(self, read: Callable[[KafkaZooKeeper], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while True:
                    store = await self._connected()
                    try:
                        return await read(store)
                    except SessionExpired:
                        continue
        except TimeoutError:
            raise ClusterError(f"ZooKeeper at {self._connect} has not answered for {ANSWER_TIMEOUT_S:g} s") from None
        except ZooKeeperError as error:
            raise ClusterError(f"ZooKeeper at {self._connect}: {error}") from error

    async def _connected(self) -> KafkaZooKeeper:
        async with self._connecting:
            if self._store is None or self._store.client.state is State.EXPIRED:
                client = ZooKeeperClient(self._environment, self._connect, session_timeout_ms=self._session_timeout_ms)
                await client.start()
                self._store = KafkaZooKeeper(client)
            return self._store


async def create_topic(brokers: Mapping[int, Address], topic: NewTopic) -> None:
    """Creates a topic. Raises KafkaError, or ClusterError when no controller answers."""
    await _ask_controller(brokers, lambda client: create_topics(client, [topic], timeout_ms=ANSWER_TIMEOUT_MS))


async def delete_topic(brokers: Mapping[int, Address], name: str) -> None:
    """Deletes a topic; like `create_topic`."""
    await _ask_controller(brokers, lambda client: delete_topics(client, [name], timeout_ms=ANSWER_TIMEOUT_MS))


async def _ask_controller(
    brokers: Mapping[int, Address], ask: Callable[[ClusterClient], Awaitable[Mapping[str, object]]]
) -> None:
    if not brokers:
        raise ClusterError("no broker is running")
    client = ClusterClient(list(brokers.values()), ConnectionOptions(CLIENT_ID))
    try:
        for name, result in (await ask(client)).items():
            if isinstance(result, KafkaError):
                if result.code is ErrorCode.NETWORK_EXCEPTION:
                    raise ClusterError(result.message)
                raise KafkaError(result.code, result.message or f"topic {name}")
    except ClientError as error:
        raise ClusterError(str(error)) from error
    finally:
        await client.close()
