"""A broker that notes what controllers tell it, and answers as a broker of Kafka 2.8 does, or as the scenario says.

What must stay true:
- Nothing that it does depends on time: it answers at once, or when the scenario releases it.
- What is on its disks (which partitions, of which topic ids) survives its restarts, what is in its memory does not.
"""

import asyncio
from collections import Counter
from typing import Any, NamedTuple
from uuid import UUID

from klamm.base.environment import Environment
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.protocol.apis.stop_replica import EPOCH_DURING_DELETE, StopReplicaPartitionError, StopReplicaResponse
from klamm.protocol.apis.update_metadata import UpdateMetadataResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import NO_EPOCH, PartitionKey
from klamm.znodes.brokers import BROKER_IDS_PATH, BrokerRegistration, Endpoint
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.messages import OPEN_ACL, Create, CreateMode, Delete, SetData
from support.scripted_broker import Asked, ScriptedBroker

# However slow the machine is, sessions end when a scenario says so.
SESSION_TIMEOUT_MS = 1_800_000
BARRIER = "barrier"
"""The topic whose changes show that a cluster is at rest: see `side.py`."""


class Told(NamedTuple):
    """What a request says of one partition: `kind` is the name of the API, `state` has the fields."""

    broker_id: int
    kind: str
    partition: PartitionKey
    state: dict[str, Any]


class Recorder:
    """`told` has everything in the order in which it was told, `last_live` what the last UpdateMetadata calls alive."""

    def __init__(self, broker_id: int, environment: Environment, connect: str) -> None:
        self.broker_id = broker_id
        self._environment, self._connect = environment, connect
        self.told: list[Told] = []
        # What this process has been told last, by API and partition.
        self.last: dict[tuple[str, PartitionKey], dict[str, Any]] = {}
        # Requests that were no barrier, and the last barrier.
        self.requests = 0
        self.barrier = -1
        self.heard = asyncio.Event()
        # The leader epochs in memory, and the topic ids on disk, of the partitions that this broker has.
        self.epochs: dict[PartitionKey, int] = {}
        self.topic_ids: dict[PartitionKey, UUID | None] = {}
        self.failed: set[PartitionKey] = set()
        self.held: list[tuple[Asked, Any]] | None = None
        # The errors that the next requests of an API get.
        self.refusals: Counter[tuple[ApiKey, ErrorCode]] = Counter()
        self.last_live: dict[int, int] = {}
        self.client: ZooKeeperClient | None = None
        self.broker_epoch = -1
        self.controller_epoch = -1
        self._port = 0
        self._ports: list[int] = []
        self._listeners: list[ScriptedBroker] = []

    # -- life

    @property
    def is_alive(self) -> bool:
        return self.client is not None

    def address_name(self, port: int) -> str:
        return f"address {self._ports.index(port)}" if port in self._ports else f"port {port}"

    def registration(self) -> BrokerRegistration:
        return BrokerRegistration(self.broker_id, (Endpoint("PLAINTEXT", "127.0.0.1", self._port),))

    async def start(self) -> None:
        if not self._listeners:
            await self._listen(self._port)
        self.client = ZooKeeperClient(self._environment, self._connect, session_timeout_ms=SESSION_TIMEOUT_MS)
        await self.client.start()
        self.broker_epoch = await KafkaZooKeeper(self.client).register_broker(self.registration())

    async def kill(self) -> None:
        """The end of its session is the end of its registration, too."""
        assert self.client is not None
        self._forget()
        for listener in self._listeners:
            listener.stop()
        self._listeners.clear()
        client, self.client = self.client, None
        await client.close()

    async def bounce(self) -> None:
        """Dies and is back before anybody has looked: one transaction replaces its registration."""
        former = self.client
        assert former is not None
        self._forget()
        for listener in self._listeners:
            listener.cut()
        self.client = ZooKeeperClient(self._environment, self._connect, session_timeout_ms=SESSION_TIMEOUT_MS)
        await self.client.start()
        path = f"{BROKER_IDS_PATH}/{self.broker_id}"
        created = Create(path, None, OPEN_ACL, CreateMode.EPHEMERAL)
        results = await self.client.multi([Delete(path), created, SetData(path, self.registration().encode(), 0)])
        assert results[2].stat is not None
        self.broker_epoch = results[2].stat.czxid
        await former.close()

    async def move(self) -> None:
        """Listens at another address, too, and registers that one: Kafka's controller keeps to the old one."""
        assert self.client is not None
        await self._listen(0)
        await KafkaZooKeeper(self.client).update_broker(self.registration())

    async def _listen(self, port: int) -> None:
        listener = await ScriptedBroker(self._received).start(port)
        listener.hang_up_on_garbage = True
        self._listeners.append(listener)
        self._port = listener.port
        if listener.port not in self._ports:
            self._ports.append(listener.port)

    def _forget(self) -> None:
        self.epochs.clear()
        self.last.clear()
        self.barrier = -1
        self.held = None if self.held is None else []
        self.controller_epoch = self.broker_epoch = -1

    # -- requests

    def release(self) -> None:
        held, self.held = self.held or [], None
        for asked, message in held:
            if not asked.connection.transport.is_closing():
                asked.answer(message)

    def _received(self, asked: Asked) -> Any:
        api_key = asked.header.api_key
        if api_key not in HANDLED:
            return None  # Fetches of brokers that take this one for a leader: nobody waits for them.
        message = self._handle(api_key, asked.body)
        self.heard.set()
        if self.held is not None:
            self.held.append((asked, message))
            return None
        return message

    def _handle(self, api_key: ApiKey, body: Any) -> Any:
        self._note(api_key, body)
        error = ErrorCode.NONE
        if -1 < body.broker_epoch < self.broker_epoch:
            error = ErrorCode.STALE_BROKER_EPOCH
        elif body.controller_epoch < self.controller_epoch:
            error = ErrorCode.STALE_CONTROLLER_EPOCH
        else:
            self.controller_epoch = body.controller_epoch
        if error is ErrorCode.NONE:
            error = next((code for (key, code), count in self.refusals.items() if key is api_key and count), error)
            self.refusals[api_key, error] -= 1 if error else 0
        if api_key is ApiKey.UPDATE_METADATA:
            return UpdateMetadataResponse(error_code=error)
        return (self._leader_and_isr if api_key is ApiKey.LEADER_AND_ISR else self._stop_replica)(body, error)

    def _leader_and_isr(self, body: Any, error: ErrorCode) -> LeaderAndIsrResponse:
        topics = []
        for topic in body.topic_states:
            errors = []
            for state in topic.partition_states:
                code = error or self._follow((topic.topic_name, state.partition_index), topic.topic_id, state)
                errors.append(LeaderAndIsrPartitionError(state.partition_index, code))
            topics.append(LeaderAndIsrTopicError(topic.topic_name, topic.topic_id, errors))
        return LeaderAndIsrResponse(error, topics)

    def _follow(self, key: PartitionKey, topic_id: UUID | None, state: Any) -> ErrorCode:
        if key in self.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if topic_id and (self.topic_ids.get(key) or topic_id) != topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if state.leader_epoch <= self.epochs.get(key, NO_EPOCH):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.epochs[key] = state.leader_epoch
        self.topic_ids[key] = topic_id or self.topic_ids.get(key)
        return ErrorCode.NONE

    def _stop_replica(self, body: Any, error: ErrorCode) -> StopReplicaResponse:
        errors = []
        for topic in body.topic_states:
            for state in topic.partition_states:
                key = topic.topic_name, state.partition_index
                code = error or self._stop(key, state)
                errors.append(StopReplicaPartitionError(*key, code))
        return StopReplicaResponse(error, errors)

    def _stop(self, key: PartitionKey, state: Any) -> ErrorCode:
        if key in self.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.epochs.get(key, NO_EPOCH)
        if state.leader_epoch not in (NO_EPOCH, EPOCH_DURING_DELETE) and state.leader_epoch <= known:
            return ErrorCode.FENCED_LEADER_EPOCH
        self.epochs.pop(key, None)
        if state.delete_partition:
            self.topic_ids.pop(key, None)
        return ErrorCode.NONE

    def _note(self, api_key: ApiKey, body: Any) -> None:
        if api_key is ApiKey.UPDATE_METADATA:
            self.last_live = {broker.id: broker.endpoints[0].port for broker in body.live_brokers}
            if [topic.topic_name for topic in body.topic_states] == [BARRIER]:
                self.barrier = max(self.barrier, body.topic_states[0].partition_states[0].leader_epoch)
                return
        self.requests += 1
        for topic in body.topic_states:
            if topic.topic_name != BARRIER:
                for state in topic.partition_states:
                    self._note_state(api_key, body, topic, state)

    def _note_state(self, api_key: ApiKey, body: Any, topic: Any, state: Any) -> None:
        fields = {name: getattr(state, name) for name in NOTED[api_key]}
        if api_key is ApiKey.LEADER_AND_ISR:
            leaders = {leader.broker_id: leader.port for leader in body.live_leaders}
            fields["leader_address"] = state.leader, leaders.get(state.leader)
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
        if api_key is not ApiKey.STOP_REPLICA:
            fields["topic_id"] = topic.topic_id
        key = topic.topic_name, state.partition_index
        # To be told the same again is to be told nothing.
        if self.last.get((api_key.message_name, key)) != fields:
            self.last[api_key.message_name, key] = fields
            self.told.append(Told(self.broker_id, api_key.message_name, key, fields))


HANDLED = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA)

_STATE = ("leader", "leader_epoch", "isr", "replicas", "controller_epoch", "zk_version")
NOTED: dict[ApiKey, tuple[str, ...]] = {
    ApiKey.LEADER_AND_ISR: (*_STATE, "adding_replicas", "removing_replicas", "is_new"),
    ApiKey.UPDATE_METADATA: (*_STATE, "offline_replicas"),
    ApiKey.STOP_REPLICA: ("leader_epoch", "delete_partition"),
}
