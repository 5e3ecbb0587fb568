"""Requests that the embedded server executes in steps: their order, and what others see between two steps."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.simulation.machine.small_slices import small_slices
from klamm.zookeeper import jute, messages
from klamm.zookeeper.keeper_exceptions import ZooKeeperErrorCode
from klamm.zookeeper.messages import Acl, CreateMode, EventType, WatcherEvent
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.server.access_control import Caller
from klamm.zookeeper.server.long_work import LongWork, OpenTo
from support.growing_work import Growing, Work, too_long
from support.zookeeper.stage import Stage, run
from support.zookeeper.wire import Reply, WireClient

PATHS = [f"/n{number}" for number in range(8)]
SEEDS = range(5)


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Each operation of a multi is a step, and so is each event."""
    with small_slices():
        yield


def set_all(value: int) -> messages.Multi:
    return messages.Multi(tuple(messages.SetData(path, b"%d" % value) for path in PATHS))


def value_of(reply: Reply) -> int:
    assert isinstance(reply.response, messages.GetDataResponse)
    return int(reply.response.data or b"0")


async def create_all(client: WireClient) -> None:
    for path in PATHS:
        assert (await client.call(messages.Create(path, b"0"))).error == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_sees_half_of_a_multi(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        chance = random.Random(seed)
        writers = [await stage.client(), await stage.client()]
        reader = await stage.client()
        await create_all(reader)
        done = [False]

        async def read() -> int:
            newest = 0
            while not done[0]:
                count = chance.randrange(1, 20)
                for _ in range(count):
                    reader.send(messages.GetData(chance.choice(PATHS)))
                for _ in range(count):
                    value = value_of(await reader.reply())
                    assert value >= newest, "the multi of another session has two parts"
                    newest = value
            return newest

        async def write() -> None:
            for value in range(1, 30):
                writer = chance.choice(writers)
                assert (await writer.call(set_all(value))).error == 0
            done[0] = True

        newest, _ = await asyncio.gather(read(), write())
        assert newest > 1

    run(scenario, seed, takes_turns=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_write_comes_between_the_parts_of_a_multi(seed: int) -> None:
    """Each write of a znode counts its version up from what it was when the write was judged."""

    async def scenario(stage: Stage) -> None:
        clients = [await stage.client() for _ in range(3)]
        await create_all(clients[0])
        chance = random.Random(seed)

        async def write(client: WireClient) -> None:
            for _ in range(20):
                write = set_all(0) if chance.random() < 0.5 else messages.SetData(PATHS[-1], b"0")
                written[type(write)] += 1
                await asyncio.sleep(chance.uniform(0, 0.2))
                assert (await client.call(write)).error == 0

        written = {messages.Multi: 0, messages.SetData: 0}
        await asyncio.gather(*map(write, clients))
        versions = [stage.server.tree.stat(path).version for path in PATHS]
        assert versions == 7 * [written[messages.Multi]] + [60]

    run(scenario, seed, takes_turns=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_events_of_a_multi_come_before_replies_that_show_it(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        writer, reader = await stage.client(), await stage.client()
        await create_all(reader)
        for value in range(1, 10):
            for path in PATHS:
                reader.send(messages.GetData(path, True))
            for _ in PATHS:
                assert value_of(await reader.reply()) == value - 1
            writer.send(set_all(value))
            told: list[str] = []
            while True:
                reader.send(messages.GetData(PATHS[-1]))
                while isinstance(received := await reader.receive(), WatcherEvent):
                    assert received.type == EventType.NODE_DATA_CHANGED
                    told.append(received.path)
                is_new = value_of(received) == value
                assert told == (PATHS if is_new else PATHS[: len(told)])
                if is_new:
                    break
            assert (await writer.reply()).error == 0

    run(scenario, seed, takes_turns=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_behind_a_multi_wait_for_it(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        await create_all(client)
        for value in range(1, 20):
            client.send(set_all(value))
            client.send(messages.GetData(PATHS[0]))
            client.send(messages.SetData(PATHS[0], b"%d" % (1000 + value)))
            client.send(messages.GetChildren("/"))
            client.send(messages.GetData(PATHS[0]))
        for value in range(1, 20):
            assert (await client.reply()).error == 0
            assert value_of(await client.reply()) == value
            assert (await client.reply()).error == 0
            listed = (await client.reply()).response
            assert isinstance(listed, messages.GetChildrenResponse)
            assert sorted(listed.children) == sorted([*(path[1:] for path in PATHS), "zookeeper"])
            assert value_of(await client.reply()) == 1000 + value

    run(scenario, seed, takes_turns=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_that_goes_in_the_middle_leaves_all_or_nothing(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        chance = random.Random(seed)
        other = await stage.client(timeout_ms=10**6)
        await create_all(other)
        for value in range(1, 20):
            client = await stage.client(timeout_ms=4000)
            watches = messages.SetWatches(10**6, tuple(PATHS), (), tuple(PATHS))
            client.send(chance.choice((set_all(value), watches, messages.GetChildren("/", True))))
            client.send(set_all(value))
            await asyncio.sleep(chance.uniform(0, 0.01))
            client.drop()
            await asyncio.sleep(chance.choice((0, 1, 30)))
            values = {value_of(await other.call(messages.GetData(path))) for path in PATHS}
            assert len(values) == 1
        await asyncio.sleep(60)
        assert len(stage.server._connections) == 1
        assert len(stage.server._watches) == 0, "watches of those who have gone"

    run(scenario, seed, takes_turns=True, max_session_timeout_ms=10**6)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_znodes_of_a_session_go_together(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        reader = await stage.client()
        await reader.call(messages.Create("/all", b""))
        owner = await stage.client(timeout_ms=4000)
        for number in range(20):
            await owner.call(messages.Create(f"/all/{number}", b"", flags=CreateMode.EPHEMERAL))
        if seed % 2:
            owner.drop()
        else:
            owner.send(messages.CloseSession())
        count = 20
        while count:
            reader.send(messages.Exists("/all/0"))
            reader.send(messages.Exists("/all/19"))
            reader.send(messages.Exists("/all/10"))
            there = [(await reader.reply()).error == 0 for _ in range(3)]
            assert there == sorted(there, reverse=True)
            listed = (await reader.call(messages.GetChildren("/all"))).response
            assert isinstance(listed, messages.GetChildrenResponse)
            count = len(listed.children)
            assert count in (0, 20)
            await asyncio.sleep(0.0005)

    run(scenario, seed, takes_turns=True)


def test_a_server_that_stops_finishes_what_it_has_begun() -> None:
    async def scenario(stage: Stage) -> None:
        client = await stage.client()
        await create_all(client)
        client.send(set_all(1))
        work = stage.server._long_work
        while work.open_to is OpenTo.EVERYTHING:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.00001)
        await stage.node.run(stage.server.stop())
        assert (await client.reply()).error == 0
        assert {stage.server.tree.get_data(path, Caller(0, ()))[0] for path in PATHS} == {b"1"}

    run(scenario, takes_turns=True)


def test_a_long_request_that_is_none_closes_its_connection_only() -> None:
    async def scenario(stage: Stage) -> None:
        client, other = await stage.client(), await stage.client()
        frame = jute.encode_request(1, set_all(1))
        client.writer.write(frame[:-20] + b"\xff" * 20)
        await client.wait_closed_by_server()
        assert (await other.call(messages.Exists("/"))).error == 0

    run(scenario, takes_turns=True)


def test_an_acl_has_a_bounded_number_of_entries() -> None:
    """Each access looks at all of them."""

    async def scenario(stage: Stage) -> None:
        client, other = await stage.client(), await stage.client()
        entries = tuple(Acl(1, "ip", f"10.0.0.{number}") for number in range(jute.MAX_ACL_ENTRIES))
        assert (await client.call(messages.Create("/many", b"", entries))).error == 0
        client.send(messages.Create("/more", b"", (*entries, entries[0])))
        await client.wait_closed_by_server()
        assert (await other.call(messages.Exists("/many"))).error == 0
        assert (await other.call(messages.Exists("/more"))).error == ZooKeeperErrorCode.NO_NODE

    run(scenario)


# -- the queue


async def test_who_waits_for_an_opening_comes_before_the_next_piece_of_work() -> None:
    seen: list[str] = []
    loop = asyncio.get_running_loop()
    work = LongWork(lambda: loop.call_soon(seen.append, "opened"), lambda error: None)  # type: ignore[arg-type]

    def steps(name: str):
        for _ in range(2):
            seen.append(name)
            yield OpenTo.NOTHING

    work.begin(steps("a"))
    work.begin(steps("b"))
    await work.finish()
    await asyncio.sleep(0)
    assert seen == ["a", "a", "opened", "b", "b", "opened"]
    assert work.open_to is OpenTo.EVERYTHING


async def test_work_begun_by_the_end_of_other_work_is_done() -> None:
    seen: list[str] = []

    def last():
        seen.append("last")
        return
        yield

    work = LongWork(lambda: None, seen.append)  # type: ignore[arg-type]

    def first():
        yield OpenTo.NOTHING
        work.begin(last())

    work.begin(first())
    await work.finish()
    assert seen == ["last"]


async def test_a_step_that_raises_is_reported_and_the_rest_goes_on() -> None:
    failed: list[Exception] = []
    work = LongWork(lambda: None, failed.append)
    error = ValueError("x")

    def steps():
        yield OpenTo.NOTHING
        raise error

    work.begin(steps())
    await work.finish()
    assert failed == [error]
    assert work.open_to is OpenTo.EVERYTHING


# -- the length of steps


def numbered(size: int) -> list[str]:
    return [f"/a/{number:06}" for number in range(size)]


LONG: dict[str, Callable[[int], list[messages.Request]]] = {
    "checks": lambda size: [messages.Multi(tuple(messages.Check("/a", -1) for _ in range(size)))],
    "a check fails": lambda size: [
        messages.Multi((*(messages.Check("/a", -1) for _ in range(size)), messages.Check("/b", -1)))
    ],
    "creates, watches, sets, deletes": lambda size: [
        messages.Multi(tuple(messages.Create(path, b"") for path in numbered(size))),
        messages.GetChildren("/a", True),
        messages.SetWatches(10**6, tuple(numbered(size)), tuple(f"{path}x" for path in numbered(size)), ()),
        messages.Multi(tuple(messages.SetData(path, b"") for path in numbered(size))),
        messages.Multi(tuple(messages.Delete(path, -1) for path in numbered(size))),
    ],
    "ephemerals": lambda size: [
        messages.Multi(tuple(messages.Create(path, b"", flags=CreateMode.EPHEMERAL) for path in numbered(size))),
        messages.CloseSession(),
    ],
}
MOST = 38_000  # operations in 1 MB


@pytest.mark.parametrize("name", list(LONG))
async def test_no_step_grows_with_the_request(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def prepare(directory: Path, size: int) -> AsyncIterator[Work]:
        server = ZooKeeperServer(SystemEnvironment(), str(directory / "zookeeper"))
        await server.start()
        client = await WireClient.connect(server.port)
        await client.call(messages.Create("/a", b""))
        frames = [jute.encode_request(number + 1, request) for number, request in enumerate(LONG[name](size))]

        async def ask() -> None:
            for frame in frames:
                client.writer.write(frame)
                while jute.decode_reply_header(await client.frame()).xid == jute.XID_NOTIFICATION:
                    pass

        yield ask
        client.writer.close()
        await server.stop()

    monkeypatch.setattr("support.opcodes.ELSEWHERE", ())
    assert await too_long(Growing(prepare, MOST), tmp_path) is None
