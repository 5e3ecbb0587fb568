"""The server's process and its machine die at any moment: every acknowledged write is there afterwards, and no write
that a client has seen is ever taken back."""

import asyncio
import contextlib
import errno
from typing import Any

import pytest

from klamm.simulation.machine.world import Node, World
from klamm.zookeeper import messages
from klamm.zookeeper.messages import CreateMode
from klamm.zookeeper.server import ZooKeeperServer
from support.seeds import seeds
from support.zookeeper.wire import Reply, WireClient

PORT = 2181
DIRECTORY = "/zookeeper"


async def serve(node: Node, **options: Any) -> ZooKeeperServer:
    server = ZooKeeperServer(node.environment, DIRECTORY, node.address, PORT, **options)
    await server.start()
    return server


def connect(node: Node, **options: Any) -> Any:
    return WireClient.connect(PORT, host=node.address, **options)


@pytest.mark.parametrize("seed", seeds(7, 20))
def test_acknowledged_writes_survive_the_death_of_process_and_machine(seed: int) -> None:
    world = World(seed)
    acknowledged: dict[str, int] = {}  # path -> version of its last acknowledged write
    attempted: dict[str, int] = {}
    highest_zxid = 0

    async def write(node: Node, writer: int) -> None:
        nonlocal highest_zxid
        client = await connect(node)
        path = f"/{writer}"
        attempted.setdefault(path, 0)
        await client.call(messages.Create(path, b""))
        acknowledged.setdefault(path, 0)
        reply = await client.call(messages.Exists(path))
        assert isinstance(reply.response, messages.StatResponse)
        assert reply.response.stat.version >= acknowledged[path]
        attempted[path] = acknowledged[path] = reply.response.stat.version
        while True:
            window = world.random.randint(1, 8)
            for _ in range(window):
                client.send(messages.SetData(path, b"x" * world.random.choice([1, 100, 6000])))
                attempted[path] += 1
            for _ in range(window):
                reply = await client.reply()
                assert isinstance(reply.response, messages.StatResponse)
                acknowledged[path] = reply.response.stat.version
                highest_zxid = max(highest_zxid, reply.zxid)

    async def scenario() -> None:
        server_node, client_node = world.node("server"), world.node("client")
        for _ in range(6):
            snapshot_every = world.random.choice([5, 20, 1000])
            server = await server_node.run(serve(server_node, snapshot_every=snapshot_every))
            assert server._tree.zxid >= highest_zxid
            for path, version in acknowledged.items():
                assert version <= server._tree.stat(path).version <= attempted[path]
            writers = [client_node.run(write(server_node, writer)) for writer in range(3)]
            await asyncio.sleep(world.random.uniform(0, 0.3))
            server_node.crash(machine=world.random.random() < 0.7)
            for outcome in await asyncio.gather(*writers, return_exceptions=True):
                assert isinstance(outcome, OSError | EOFError), outcome
            server_node.restart()

    world.run(scenario())
    assert sum(acknowledged.values()) > 30


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("seed", range(5))
def test_a_failing_disk_stops_the_server_and_loses_nothing(operation: str, seed: int) -> None:
    world = World(seed)
    versions: list[int] = []

    async def write(node: Node) -> None:
        client = await connect(node)
        await client.call(messages.Create("/a", b""))
        node.disk.fail(operation, "/zookeeper/log.*", errno.EIO)
        for _ in range(10):
            client.send(messages.SetData("/a", bytes(5000)))
        while True:
            reply = await client.reply()
            assert isinstance(reply.response, messages.StatResponse)
            versions.append(reply.response.stat.version)

    async def scenario() -> None:
        node = world.node("server")
        server = await node.run(serve(node))
        with pytest.raises((OSError, EOFError)):
            await world.node("client").run(write(node))
        with pytest.raises(OSError, match="Input/output error"):
            await node.run(server.wait_closed())
        with pytest.raises(OSError, match="Connect call failed"):
            await world.node("client").run(connect(node))
        await node.run(server.stop())
        seen = max(versions, default=0)
        for machine in (False, True):
            # Whatever the restarted server shows is durable too.
            node.crash(machine=machine)
            node.restart()
            server = await node.run(serve(node))
            version = server._tree.stat("/a").version
            assert version >= seen
            seen = version

    world.run(scenario())


def test_a_full_disk_stops_the_server_and_space_lets_it_go_on() -> None:
    world = World(1)

    async def fill(node: Node) -> int:
        client = await connect(node)
        count = 0
        with contextlib.suppress(OSError, EOFError):
            while not (await client.call(messages.Create(f"/{count}", bytes(1000)))).error:
                count += 1
        return count

    async def scenario() -> None:
        node = world.node("server")
        server = await node.run(serve(node))
        node.disk.capacity_bytes = node.disk.used_bytes() + 50_000
        count = await world.node("client").run(fill(node))
        assert count > 10
        with pytest.raises(OSError, match="No space left"):
            await node.run(server.wait_closed())
        node.disk.capacity_bytes = None
        server = await node.run(serve(node))
        assert server._tree.stat("/").num_children - 1 in (count, count + 1)

    world.run(scenario())


@pytest.mark.parametrize("pattern", ["/zookeeper/log.*", "/zookeeper/snapshot.*"])
@pytest.mark.parametrize("operation", ["write", "sync", "open"])
def test_a_disk_that_fails_during_a_snapshot_stops_the_server(pattern: str, operation: str) -> None:
    world = World(1)

    async def write(node: Node) -> None:
        client = await connect(node)
        await client.call(messages.Create("/a", b""))
        while True:
            await client.call(messages.SetData("/a", b"x"))

    async def scenario() -> None:
        node = world.node("server")
        server = await node.run(serve(node, snapshot_every=10))
        node.disk.fail(operation, pattern, errno.EIO)
        with pytest.raises((OSError, EOFError)):
            await world.node("client").run(write(node))
        with pytest.raises(OSError, match="Input/output error"):
            await node.run(server.wait_closed())
        await node.run(server.stop())
        server = await node.run(serve(node))
        await node.run(server.stop())

    world.run(scenario())


def test_a_read_waits_for_the_writes_it_would_show() -> None:
    world = World(1)

    async def scenario() -> None:
        node = world.node("server")
        server = await node.run(serve(node))
        release = world.loop.create_future()
        run_blocking = node.environment.run_blocking

        async def slow_disk(function: Any, *arguments: Any) -> Any:
            await release
            return await run_blocking(function, *arguments)

        writer = await connect(node)
        reader = await connect(node)
        assert (await reader.call(messages.Exists("/a", True))).error
        node.environment.run_blocking = slow_disk
        writer.send(messages.Create("/a", b"", flags=CreateMode.EPHEMERAL))
        reader.send(messages.GetData("/a"))
        await asyncio.sleep(5)
        assert server._tree.find("/a") is not None, "judged and applied, though not durable"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await reader.reader.readexactly(1)
        release.set_result(None)
        event = await reader.next_event()
        assert event.path == "/a"
        assert (await reader.reply()).error == 0
        assert isinstance(await writer.reply(), Reply)

    world.run(scenario())


def test_sessions_ephemerals_and_their_timeouts_survive_a_restart() -> None:
    world = World(1)

    async def scenario() -> None:
        node = world.node("server")
        await node.run(serve(node, min_session_timeout_ms=1000))
        stays = await connect(node, timeout_ms=5000)
        leaves = await connect(node, timeout_ms=3000)
        await stays.call(messages.Create("/stays", b"", flags=CreateMode.EPHEMERAL))
        await leaves.call(messages.Create("/leaves", b"", flags=CreateMode.EPHEMERAL))
        node.crash(machine=True)
        node.restart()
        await asyncio.sleep(60)
        server = await node.run(serve(node, min_session_timeout_ms=1000))
        again = await connect(node, timeout_ms=5000, session=stays.session)
        assert again.session == stays.session
        await asyncio.sleep(2.9)
        await again.call(messages.Ping())
        assert server._tree.find("/leaves") is not None
        await asyncio.sleep(0.2)
        assert server._tree.find("/leaves") is None
        assert server._tree.find("/stays") is not None
        expired = await connect(node, session=leaves.session)
        assert (expired.session.session_id, expired.session.timeout_ms) == (0, 0)
        new = await connect(node)
        assert new.session.session_id > leaves.session.session_id
        await node.run(server.stop())

    world.run(scenario())
