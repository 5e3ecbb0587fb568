"""The embedded server as its clients see it: sessions, order, watches, bounds, bad input, operators' words."""

import asyncio
import os
import socket
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.base.system_environment import SystemEnvironment
from klamm.zookeeper import jute, messages
from klamm.zookeeper.framing import MAX_REQUEST_BYTES
from klamm.zookeeper.keeper_exceptions import ZooKeeperErrorCode
from klamm.zookeeper.messages import Acl, CreateMode, EventType, OpCode, WatcherEvent
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.server.cnxn import MAX_HELD
from support.one_broker import socket_transport
from support.zookeeper.stage import Stage, run
from support.zookeeper.wire import Reply, WireClient

pytestmark = pytest.mark.loop("uvloop")


def event(kind: EventType, path: str) -> WatcherEvent:
    return WatcherEvent(kind, 3, path)


# -- sessions


@pytest.mark.parametrize(("asked_ms", "granted_ms"), [(1, 4000), (4000, 4000), (15_000, 15_000), (10**6, 40_000)])
def test_the_timeout_is_between_two_and_twenty_ticks(asked_ms: int, granted_ms: int) -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client(timeout_ms=asked_ms)
        assert client.session.timeout_ms == granted_ms
        assert client.session.session_id != 0
        assert len(client.session.password) == 16

    run(scenario)


def test_the_bounds_of_the_timeout_can_be_set() -> None:
    async def scenario(stage: Stage) -> None:
        assert (await stage.client(timeout_ms=1)).session.timeout_ms == 100
        assert (await stage.client(timeout_ms=9999)).session.timeout_ms == 700

    run(scenario, min_session_timeout_ms=100, max_session_timeout_ms=700)


def test_a_silent_session_expires_at_its_timeout_and_its_ephemerals_go() -> None:
    async def scenario(stage: Stage) -> None:
        watcher = await stage.client()
        client = await stage.client(timeout_ms=4000)
        await client.call(messages.Create("/e", b"", flags=CreateMode.EPHEMERAL))
        await watcher.call(messages.Exists("/e", True))
        for _ in range(5):
            await asyncio.sleep(3.5)
            await client.call(messages.Ping())
            await watcher.call(messages.Ping())
        before_s = stage.world.loop.time()
        assert await watcher.next_event() == event(EventType.NODE_DELETED, "/e")
        assert 3.9 < stage.world.loop.time() - before_s < 4.1
        await client.wait_closed_by_server()
        again = await stage.client(session=client.session)
        assert again.session == messages.ConnectResponse(0, 0, bytes(16))
        await again.wait_closed_by_server()

    run(scenario)


def test_a_session_moves_to_a_new_connection_and_the_old_one_ends() -> None:
    async def scenario(stage: Stage) -> None:
        old = await stage.client()
        await old.call(messages.Create("/e", b"", flags=CreateMode.EPHEMERAL))
        new = await stage.client(session=old.session)
        assert new.session == old.session
        await old.wait_closed_by_server()
        await asyncio.sleep(30)  # the old connection's end does not end the session
        await new.call(messages.Ping())
        assert not (await new.call(messages.Exists("/e"))).error
        assert stage.server._tree.stat("/e").ephemeral_owner == new.session.session_id

    run(scenario, max_session_timeout_ms=40_000, min_session_timeout_ms=40_000)


def test_a_wrong_password_does_not_get_the_session_nor_disturbs_it() -> None:
    async def scenario(stage: Stage) -> None:
        owner = await stage.client()
        thief = await stage.client(session=owner.session._replace(password=b"x" * 16))
        assert thief.session.session_id == 0
        await thief.wait_closed_by_server()
        assert not (await owner.call(messages.Exists("/"))).error

    run(scenario)


def test_a_client_from_the_future_is_turned_away() -> None:
    async def scenario(stage: Stage) -> None:
        with pytest.raises((EOFError, OSError)):
            await stage.client(last_zxid_seen=1000)

    run(scenario)


def test_a_connection_that_asks_for_no_session_does_not_stay() -> None:
    async def scenario(stage: Stage) -> None:
        stranger = await stage.stranger()
        await stranger.wait_closed_by_server()

    run(scenario)


def test_closing_a_session_answers_and_then_closes_the_connection() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        await client.call(messages.Create("/e1", b"", flags=CreateMode.EPHEMERAL))
        await client.call(messages.Create("/e2", b"", flags=CreateMode.EPHEMERAL))
        zxid = stage.server._tree.zxid
        client.send(messages.CloseSession())
        client.send(messages.Create("/too-late", b""))
        reply = await client.reply()
        assert (reply.error, reply.zxid) == (0, zxid + 1)
        assert await client.wait_closed_by_server() == b""
        assert stage.server._tree.get_children("/", None)[0] == ["zookeeper"]  # type: ignore[arg-type]
        assert len(stage.server._sessions) == 0

    run(scenario)


def test_requests_pipelined_behind_the_connect_request_are_answered() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.stranger()
        client.writer.write(jute.encode_connect_request(messages.ConnectRequest(0, 5000, 0, bytes(16))))
        client.send(messages.Create("/a", b""))
        client.session = jute.decode_connect_response(await client.frame())
        assert (await client.reply()).error == 0

    run(scenario)


async def test_a_pause_of_the_server_is_not_held_against_its_clients(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    client = socket.socket()

    def stand_still(zxid: int, description: str) -> None:
        if "/pause" in description:
            client.sendall(jute.encode_request(jute.XID_PING, messages.Ping()))  # arrives, and is not read yet
            time.sleep(1)

    environment = SystemEnvironment()
    server = ZooKeeperServer(
        environment, str(tmp_path / "data"), min_session_timeout_ms=300, on_transaction=stand_still
    )
    await server.start()
    other = await WireClient.connect(server.port)
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", server.port))
    await loop.sock_sendall(client, jute.encode_connect_request(messages.ConnectRequest(0, 300, 0, bytes(16))))
    response = jute.decode_connect_response((await loop.sock_recv(client, 100))[4:])
    await loop.sock_sendall(
        client, jute.encode_request(1, messages.Create("/e", b"", flags=CreateMode.EPHEMERAL, op=OpCode.CREATE))
    )
    await loop.sock_recv(client, 100)
    await other.call(messages.Create("/pause", b""))
    assert (await other.call(messages.Exists("/e"))).error == 0
    header = jute.decode_reply_header((await loop.sock_recv(client, 100))[4:])
    assert header.xid == jute.XID_PING
    await other.call(messages.Exists("/e", True))
    assert (await other.next_event()).type == EventType.NODE_DELETED, "silence still ends a session"
    assert response.session_id not in [session.id for session in server._sessions]
    client.close()
    await server.stop()
    environment.close()


def test_a_client_that_waits_for_the_disk_does_not_expire() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client(timeout_ms=4000)
        release = stage.hold_disk()
        client.send(messages.Create("/e", b"", flags=CreateMode.EPHEMERAL))
        await asyncio.sleep(20)
        release.set_result(None)
        assert (await client.reply()).error == 0
        assert (await client.call(messages.Exists("/e"))).error == 0

    run(scenario)


# -- order


def test_replies_come_in_order_and_reads_see_the_writes_before_them() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        client.send(messages.Create("/a", b"0"))
        for number in range(1, 200):
            client.send(messages.SetData("/a", b"%d" % number))
            client.send(messages.GetData("/a"))
            client.send(messages.Create("/a", b""))
        await client.reply()
        for number in range(1, 200):
            assert (await client.reply()).error == 0
            read = await client.reply()
            assert isinstance(read.response, messages.GetDataResponse)
            assert read.response.data == b"%d" % number
            refused = await client.reply()
            assert refused.error == ZooKeeperErrorCode.NODE_EXISTS
            assert refused.zxid == read.zxid == read.response.stat.mzxid

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_an_event_comes_before_any_reply_that_shows_the_change(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        writer, reader = await stage.client(), await stage.client()
        await writer.call(messages.Create("/a", b""))
        for number in range(1, 30):
            watched = await reader.call(messages.GetData("/a", True))
            assert isinstance(watched.response, messages.GetDataResponse)
            assert watched.response.stat.version == number - 1
            writer.send(messages.SetData("/a", b""))
            told = False
            while True:
                reader.send(messages.GetData("/a"))
                while isinstance(received := await reader.receive(), WatcherEvent):
                    assert received == event(EventType.NODE_DATA_CHANGED, "/a")
                    told = True
                assert isinstance(received.response, messages.GetDataResponse)
                assert told == (received.response.stat.version == number)
                if told:
                    break
            await writer.reply()

    run(scenario, seed)


def test_the_writer_hears_of_its_own_watch_before_its_reply() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        await client.call(messages.Exists("/a", True))
        await client.call(messages.GetChildren("/", True))
        client.send(messages.Create("/a", b""))
        assert await client.receive() == event(EventType.NODE_CREATED, "/a")
        assert await client.receive() == event(EventType.NODE_CHILDREN_CHANGED, "/")
        assert isinstance(await client.receive(), Reply)

    run(scenario)


def test_set_watches_tells_what_was_missed_before_its_reply() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        seen = (await client.call(messages.Create("/a", b""))).zxid
        client.drop()
        other = await stage.client()
        await other.call(messages.SetData("/a", b"missed"))
        again = await stage.client(session=client.session)
        again.send(messages.SetWatches(seen, ("/a",), ("/b",), ("/a",)))
        assert await again.receive() == event(EventType.NODE_DATA_CHANGED, "/a")
        assert (await again.reply()).error == 0
        await other.call(messages.Create("/a/child", b""))
        assert await again.receive() == event(EventType.NODE_CHILDREN_CHANGED, "/a")
        await other.call(messages.Create("/b", b""))
        assert await again.receive() == event(EventType.NODE_CREATED, "/b")

    run(scenario)


def test_watches_end_with_their_connection() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        await client.call(messages.Exists("/a", True))
        await client.call(messages.GetChildren("/", True))
        assert len(stage.server._watches) == 2
        client.drop()
        await asyncio.sleep(1)
        assert len(stage.server._watches) == 0

    run(scenario)


# -- answers


def test_a_multi_answers_each_operation() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        done = await client.call(
            messages.Multi(
                (messages.Create("/a", b"", op=OpCode.CREATE), messages.SetData("/a", b"x", 0), messages.Check("/a", 1))
            )
        )
        assert isinstance(done.response, messages.MultiResponse)
        create, set_data, check = done.response.results
        assert (create.op, create.path) == (OpCode.CREATE, "/a")
        assert set_data.stat is not None and (set_data.stat.version, set_data.stat.czxid) == (1, done.zxid)
        assert check.op == OpCode.CHECK
        failed = await client.call(
            messages.Multi((messages.Delete("/a"), messages.Delete("/b"), messages.Delete("/c")))
        )
        assert isinstance(failed.response, messages.MultiResponse)
        assert [(result.op, result.error) for result in failed.response.results] == [
            (OpCode.ERROR, ZooKeeperErrorCode.OK),
            (OpCode.ERROR, ZooKeeperErrorCode.NO_NODE),
            (OpCode.ERROR, ZooKeeperErrorCode.RUNTIME_INCONSISTENCY),
        ]
        assert failed.zxid == done.zxid

    run(scenario)


def test_digest_identities_open_what_is_theirs() -> None:
    async def scenario(stage: Stage) -> None:
        owner, other = await stage.client(), await stage.client()
        assert (await owner.call(messages.Auth("digest", b"me:secret"))).error == 0
        await owner.call(messages.Create("/mine", b"x", acl=(Acl(31, "auth", ""),)))
        assert (await other.call(messages.GetData("/mine"))).error == ZooKeeperErrorCode.NO_AUTH
        assert (await other.call(messages.Auth("digest", b"me:wrong"))).error == 0
        assert (await other.call(messages.GetData("/mine"))).error == ZooKeeperErrorCode.NO_AUTH
        assert (await other.call(messages.Auth("digest", b"me:secret"))).error == 0
        assert (await other.call(messages.GetData("/mine"))).error == 0

    run(scenario)


def test_identities_are_bounded() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        for number in range(10):
            assert (await client.call(messages.Auth("digest", b"%0300d:secret" % number))).error == 0
        assert (await client.call(messages.Auth("digest", bytes(4096)))).error == ZooKeeperErrorCode.AUTH_FAILED
        await client.wait_closed_by_server()

    run(scenario)


def test_a_multi_too_large_for_the_log_is_refused_and_changes_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        assert (await client.call(messages.Auth("digest", 4000 * b"x" + b":secret"))).error == 0
        acl = (Acl(31, "auth", ""),)  # a few bytes that stand for thousands
        multi = messages.Multi(tuple(messages.Create(f"/{number}", b"", acl) for number in range(2000)))
        assert (await client.call(multi)).error == ZooKeeperErrorCode.BAD_ARGUMENTS
        assert (await client.call(messages.Exists("/0"))).error == ZooKeeperErrorCode.NO_NODE
        assert (await client.call(messages.Create("/after", b""))).error == 0

    run(scenario)


def test_an_unknown_scheme_is_refused_and_the_connection_closed() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        assert (await client.call(messages.Auth("kerberos", b"x"))).error == ZooKeeperErrorCode.AUTH_FAILED
        await client.wait_closed_by_server()

    run(scenario)


def test_unknown_operations_are_unimplemented_and_the_connection_stays() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        client.writer.write(struct.pack(">iii", 8, 77, 4711))
        header = jute.decode_reply_header(await client.frame())
        assert (header.xid, header.error) == (77, ZooKeeperErrorCode.UNIMPLEMENTED)
        assert (await client.call(messages.Exists("/"))).error == 0

    run(scenario)


def test_empty_containers_are_removed_after_a_while() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client(timeout_ms=40_000)
        await client.call(messages.Create("/box", b"", flags=CreateMode.CONTAINER, op=OpCode.CREATE_CONTAINER))
        await client.call(messages.Create("/box/thing", b""))
        await client.call(messages.Delete("/box/thing"))
        await client.call(messages.Exists("/box", True))
        await asyncio.sleep(35)
        await client.call(messages.Ping())
        assert await client.next_event() == event(EventType.NODE_DELETED, "/box")

    run(scenario)


def test_every_transaction_is_told_to_the_hook() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        await client.call(messages.Create("/a", b""))
        await client.call(messages.Create("/a", b""))
        await client.call(messages.CloseSession())
        assert [zxid for zxid, _ in stage.transactions] == [1, 2, 3]
        assert "/a" in stage.transactions[1][1]

    run(scenario)


# -- bounds and bad input


def test_a_client_that_does_not_read_is_muted_and_the_others_are_served() -> None:
    async def scenario(stage: Stage) -> None:
        greedy, other = await stage.client(timeout_ms=40_000), await stage.client()
        await greedy.call(messages.Create("/big", bytes(900_000)))
        socket_transport(greedy.writer).pause_reading()
        for _ in range(300):
            greedy.send(messages.GetData("/big"))
        await asyncio.sleep(5)
        (connection,) = [
            c for c in stage.server._connections if c.session and c.session.id == greedy.session.session_id
        ]
        executed = connection.received
        assert executed < 20, "it stops long before 300 replies of 900 KB"
        assert not (await other.call(messages.Create("/small", b""))).error
        await asyncio.sleep(5)
        assert connection.received == executed
        socket_transport(greedy.writer).resume_reading()
        for _ in range(300):
            reply = await greedy.reply()
            assert isinstance(reply.response, messages.GetDataResponse)
            assert reply.response.data == bytes(900_000)

    run(scenario)


def test_what_waits_for_the_disk_is_bounded() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client(timeout_ms=40_000)
        release = stage.hold_disk()
        client.send(messages.Create("/a", b""))
        for _ in range(3 * MAX_HELD):
            client.send(messages.Exists("/a"))
        await asyncio.sleep(10)
        (connection,) = stage.server._connections
        assert connection.held == MAX_HELD
        release.set_result(None)
        for _ in range(3 * MAX_HELD + 1):
            assert (await client.reply()).error == 0
        assert connection.held == connection.held_bytes == 0

    run(scenario)


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0x100000),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">ii", 4, 1),
        struct.pack(">iii", 8, 1, OpCode.GET_DATA),
        struct.pack(">iiii", 12, 1, OpCode.GET_DATA, 2**31 - 1),
        struct.pack(">iiiI", 12, 1, OpCode.MULTI, 0xFFFFFFFF),
        struct.pack(">iiii", 12, 1, OpCode.SET_WATCHES, 5),
    ],
)
def test_garbage_closes_its_own_connection_only(garbage: bytes) -> None:
    async def scenario(stage: Stage) -> None:
        bad, good = await stage.client(), await stage.client()
        bad.writer.write(garbage)
        await bad.wait_closed_by_server()
        stranger = await stage.stranger()
        stranger.writer.write(garbage)
        await stranger.wait_closed_by_server()
        assert (await good.call(messages.Exists("/"))).error == 0
        again = await stage.client(session=bad.session)
        assert again.session == bad.session, "the session itself lives on"

    run(scenario)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_no_bytes_disturb_the_server(data: bytes, framed: bool, with_session: bool) -> None:
    async def scenario(stage: Stage) -> None:
        bad = await (stage.client() if with_session else stage.stranger())
        bad.writer.write(struct.pack(">i", len(data)) + data if framed else data)
        good = await stage.client()
        assert (await good.call(messages.Exists("/"))).error == 0
        bad.drop()

    run(scenario)


def test_a_frame_of_the_largest_size_is_taken_and_a_larger_one_is_not() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        overhead = len(jute.encode_request(1, messages.Create("/a", b""))) - 4
        assert (await client.call(messages.Create("/a", bytes(MAX_REQUEST_BYTES - overhead)))).error == 0
        client.send(messages.Create("/b", bytes(MAX_REQUEST_BYTES - overhead + 1)))
        assert await client.wait_closed_by_server() == b""

    run(scenario)


@pytest.mark.loop("asyncio")
async def test_a_port_in_use_is_an_error_that_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = SystemEnvironment()
    first = ZooKeeperServer(environment, str(tmp_path / "first"))
    await first.start()
    second = ZooKeeperServer(environment, str(tmp_path / "second"), port=first.port)
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
    assert os.listdir(tmp_path) == ["first"]
    third = ZooKeeperServer(environment, str(tmp_path / "second"))
    await third.start()
    for server in (first, third, third):
        await server.stop()
    environment.close()


# -- operators


def test_four_letter_words() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        await client.call(messages.Create("/e", b"abc", flags=CreateMode.EPHEMERAL))
        await client.call(messages.Exists("/e", True))

        async def ask(word: str) -> str:
            stranger = await stage.stranger()
            stranger.writer.write(word[:2].encode())
            await asyncio.sleep(0.1)
            stranger.writer.write(word[2:].encode())
            return (await stranger.wait_closed_by_server()).decode()

        assert await ask("ruok") == "imok"
        assert await ask("isro") == "rw"
        assert "Mode: standalone\nNode count: 6\n" in await ask("srvr")
        assert "Zxid: 0x2\n" in await ask("srvr")
        assert f"(queued=0,recved={3},sent=3)" in await ask("stat")
        figures = dict(line.split("\t") for line in (await ask("mntr")).splitlines())
        assert figures["zk_server_state"] == "standalone"
        assert figures["zk_znode_count"] == "6"
        assert figures["zk_watch_count"] == "1"
        assert figures["zk_ephemerals_count"] == "1"
        assert figures["zk_num_alive_connections"] == "2"
        assert "tickTime=2000\n" in await ask("conf")

    run(scenario)
