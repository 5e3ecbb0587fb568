"""Our ZooKeeper client against Apache ZooKeeper 3.5.9 and 3.9: the scenarios that it plays with the embedded server."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.zookeeper.client import State
from support.oracles import RealZooKeeper
from support.zookeeper.scenarios import SCENARIOS, Scene, States

pytestmark = pytest.mark.loop("uvloop")


@pytest.fixture(params=["real_zookeeper", "real_zookeeper39"])
def zookeeper(request: pytest.FixtureRequest) -> RealZooKeeper:
    server: RealZooKeeper = request.getfixturevalue(request.param)
    return server


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario(scenario: Callable[[Scene], Awaitable[None]], zookeeper: RealZooKeeper) -> None:
    environment = SystemEnvironment()
    try:
        await scenario(Scene(environment, "127.0.0.1", zookeeper.port, "/" + scenario.__name__))
    finally:
        environment.close()


async def test_a_restart_of_the_server(
    kafka_jars: Path, tmp_path: Path, running: Callable[[RealZooKeeper], RealZooKeeper]
) -> None:
    """The session, its ephemeral znode and its watches outlive kill -9 of the server."""
    server = running(RealZooKeeper(kafka_jars, tmp_path))
    server.start()
    environment = SystemEnvironment()
    scene = Scene(environment, "127.0.0.1", server.port, "/restart")
    async with scene.client(session_timeout_ms=15_000) as client:
        states, session_id = States(client), client.session_id
        await client.create("/e", b"1", ephemeral=True)
        changed = asyncio.get_running_loop().create_future()
        await client.get("/e", changed.set_result)
        server.kill()
        assert await states.next() is State.DISCONNECTED
        waiting = client.submit_set("/e", b"2")
        server.launch()
        assert await states.next() is State.CONNECTED
        stat = await waiting
        assert (stat.version, stat.ephemeral_owner, client.session_id) == (1, session_id, session_id)
        assert (await changed).path == "/e"
    environment.close()
