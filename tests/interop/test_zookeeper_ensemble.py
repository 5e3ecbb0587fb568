"""klamm's brokers on three Apache ZooKeeper servers, each on another one, while the server of one stands still."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.broker.start.broker import Broker
from klamm.client.cluster import ClusterClient
from klamm.config.broker import BrokerConfig
from klamm.net.client import ConnectionOptions
from klamm.simulation.workloads.workload import create_topic
from klamm.zookeeper.client import ZooKeeperClient
from support.oracles import EnsembleMember, RealEnsemble

CONFIGS = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
PAUSE_S = 0.5


@pytest.fixture(scope="module")
def ensemble(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEnsemble]:
    ensemble = RealEnsemble(kafka_jars, tmp_path_factory.mktemp("ensemble"))
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.kill()


@pytest.fixture
def ensemble39(zookeeper39_jars: Path, tmp_path: Path, running: Callable[[Any], Any]) -> RealEnsemble:
    ensemble: RealEnsemble = running(RealEnsemble(zookeeper39_jars, tmp_path / "zookeeper"))
    ensemble.start()
    return ensemble


async def test_new_topics_have_their_configurations_whichever_server_lags(
    ensemble: RealEnsemble, tmp_path: Path
) -> None:
    await _create_topics(ensemble, tmp_path, topics=3)


@pytest.mark.long
@pytest.mark.parametrize("version", ["ensemble", "ensemble39"])
async def test_many_new_topics_have_their_configurations(
    version: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    await _create_topics(request.getfixturevalue(version), tmp_path, topics=20)


async def _create_topics(ensemble: RealEnsemble, directory: Path, topics: int) -> None:
    async with AsyncExitStack() as stack:
        lagging = ensemble.followers[0]
        stack.callback(lagging.resume)
        # The first one becomes the controller.
        servers = [ensemble.leader, *reversed(ensemble.followers)]
        brokers = [await _start(stack, id_, server, directory) for id_, server in enumerate(servers)]
        client = ClusterClient([brokers[0].endpoints["PLAINTEXT"]], ConnectionOptions())
        stack.push_async_callback(client.close)
        for number in range(topics):
            lagging.pause()
            asyncio.get_running_loop().call_later(PAUSE_S, lagging.resume)
            await create_topic(client, f"t{number}", partitions=3, replication_factor=3, configs=CONFIGS)
            await _heard_of(f"t{number}", brokers)
            assert [broker.parts.topic_configs.of(f"t{number}").overrides for broker in brokers] == [CONFIGS] * 3


async def _heard_of(topic: str, brokers: list[Broker]) -> None:
    """Returns when all brokers know the topic; before that each has been told of its replicas."""
    for _ in range(300):
        if all(topic in broker.parts.metadata_cache.snapshot.topics for broker in brokers):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{topic} is not known everywhere")


async def _start(stack: AsyncExitStack, broker_id: int, server: EnsembleMember, directory: Path) -> Broker:
    environment = SystemEnvironment()
    properties = {
        "broker.id": str(broker_id),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / f"broker-{broker_id}"),
        "zookeeper.connect": f"{server.address}/{directory.name}",
        "controlled.shutdown.enable": "false",
    }
    broker = Broker(BrokerConfig.from_properties(properties), environment)
    stack.callback(environment.close)
    stack.push_async_callback(broker.stop)
    await broker.start()
    await broker.wait_until_known()
    return broker


async def test_sync_catches_up_with_the_others(ensemble: RealEnsemble) -> None:
    """A client's read behind a sync shows what was written while its server stood still."""
    environment = SystemEnvironment()
    lagging = ensemble.followers[0]
    async with AsyncExitStack() as stack:
        stack.callback(environment.close)
        clients = [ZooKeeperClient(environment, server.address) for server in (ensemble.leader, lagging)]
        for client in clients:
            await client.start(60_000)
            stack.push_async_callback(client.close)
        # Other tests use the ensemble too.
        stack.callback(lagging.resume)
        writer, reader = clients
        await writer.create("/a", b"0")
        for number in range(1, 6):
            lagging.pause()
            await writer.set("/a", b"%d" % number)
            synced = asyncio.ensure_future(reader.sync())
            await asyncio.sleep(0)
            read = reader.submit_get("/a")
            lagging.resume()
            await synced
            assert (await read)[0] == b"%d" % number
