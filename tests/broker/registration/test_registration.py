"""How a broker is known to the others, and the epoch that it has thereby."""

import asyncio
from pathlib import Path

import pytest

from klamm.base import json_bytes
from klamm.base.system_environment import SystemEnvironment
from klamm.broker.registration.registration import Registrar
from klamm.broker.start.broker import BrokerStartError
from klamm.config.versions import ApiVersion
from klamm.controller.channels.channel_manager import ControllerChannelManager
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import NO_EPOCH
from klamm.znodes.brokers import MAX_TEXT_BYTES
from klamm.zookeeper.client import ZooKeeperClient
from support.one_broker import OneBroker, batch, running, values


def test_what_was_meant_for_a_former_life_is_refused() -> None:
    registrar = Registrar(SystemEnvironment(), 0, None, {}, ApiVersion.V2_8_IV1)
    registrar.require_broker_epoch(0)  # Nothing is known yet.
    registrar.broker_epoch = 10
    for right in (NO_EPOCH, 10, 11):
        registrar.require_broker_epoch(right)
    for wrong in (9, 0):
        with pytest.raises(KafkaError, match=f"broker epoch {wrong}, this broker's is 10") as raised:
            registrar.require_broker_epoch(wrong)
        assert raised.value.code is ErrorCode.STALE_BROKER_EPOCH


async def test_the_epoch_is_that_of_the_newest_registration(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, _):
        zk = ZooKeeperClient(SystemEnvironment(), f"127.0.0.1:{cluster.zookeeper.port}")
        await zk.start(5_000)
        epochs = []
        for end in (cluster.broker.stop, cluster.kill_broker, cluster.broker.stop):
            epochs.append(cluster.broker_epoch)
            stat = await zk.exists("/brokers/ids/0")
            assert stat is not None and stat.czxid == epochs[-1]
            await end()
            await cluster.start_broker()
        assert epochs == sorted(set(epochs))
        await zk.close()


async def test_a_killed_controller_takes_over_at_once_and_leaves_others_alone(tmp_path: Path) -> None:
    """The session of its former life would live for a minute, and /controller with it."""
    async with asyncio.timeout(30), OneBroker(tmp_path, zookeeper_session_timeout_ms=40_000) as cluster:
        epoch = cluster.controller_epoch
        for restart in range(1, 4):
            # The former life may have been a short one, too.
            await cluster.kill_broker()
            await cluster.start_broker()
            assert (cluster.broker.parts.controller.is_active, cluster.controller_epoch) == (True, epoch + restart)


async def test_a_rack_that_no_request_can_hold(tmp_path: Path) -> None:
    """The controller could not send any broker the state of the cluster."""
    async with running(tmp_path) as (cluster, _):
        await cluster.broker.stop()
        cluster.properties["broker.rack"] = "é" * (MAX_TEXT_BYTES // 2) + "ab"
        with pytest.raises(BrokerStartError, match=r"broker.rack is 32768 bytes long; allowed are up to 32767"):
            await cluster.start_broker()
        await cluster.broker.stop()
        cluster.properties["broker.rack"] = "é" * (MAX_TEXT_BYTES // 2) + "a"
        await cluster.start_broker()
        assert (await (await cluster.connect()).create_topic("t")).error_code == 0


@pytest.mark.parametrize(("protocol", "version"), [("2.4", 4), ("2.6", 4), ("2.7-IV0", 5), ("2.8", 5)])
async def test_an_older_protocol_has_an_older_registration(tmp_path: Path, protocol: str, version: int) -> None:
    async with running(tmp_path, inter_broker_protocol_version=protocol) as (cluster, _):
        data, _ = await cluster.broker.zookeeper.store.client.get("/brokers/ids/0")
        registration = json_bytes.decode(data)
        assert registration["version"] == version
        assert ("features" in registration) == (version == 5)


@pytest.mark.parametrize(("protocol", "has_id"), [("2.4", False), ("2.7", False), ("2.8-IV0", True)])
async def test_topics_have_ids_since_2_8(tmp_path: Path, protocol: str, has_id: bool) -> None:
    """Those without one get it from the first controller that can give it."""

    async def has_topic_id(cluster: OneBroker) -> bool:
        assignment = await cluster.broker.zookeeper.store.topic_assignment("t")
        assert assignment is not None
        return assignment.topic_id is not None

    async with running(tmp_path, inter_broker_protocol_version=protocol) as (cluster, client):
        created = await client.create_topic("t")
        assert (created.error_code, bool(created.topic_id and created.topic_id.int)) == (0, has_id)
        assert (await client.produce("t", 0, batch(b"a"))).error_code == 0
        assert await has_topic_id(cluster) == has_id
        cluster.properties["inter.broker.protocol.version"] = "2.8"
        await cluster.restart_broker()
        assert await has_topic_id(cluster)
        assert values((await (await cluster.connect()).fetch("t", 0, 0)).records) == [b"a"]


async def test_the_controller_uses_the_control_plane_listener(tmp_path: Path) -> None:
    """Control requests come over it, both ways; clients have the other."""
    async with running(
        tmp_path,
        listeners="PLAINTEXT://127.0.0.1:0,CONTROL://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT",
        control_plane_listener_name="control",
    ) as (cluster, client):
        assert (await client.create_topic("t")).error_code == 0
        servers = cluster.broker.parts.listeners
        assert {name: server.connection_count for name, server in servers.items()} == {"PLAINTEXT": 1, "CONTROL": 1}
        metadata = await client.ask(ApiKey.METADATA, topics=None)
        assert [broker.port for broker in metadata.brokers] == [servers["PLAINTEXT"].port]
        channels = cluster.broker.parts.controller._parts.channels
        assert isinstance(channels, ControllerChannelManager)
        (channel,) = channels._channels.values()
        assert channel._address == (servers["CONTROL"].host, servers["CONTROL"].port)
        other_way = await cluster.broker.parts.controller_channel._connected()
        assert other_way.address == channel._address
