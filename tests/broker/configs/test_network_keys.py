"""Each key of sockets, connections and request queues acts, as a client sees it."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.metadata.controller_channel import ControllerChannel
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.config.broker import BrokerConfig
from klamm.net.client import ConnectFailed
from klamm.net.server.server_connection import ServerConnection
from klamm.protocol.apis.update_metadata import UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataRequest
from klamm.protocol.messages import ApiKey
from klamm.replication.fetcher.leader_endpoint import LeaderEndpoint
from klamm.zookeeper.client import connection as zookeeper_connection
from support.fetch_messages import fetch_request, to_fetch
from support.one_broker import Client, OneBroker, batch, fetch_frame, running, until
from support.present import present

# Clients have PLAINTEXT; the controller has one connection to the other listener.
LISTENERS: dict[str, Any] = {
    "listeners": "A://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "A:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "A",
}


async def is_served(client: Client) -> bool:
    """False if the broker closes the connection instead."""
    try:
        return bool((await client.ask(ApiKey.API_VERSIONS, 0)).api_keys)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return False


async def waits(client: Client, other: Client) -> "asyncio.Task[bool]":
    """A request of the client, which is not answered while `other` is served."""
    asking = asyncio.ensure_future(is_served(client))
    for _ in range(20):
        assert await is_served(other)
    assert not asking.done()
    return asking


async def one_more_waits(cluster: OneBroker, client: Client) -> None:
    """There is room for one connection besides `client`, and for another one when that one ends."""
    second = await cluster.connect()
    assert await is_served(second)
    third = await waits(await cluster.connect(), client)
    await second.close()
    assert await third


async def one_more_is_closed(cluster: OneBroker, _client: Client) -> None:
    assert await is_served(await cluster.connect())
    assert not await is_served(await cluster.connect())


async def the_other_listener_is_free(cluster: OneBroker, client: Client) -> None:
    await one_more_waits(cluster, client)
    for _ in range(3):
        assert await is_served(await cluster.connect("A"))


async def what_is_beyond_a_second_of_thirty_waits(cluster: OneBroker, _client: Client) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(45):
        assert await is_served(await cluster.connect())
    assert loop.time() - began > 0.1


async def the_silent_one_is_closed(cluster: OneBroker, _client: Client) -> None:
    assert await (await cluster.connect()).is_closed()


async def a_larger_one_closes(cluster: OneBroker, client: Client) -> None:
    other = await cluster.connect()
    other.send_raw(struct.pack(">ih", 100_001, ApiKey.PRODUCE))
    assert await other.is_closed()
    assert await is_served(client)


async def buffers_have_the_size(cluster: OneBroker, _client: Client) -> None:
    (connection,) = cluster.broker.parts.listeners["PLAINTEXT"]._connections
    end = connection.transport.get_extra_info("socket")
    # Linux doubles what is asked for.
    assert [end.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)] == [
        2 * 20_000,
        2 * 30_000,
    ]


async def pipelined_requests_wait_in_the_socket(cluster: OneBroker, client: Client) -> None:
    """One request waits behind a fetch that waits for records; what is behind them is not read."""
    await client.create_topic("t")
    other = await cluster.connect()
    other.send_raw(fetch_frame(1, max_wait_ms=20_000, min_bytes=1))
    await until(lambda: any(one.is_answering for one in connections(cluster)))
    large = fetch_frame(2) + bytes(60_000)
    large = struct.pack(">i", len(large) - 4) + large[4:]
    other.send_raw(large * 90)
    assert await is_served(client)
    await until(lambda: any(not one._reading for one in connections(cluster)))
    assert sum(len(one._waiting) for one in connections(cluster)) <= 2
    assert await is_served(client)
    await client.produce("t", 0, batch(b"x"))  # which ends the fetch


def connections(cluster: OneBroker) -> list[ServerConnection]:
    return list(cluster.broker.parts.listeners["PLAINTEXT"]._connections)


EFFECTS: list[tuple[dict[str, str], Callable[[OneBroker, Client], Awaitable[None]]]] = [
    ({"max.connections": "3"}, one_more_waits),
    ({"listener.name.plaintext.max.connections": "2"}, the_other_listener_is_free),
    ({"max.connections.per.ip": "3"}, one_more_is_closed),
    ({"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:3"}, one_more_is_closed),
    ({"max.connections.per.ip": "9", "max.connections.per.ip.overrides": "localhost:3"}, one_more_is_closed),
    ({"max.connection.creation.rate": "30", "quota.window.num": "2"}, what_is_beyond_a_second_of_thirty_waits),
    (
        {"listener.name.plaintext.max.connection.creation.rate": "30", "quota.window.num": "2"},
        what_is_beyond_a_second_of_thirty_waits,
    ),
    ({"connections.max.idle.ms": "120"}, the_silent_one_is_closed),
    ({"socket.request.max.bytes": "100000"}, a_larger_one_closes),
    ({"socket.send.buffer.bytes": "20000", "socket.receive.buffer.bytes": "30000"}, buffers_have_the_size),
    ({"queued.max.requests": "1"}, pipelined_requests_wait_in_the_socket),
]


@pytest.mark.loop("uvloop")
@pytest.mark.parametrize(("properties", "effect"), EFFECTS, ids=[" ".join(one) for one, _ in EFFECTS])
async def test_each_key_acts(
    tmp_path: Path, properties: dict[str, Any], effect: Callable[[OneBroker, Client], Awaitable[None]]
) -> None:
    async with running(tmp_path, **LISTENERS, **properties) as (cluster, client):
        assert await is_served(client)
        await effect(cluster, client)


async def test_generated_ids_are_greater_than_the_reserved_ones(tmp_path: Path) -> None:
    async with running(tmp_path, broker_id="-1", reserved_broker_max_id="7") as (cluster, _):
        assert cluster.broker.broker_id == 8


async def test_requests_to_zookeeper_go_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight: list[int] = []
    send = zookeeper_connection.Connection.send

    def noted(self: zookeeper_connection.Connection, call: zookeeper_connection.Call) -> None:
        send(self, call)
        in_flight.append(len(self._in_flight))

    monkeypatch.setattr(zookeeper_connection.Connection, "send", noted)
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
    assert max(in_flight) > 2
    in_flight.clear()
    async with running(tmp_path / "2", zookeeper_max_in_flight_requests="2") as (_, client):
        await client.create_topic("t")
    assert max(in_flight) == 2


@asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """The port of a program that accepts and answers nothing."""
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        server.close()


async def test_a_connection_to_a_broker_gets_more_time_after_each_failure() -> None:
    properties = {"socket.connection.setup.timeout.ms": "10", "socket.connection.setup.timeout.max.ms": "30"}
    cache = MetadataCache()
    channel = ControllerChannel(cache, 5, BrokerConfig.from_properties({"zookeeper.connect": "z", **properties}))
    told = []
    async with silent() as port:
        live = UpdateMetadataBroker(id=1, endpoints=[UpdateMetadataEndpoint(port, "127.0.0.1", "PLAINTEXT", 0)])
        cache.update(
            UpdateMetadataRequest(
                controller_id=1, controller_epoch=1, broker_epoch=1, topic_states=[], live_brokers=[live]
            )
        )
        for _ in range(4):
            with pytest.raises(ConnectFailed) as failed:
                await channel.send(ApiKey.ALTER_ISR, lambda _: None)  # type: ignore[arg-type, return-value]
            told.append(str(failed.value).rpartition("within ")[2])
    assert told == ["10 ms", "20 ms", "30 ms", "30 ms"]


async def test_a_follower_has_the_buffer_that_is_configured() -> None:
    properties = {"zookeeper.connect": "z", "replica.socket.receive.buffer.bytes": "30000"}
    async with silent() as port:
        leader = LeaderEndpoint(BrokerConfig.from_properties(properties), 1, 2, "127.0.0.1", port)
        fetching = asyncio.ensure_future(leader.fetch(fetch_request(("t", [to_fetch(0, 0, 1)]))))
        await until(lambda: leader._connection is not None)
        end = present(present(leader._connection)._transport).get_extra_info("socket")
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 30_000
        leader.interrupt()
        await asyncio.gather(fetching, return_exceptions=True)
        await leader.close()
