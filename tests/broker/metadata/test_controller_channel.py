"""The way from a broker to the controller."""

import asyncio
from typing import Any

import pytest

from klamm.broker.metadata.controller_channel import ControllerChannel
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.config.broker import BrokerConfig
from klamm.net.client import ClientError, Disconnected, NotSent
from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.update_metadata import UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataRequest
from support.one_broker import until
from support.scripted_broker import Asked, ScriptedBroker

REQUEST, RESPONSE = messages.request_class(ApiKey.ALTER_ISR), messages.response_class(ApiKey.ALTER_ISR)


def answer(asked: Asked) -> Any:
    """The error code tells which broker was asked about."""
    return RESPONSE(error_code=asked.body.broker_id, topics=[])


class Scene:
    """A channel of broker 5, and what its metadata cache is told."""

    def __init__(self, request_timeout_ms: int = 20_000) -> None:
        self.cache = MetadataCache()
        properties = {"zookeeper.connect": "z", "request.timeout.ms": str(request_timeout_ms)}
        self.channel = ControllerChannel(self.cache, 5, BrokerConfig.from_properties(properties))

    def tell(self, controller_id: int, brokers: dict[int, ScriptedBroker]) -> None:
        live = [
            UpdateMetadataBroker(id=id, endpoints=[UpdateMetadataEndpoint(broker.port, "127.0.0.1", "PLAINTEXT", 0)])
            for id, broker in brokers.items()
        ]
        self.cache.update(
            UpdateMetadataRequest(
                controller_id=controller_id, controller_epoch=1, broker_epoch=1, topic_states=[], live_brokers=live
            )
        )

    async def ask(self, number: int = 0) -> int:
        async with asyncio.timeout(120):
            response = await self.channel.send(
                ApiKey.ALTER_ISR,
                lambda version: REQUEST(broker_id=number, broker_epoch=1, topics=[]),
            )
        return int(response.error_code)


async def test_requests_go_to_the_controller_that_is_known() -> None:
    scene = Scene()
    async with ScriptedBroker(answer) as one, ScriptedBroker(answer) as two:
        brokers = {1: one, 2: two}
        scene.tell(1, brokers)
        assert await asyncio.gather(*(scene.ask(number) for number in range(4))) == [0, 1, 2, 3]
        assert (len(one.connections), len(one.asked)) == (1, 4)
        assert {asked.header.client_id for asked in one.asked} == {"5"}
        scene.tell(2, brokers)
        assert await scene.ask(9) == 9
        assert (len(one.asked), len(two.asked)) == (4, 1)
        scene.channel.close()


async def test_nobody_is_asked_while_no_controller_is_known() -> None:
    scene = Scene()
    with pytest.raises(NotSent, match=r"no controller is known \(broker -1, listener PLAINTEXT\)"):
        await scene.ask()
    async with ScriptedBroker(answer) as one:
        scene.tell(7, {1: one})
        with pytest.raises(NotSent, match="broker 7"):
            await scene.ask()
        scene.tell(1, {1: one})
        assert await scene.ask(3) == 3
        scene.channel.close()


async def test_a_lost_connection_is_made_anew_for_the_next_request() -> None:
    scene = Scene()
    async with ScriptedBroker(answer) as one:
        scene.tell(1, {1: one})
        assert await scene.ask(1) == 1
        one.script = lambda _: one.cut()
        with pytest.raises(Disconnected):
            await scene.ask(2)
        one.script = answer
        assert await scene.ask(3) == 3
        assert len(one.connections) == 2
        scene.channel.close()


async def test_a_request_fails_when_the_channel_closes_or_nobody_answers() -> None:
    async with ScriptedBroker() as silent:
        scene = Scene()
        scene.tell(1, {1: silent})
        asking = asyncio.ensure_future(scene.ask())
        await until(lambda: bool(silent.asked))
        scene.channel.close()
        with pytest.raises(ClientError):
            await asking
        impatient = Scene(request_timeout_ms=50)
        impatient.tell(1, {1: silent})
        with pytest.raises(ClientError):
            await impatient.ask()
    with pytest.raises(NotSent):
        await impatient.ask()


async def test_a_former_controller_that_hangs_is_left_when_another_is_known() -> None:
    scene = Scene()
    async with ScriptedBroker() as one, ScriptedBroker(answer) as two:
        brokers = {1: one, 2: two}
        scene.tell(1, brokers)
        asking = asyncio.create_task(scene.ask(3))
        await until(lambda: len(one.asked) == 1)
        scene.channel.controller_changed()
        assert not asking.done()
        scene.tell(2, brokers)
        scene.channel.controller_changed()
        with pytest.raises(Disconnected):
            await asking
        assert await scene.ask(4) == 4
