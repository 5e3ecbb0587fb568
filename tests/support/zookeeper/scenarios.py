"""What a ZooKeeper client must be able to do with any server: run against the embedded one and against real ones.

Each scenario gets an environment, the server's host and port, and a chroot of its own. The server must grant sessions
of one second.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from klamm.base.environment import Environment
from klamm.zookeeper import jute, keeper_exceptions, messages
from klamm.zookeeper.client import State, ZooKeeperClient, retrying
from klamm.zookeeper.messages import (
    CREATOR_ALL_ACL,
    READ_ACL,
    Acl,
    Check,
    Create,
    CreateMode,
    Delete,
    EventType,
    SetData,
)
from support.zookeeper.proxy import Proxy

SESSION_TIMEOUT_MS = 1000
PATIENCE_SECONDS = 120


class States:
    """The states that a client enters, to be awaited one after another."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._queue: asyncio.Queue[State] = asyncio.Queue()
        client.add_listener(self._queue.put_nowait)

    async def next(self) -> State:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._queue.get()


class Fired:
    """A watch whose events can be awaited."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[messages.WatcherEvent] = asyncio.Queue()

    def __call__(self, event: messages.WatcherEvent) -> None:
        self._queue.put_nowait(event)

    async def next(self) -> tuple[EventType, str]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            event = await self._queue.get()
        return EventType(event.type), event.path

    def silent(self) -> bool:
        return self._queue.empty()


class Scene:
    """One server, one chroot, as many clients as wanted."""

    def __init__(self, environment: Environment, host: str, port: int, chroot: str) -> None:
        self.environment = environment
        self.host, self.port, self.chroot = host, port, chroot
        self.address = f"{host}:{port}"

    @contextlib.asynccontextmanager
    async def client(self, address: str | None = None, **options: object) -> AsyncIterator[ZooKeeperClient]:
        options = {"session_timeout_ms": 10_000, **options}
        client = ZooKeeperClient(self.environment, f"{address or self.address}{self.chroot}", **options)  # type: ignore[arg-type]
        try:
            await client.start(PATIENCE_SECONDS * 1000)
            await client.ensure_chroot()
            yield client
        finally:
            await client.close()

    def proxy(self) -> Proxy:
        return Proxy(self.host, self.port)


async def operations(scene: Scene) -> None:
    async with scene.client() as client:
        path, created = await client.create("/a", b"1")
        assert path == "/a"
        assert await client.get("/a") == (b"1", created)
        assert await client.exists("/a") == created
        assert await client.exists("/nothing") is None
        changed = await client.set("/a", b"22", 0)
        assert (changed.version, changed.data_length, changed.czxid) == (1, 2, created.czxid)
        assert changed.mzxid > created.czxid
        assert client.last_zxid >= changed.mzxid
        await client.create("/a/z", None)
        await client.create("/a/b")
        assert await client.children("/a") == ["b", "z"]
        assert (await client.get("/a/z"))[0] == b""
        for call, error in (
            (client.get("/nothing"), keeper_exceptions.NoNode),
            (client.set("/nothing", b""), keeper_exceptions.NoNode),
            (client.create("/nothing/below"), keeper_exceptions.NoNode),
            (client.children("/nothing"), keeper_exceptions.NoNode),
            (client.delete("/nothing"), keeper_exceptions.NoNode),
            (client.create("/a"), keeper_exceptions.NodeExists),
            (client.set("/a", b"", 7), keeper_exceptions.BadVersion),
            (client.delete("/a/b", 7), keeper_exceptions.BadVersion),
            (client.delete("/a"), keeper_exceptions.NotEmpty),
            (client.create("/a/x", acl=[]), keeper_exceptions.InvalidACL),
            (client.get("relative"), keeper_exceptions.BadArguments),
            (client.get("/trailing/"), keeper_exceptions.BadArguments),
            (client.get("/half\udc80"), keeper_exceptions.BadArguments),
            (client.create("/a/.."), keeper_exceptions.BadArguments),
        ):
            with pytest.raises(error):
                await call
        await client.delete("/a/b", 0)
        await client.sync("/a")
        assert await client.children("/a") == ["z"]


async def ephemerals_and_sequences(scene: Scene) -> None:
    async with scene.client() as client:
        async with scene.client() as other:
            assert other.session_id not in (0, client.session_id)
            _, stat = await other.create("/e", b"", ephemeral=True)
            assert stat.ephemeral_owner == other.session_id
            with pytest.raises(keeper_exceptions.NoChildrenForEphemerals):
                await client.create("/e/child")
            first, _ = await other.create("/s-", sequential=True)
            second, _ = await other.create("/s-", sequential=True, ephemeral=True)
            await client.create("/dir")
            unnamed, _ = await client.create("/dir/", sequential=True)
            assert (first, second, unnamed) == ("/s-0000000001", "/s-0000000002", "/dir/0000000000")
        assert await client.exists("/e") is None
        assert await client.children("/") == ["dir", first[1:]]


async def multis(scene: Scene) -> None:
    async with scene.client() as client:
        results = await client.multi(
            [
                Create("/m", b"1"),
                Create("/m/e-", None, flags=CreateMode.EPHEMERAL_SEQUENTIAL),
                SetData("/m", b"2", 0),
                Check("/m", 1),
                Create("/m/gone", b""),
                Delete("/m/gone"),
            ]
        )
        assert [result.error for result in results] == [0] * 6
        assert (results[0].path, results[1].path, results[4].path) == ("/m", "/m/e-0000000000", "/m/gone")
        assert results[2].stat is not None
        assert results[2].stat.version == 1
        with pytest.raises(keeper_exceptions.BadVersion) as failure:
            await client.multi([SetData("/m", b"3"), Check("/m", 1), Delete("/m")])
        assert (failure.value.index, failure.value.path) == (1, "/m")
        with pytest.raises(keeper_exceptions.NodeExists) as failure2:
            await client.multi([Create("/m/new", b""), Create("/m", b"")])
        assert failure2.value.index == 1
        assert (await client.get("/m"))[0] == b"2"
        assert await client.children("/m") == ["e-0000000000"]
        assert await client.multi([]) == []


async def watches_fire_once(scene: Scene) -> None:
    async with scene.client() as client, scene.client() as other:
        fired = Fired()
        assert await client.exists("/w", fired) is None
        await other.create("/w", b"")
        assert await fired.next() == (EventType.NODE_CREATED, "/w")
        await client.get("/w", fired)
        await client.exists("/w", fired)  # The same watch again: it fires once.
        await other.set("/w", b"1")
        assert await fired.next() == (EventType.NODE_DATA_CHANGED, "/w")
        await client.children("/w", fired)
        await other.create("/w/c")
        assert await fired.next() == (EventType.NODE_CHILDREN_CHANGED, "/w")
        await other.set("/w", b"2")
        await other.delete("/w/c")
        data, children = Fired(), Fired()
        await client.get("/w", data)
        await client.children("/w", children)
        await other.delete("/w")
        assert await data.next() == (EventType.NODE_DELETED, "/w")
        assert await children.next() == (EventType.NODE_DELETED, "/w")
        with pytest.raises(keeper_exceptions.NoNode):
            await client.get("/w", fired)
        await other.create("/w")
        await client.sync()
        assert fired.silent()


async def watch_events_come_after_earlier_results(scene: Scene) -> None:
    async with scene.client() as client:
        await client.create("/o", b"0")
        order: list[object] = []
        read = client.submit_get("/o", lambda event: order.append("event"))
        read.add_done_callback(lambda future: order.append(future.result()[0]))
        write = client.submit_set("/o", b"1")
        write.add_done_callback(lambda future: order.append("written"))
        await write
        await client.sync()
        assert order[0] == b"0"
        assert sorted(map(str, order[1:])) == ["event", "written"]


async def pipelining(scene: Scene) -> None:
    async with scene.client() as client, scene.client(max_in_flight=7) as bounded:
        creations = [client.submit_create(f"/{number}", str(number).encode()) for number in range(500)]
        await asyncio.gather(*creations)
        for reader in (client, bounded):
            answers = await asyncio.gather(*(reader.submit_get(f"/{number % 500}") for number in range(2000)))
            assert [data for data, _ in answers] == [str(number % 500).encode() for number in range(2000)]


async def cancelled_calls_disturb_nobody(scene: Scene) -> None:
    async with scene.client() as client:
        await client.create("/c", b"1")
        calls = [client.submit_get("/c") for _ in range(10)]
        for call in calls[::2]:
            call.cancel()
        assert [data for data, _ in await asyncio.gather(*calls[1::2])] == [b"1"] * 5


async def access_control(scene: Scene) -> None:
    async with scene.client() as client, scene.client() as stranger:
        await client.add_auth("digest", b"klamm:secret")
        await client.create("/locked", b"1", acl=[*CREATOR_ALL_ACL, *READ_ACL])
        acl, stat = await client.get_acl("/locked")
        # klamm:base64(sha1("klamm:secret"))
        assert acl == (Acl(31, "digest", "klamm:hUj+T5I4F7Dj67/8DFzCrBfBCVY="), READ_ACL[0])
        assert (await stranger.get("/locked"))[0] == b"1"
        with pytest.raises(keeper_exceptions.NoAuth):
            await stranger.set("/locked", b"2")
        await stranger.add_auth("digest", b"klamm:secret")
        await stranger.set("/locked", b"2")
        changed = await stranger.set_acl("/locked", READ_ACL, stat.aversion)
        assert changed.aversion == stat.aversion + 1
        with pytest.raises(keeper_exceptions.NoAuth):
            await client.set("/locked", b"3")


async def refused_credentials_finish_the_client(scene: Scene) -> None:
    async with scene.client() as client:
        states = States(client)
        with pytest.raises(keeper_exceptions.AuthFailed):
            await client.add_auth("no-such-scheme", b"x")
        with pytest.raises(keeper_exceptions.AuthFailed):
            await client.get("/")
        with pytest.raises(keeper_exceptions.AuthFailed):
            await client.add_auth("digest", b"a:b")
        assert await states.next() is State.AUTH_FAILED


async def chroot(scene: Scene) -> None:
    async with scene.client() as client:
        inner = Scene(scene.environment, scene.host, scene.port, f"{scene.chroot}/deep/inside")
        async with inner.client() as deep:
            fired = Fired()
            assert await deep.children("/", fired) == []
            assert (await deep.create("/x", b"1"))[0] == "/x"
            assert await fired.next() == (EventType.NODE_CHILDREN_CHANGED, "/")
            await deep.exists("/y", fired)
            results = await deep.multi([Create("/y", b""), SetData("/x", b"2")])
            assert results[0].path == "/y"
            assert await fired.next() == (EventType.NODE_CREATED, "/y")
            with pytest.raises(keeper_exceptions.NodeExists, match="for /y"):
                await deep.create("/y")
            assert await client.children("/deep/inside") == ["x", "y"]
            assert (await client.get("/deep/inside/x"))[0] == b"2"


async def trees(scene: Scene) -> None:
    async with scene.client() as client:
        await client.ensure_path("/t/a/b/c")
        await client.ensure_path("/t/a/d")
        await client.ensure_path("/t/a/d")
        assert await client.children("/t/a") == ["b", "d"]
        await client.create("/t/e", ephemeral=True)
        with pytest.raises(keeper_exceptions.NoChildrenForEphemerals):
            await client.ensure_path("/t/e/f/g")
        await client.delete_recursive("/t")
        await client.delete_recursive("/t")
        assert await client.children("/") == []


async def a_cut_connection(scene: Scene) -> None:
    async with scene.proxy() as proxy, scene.client() as other, scene.client(proxy.address) as client:
        states = States(client)
        session_id = client.session_id
        await client.create("/e", b"1", ephemeral=True)
        await client.add_auth("digest", b"klamm:secret")
        await client.create("/locked", acl=CREATOR_ALL_ACL)
        fired, absent, below, quiet = Fired(), Fired(), Fired(), Fired()
        await client.get("/e", fired)
        await client.exists("/new", absent)
        await client.children("/", below)
        await client.exists("/locked", quiet)

        proxy.hold_answers()
        pending = client.submit_get("/e")
        lost_write = client.submit_set("/e", b"lost")
        changed = Fired()
        while (await other.get("/e", changed))[0] != b"lost":
            await changed.next()
        proxy.refusing = True
        proxy.cut()
        assert await states.next() is State.DISCONNECTED
        for call in (pending, lost_write):
            with pytest.raises(keeper_exceptions.ConnectionLoss):
                await call
        waiting: list[asyncio.Future[Any]] = [
            client.submit_get("/e"), client.submit_set("/e", b"2"), client.submit_get("/e"),
        ]  # fmt: skip
        cancelled = client.submit_set("/e", b"never")
        cancelled.cancel()
        assert not any(call.done() for call in waiting)
        await other.create("/new")

        proxy.release()
        proxy.refusing = False
        assert await states.next() is State.CONNECTED
        assert [getattr(answer, "version", None) or answer[0] for answer in await asyncio.gather(*waiting)] == [
            b"lost",
            2,
            b"2",
        ]
        assert client.session_id == session_id
        stat = await other.exists("/e")
        assert stat is not None
        assert stat.ephemeral_owner == session_id
        assert await fired.next() == (EventType.NODE_DATA_CHANGED, "/e")
        assert await absent.next() == (EventType.NODE_CREATED, "/new")
        assert await below.next() == (EventType.NODE_CHILDREN_CHANGED, "/")
        assert (await client.get("/locked"))[0] == b""  # The credentials were sent again.
        assert quiet.silent()


async def reads_are_retried_over_cuts(scene: Scene) -> None:
    async with scene.proxy() as proxy, scene.client(proxy.address) as client:
        await client.create("/r", b"1")
        proxy.hold_answers()
        reading = asyncio.ensure_future(retrying(client.get, "/r"))
        await asyncio.sleep(0)
        proxy.cut()
        proxy.release()
        assert (await reading)[0] == b"1"


async def many_watches_survive_a_cut(scene: Scene) -> None:
    """More than fit into one SetWatches request."""
    name = "x" * 200
    async with scene.proxy() as proxy, scene.client() as other, scene.client(proxy.address) as client:
        states, fired = States(client), Fired()
        paths = [f"/{name}{number}" for number in range(1500)]
        await asyncio.gather(*(client.submit_exists(path, fired) for path in paths))
        proxy.cut()
        assert await states.next() is State.DISCONNECTED
        assert await states.next() is State.CONNECTED
        await client.sync()
        assert proxy.requests.count(struct.pack(">ii", jute.XID_SET_WATCHES, messages.OpCode.SET_WATCHES)) == 3
        await asyncio.gather(*(other.submit_create(path) for path in paths))
        events = [await fired.next() for _ in paths]
        assert events == [(EventType.NODE_CREATED, path) for path in paths]


async def a_cut_between_two_notifications_loses_no_watch(scene: Scene) -> None:
    """One transaction fires several watches, and only the first notification arrives."""
    async with scene.proxy() as proxy, scene.client() as other, scene.client(proxy.address) as client:
        paths = ["/a", "/b", "/c"]
        for path in paths:
            await client.create(path)
        fired = {path: Fired() for path in paths}
        for path in paths:
            await client.get(path, fired[path])
        proxy.cut_after_answer(jute.XID_NOTIFICATION)
        await other.multi([SetData(path, b"new") for path in paths])
        for path in paths:
            assert await fired[path].next() == (EventType.NODE_DATA_CHANGED, path)


async def a_cut_between_two_set_watches_loses_no_watch(scene: Scene) -> None:
    """What has changed meanwhile is watched by the last of several SetWatches, and only the first is answered."""
    name = "x" * 200
    async with scene.proxy() as proxy, scene.client() as other, scene.client(proxy.address) as client:
        states, quiet, changed = States(client), Fired(), Fired()
        paths = [f"/{name}{number}" for number in range(800)]
        await asyncio.gather(*(client.submit_create(path) for path in paths))
        await asyncio.gather(*(client.submit_get(path, quiet) for path in paths[:-1]))
        await client.get(paths[-1], changed)
        proxy.refusing = True
        proxy.cut()
        assert await states.next() is State.DISCONNECTED
        await other.set(paths[-1], b"new")
        proxy.cut_after_answer(jute.XID_SET_WATCHES)
        proxy.refusing = False
        assert await changed.next() == (EventType.NODE_DATA_CHANGED, paths[-1])
        assert quiet.silent()


async def the_largest_request(scene: Scene) -> None:
    """One byte more would cost the connection; it is not sent."""
    async with scene.client() as client:
        states = States(client)
        overhead = len(jute.encode_request(1, messages.SetData(f"{scene.chroot}/a", b"", 0))) - 4
        data = b"x" * (1_048_575 - overhead)
        await client.create("/a")
        await client.set("/a", data, 0)
        with pytest.raises(keeper_exceptions.RequestTooLarge, match=r"1048576 bytes.*1048575"):
            await client.set("/a", data + b"x", 1)
        with pytest.raises(keeper_exceptions.RequestTooLarge):
            await client.multi([SetData("/a", b"small", 1), SetData("/a", data, 2)])
        found, stat = await client.get("/a")
        assert (found, stat.version) == (data, 1)
        assert states._queue.empty()


async def a_silent_server_is_given_up(scene: Scene) -> None:
    async with (
        scene.proxy() as one,
        scene.proxy() as two,
        scene.client(f"{one.address},{two.address}", session_timeout_ms=SESSION_TIMEOUT_MS) as client,
    ):
        states, session_id = States(client), client.session_id
        used, other = (one, two) if one.connections_seen else (two, one)
        used.hold_answers()
        with pytest.raises(keeper_exceptions.ConnectionLoss, match="nothing heard"):
            await client.get("/")
        assert [await states.next(), await states.next()] == [State.DISCONNECTED, State.CONNECTED]
        assert other.connections_seen == 1
        assert client.session_id == session_id


async def idle_sessions_are_kept_alive(scene: Scene) -> None:
    async with (
        scene.proxy() as proxy,
        scene.client(proxy.address, session_timeout_ms=SESSION_TIMEOUT_MS) as client,
    ):
        states = States(client)
        timeout_s = client.session_timeout_ms / 1000
        await client.create("/e", ephemeral=True)
        started = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < started + 2 * timeout_s:
            await proxy.wait_for_pings(proxy.pings + 1)
        stat = await client.exists("/e")
        assert stat is not None
        assert stat.ephemeral_owner == client.session_id
        assert states._queue.empty()


async def garbage_closes_the_connection(scene: Scene) -> None:
    event_99 = jute.encode_event(messages.WatcherEvent(99, 3, "/"))
    for garbage in (
        b"\xff" * 64,
        b"\x7f\xff\xff\xff" + b"x" * 64,
        struct.pack(">i", 3) + b"abc",
        jute.encode_error(123456, 1, 0),
        jute.encode_error(-77, 1, 0),
        jute.encode_error(jute.XID_AUTH, 1, 0),
        jute.encode_error(jute.XID_SET_WATCHES, 1, -5),
        event_99,
    ):
        async with scene.proxy() as proxy, scene.client(proxy.address) as client:
            states, session_id = States(client), client.session_id
            proxy.garble(garbage)
            with pytest.raises(keeper_exceptions.ConnectionLoss, match="garbage"):
                await client.exists("/")
            assert await states.next() is State.DISCONNECTED
            assert await states.next() is State.CONNECTED
            assert client.session_id == session_id
            assert await client.exists("/") is not None


async def another_host_takes_over(scene: Scene) -> None:
    async with (
        scene.proxy() as one,
        scene.proxy() as two,
        scene.client(f"{one.address},{two.address}") as client,
    ):
        states, session_id = States(client), client.session_id
        used, other = (one, two) if one.connections_seen else (two, one)
        used.refusing = True
        used.cut()
        assert [await states.next(), await states.next()] == [State.DISCONNECTED, State.CONNECTED]
        assert other.connections_seen == 1
        assert client.session_id == session_id


async def expiry_is_told_by_the_server(scene: Scene) -> None:
    async with (
        scene.proxy() as proxy,
        scene.client() as other,
        scene.client(proxy.address, session_timeout_ms=SESSION_TIMEOUT_MS) as client,
    ):
        states = States(client)
        await client.create("/e", ephemeral=True)
        gone = Fired()
        await other.exists("/e", gone)
        proxy.refusing = True
        proxy.cut()
        assert await states.next() is State.DISCONNECTED
        waiting = client.submit_get("/")
        assert await gone.next() == (EventType.NODE_DELETED, "/e")
        assert client.state is State.DISCONNECTED  # Whatever the clock says: nobody has told it yet.
        assert not waiting.done()
        proxy.refusing = False
        assert await states.next() is State.EXPIRED
        with pytest.raises(keeper_exceptions.SessionExpired):
            await waiting
        with pytest.raises(keeper_exceptions.SessionExpired):
            await client.get("/")
        with pytest.raises(keeper_exceptions.SessionExpired):
            await client.add_auth("digest", b"a:b")


async def a_session_can_be_taken_over(scene: Scene) -> None:
    async with scene.proxy() as proxy, scene.client(proxy.address) as client:
        await client.create("/e", ephemeral=True)
        states = States(client)
        proxy.refusing = True  # Or the client would win its session back.
        heir = ZooKeeperClient(
            scene.environment,
            f"{scene.address}{scene.chroot}",
            session=(client.session_id, client.session_password),
        )
        await heir.start(PATIENCE_SECONDS * 1000)
        assert heir.session_id == client.session_id
        await heir.delete("/e")
        assert await states.next() is State.DISCONNECTED
        await heir.close()
        proxy.refusing = False
        assert await states.next() is State.EXPIRED
        with pytest.raises(keeper_exceptions.SessionExpired):
            await client.get("/")
        late = ZooKeeperClient(scene.environment, scene.address, session=(heir.session_id, b"wrong" * 3))
        with pytest.raises(keeper_exceptions.SessionExpired):
            await late.start(PATIENCE_SECONDS * 1000)


SCENARIOS = [
    operations,
    ephemerals_and_sequences,
    multis,
    watches_fire_once,
    watch_events_come_after_earlier_results,
    pipelining,
    cancelled_calls_disturb_nobody,
    access_control,
    refused_credentials_finish_the_client,
    chroot,
    trees,
    a_cut_connection,
    reads_are_retried_over_cuts,
    many_watches_survive_a_cut,
    the_largest_request,
    a_cut_between_two_notifications_loses_no_watch,
    a_cut_between_two_set_watches_loses_no_watch,
    a_silent_server_is_given_up,
    idle_sessions_are_kept_alive,
    garbage_closes_the_connection,
    another_host_takes_over,
    expiry_is_told_by_the_server,
    a_session_can_be_taken_over,
]
