"""A ZooKeeper server and a broker inside the test's own loop, and a client that speaks frames: for tests of the broker.

Production code from end to end, on real sockets and files, without processes.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from klamm.base.environment import Environment
from klamm.base.system_environment import SystemEnvironment
from klamm.broker.requests.security import Authorizer
from klamm.broker.start.broker import Broker
from klamm.config.broker import BrokerConfig
from klamm.protocol import messages
from klamm.protocol.apis.fetch import PartitionData
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.messages import ADVERTISED_MAX, ApiKey
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import Record, build_batch, decode_records
from klamm.zookeeper.client import State
from klamm.zookeeper.server import ZooKeeperServer
from support.fetch_messages import fetch_request, result_of, to_fetch


def socket_transport(writer: asyncio.StreamWriter) -> asyncio.Transport:
    """What a stream writes to, which also reads."""
    assert isinstance(writer.transport, asyncio.Transport)
    return writer.transport


class Client:
    """One connection. Requests are sent and answered one after another, or raw bytes are sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._correlation_id = 0

    async def request(self, key: ApiKey, version: int, body: Any, client_id: str | None = "test") -> Any:
        self._correlation_id += 1
        for buffer in messages.encode_request(key, version, self._correlation_id, client_id, body):
            self.writer.write(bytes(buffer))
        return messages.decode_response(key, version, await self.receive())

    async def ask(self, api_key: ApiKey, version: int | None = None, /, **fields: Any) -> Any:
        """A request of an API, by default in the newest version."""
        version = ADVERTISED_MAX[api_key] if version is None else version
        return await self.request(api_key, version, messages.request_class(api_key)(**fields))

    async def receive(self) -> bytes:
        async with asyncio.timeout(120):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    def pause(self) -> None:
        """Reads nothing until `resume`."""
        socket_transport(self.writer).pause_reading()

    def resume(self) -> None:
        socket_transport(self.writer).resume_reading()

    async def is_closed(self) -> bool:
        """Waits for the broker to close the connection; False if it sends something instead."""
        try:
            async with asyncio.timeout(120):
                return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.transport.abort()

    # -- what most tests need

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> Any:
        request = messages.request_class(ApiKey.CREATE_TOPICS)
        topic = request.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=[
                request.CreatableTopic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        response = await self.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout_ms=10_000, validate_only=False)
        return response.topics[0]

    async def produce(
        self, topic: str, partition: int, records: Any, *, acks: int = -1, version: int = 9
    ) -> ProduceResponse.TopicProduceResponse.PartitionProduceResponse:
        body = ProduceRequest.of(None, acks, 10_000, [(topic, [(partition, records)])])
        response = await self.request(ApiKey.PRODUCE, version, body)
        topic_response: ProduceResponse.TopicProduceResponse = response.responses[0]
        return topic_response.partition_responses[0]

    async def fetch(
        self, topic: str, partition: int, offset: int, *, version: int = 12, max_bytes: int = 1 << 20, **options: Any
    ) -> PartitionData:
        want = to_fetch(partition, offset, max_bytes)
        body = fetch_request((topic, [want]), **{"max_wait_ms": 0, "min_bytes": 1} | options)
        response = await self.request(ApiKey.FETCH, version, body)
        return result_of(response)


class OneBroker:
    """`async with OneBroker(tmp_path) as cluster:` - started, and stopped at the end. `properties` are the broker's."""

    def __init__(
        self,
        directory: Path,
        *,
        environment: Environment | None = None,
        authorizer: Authorizer | None = None,
        **properties: Any,
    ) -> None:
        self.directory = directory
        self.environment = environment or SystemEnvironment()
        self._authorizer = authorizer
        self.properties = {key.replace("_", "."): str(value) for key, value in properties.items()}
        self._clients: list[Client] = []

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        try:
            await self.start_zookeeper()
            await self.start_broker()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        for client in self._clients:
            await client.close()
        await self._stack.aclose()
        if isinstance(self.environment, SystemEnvironment):
            self.environment.close()

    async def start_zookeeper(self, port: int = 0) -> None:
        zookeeper = ZooKeeperServer(
            SystemEnvironment(), str(self.directory / "zookeeper"), port=port, min_session_timeout_ms=100
        )
        await zookeeper.start()
        self.zookeeper = zookeeper
        self._stack.push_async_callback(zookeeper.stop)

    def config(self, **changes: Any) -> BrokerConfig:
        properties = {
            "broker.id": "0",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self.directory / "data"),
            "zookeeper.connect": f"127.0.0.1:{self.zookeeper.port}",
            **self.properties,
            **{key.replace("_", "."): str(value) for key, value in changes.items()},
        }
        return BrokerConfig.from_properties(properties)

    async def start_broker(self) -> Broker:
        self.broker = Broker(self.config(), self.environment, authorizer=self._authorizer)
        self._stack.push_async_callback(self.broker.stop)
        await self.broker.start()
        await self.broker.wait_until_known()
        await self.wait_until_told()
        return self.broker

    async def wait_until_told(self) -> None:
        """Waits until the controller, which is this broker's, has told it all that it had to tell."""
        controller, cache = self.broker.parts.controller, self.broker.parts.metadata_cache

        def is_told() -> bool:
            known = cache.snapshot.topics
            leaderships = controller.context.partitions_leadership_info
            return set(known) == {topic for topic, _ in leaderships} and all(
                (known[topic].get(number) or state).leader_epoch == state.leader_epoch and number in known[topic]
                for (topic, number), state in leaderships.items()
            )

        await until(lambda: not controller.is_active or (controller.queue_size == 0 and is_told()))

    @property
    def controller_epoch(self) -> int:
        """The latest that the broker has heard of."""
        return self.broker.parts.replica_manager.controller_epoch

    @property
    def broker_epoch(self) -> int:
        return self.broker.parts.registrar.broker_epoch

    async def begin_leader_epoch(
        self, client: Client, topic: str, leader_epoch: int, code: int = 0, **changes: Any
    ) -> None:
        """Has the broker lead partition 0 in this epoch, as if the controller had said so, or with these `changes`.

        `code` is the answer to expect.
        """
        state: dict[str, Any] = {"leader": 0, "isr": (0,), "zk_version": 0, "replicas": (0,)} | changes
        partition = LeaderAndIsrPartitionState(0, self.controller_epoch, leader_epoch=leader_epoch, **state)
        topics = [
            LeaderAndIsrTopicState(topic, self.broker.parts.metadata_cache.snapshot.topic_ids.get(topic), [partition])
        ]
        # Where no other broker is, nobody can be reached.
        live = [LeaderAndIsrLiveLeader(state["leader"], "127.0.0.1", 1)] if state["leader"] > 0 else []
        body = LeaderAndIsrRequest(
            controller_id=0,
            controller_epoch=self.controller_epoch,
            broker_epoch=self.broker_epoch,
            topic_states=topics,
            live_leaders=live,
        )
        response = await client.request(ApiKey.LEADER_AND_ISR, 5, body)
        assert (response.error_code, response.topics[0].partition_errors) == (
            0,
            [LeaderAndIsrPartitionError(0, code)],
        )

    async def kill_broker(self) -> None:
        """To ZooKeeper it looks like a kill: the session, with all that is ephemeral, lives on until it expires."""
        session = self.broker.zookeeper.store.client
        assert session is not None
        session._finish(State.CLOSED, "killed")
        await self.broker.stop()

    async def restart_broker(self) -> Broker:
        await self.broker.stop()
        return await self.start_broker()

    async def connect(self, listener: str = "PLAINTEXT") -> Client:
        host, port = self.broker.endpoints[listener]
        client = Client(*await asyncio.open_connection(host, port))
        self._clients.append(client)
        return client


Scenario = Callable[[OneBroker, Client], Awaitable[None]]


async def until(is_true: Callable[[], object]) -> None:
    """Waits for what no event tells of; the scenario's time limit ends it."""
    while True:
        if is_true():
            return
        await asyncio.sleep(0.002)


@asynccontextmanager
async def running(
    tmp_path: Path,
    *,
    may_fail: bool = False,
    limit_s: float = 900,
    authorizer: Authorizer | None = None,
    **properties: Any,
) -> AsyncIterator[tuple[OneBroker, Client]]:
    """Plays the scenario with a client of a running broker, which must not have failed at the end."""
    async with asyncio.timeout(limit_s), OneBroker(tmp_path, authorizer=authorizer, **properties) as cluster:
        yield cluster, await cluster.connect()
        assert may_fail or not cluster.broker.failure.done(), cluster.broker.failure


def batch(*values: bytes, **options: Any) -> bytearray:
    """A record batch of these values. Retention, which begins after half a minute, would delete older records."""
    now_ms = round(time.time() * 1000)
    return build_batch([Record(key=None, value=value, timestamp_ms=now_ms) for value in values], **options)


def values(records: Any) -> list[bytes | None]:
    """The values of the records in a fetch response."""
    return [
        record.value
        for position, header in iterate_batches(records or b"", allow_partial_end=True)
        for record in decode_records(records, position, header)
    ]


def fetch_frame(correlation_id: int = 1, offset: int = 0, **options: Any) -> bytes:
    body = fetch_request(("t", [to_fetch(0, offset, 1 << 30)]), **{"max_wait_ms": 0, "max_bytes": 1 << 30} | options)
    return b"".join(map(bytes, messages.encode_request(ApiKey.FETCH, 12, correlation_id, "c", body)))
