"""A controller of three brokers before its state machines: a real ZooKeeper, a context, and a list of what is sent."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from klamm.base.system_environment import SystemEnvironment
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.controller.bounces import PartitionStateWriter
from klamm.controller.channels.request_batch import ControllerBrokerRequestBatch, OnResponse
from klamm.controller.context import ControllerContext, ReplicaAssignment
from klamm.controller.partition_state_machine import PartitionStateMachine
from klamm.controller.replica_state_machine import ReplicaStateMachine
from klamm.controller.state_change_log import StateChangeLog
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.brokers import BrokerRegistration, Endpoint
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH
from klamm.znodes.controller_store import ControllerStore
from klamm.znodes.store import LiveBroker
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment, topic_path
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.keeper_exceptions import ZooKeeperError
from klamm.zookeeper.server import ZooKeeperServer

EPOCH = 5
PARTITION = ("t", 0)


class Request(NamedTuple):
    broker_id: int
    api_key: ApiKey
    body: Any
    on_response: OnResponse | None


def live_broker(broker_id: int) -> LiveBroker:
    """Broker 1 has epoch 101, and so on."""
    endpoint = Endpoint("PLAINTEXT", f"host{broker_id}", 9090 + broker_id)
    return LiveBroker(BrokerRegistration(broker_id, (endpoint,)), 100 + broker_id)


def live_brokers(*broker_ids: int) -> dict[int, LiveBroker]:
    return {broker_id: live_broker(broker_id) for broker_id in broker_ids}


class Batch:
    """A request batch and everything that came out of it."""

    def __init__(self, context: ControllerContext, **properties: str) -> None:
        self.config = BrokerConfig.from_properties({"zookeeper.connect": "zk:2181", **properties})
        self.sent: list[Request] = []
        self.responses: list[tuple[Any, ...]] = []
        self.announced: list[str] = []
        self.log = StateChangeLog(lambda: 1)
        self.batch = ControllerBrokerRequestBatch(
            self.config,
            7,
            context,
            lambda *request: self.sent.append(Request(*request)),
            on_leader_and_isr_response=lambda *response: self.responses.append(("leader_and_isr", *response)),
            on_update_metadata_response=lambda *response: self.responses.append(("update_metadata", *response)),
            on_stop_replica_response=lambda *response: self.responses.append(("stop_replica", *response)),
            announce=self.announced.append,
            state_change_log=self.log,
        )

    def told(self, api_key: ApiKey) -> dict[int, dict[PartitionKey, Any]]:
        """Broker -> partition -> the state that it was sent. No broker may have got two requests of a kind."""
        told: dict[int, dict[PartitionKey, Any]] = {}
        for request in self.sent:
            if request.api_key == api_key:
                assert request.broker_id not in told
                told[request.broker_id] = dict(self._states(request))
        return told

    @staticmethod
    def _states(request: Request) -> Iterable[tuple[PartitionKey, Any]]:
        for topic in request.body.topic_states:
            for state in topic.partition_states:
                said = (state.leader_epoch, state.delete_partition) if request.api_key == ApiKey.STOP_REPLICA else state
                yield (topic.topic_name, state.partition_index), said

    @property
    def leader_and_isr(self) -> dict[int, dict[PartitionKey, Any]]:
        return self.told(ApiKey.LEADER_AND_ISR)

    @property
    def update_metadata(self) -> dict[int, dict[PartitionKey, Any]]:
        return self.told(ApiKey.UPDATE_METADATA)

    @property
    def stop_replica(self) -> dict[int, dict[PartitionKey, Any]]:
        return self.told(ApiKey.STOP_REPLICA)


class Scene(Batch):
    """Topic t has one partition on brokers 1, 2, 3, all alive; a test adds what it needs."""

    def __init__(self, store: ControllerStore, **properties: str) -> None:
        self.context = ControllerContext()
        super().__init__(self.context, **properties)
        self.store = store
        self.context.epoch = EPOCH
        self.context.set_live_brokers(live_brokers(1, 2, 3))
        self.illegal: list[str] = []
        self.log = StateChangeLog(lambda: 1)
        self.state_writer = PartitionStateWriter(self.context, lambda: self.store, self.log, self.announced.append)
        common = (self.context, lambda: self.store, self.state_writer, self.batch, self.log, self.illegal.append)
        self.partitions = PartitionStateMachine(CurrentConfig(self.config), *common)
        self.replicas = ReplicaStateMachine(self.config, *common)

    async def start(self) -> None:
        client = self.store.client
        await self.store.create_persistent_paths()
        await client.create(CONTROLLER_EPOCH_PATH, str(EPOCH).encode())
        await client.create(topic_path("t"), TopicAssignment({0: (1, 2, 3)}).encode())
        self.assign(PARTITION, 1, 2, 3)

    def assign(self, partition: PartitionKey, *replicas: int) -> None:
        self.context.all_topics.add(partition[0])
        self.context.update_partition_full_replica_assignment(partition, ReplicaAssignment(replicas))

    async def led(self, partition: PartitionKey, leader: int, *isr: int, controller_epoch: int = 4) -> LeaderAndIsr:
        """The partition has this leader and ISR, leader epoch 10, in ZooKeeper and in the context."""
        state = LeaderAndIsr(leader, 10, isr, controller_epoch, 0)
        await self.store.client.ensure_path(topic_path(partition[0]))
        created = await self.store.create_partition_states({partition: state}, None)
        assert created == {partition: 0}
        self.context.put_partition_leadership_info(partition, state)
        return state

    async def changed_in_zookeeper(self, partition: PartitionKey, leader: int, *isr: int, epoch: int = 4) -> None:
        """Somebody else has changed the state since the context was loaded."""
        state = LeaderAndIsr(leader, 20, isr, epoch, -1)
        (version,) = (await self.store.update_partition_states({partition: state}, None)).values()
        assert not isinstance(version, ZooKeeperError)

    async def in_zookeeper(self, partition: PartitionKey) -> tuple[LeaderAndIsr, int]:
        """The state and its version."""
        state = (await self.store.partition_states([partition]))[partition]
        assert isinstance(state, LeaderAndIsr)
        return state, state.zk_version

    async def another_controller(self) -> None:
        await self.store.client.set(CONTROLLER_EPOCH_PATH, str(EPOCH + 1).encode())

    def check_counts(self) -> None:
        counts = self.context.offline_partition_count, self.context.preferred_replica_imbalance_count
        assert counts == self.context.recount()


@asynccontextmanager
async def playing(directory: Path, **properties: str) -> AsyncIterator[Scene]:
    environment = SystemEnvironment()
    server = ZooKeeperServer(environment, str(directory))
    await server.start()
    client = ZooKeeperClient(environment, f"127.0.0.1:{server.port}", session_timeout_ms=10_000)
    try:
        await client.start(60_000)
        scene = Scene(ControllerStore(client), **properties)
        await scene.start()
        yield scene
        scene.check_counts()
    finally:
        await client.close()
        await server.stop()
        environment.close()


def context_with(assignments: dict[PartitionKey, tuple[int, ...]], *brokers: int) -> ControllerContext:
    context = ControllerContext()
    context.set_live_brokers(live_brokers(*brokers))
    for partition, replicas in assignments.items():
        context.all_topics.add(partition[0])
        context.update_partition_full_replica_assignment(partition, ReplicaAssignment(replicas))
    return context
