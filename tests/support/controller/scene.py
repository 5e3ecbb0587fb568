"""Controllers on a real embedded ZooKeeper server, in one loop, with brokers that only note what they are asked."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from klamm.base.metrics import Histogram
from klamm.base.system_environment import SystemEnvironment
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.controller.channels.send_queue import SendQueue
from klamm.controller.controller import KafkaController
from klamm.controller.events import ControllerEvent, Startup
from klamm.controller.parts import Channels
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.protocol.apis.stop_replica import StopReplicaPartitionError, StopReplicaResponse
from klamm.protocol.apis.update_metadata import UpdateMetadataResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import request_class
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.brokers import BrokerRegistration, Endpoint
from klamm.znodes.controller_store import ControllerStore
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server import ZooKeeperServer
from support.zookeeper.proxy import Proxy

PATIENCE_SECONDS = 120

OnResponse = Callable[[Any], None]


class Sent(NamedTuple):
    """A request of the controller `sender` to the broker `receiver`."""

    sender: int
    receiver: int
    api_key: ApiKey
    body: Any


class FakeChannels(Channels):
    """Notes the requests, and answers them in a later turn of the loop as the scene says."""

    def __init__(self, scene: "Scene", sender: int) -> None:
        self._scene = scene
        self._sender = sender
        self.brokers: dict[int, BrokerRegistration] = {}
        # What brokers said of themselves when their channels were open.
        self.moved: list[BrokerRegistration] = []
        self.is_shut_down = False
        scene.channels[sender] = self

    def add_broker(self, broker: BrokerRegistration) -> None:
        assert not self.is_shut_down
        self.brokers.setdefault(broker.broker_id, broker)

    def update_broker(self, broker: BrokerRegistration) -> None:
        assert not self.is_shut_down
        self.moved.append(broker)

    def remove_broker(self, broker_id: int) -> None:
        self.brokers.pop(broker_id, None)

    def send_request(self, broker_id: int, api_key: ApiKey, body: Any, on_response: OnResponse | None) -> None:
        assert not self.is_shut_down
        if broker_id not in self.brokers:
            return
        self._scene.sent.append(Sent(self._sender, broker_id, api_key, body))
        self._scene.changed.set()
        answer = partial(self._answer, broker_id, self.brokers[broker_id], api_key, body, on_response)
        asyncio.get_running_loop().call_soon(answer)

    def _answer(
        self, broker_id: int, life: BrokerRegistration, api_key: ApiKey, body: Any, on_response: OnResponse | None
    ) -> None:
        if broker_id in self._scene.silent:
            self._scene.held.append(partial(self._answer, broker_id, life, api_key, body, on_response))
        elif on_response is not None and self.brokers.get(broker_id) is life:
            on_response(self._scene.response(broker_id, api_key, body))

    def send_queues(self) -> dict[int, SendQueue]:
        return {broker_id: SendQueue(0, None, 0.0, "", Histogram()) for broker_id in self.brokers}

    async def shutdown(self) -> None:
        self.is_shut_down = True
        self.brokers.clear()


class ObservedController(KafkaController):
    """Tells the scene after each event."""

    scene: "Scene"

    async def _process(self, event: ControllerEvent) -> None:
        await super()._process(event)
        self.scene.processed.append(type(event).__name__)
        self.scene.changed.set()

    async def rejoin(self, store: ControllerStore) -> None:
        """Takes part in the election in another session, in which the broker is registered already."""
        event = Startup(store, answer=asyncio.get_running_loop().create_future())
        self._events.put(event)
        await event.answer


# A controller would elect preferred leaders five seconds after it has begun, which a slow test does not expect.
PROPERTIES = {"auto.leader.rebalance.enable": "false"}


class FakeBroker:
    """A broker's session, registration and controller."""

    def __init__(self, scene: "Scene", broker_id: int, properties: dict[str, str], address: str) -> None:
        self._scene = scene
        self._address = address
        self.broker_id = broker_id
        self.epoch = -1
        self.port = 9000 + broker_id
        self.controller = ObservedController(
            CurrentConfig(BrokerConfig.from_properties({**PROPERTIES, "zookeeper.connect": address, **properties})),
            scene.environment,
            broker_id,
            lambda: FakeChannels(scene, broker_id),
            register_broker=self.register,
            on_failure=scene.failures.append,
            on_illegal_transition=scene.illegal.append,
        )
        self.controller.scene = scene
        self.client: ZooKeeperClient

    @property
    def store(self) -> ControllerStore:
        return ControllerStore(self.client)

    @property
    def registration(self) -> BrokerRegistration:
        return BrokerRegistration(self.broker_id, (Endpoint("PLAINTEXT", "h", self.port),), timestamp_ms=1)

    async def connect(self) -> None:
        self.client = ZooKeeperClient(self._scene.environment, self._address, session_timeout_ms=10_000)
        await self.client.start(PATIENCE_SECONDS * 1000)

    async def register(self) -> None:
        self.epoch = await self.store.register_broker(self.registration)

    async def start(self) -> None:
        await self.connect()
        await self.store.create_persistent_paths()
        await self.register()
        await self.controller.startup(self.store)

    async def die(self) -> None:
        """As a process that was killed, after its session has expired."""
        await self.controller.shutdown()
        await self.client.close()

    async def end_session(self) -> None:
        """The server ends the session; the client has not heard of it."""
        session = (self.client.session_id, self.client.session_password)
        thief = ZooKeeperClient(self._scene.environment, self._scene.address, session=session)
        await thief.start(PATIENCE_SECONDS * 1000)
        await thief.close()

    async def renew_session(self) -> None:
        """What the broker does when it hears that its session has expired."""
        await self._scene.until(lambda: self.client.state.name == "EXPIRED")
        self.controller.session_expired()
        await self.connect()
        await self.controller.new_session(self.store)


class Scene:
    """One ZooKeeper, some brokers, and everything that the controllers have sent (`sent`).

    Brokers in `silent` answer nothing before `release`; `offline` are the replicas whose disks do not work, and
    `undeletable` those that cannot be deleted. `of_other_topics` are replicas whose logs have another topic id: klamm's
    brokers delete them when they are told that they are not in the ISR, those in `of_kafka` refuse for ever.
    """

    def __init__(self, environment: SystemEnvironment, server: ZooKeeperServer) -> None:
        self.environment = environment
        self.server = server
        self.address = f"127.0.0.1:{server.port}"
        self.brokers: dict[int, FakeBroker] = {}
        self.channels: dict[int, FakeChannels] = {}
        self.sent: list[Sent] = []
        self.processed: list[str] = []
        self.changed = asyncio.Event()
        self.illegal: list[str] = []
        self.failures: list[BaseException] = []
        self.silent: set[int] = set()
        self.held: list[Callable[[], None]] = []
        self.offline: set[tuple[PartitionKey, int]] = set()
        self.online_code = ErrorCode.NONE
        self.undeletable: set[tuple[PartitionKey, int]] = set()
        self.of_other_topics: set[tuple[PartitionKey, int]] = set()
        self.of_kafka: set[int] = set()
        self.store: ControllerStore  # The tests' own.

    # -- brokers ----------------------------------------------------------------------------------------------------

    async def start(self, *broker_ids: int, address: str | None = None, **properties: str) -> None:
        """Starts brokers, one after another: the first one becomes the controller if there is none."""
        given = {key.replace("_", "."): value for key, value in properties.items()}
        for broker_id in broker_ids:
            broker = self.brokers[broker_id] = FakeBroker(self, broker_id, given, address or self.address)
            await broker.start()
            await self.until(functools.partial(self.knows, broker))

    def knows(self, broker: FakeBroker) -> bool:
        """Whether the controller, if there is one, knows this life of the broker, and waits."""
        active = [other.controller for other in self.brokers.values() if other.controller.is_active]
        return all(
            (known := controller.context.live_or_shutting_down_brokers.get(broker.broker_id)) is not None
            and known.epoch == broker.epoch
            and self.is_idle(controller)
            for controller in active
        )

    async def kill(self, broker_id: int) -> None:
        """Returns when the controller, if it is another broker, has dealt with it."""
        broker = self.brokers.pop(broker_id)
        was_active = broker.controller.is_active
        await broker.die()
        if was_active:
            await self.until(lambda: any(other.controller.is_active for other in self.brokers.values()))
        await self.until(
            lambda: all(
                broker_id not in other.controller.context.live_or_shutting_down_brokers
                and self.is_idle(other.controller)
                for other in self.brokers.values()
            )
        )

    @property
    def active(self) -> FakeBroker:
        """The one active controller's broker."""
        [broker] = [broker for broker in self.brokers.values() if broker.controller.is_active]
        return broker

    @property
    def controller(self) -> KafkaController:
        return self.active.controller

    @staticmethod
    def is_idle(controller: KafkaController) -> bool:
        return controller.state.name == "IDLE" and controller.queue_size == 0

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits until the condition, which may be a coroutine function, is true."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                self.changed.clear()
                result = condition()
                if await result if inspect.isawaitable(result) else result:
                    return
                # Some things happen in ZooKeeper only: those are asked for again after a while.
                try:
                    async with asyncio.timeout(0.02):
                        await self.changed.wait()
                except TimeoutError:
                    continue

    # -- topics -----------------------------------------------------------------------------------------------------

    async def create(self, topic: str, *replicas: Collection[int], topic_id: UUID | None = None) -> None:
        """Creates a topic; returns when each of its partitions has a leader."""
        partitions = {number: list(ids) for number, ids in enumerate(replicas)}
        await self.store.create_topic(topic, partitions, topic_id or self.environment.random_uuid(), {})
        await self.until(lambda: self._is_led(topic, len(replicas)))

    async def _is_led(self, topic: str, count: int) -> bool:
        return len(await self.states(*((topic, number) for number in range(count)))) == count and self.is_idle(
            self.controller
        )

    async def states(self, *partitions: PartitionKey) -> dict[PartitionKey, LeaderAndIsr]:
        found = await self.store.partition_states(partitions)
        return {partition: state for partition, state in found.items() if isinstance(state, LeaderAndIsr)}

    async def state(self, topic: str, partition: int = 0) -> tuple[int, int, tuple[int, ...]]:
        """Leader, leader epoch and ISR in ZooKeeper."""
        state = (await self.states((topic, partition)))[topic, partition]
        return state.leader, state.leader_epoch, state.isr

    async def settled(self) -> None:
        """Returns when nothing that has happened is left to be processed: a marker was seen, and all are idle."""
        before = self.processed.count("LogDirEventNotification")
        await self.store.report_log_dir_failure(99)  # A broker that does not exist.
        await self.until(
            lambda: self.processed.count("LogDirEventNotification") > before and self.is_idle(self.controller)
        )

    # -- requests ---------------------------------------------------------------------------------------------------

    def take(self) -> list[Sent]:
        """What was sent since the last call."""
        taken, self.sent = self.sent, []
        return taken

    def release(self) -> None:
        """The silent brokers answer everything, and from now on."""
        self.silent.clear()
        held, self.held = self.held, []
        for answer in held:
            answer()

    def response(self, broker_id: int, api_key: ApiKey, body: Any) -> Any:
        if api_key is ApiKey.UPDATE_METADATA:
            return UpdateMetadataResponse()
        if api_key is ApiKey.LEADER_AND_ISR:
            return LeaderAndIsrResponse(0, self._leader_and_isr_errors(broker_id, body))
        return StopReplicaResponse(
            0,
            [
                StopReplicaPartitionError(*key, self._stop_replica_error(broker_id, key))
                for topic in body.topic_states
                for state in topic.partition_states
                if (key := (topic.topic_name, state.partition_index))
            ],
        )

    def _leader_and_isr_errors(self, broker_id: int, body: LeaderAndIsrRequest) -> list[LeaderAndIsrTopicError]:
        return [
            LeaderAndIsrTopicError(
                "",
                topic.topic_id,
                [
                    LeaderAndIsrPartitionError(
                        state.partition_index, self._leader_and_isr_error(broker_id, topic.topic_name, state)
                    )
                    for state in topic.partition_states
                ],
            )
            for topic in body.topic_states
        ]

    def _leader_and_isr_error(self, broker_id: int, topic: str, state: LeaderAndIsrPartitionState) -> ErrorCode:
        replica = ((topic, state.partition_index), broker_id)
        if replica in self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if replica in self.of_other_topics:
            if broker_id in state.isr or broker_id in self.of_kafka:
                return ErrorCode.INCONSISTENT_TOPIC_ID
            self.of_other_topics.remove(replica)
        return self.online_code

    def _stop_replica_error(self, broker_id: int, partition: PartitionKey) -> ErrorCode:
        failed = (partition, broker_id) in self.undeletable
        return ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NONE

    async def alter_isr(
        self, topic: str, new_isr: Collection[int], *, sender: int | None = None, **fields: int
    ) -> tuple[int, list[Any]]:
        """As the leader of partition 0 would ask now, but for `sender` and `fields`; the error and the partitions."""
        state = (await self.states((topic, 0)))[topic, 0]
        request = request_class(ApiKey.ALTER_ISR)
        leader = state.leader if sender is None else sender
        item = request.TopicData.PartitionData(
            partition_index=fields.get("partition", 0),
            leader_epoch=fields.get("leader_epoch", state.leader_epoch),
            new_isr=list(new_isr),
            current_isr_version=fields.get("version", state.zk_version),
        )
        default_epoch = self.brokers[leader].epoch if leader in self.brokers else 0
        response = await self.controller.alter_isr(
            request(
                broker_id=leader,
                broker_epoch=fields.get("broker_epoch", default_epoch),
                topics=[request.TopicData(name=topic, partitions=[item])],
            )
        )
        return response.error_code, [item for topic_data in response.topics for item in topic_data.partitions]


@asynccontextmanager
async def playing(tmp_path: Path) -> AsyncIterator[Scene]:
    """Runs the scenario; no illegal transition and no fault of the program may happen in it."""
    environment = SystemEnvironment()
    server = ZooKeeperServer(environment, str(tmp_path))
    await server.start()
    scene = Scene(environment, server)
    client = ZooKeeperClient(environment, scene.address)
    try:
        await client.start(PATIENCE_SECONDS * 1000)
        scene.store = ControllerStore(client)
        yield scene
        assert scene.illegal == []
        assert scene.failures == []
    finally:
        for broker in scene.brokers.values():
            await broker.die()
        await client.close()
        await server.stop()
        environment.close()


def proxy_to(scene: Scene) -> Proxy:
    return Proxy("127.0.0.1", scene.server.port)
