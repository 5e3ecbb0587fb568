"""Clients that misbehave or vanish, brokers that stop or die under load: others do not notice, nothing is lost."""

import asyncio
import contextlib
import random
import resource
import shutil
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from klamm.net.server.server_connection import WRITE_BUFFER_HIGH_BYTES
from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.testing import Cluster
from support.one_broker import Client, OneBroker, batch, fetch_frame, running, values

NONE = ErrorCode.NONE


def produce_frame(value: bytes, correlation_id: int = 1, topic: str = "t") -> bytes:
    body = ProduceRequest.of(None, -1, 10_000, [(topic, [(0, batch(value))])])
    return b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, correlation_id, "c", body)))


async def read_all(client: Client) -> list[bytes | None]:
    found: list[bytes | None] = []
    while (result := await client.fetch("t", 0, len(found))).records:
        found += values(result.records)
    assert (result.error_code, result.high_watermark) == (NONE, len(found))
    return found


# So that those of the controller are not among the clients' connections.
OWN_LISTENER_FOR_BROKERS: dict[str, Any] = {
    "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter_broker_listener_name": "BROKERS",
}


def connections(cluster: OneBroker) -> list[Any]:
    return list(cluster.broker.parts.listeners["PLAINTEXT"]._connections)


async def until_alone(cluster: OneBroker, client: Client) -> None:
    """Returns when the broker has noticed that all other clients are gone."""
    while len(connections(cluster)) > 1:
        await client.ask(ApiKey.API_VERSIONS, 0)


# -- clients


async def test_a_client_that_never_reads(tmp_path: Path) -> None:
    """It is muted: what waits for it stays bounded, however much it has asked for."""
    async with running(tmp_path, fetch_max_bytes=3_000_000) as (cluster, client):
        await client.create_topic("t")
        for _ in range(8):
            assert (await client.produce("t", 0, batch(bytes(500_000)))).error_code == NONE
        glutton = await cluster.connect()
        glutton.pause()
        for number in range(60):
            glutton.send_raw(fetch_frame(number))
        muted = connections(cluster)[-1]
        while muted._writable:
            await client.ask(ApiKey.API_VERSIONS, 0)
        for _ in range(50):
            assert (await client.produce("t", 0, batch(b"x"))).error_code == NONE
            assert (await client.fetch("t", 0, 8)).error_code == NONE
        # One response beyond the mark at which it was muted.
        assert muted.transport.get_write_buffer_size() < WRITE_BUFFER_HIGH_BYTES + 3_100_000
        glutton.resume()
        for number in range(60):
            assert (await glutton.receive())[:4] == struct.pack(">i", number)


async def test_a_client_that_sends_a_byte_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        slow = await cluster.connect()
        for byte in produce_frame(b"slow"):
            slow.send_raw(bytes([byte]))
            assert (await client.produce("t", 0, batch(b"fast"))).error_code == NONE
        await slow.receive()
        found = await read_all(client)
        assert found.count(b"slow") == 1
        assert found.count(b"fast") == len(produce_frame(b"slow"))


async def test_clients_that_announce_much_and_send_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        for _ in range(100):
            (await cluster.connect()).send_raw(struct.pack(">ihh", 100_000_000, 0, 9) + b"hello")
        for number in range(20):
            assert (await client.produce("t", 0, batch(b"%d" % number))).error_code == NONE
        held = [len(connection._frame or b"") for connection in connections(cluster)]
        assert sum(size > 0 for size in held) == 100
        assert sum(held) <= 100 * 1024 * 1024
        assert len(await read_all(client)) == 20


async def test_thousands_of_connections_come_and_go(tmp_path: Path) -> None:
    async with running(tmp_path, **OWN_LISTENER_FOR_BROKERS) as (cluster, client):
        await client.create_topic("t")
        host, port = cluster.broker.endpoints["PLAINTEXT"]
        chance = random.Random(5)

        async def come_and_go() -> None:
            for _ in range(60):
                _, writer = await asyncio.open_connection(host, port)
                writer.write(chance.choice([b"", b"\0", produce_frame(b"x")[:30], fetch_frame(max_wait_ms=60_000)]))
                if chance.random() < 0.5:
                    writer.transport.abort()
                else:
                    writer.close()

        async def work() -> None:
            for number in range(100):
                assert (await client.produce("t", 0, batch(b"%d" % number))).error_code == NONE

        await asyncio.gather(work(), *(come_and_go() for _ in range(50)))
        await until_alone(cluster, client)
        assert len(await read_all(client)) == 100
        server = cluster.broker.parts.listeners["PLAINTEXT"]
        assert (len(server._connections), cluster.broker.parts.listeners.quotas.count_of("127.0.0.1")) == (1, 2)
        purgatory = cluster.broker.parts.replica_manager.fetch_purgatory
        while len(purgatory):
            await client.ask(ApiKey.API_VERSIONS, 0)


async def test_a_client_vanishes_in_a_long_poll(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        purgatory = cluster.broker.parts.replica_manager.fetch_purgatory
        gone = await cluster.connect()
        gone.send_raw(fetch_frame(max_wait_ms=60_000, min_bytes=1))
        while not len(purgatory):
            await client.ask(ApiKey.API_VERSIONS, 0)
        await gone.close()
        while len(purgatory):
            await client.ask(ApiKey.API_VERSIONS, 0)
        assert (await client.produce("t", 0, batch(b"a"))).error_code == NONE
        assert await read_all(client) == [b"a"]


async def test_a_client_vanishes_in_a_produce(tmp_path: Path) -> None:
    """Half a request has no effect; a whole one counts, whether or not a client waits for its answer."""
    async with running(tmp_path, **OWN_LISTENER_FOR_BROKERS) as (cluster, client):
        await client.create_topic("t")
        for cut in (1, 5, 20, 40, 80):
            gone = await cluster.connect()
            gone.send_raw(produce_frame(b"whole") + produce_frame(b"cut")[:-cut])
            gone.writer.write_eof()
            await gone.writer.drain()
            await gone.receive()
            await gone.close()
        await until_alone(cluster, client)
        assert await read_all(client) == [b"whole"] * 5


# -- brokers


class Load:
    """Producers that send without waiting for each answer, and what has been acknowledged: value -> offset."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self.sent = 0

    async def produce(self, client: Client, number: int) -> None:
        """Until the connection ends."""
        in_flight: list[bytes] = []
        try:
            for count in range(1_000_000):
                value = b"%d-%d-" % (number, count) + bytes(count % 700)
                client.send_raw(produce_frame(value, count))
                in_flight.append(value)
                self.sent += 1
                if len(in_flight) >= 5:
                    frame = await client.receive()
                    response = messages.decode_response(ApiKey.PRODUCE, 9, frame)
                    (result,) = response.responses[0].partition_responses
                    assert result.error_code == NONE
                    self.acknowledged[in_flight.pop(0)] = result.base_offset
        except (ConnectionError, asyncio.IncompleteReadError):
            return

    async def check(self, client: Client) -> list[bytes | None]:
        """Every acknowledged record is where it was acknowledged, and no record is there twice."""
        found = await read_all(client)
        for value, offset in self.acknowledged.items():
            assert found[offset] == value
        assert len(set(found)) == len(found)
        return found


@pytest.mark.parametrize("acknowledged", [0, 1, 200])
async def test_a_stop_under_load(tmp_path: Path, acknowledged: int) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", segment_bytes="20000")
        load = Load()
        producers = [asyncio.ensure_future(load.produce(await cluster.connect(), n)) for n in range(4)]
        polling = await cluster.connect()
        polling.send_raw(fetch_frame(offset=10**6, max_wait_ms=300))
        while len(load.acknowledged) < acknowledged:
            await client.ask(ApiKey.API_VERSIONS, 0)
        await cluster.restart_broker()
        await asyncio.gather(*producers)
        assert len(load.acknowledged) >= acknowledged
        found = await load.check(await cluster.connect())
        assert len(found) <= load.sent


@pytest.mark.parametrize("seed", range(6))
async def test_a_kill_under_load(tmp_path: Path, seed: int) -> None:
    """What a killed process leaves: its files at one moment, of the last write to each perhaps only a part."""
    chance = random.Random(seed)
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", segment_bytes="20000", index_interval_bytes="500")
        load = Load()
        producers = [asyncio.ensure_future(load.produce(await cluster.connect(), n)) for n in range(3)]
        enough = chance.randrange(1, 300)
        while len(load.acknowledged) < enough:
            await client.ask(ApiKey.API_VERSIONS, 0)
        # Nothing else runs while the files are copied, so they are what a kill at this moment would leave.
        acknowledged = dict(load.acknowledged)
        left = tmp_path / "left"
        shutil.copytree(tmp_path / "data", left)
        await cluster.broker.stop()
        await asyncio.gather(*producers)
        active = sorted((left / "t-0").glob("*.log"))[-1]
        with active.open("ab") as file:
            torn = batch(bytes(chance.randrange(2000)), producer_id=-1)
            file.write(torn[: chance.randrange(len(torn))])
        for suffix in (".index", ".timeindex"):
            with active.with_suffix(suffix).open("ab") as file:
                file.write(bytes(chance.randrange(8)))
        cluster.properties["log.dirs"] = str(left)
        await cluster.start_broker()
        load.acknowledged = acknowledged
        client = await cluster.connect()
        found = await load.check(client)
        assert (await client.produce("t", 0, batch(b"new"))).base_offset == len(found)


def test_connections_leave_file_descriptors_to_logs(tmp_path: Path) -> None:
    """A broker of its own process, whose limit is low: clients take what they can get, and logs go on to roll."""
    with Cluster(brokers=1, properties={"num.partitions": 1}) as cluster, contextlib.ExitStack() as stack:
        cluster.create_topic("t", partitions=20, replication_factor=1, configs={"segment.bytes": "1000"})
        broker = cluster.broker(0)
        assert broker.pid is not None
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (512, 512))
        client = stack.enter_context(socket.create_connection((broker.host, broker.port), 20))
        crowd = [stack.enter_context(socket.create_connection((broker.host, broker.port), 20)) for _ in range(600)]
        for number in range(30):
            wanted = [(number % 20, batch(b"%03d" % number + bytes(500)))]
            body = ProduceRequest.of(None, -1, 10_000, [("t", wanted)])
            client.sendall(b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, number, "c", body))))
            size = int.from_bytes(client.recv(4, socket.MSG_WAITALL))
            answer = messages.decode_response(ApiKey.PRODUCE, 9, client.recv(size, socket.MSG_WAITALL))
            assert answer.responses[0].partition_responses[0].error_code == NONE
        assert cluster.broker(0).running
        for one in crowd:
            one.close()
        # A client that connects when there is room again is served.
        cluster.create_topic("u", partitions=20)
