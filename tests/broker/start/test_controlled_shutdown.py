"""A broker that stops asks the controller to move its leaderships away."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.broker.registration.registration import Registrar
from klamm.broker.start.broker import Broker
from klamm.broker.start.controlled_shutdown import ControlledShutdown
from klamm.config.broker import BrokerConfig
from klamm.config.versions import ApiVersion
from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.error_codes import ErrorCode
from klamm.znodes.store import LiveBroker
from klamm.zookeeper.client import State, ZooKeeperClient
from support.known_znodes import KnownZnodes
from support.one_broker import Client, batch, running, values
from support.scripted_broker import Asked, ScriptedBroker

RESPONSE = messages.response_class(ApiKey.CONTROLLED_SHUTDOWN)
LEAVING, BROKER_EPOCH = 3, 77


def answer(code: ErrorCode = ErrorCode.NONE, remaining: tuple[str, ...] = ()) -> Any:
    """`remaining`: topics whose partition 0 the broker still leads."""
    return RESPONSE(
        error_code=code,
        remaining_partitions=[RESPONSE.RemainingPartition(topic_name=topic, partition_index=0) for topic in remaining],
    )


def metadata(*live: int) -> MetadataCache:
    """The broker leads `lonely` alone, and `shared` with broker 1, which is in sync."""
    states = {
        "lonely": UpdateMetadataPartitionState(0, 1, LEAVING, 0, (LEAVING,), 0, (LEAVING, 1)),
        "shared": UpdateMetadataPartitionState(0, 1, LEAVING, 0, (LEAVING, 1), 0, (LEAVING, 1)),
    }
    topics = [UpdateMetadataTopicState(topic, None, [state]) for topic, state in states.items()]
    cache = MetadataCache()
    cache.update(
        UpdateMetadataRequest(
            controller_id=1,
            controller_epoch=1,
            broker_epoch=1,
            topic_states=topics,
            live_brokers=[UpdateMetadataBroker(id=id, endpoints=[]) for id in live],
        )
    )
    return cache


class Store(KnownZnodes):
    """What the broker looks up in ZooKeeper: each look at the controller takes the next of `controllers`."""

    def __init__(self, brokers: dict[int, ScriptedBroker], *controllers: int | None) -> None:
        self.client = ZooKeeperClient(SystemEnvironment(), "localhost:1")
        self.client._state = State.CONNECTED
        self._brokers = brokers
        self._controllers = list(controllers)

    async def controller_id(self) -> int | None:
        return self._controllers.pop(0) if len(self._controllers) > 1 else self._controllers[0]

    async def live_brokers(
        self,
        on_change: Callable[[], None] | None = None,
        on_modification: Callable[[int], None] | None = None,
    ) -> dict[int, LiveBroker]:
        return {id: LiveBroker(broker.registration(id), 5) for id, broker in self._brokers.items()}


async def hand_over(
    store: Store,
    *,
    live: tuple[int, ...] = (LEAVING, 1, 2),
    retries: int = 3,
    backoff: int = 20,
    socket_timeout: int = 20_000,
) -> bool:
    config = BrokerConfig.from_properties(
        {
            "broker.id": str(LEAVING),
            "zookeeper.connect": "localhost:1",
            "controlled.shutdown.max.retries": str(retries),
            "controlled.shutdown.retry.backoff.ms": str(backoff),
            "controller.socket.timeout.ms": str(socket_timeout),
        }
    )
    registrar = Registrar(SystemEnvironment(), LEAVING, None, {}, ApiVersion.V2_8_IV1)
    registrar.broker_epoch = BROKER_EPOCH
    async with asyncio.timeout(120):
        return await ControlledShutdown(config, LEAVING, registrar, metadata(*live)).run(store)


def answers(*these: Any) -> Callable[[Asked], Any]:
    """One after another; the last one again and again."""
    left = list(these)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


async def test_the_controller_is_asked_until_nothing_is_led() -> None:
    async with ScriptedBroker(answers(answer(remaining=("shared",)), answer())) as controller:
        assert await hand_over(Store({1: controller}, 1), retries=100)
        assert len(controller.asked) == 2
        for _, header, body in controller.asked:
            assert (header.api_key, header.api_version) == (ApiKey.CONTROLLED_SHUTDOWN, 3)
            assert (header.client_id, body.broker_id, body.broker_epoch) == ("3", LEAVING, BROKER_EPOCH)


async def test_what_nobody_can_take_over_is_not_waited_for() -> None:
    async with ScriptedBroker(answers(answer(remaining=("lonely",)))) as controller:
        assert not await hand_over(Store({1: controller}, 1), retries=100)
        assert len(controller.asked) == 1


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.BROKER_NOT_AVAILABLE])
async def test_attempts_end(code: ErrorCode) -> None:
    async with ScriptedBroker(answers(answer(code, ("shared",)))) as controller:
        assert not await hand_over(Store({1: controller}, 1), retries=2, backoff=200)
        assert 1 <= len(controller.asked) <= 2


async def test_the_last_broker_asks_nobody() -> None:
    async with ScriptedBroker(answers(answer())) as controller:
        assert not await hand_over(Store({LEAVING: controller}, LEAVING), live=(LEAVING,))
        assert controller.asked == []


async def test_a_successor_of_the_controller_is_asked_instead() -> None:
    """That the first one has resigned costs no attempt."""
    former = ScriptedBroker(answers(answer(ErrorCode.STALE_CONTROLLER_EPOCH)))
    async with former, ScriptedBroker(answers(answer())) as successor:
        assert await hand_over(Store({1: former, 2: successor}, 1, None, 9, 2), retries=1, backoff=20_000)
        assert (len(former.asked), len(successor.asked)) == (1, 1)


@pytest.mark.parametrize("controllers", [{}, {1: "silent"}, {1: "gone"}], ids=["nobody", "silent", "gone"])
async def test_a_stop_does_not_wait_for_a_controller_for_ever(controllers: dict[int, str]) -> None:
    async with ScriptedBroker() as silent:
        pass_on = {id: silent for id in controllers}
        if "gone" in controllers.values():
            await silent.__aexit__()
        assert not await hand_over(Store(pass_on, *controllers or [None]), backoff=50, socket_timeout=50)


@pytest.mark.parametrize("backoff", [-1, 0])
async def test_attempts_need_no_back_off(backoff: int) -> None:
    async with ScriptedBroker(answers(answer(remaining=("shared",)), answer())) as controller:
        assert await hand_over(Store({1: controller}, 1), backoff=backoff)
        assert len(controller.asked) == 2


async def test_a_controller_that_has_much_to_move_gets_the_time_for_it() -> None:
    """As long as controller.socket.timeout.ms, however short the back-off is."""
    loop = asyncio.get_running_loop()

    async with ScriptedBroker(lambda asked: loop.call_later(0.05, asked.answer, answer()) and None) as controller:
        assert await hand_over(Store({1: controller}, 1), retries=1, backoff=1)
        assert len(controller.asked) == 1


async def test_without_zookeeper_nobody_can_take_over() -> None:
    async with ScriptedBroker(answers(answer())) as controller:
        store = Store({1: controller}, 1)
        store.client._state = State.CONNECTING
        assert not await hand_over(store, backoff=20_000)
        assert controller.asked == []


async def test_leaderships_move_before_the_broker_stops(tmp_path: Path) -> None:
    async with running(tmp_path, controlled_shutdown_retry_backoff_ms=100) as (cluster, client):
        config = cluster.config(broker_id=1, log_dirs=tmp_path / "second")
        second = Broker(config, SystemEnvironment())
        try:
            await second.start()
            await second.wait_until_known()
            request = messages.request_class(ApiKey.CREATE_TOPICS)
            assignment = request.CreatableTopic.CreatableReplicaAssignment
            topics = [
                request.CreatableTopic(
                    name=name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[assignment(partition_index=0, broker_ids=ids)],
                    configs=[],
                )
                for name, ids in {"shared": [1, 0], "own": [1]}.items()
            ]
            created = await client.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout_ms=10_000, validate_only=False)
            assert [topic.error_code for topic in created.topics] == [0, 0]
            cache = cluster.broker.parts.metadata_cache
            while True:
                host, port = second.endpoints["PLAINTEXT"]
                producer = Client(*await asyncio.open_connection(host, port))
                if (await producer.produce("shared", 0, batch(b"a"))).error_code == 0:
                    break
            await producer.close()
            assert cache.snapshot.topics["shared"][0].leader == 1
            await second.stop()
            # Everybody knew before it was gone, so no client has to look for a leader that does not answer.
            moved = cache.snapshot.topics["shared"][0]
            assert (moved.leader, moved.leader_epoch, moved.isr) == (0, 1, (0,))
            assert values((await client.fetch("shared", 0, 0)).records) == [b"a"]
            assert (await client.produce("shared", 0, batch(b"b"))).error_code == 0
        finally:
            await second.stop()
