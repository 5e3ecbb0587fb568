"""The client on virtual time, while the server's machine dies and the network is cut, again and again."""

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial

import pytest

from klamm.simulation.cluster.ensemble import EnsembleServer, Lag
from klamm.simulation.machine.small_slices import small_slices
from klamm.simulation.machine.world import World
from klamm.znodes import batches
from klamm.zookeeper import keeper_exceptions
from klamm.zookeeper.client import State, ZooKeeperClient, retrying
from klamm.zookeeper.messages import Create, MultiOperation, SetData, WatcherEvent
from klamm.zookeeper.server import ZooKeeperServer

WRITES = 100
SESSION_TIMEOUT_MS = 60_000
MakeServer = Callable[..., ZooKeeperServer]
PATIENT = partial(ZooKeeperServer, max_session_timeout_ms=SESSION_TIMEOUT_MS)


class Scene:
    """A server and clients, on a machine each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server, self.app = world.node("zookeeper"), world.node("app")

    async def start_server(self, make: MakeServer = PATIENT) -> None:
        server = make(self.server.environment, "/zookeeper", self.server.address, 2181)
        await self.server.run(server.start())

    async def client(self) -> ZooKeeperClient:
        client = ZooKeeperClient(self.app.environment, "zookeeper:2181", session_timeout_ms=SESSION_TIMEOUT_MS)
        await self.app.run(client.start(60_000))
        return client

    async def trouble(self, client: ZooKeeperClient, calm: asyncio.Event) -> None:
        """Crashes of the server's process and machine, and cuts of the network, until `calm`.

        A cut lasts so long that the client gives the connection up, and ends before the session does; the next trouble
        comes when it is connected again.
        """
        chance = self.world.random
        connected = asyncio.Event()
        connected.set()
        client.add_listener(lambda state: connected.set() if state is State.CONNECTED else connected.clear())
        while not calm.is_set():
            await asyncio.sleep(chance.uniform(0.001, 0.1))
            await connected.wait()
            if chance.random() < 0.3:
                self.world.network.cut("app", "zookeeper")
                await asyncio.sleep(chance.uniform(0.85, 0.9) * SESSION_TIMEOUT_MS / 1000)
                self.world.network.heal("app", "zookeeper")
            else:
                self.server.crash(machine=chance.random() < 0.5)
                await asyncio.sleep(chance.uniform(0, 1))
                self.server.restart()
                await self.start_server()


@pytest.mark.parametrize("takes_turns", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_no_watch_is_lost_when_a_connection_breaks_among_notifications(seed: int, takes_turns: bool) -> None:
    """The server names zxids in its notifications, as ZooKeeper does since 3.9. Pauses between slices take time."""
    world = World(seed)
    if takes_turns:
        world.loop.turns = random.Random(seed)
    paths = [f"/{number}" for number in range(20)]

    async def scenario() -> None:
        scene = Scene(world)
        await scene.start_server(
            partial(EnsembleServer, lag=Lag(random.Random(0)), on_transaction=lambda _zxid, _txn: None)
        )
        client, other = await scene.client(), await scene.client()
        for path in paths:
            await client.create(path)
        for _ in range(30):
            watches = Watches(client, paths)
            for path in paths:
                await retrying(client.get, path, watches)
            await other.multi([SetData(path, b"") for path in paths])
            async with asyncio.timeout(60):
                await watches.all_fired.wait()

    with small_slices() if takes_turns else nullcontext():
        world.run(scenario())


class Watches:
    """A watch of each path; the first that fires breaks the connection."""

    def __init__(self, client: ZooKeeperClient, paths: Iterable[str]) -> None:
        self.all_fired = asyncio.Event()
        self._client = client
        self._left = dict.fromkeys(paths)

    def __call__(self, event: WatcherEvent) -> None:
        if self._client._connection is not None:
            self._client._connection.abort("broken by the test")
        self._left.pop(event.path, None)
        if not self._left:
            self.all_fired.set()


def version_of(result: batches.Result) -> int:
    assert not isinstance(result, keeper_exceptions.ZooKeeperError)
    return 0 if result.stat is None else result.stat.version


@pytest.mark.parametrize("seed", range(8))
def test_batched_writes_are_done_exactly_once(seed: int) -> None:
    """Conditional writes of one writer: every one must find the version that the one before it has left."""
    world = World(seed)

    async def scenario() -> None:
        scene = Scene(world)
        await scene.start_server()
        client = await scene.client()
        states: list[State] = []
        client.add_listener(states.append)
        await client.create("/controller_epoch", b"1")
        await client.create("/a", b"")
        await client.create("/b", b"")
        calm = asyncio.Event()
        trouble = asyncio.ensure_future(scene.trouble(client, calm))
        fired: list[WatcherEvent] = []

        async def write() -> None:
            for number in range(WRITES):
                await retrying(client.exists, f"/n{number}", fired.append)
                some: list[MultiOperation] = [
                    Create(f"/n{number}", b"%d" % number),
                    SetData("/a", b"%d" % number, number),
                    SetData("/b", b"%d" % number, number),
                ]
                results = await batches.write(client, some, 0)
                assert [version_of(result) for result in results] == [0, number + 1, number + 1]

        await scene.app.run(write())
        calm.set()
        await trouble

        async def check() -> None:
            data, stat = await retrying(client.get, "/b")
            assert (data, stat.version) == (b"%d" % (WRITES - 1), WRITES)
            assert len(await retrying(client.children, "/")) == WRITES + 4

        await scene.app.run(check())
        assert State.DISCONNECTED in states
        assert State.EXPIRED not in states
        assert sorted(event.path for event in fired) == sorted(f"/n{number}" for number in range(WRITES))
        await scene.app.run(client.close())

    world.run(scenario())
