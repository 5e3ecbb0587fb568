"""The ZooKeeper client against the embedded server (tests/interop runs the same scenarios against real ones)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.system_environment import SystemEnvironment
from klamm.zookeeper import jute, keeper_exceptions, messages
from klamm.zookeeper.client import State, ZooKeeperClient
from klamm.zookeeper.client.connect_string import parse_connect_string
from klamm.zookeeper.client.connection import Call, Connection
from klamm.zookeeper.client.watches import SET_WATCHES_BYTES, WatchKind, WatchTable
from klamm.zookeeper.messages import EventType, KeeperState, WatcherEvent
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.server.cnxn import ServerCnxn
from klamm.zookeeper.server.requests import encode_event
from klamm.zookeeper.server.tree import Event
from support.zookeeper.scenarios import SCENARIOS, Scene, States, a_cut_between_two_notifications_loses_no_watch


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[Scene], Awaitable[None]], tmp_path: Path) -> None:
    play(tmp_path, scenario, ZooKeeperServer)


def test_notifications_with_a_zxid_as_those_of_zookeeper_39_lose_no_watch(tmp_path: Path) -> None:
    play(tmp_path, a_cut_between_two_notifications_loses_no_watch, StampingServer)


class StampingServer(ZooKeeperServer):
    """Names a transaction's zxid in its notifications, as ZooKeeper does since 3.9."""

    def _notify(self, fired: Iterable[tuple[ServerCnxn, Event]]) -> None:
        for connection, event in fired:
            self._outbox.send(connection, encode_event(event, self.tree.zxid))


def play(tmp_path: Path, scenario: Callable[[Scene], Awaitable[None]], server_class: type[ZooKeeperServer]) -> None:
    async def main() -> None:
        environment = SystemEnvironment()
        server = server_class(environment, str(tmp_path), min_session_timeout_ms=500)
        await server.start()
        try:
            await scenario(Scene(environment, "127.0.0.1", server.port, "/" + scenario.__name__))
        finally:
            await server.stop()
            environment.close()

    asyncio.run(main())


class ScriptedServer(asyncio.Protocol):
    """Answers the handshake with the next of `responses` (None: closes the connection), and nothing else."""

    def __init__(self, responses: list[messages.ConnectResponse | None]) -> None:
        self._responses = responses
        self.requests: list[messages.ConnectRequest] = []

    def __call__(self) -> asyncio.Protocol:
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._has_shaken_hands = False

    def data_received(self, data: bytes) -> None:
        if self._has_shaken_hands:
            return
        self._has_shaken_hands = True
        self.requests.append(jute.decode_connect_request(data[4:]))
        response = self._responses.pop(0)
        if response is None:
            self._transport.close()
        else:
            self._transport.write(jute.encode_connect_response(response))


@asynccontextmanager
async def scripted_server(
    responses: list[messages.ConnectResponse | None],
) -> AsyncIterator[tuple[ScriptedServer, ZooKeeperClient]]:
    environment = SystemEnvironment()
    script = ScriptedServer(responses)
    listener = await asyncio.get_running_loop().create_server(script, "127.0.0.1", 0)
    client = ZooKeeperClient(environment, f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    try:
        yield script, client
    finally:
        await client.close()
        listener.close()
        environment.close()


async def test_a_server_that_closes_during_the_handshake_is_tried_again() -> None:
    async with scripted_server([None, None, messages.ConnectResponse(9000, 7, b"pw" * 8, None)]) as (script, client):
        await client.start(60_000)
        assert len(script.requests) == 3
        assert (client.session_id, client.session_timeout_ms) == (7, 9000)


async def test_a_foreign_session_is_garbage() -> None:
    first = messages.ConnectResponse(9000, 7, b"first password  ")
    async with scripted_server([first, first._replace(session_id=8), first]) as (script, client):
        await client.start(60_000)
        states = States(client)
        script._transport.abort()
        assert [await states.next(), await states.next()] == [State.DISCONNECTED, State.CONNECTED]
        assert [request.session_id for request in script.requests] == [0, 7, 7]
        assert script.requests[2].password == b"first password  "


async def test_no_server_is_an_error_that_names_the_servers() -> None:
    environment = SystemEnvironment()
    client = ZooKeeperClient(environment, "127.0.0.1:1,[::1]:1")
    with pytest.raises(keeper_exceptions.ConnectionLoss, match=r"127\.0\.0\.1:1.*within 200 ms"):
        await client.start(200)
    with pytest.raises(keeper_exceptions.ClientClosed):
        await client.get("/")
    await client.close()
    environment.close()


async def test_a_cancelled_start_finishes_the_client() -> None:
    environment = SystemEnvironment()
    client = ZooKeeperClient(environment, "127.0.0.1:1")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.start(), 0.05)
    assert client.state is State.CLOSED
    await client.close()
    environment.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_client_that_never_started_can_be_closed() -> None:
    environment = SystemEnvironment()
    client = ZooKeeperClient(environment, "127.0.0.1:1")
    await client.close()
    assert client.state is State.CLOSED
    environment.close()


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("a:1", [("a", 1)], ""),
        ("a", [("a", 2181)], ""),
        ("a:1,b,c:3/kafka/one", [("a", 1), ("b", 2181), ("c", 3)], "/kafka/one"),
        ("a:1, b:2/", [("a", 1), ("b", 2)], ""),
        ("[::1]:2183,[fe80::2]/x/", [("::1", 2183), ("fe80::2", 2181)], "/x"),
    ],
)
def test_connect_strings(text: str, servers: list[tuple[str, int]], chroot: str) -> None:
    assert parse_connect_string(text) == (tuple(servers), chroot)


@pytest.mark.parametrize(
    "text",
    ["", ":2181", "a:", "a:x", "a:0", "a:65536", "a,,b", "a//b", "a/../b", "/kafka", "a:-1", "a b", "a..b", "\x00"],
)
def test_bad_connect_strings(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_connect_string(text)


@given(st.text())
def test_any_connect_string_is_parsed_or_refused(text: str) -> None:
    try:
        servers, chroot = parse_connect_string(text)
    except ValueError:
        return
    assert all(host and 0 < port < 65536 for host, port in servers)
    assert not chroot or (chroot.startswith("/") and not chroot.endswith("/"))


def test_each_event_fires_its_kinds_of_watches() -> None:
    expected = {
        EventType.NONE: [],
        EventType.NODE_CREATED: ["data", "exists"],
        EventType.NODE_DATA_CHANGED: ["data", "exists"],
        EventType.NODE_DELETED: ["data", "exists", "children"],
        EventType.NODE_CHILDREN_CHANGED: ["children"],
    }
    for event_type, kinds in expected.items():
        table = WatchTable()
        for kind in WatchKind:
            table.add(kind, "/a", lambda event: None)
        event = WatcherEvent(event_type, KeeperState.SYNC_CONNECTED, "/a")
        assert len(table.fire(event)) == len(kinds)
        assert table.fire(event) == []
        left = [
            name
            for request in table.set_watches(0)
            for name, paths in (("data", request.data), ("exists", request.exists), ("children", request.children))
            if paths
        ]
        assert left == [kind.value for kind in WatchKind if kind.value not in kinds]


def test_watches_are_handed_over_in_chunks() -> None:
    table = WatchTable()
    paths = [f"/{number:0100}" for number in range(4000)]
    for kind in WatchKind:
        for path in paths:
            table.add(kind, path, print)
    requests = list(table.set_watches(42))
    assert all(request.relative_zxid == 42 for request in requests)
    assert [path for request in requests for path in request.data] == paths
    assert [path for request in requests for path in request.exists] == paths
    assert [path for request in requests for path in request.children] == paths
    sizes = [len(jute.encode_request(jute.XID_SET_WATCHES, request)) for request in requests]
    assert max(sizes) <= SET_WATCHES_BYTES + 32
    assert len(sizes) == -(-3 * 4000 * 105 // SET_WATCHES_BYTES)


async def test_a_zxid_is_seen_only_when_all_watches_are_armed() -> None:
    """The connection may break between two of the requests that arm them."""
    owner: Any = SimpleNamespace(attached=lambda connection, response: None, lost=lambda connection, reason: None)
    connection = Connection(owner, messages.ConnectRequest(0, 9000, 7, b"pw" * 8), None)
    transport: Any = SimpleNamespace(write=lambda data: None, is_reading=lambda: True)
    connection.connection_made(transport)
    connection.data_received(jute.encode_connect_response(messages.ConnectResponse(9000, 7, b"pw" * 8)))
    arming = connection.set_watches([messages.SetWatches(0, ("/a",), (), ()), messages.SetWatches(0, ("/b",), (), ())])
    seen = []
    for _ in arming:
        connection.data_received(jute.encode_error(jute.XID_SET_WATCHES, 5, 0))
        seen.append(connection.last_zxid)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.send(Call(1, messages.OpCode.SYNC, b"", "/", "/", future, lambda _: None, None, None))
    connection.data_received(jute.encode_response(1, 6, messages.SyncResponse("/")))
    await future
    seen.append(connection.last_zxid)
    connection.connection_lost(None)
    assert seen == [0, 0, 6]
