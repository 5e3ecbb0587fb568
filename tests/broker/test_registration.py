"""How a broker is known to the others, and the epoch that it has thereby."""

import asyncio
from pathlib import Path

import pytest
from one_broker import Client, OneBroker, run

from klamm.broker.broker import BrokerStartError
from klamm.broker.registration import NO_EPOCH, Registrar
from klamm.config.versions import ApiVersion
from klamm.environment import SystemEnvironment
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.znodes.brokers import MAX_TEXT_BYTES
from klamm.zookeeper.client import ZooKeeperClient


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


def test_the_epoch_is_that_of_the_newest_registration(tmp_path: Path) -> None:
    async def scenario(cluster: OneBroker, client: Client) -> None:
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

    run(tmp_path, scenario)


def test_a_killed_controller_takes_over_at_once_and_leaves_others_alone(tmp_path: Path) -> None:
    """The session of its former life would live for a minute, and /controller with it."""

    async def main() -> None:
        async with asyncio.timeout(30), OneBroker(tmp_path, zookeeper_session_timeout_ms=40_000) as cluster:
            epoch = cluster.controller_epoch
            for restart in range(1, 4):
                # The former life may have been a short one, too.
                await cluster.kill_broker()
                await cluster.start_broker()
                assert (cluster.broker.is_controller, cluster.controller_epoch) == (True, epoch + restart)

    asyncio.run(main())


def test_a_rack_that_no_request_can_hold(tmp_path: Path) -> None:
    """The controller could not tell any broker of the cluster any more."""

    async def scenario(cluster: OneBroker, client: Client) -> None:
        await cluster.broker.stop()
        cluster.properties["broker.rack"] = "é" * (MAX_TEXT_BYTES // 2) + "ab"
        with pytest.raises(BrokerStartError, match=r"broker.rack is 32768 bytes long; allowed are up to 32767"):
            await cluster.start_broker()
        await cluster.broker.stop()
        cluster.properties["broker.rack"] = "é" * (MAX_TEXT_BYTES // 2) + "a"
        await cluster.start_broker()
        assert (await (await cluster.connect()).create_topic("t")).error_code == 0

    run(tmp_path, scenario)
