"""What a broker answers right after its port has opened, when the controller has not told it of the cluster yet."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.broker.metadata import metadata_cache
from klamm.broker.start.broker import Broker
from klamm.protocol.apis.metadata import MetadataRequest
from klamm.protocol.apis.update_metadata import UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.zookeeper.client import ZooKeeperClient
from support.one_broker import Client, OneBroker, running

NO_CONTROLLER = -1


async def connect_when_it_opens(cluster: OneBroker) -> Client:
    while True:
        try:
            return await cluster.connect()
        except (AttributeError, OSError):  # not put together yet; does not accept yet
            await asyncio.sleep(0)


async def start_anew(cluster: OneBroker) -> "asyncio.Task[None]":
    await cluster.broker.stop()
    cluster.broker = Broker(cluster.config(), cluster.environment)
    cluster._stack.push_async_callback(cluster.broker.stop)
    return asyncio.ensure_future(cluster.broker.start())


@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER])
async def test_a_client_that_connects_the_moment_the_port_opens_is_told_of_the_controller(
    tmp_path: Path, api_key: ApiKey
) -> None:
    async with running(tmp_path) as (cluster, _):
        start = await start_anew(cluster)
        early = await connect_when_it_opens(cluster)
        metadata = {"topics": []}
        fields: dict[str, Any] = (
            metadata if api_key is ApiKey.METADATA else {"include_cluster_authorized_operations": False}
        )
        answer = await early.ask(api_key, **fields)
        assert (answer.controller_id, len(answer.brokers)) == (0, 1)
        await start


async def test_a_member_that_connects_the_moment_the_port_opens_finds_its_coordinator(tmp_path: Path) -> None:
    async with running(tmp_path, offsets_topic_num_partitions=1, offsets_topic_replication_factor=1) as (
        cluster,
        client,
    ):
        while (await client.ask(ApiKey.FIND_COORDINATOR, key="g")).error_code != ErrorCode.NONE:
            pass
        start = await start_anew(cluster)
        early = await connect_when_it_opens(cluster)
        # Nobody tries to place the offsets topic on a cluster of no brokers.
        while (answer := await early.ask(ApiKey.FIND_COORDINATOR, key="g")).error_code != ErrorCode.NONE:
            assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert "cannot be created" not in answer.error_message
        await start


async def test_in_a_cluster_without_a_controller_clients_are_answered_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_cache, "FIRST_UPDATE_TIMEOUT_MS", 1_000)
    async with running(tmp_path, controlled_shutdown_enable="false") as (cluster, _):
        await cluster.broker.stop()
        zookeeper = ZooKeeperClient(SystemEnvironment(), f"127.0.0.1:{cluster.zookeeper.port}")
        await zookeeper.start(5_000)
        # Somebody is elected and says nothing.
        await zookeeper.create("/controller", b'{"version":1,"brokerid":7,"timestamp":"0"}')
        await (await start_anew(cluster))
        early, other = await cluster.connect(), await cluster.connect()
        # What is not about the cluster is answered at once.
        software = {"client_software_name": "early", "client_software_version": "1"}
        asking = asyncio.ensure_future(early.ask(ApiKey.METADATA, topics=[]))
        assert (await other.ask(ApiKey.API_VERSIONS, **software)).error_code == ErrorCode.NONE
        assert not asking.done()
        answer = await asking
        assert answer.controller_id == NO_CONTROLLER
        # It names itself. From an answer without brokers librdkafka never recovers.
        assert [(broker.node_id, broker.port) for broker in answer.brokers] == [
            (0, cluster.broker.endpoints["PLAINTEXT"][1])
        ]
        # A second client does not wait as long.
        monkeypatch.setattr(metadata_cache, "FIRST_UPDATE_TIMEOUT_MS", 600_000)
        # It does not say that a topic does not exist, or try to create one.
        topics = [MetadataRequest.MetadataRequestTopic(name="t")]
        answer = await other.ask(ApiKey.METADATA, topics=topics, allow_auto_topic_creation=True)
        assert answer.controller_id == NO_CONTROLLER
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.LEADER_NOT_AVAILABLE]
        answer = await other.ask(ApiKey.FIND_COORDINATOR, key="g")
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "has not heard from a controller" in answer.error_message
        await zookeeper.close()


async def test_the_controllers_word_gets_in_while_clients_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_cache, "FIRST_UPDATE_TIMEOUT_MS", 600_000)
    async with running(tmp_path, controlled_shutdown_enable="false") as (cluster, _):
        await cluster.broker.stop()
        zookeeper = ZooKeeperClient(SystemEnvironment(), f"127.0.0.1:{cluster.zookeeper.port}")
        await zookeeper.start(5_000)
        await zookeeper.create("/controller", b'{"version":1,"brokerid":7,"timestamp":"0"}')
        await (await start_anew(cluster))
        early, controller = await cluster.connect(), await cluster.connect()
        asking = asyncio.ensure_future(early.ask(ApiKey.METADATA, topics=[]))
        seven = UpdateMetadataBroker(id=7, endpoints=[UpdateMetadataEndpoint(9092, "h", "PLAINTEXT", 0)])
        update = UpdateMetadataRequest(
            controller_id=7,
            controller_epoch=cluster.controller_epoch + 1,
            broker_epoch=cluster.broker_epoch,
            topic_states=[],
            live_brokers=[seven],
        )
        answer = await controller.request(ApiKey.UPDATE_METADATA, 7, update)
        assert answer.error_code == ErrorCode.NONE
        assert (await asking).controller_id == 7
        await zookeeper.close()
