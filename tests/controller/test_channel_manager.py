"""The controller's channels to brokers, against scripted brokers that misbehave on command."""

import asyncio
import contextlib
import logging
import socket
import weakref

import pytest

from klamm.config.broker import BrokerConfig
from klamm.controller.channels import channel_manager
from klamm.controller.channels.channel_manager import COALESCE_FROM, RETRY_BACKOFF_MS, ControllerChannelManager
from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from klamm.protocol.apis.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from klamm.znodes.brokers import BrokerRegistration, Endpoint
from support.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.loop("asyncio", "uvloop")


@contextlib.asynccontextmanager
async def channels(failures=None, **properties):
    """A channel manager of controller 7; its faults end the test, or go into the list."""
    faults = [] if failures is None else failures
    config = BrokerConfig.from_properties(
        {
            "broker.id": "7",
            "zookeeper.connect": "localhost:1",
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
    )
    manager = ControllerChannelManager(config, 7, faults.append)
    try:
        yield manager
    finally:
        await manager.shutdown()
    if failures is None:
        assert faults == []


@contextlib.asynccontextmanager
async def warnings_of_channels(queue):
    handler = logging.Handler()
    handler.emit = lambda record: queue.put_nowait(record.getMessage())
    channel_manager.logger.addHandler(handler)
    channel_manager.logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        channel_manager.logger.setLevel(logging.NOTSET)
        channel_manager.logger.removeHandler(handler)


def update(number):
    return UpdateMetadataRequest(controller_id=7, controller_epoch=number, broker_epoch=100)


async def loop_turns():
    """Long enough for whatever is ready to happen, in this process and on the loopback interface."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_requests_are_sent_in_order_one_at_a_time():
    async with ScriptedBroker() as broker, channels() as manager:
        answers = asyncio.Queue()
        manager.add_broker(broker.registration())
        for number in range(5):
            manager.send_request(1, ApiKey.UPDATE_METADATA, update(number), answers.put_nowait)
        for number in range(5):
            connection, header, body = await broker.requests.get()
            assert (header.api_key, header.api_version) == (ApiKey.UPDATE_METADATA, 7)
            assert (header.client_id, body) == ("7", update(number))
            await loop_turns()
            assert broker.requests.empty() and answers.empty()
            assert manager.queue_size(1) == 4 - number
            connection.answer(header, UpdateMetadataResponse(number))
            assert await answers.get() == UpdateMetadataResponse(number)
        assert len(broker.connections) == 1


async def test_what_all_brokers_get_is_encoded_once_although_all_channels_begin_at_once(monkeypatch):
    bodies = []

    def recorded(*arguments):
        steps = messages.encode_request_body_steps(*arguments)
        assert steps is not None, "the request is not large"
        body = yield from steps
        bodies.append(body)
        return body

    monkeypatch.setattr(channel_manager, "encode_request_body_steps", recorded)
    states = [UpdateMetadataPartitionState(number, 1, 1, 1, (1, 2, 3), 1, (1, 2, 3)) for number in range(2_000)]
    request = UpdateMetadataRequest(
        controller_id=7, controller_epoch=1, topic_states=[UpdateMetadataTopicState("t", None, states)]
    )
    async with ScriptedBroker() as broker, channels() as manager:
        for number in (1, 2, 3):
            manager.add_broker(broker.registration(number))
            manager.send_request(number, ApiKey.UPDATE_METADATA, request.for_broker(100 + number))
        epochs = {(await broker.requests.get()).body.broker_epoch for _ in range(3)}
    assert epochs == {101, 102, 103}
    assert len(bodies) == 3 and len({id(body[-1]) for body in bodies}) == 1


async def test_an_answered_request_is_not_kept_until_the_next_one():
    """It may hold the states of all partitions, and the next one may be hours away."""
    async with ScriptedBroker() as broker, channels() as manager:
        answers = asyncio.Queue()
        manager.add_broker(broker.registration())

        def on_response(response):
            answers.put_nowait(response)

        kept = weakref.ref(on_response)  # The request holds it, and has no weak references itself.
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0), on_response)
        del on_response
        connection, header, _ = await broker.requests.get()
        connection.answer(header, UpdateMetadataResponse(0))
        await answers.get()
        await loop_turns()
        assert kept() is None


async def test_the_version_follows_the_inter_broker_protocol():
    async with ScriptedBroker() as broker, channels(inter_broker_protocol_version="2.7") as manager:
        manager.add_broker(broker.registration())
        manager.send_request(
            1, ApiKey.LEADER_AND_ISR, LeaderAndIsrRequest(controller_id=7, controller_epoch=1, broker_epoch=100)
        )
        connection, header, _ = await broker.requests.get()
        assert header.api_version == 4
        connection.answer(header, LeaderAndIsrResponse())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0))
        _, header, _ = await broker.requests.get()
        assert header.api_version == 6


@pytest.mark.parametrize("failure", ["closed", "garbage", "timeout"])
async def test_a_failed_request_is_sent_again_on_a_new_connection_after_100_ms(failure):
    async with (
        ScriptedBroker() as broker,
        channels(request_timeout_ms="50" if failure == "timeout" else "60000") as manager,
    ):
        answers = asyncio.Queue()
        manager.add_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0), answers.put_nowait)
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(1), answers.put_nowait)
        for _ in range(2):
            connection, _, body = await broker.requests.get()
            assert body == update(0)
            if failure == "closed":
                connection.transport.abort()
            elif failure == "garbage":
                connection.transport.write(b"\0\0\0\x05\0\0\0\0\0")
            ended = asyncio.get_running_loop().time()
            assert await broker.lost.get() is connection
            again = await broker.requests.get()
            assert again.body == update(0)
            assert asyncio.get_running_loop().time() - ended >= RETRY_BACKOFF_MS / 1000 - 0.02
            assert answers.empty()
            broker.requests.put_nowait(again)
        connection, header, _ = await broker.requests.get()
        connection.answer(header, UpdateMetadataResponse(5))
        assert await answers.get() == UpdateMetadataResponse(5)
        _, _, body = await broker.requests.get()
        assert body == update(1)
        assert len(broker.connections) == 3


async def test_a_broker_that_is_not_up_yet_gets_its_requests_later():
    broker = ScriptedBroker()
    warned = asyncio.Queue()
    with socket.socket() as reserved:
        # Bound but not listening: connections are refused.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        broker.port = reserved.getsockname()[1]
        async with channels() as manager, warnings_of_channels(warned):
            manager.add_broker(broker.registration())
            manager.send_request(1, ApiKey.UPDATE_METADATA, update(3))
            assert "UpdateMetadata for broker 1 is sent again" in await warned.get()
            reserved.close()
            try:
                await broker.start(broker.port)
                connection, header, body = await broker.requests.get()
                assert body == update(3)
                assert manager.send_queues()[1].trouble
                connection.answer(header, UpdateMetadataResponse())
                assert await warned.get() == "broker 1 has answered UpdateMetadata"
                assert manager.send_queues()[1].trouble == ""
            finally:
                broker.stop()


async def test_nothing_is_heard_of_a_broker_after_it_was_removed():
    async with ScriptedBroker() as broker, channels() as manager:
        answers = []
        manager.add_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0), answers.append)
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(1), answers.append)
        connection, header, _ = await broker.requests.get()
        connection.answer(header, UpdateMetadataResponse())
        manager.remove_broker(1)
        manager.remove_broker(1)
        assert manager.queue_size(1) == 0
        assert await broker.lost.get() is connection
        # Back at once, it begins anew.
        manager.add_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(2))
        another, _, body = await broker.requests.get()
        assert body == update(2) and another is not connection
        assert answers == [] and broker.requests.empty()


async def test_a_response_that_has_arrived_is_dropped_when_the_broker_is_removed_before_it_is_handled():
    async with ScriptedBroker() as broker, channels() as manager:
        answers = []
        manager.add_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0), answers.append)
        connection, header, _ = await broker.requests.get()
        channel = manager._channels[1]
        buffers = messages.encode_response(ApiKey.UPDATE_METADATA, 7, header.correlation_id, UpdateMetadataResponse())
        channel._connection.frame_received(bytearray(b"".join(buffers)[4:]))
        manager.remove_broker(1)
        assert await broker.lost.get() is connection
        assert answers == [] and channel.task.done()


async def test_a_removed_broker_that_cannot_be_reached_is_given_up():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        broker = ScriptedBroker()
        broker.port = reserved.getsockname()[1]
        async with channels() as manager:
            manager.add_broker(broker.registration())
            manager.send_request(1, ApiKey.UPDATE_METADATA, update(0))
            task = manager._channels[1].task
            await loop_turns()
            manager.remove_broker(1)
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_a_connection_that_was_closed_while_idle_is_opened_again():
    warned = asyncio.Queue()
    async with ScriptedBroker() as broker, channels() as manager, warnings_of_channels(warned):
        answers = asyncio.Queue()
        manager.add_broker(broker.registration())
        for number in range(2):
            manager.send_request(1, ApiKey.UPDATE_METADATA, update(number), answers.put_nowait)
            connection, header, body = await broker.requests.get()
            assert body == update(number)
            connection.answer(header, UpdateMetadataResponse())
            await answers.get()
            connection.transport.close()
            await manager._channels[1]._connection.wait_closed()
        assert len(broker.connections) == 2
        assert warned.empty()


async def test_one_broker_does_not_hold_up_another():
    async with ScriptedBroker() as silent, ScriptedBroker() as prompt, channels() as manager:
        answers = asyncio.Queue()
        manager.add_broker(silent.registration(1))
        manager.add_broker(prompt.registration(2))
        for broker_id in (1, 2):
            manager.send_request(broker_id, ApiKey.UPDATE_METADATA, update(0), answers.put_nowait)
        await silent.requests.get()
        connection, header, _ = await prompt.requests.get()
        connection.answer(header, UpdateMetadataResponse(2))
        assert await answers.get() == UpdateMetadataResponse(2)


async def test_a_second_add_keeps_the_channel_and_what_is_queued():
    async with ScriptedBroker() as broker, channels() as manager:
        manager.add_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0))
        manager.add_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(1))
        assert manager.queue_size(1) == 2
        connection, header, _ = await broker.requests.get()
        connection.answer(header, UpdateMetadataResponse())
        _, _, body = await broker.requests.get()
        assert body == update(1)
        assert len(broker.connections) == 1


async def test_brokers_without_a_channel_get_nothing(caplog):
    caplog.clear()
    async with channels() as manager:
        manager.send_request(4, ApiKey.UPDATE_METADATA, update(0))
        assert "UpdateMetadata for broker 4 is not sent: it is offline" in caplog.text


async def test_what_waits_for_a_broker_goes_to_the_listener_that_it_gets(caplog):
    caplog.clear()
    async with ScriptedBroker() as broker, channels() as manager:
        manager.add_broker(BrokerRegistration(1, (Endpoint("OTHER", "127.0.0.1", 1),)))
        assert "broker 1 gets no requests of the controller until it has a listener PLAINTEXT: it has only OTHER" in (
            caplog.text
        )
        for number in range(2):
            manager.send_request(1, ApiKey.UPDATE_METADATA, update(number))
        await loop_turns()
        manager.update_broker(broker.registration())
        for number in range(2):
            connection, header, body = await broker.requests.get()
            assert body == update(number)
            connection.answer(header, UpdateMetadataResponse())
        # An unknown broker, and what has not changed, change nothing.
        manager.update_broker(broker.registration(2))
        manager.update_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(2))
        await broker.requests.get()
        assert len(broker.connections) == 1


@pytest.mark.parametrize("doing", ["nothing", "cannot connect", "waiting for a response"])
async def test_a_broker_that_moves_gets_everything_at_its_new_address(doing):
    async with ScriptedBroker() as former, ScriptedBroker() as broker, channels() as manager:
        answers = asyncio.Queue()
        manager.add_broker(former.registration())
        if doing == "cannot connect":
            former.stop()
        else:
            manager.send_request(1, ApiKey.UPDATE_METADATA, update(0), answers.put_nowait)
            connection, header, _ = await former.requests.get()
            if doing == "nothing":
                connection.answer(header, UpdateMetadataResponse())
                await answers.get()
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(1), answers.put_nowait)
        if doing == "nothing":
            connection, header, _ = await former.requests.get()
            connection.answer(header, UpdateMetadataResponse())
            await answers.get()
        manager.update_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(2), answers.put_nowait)
        expected = {"nothing": [2], "cannot connect": [1, 2], "waiting for a response": [0, 1, 2]}[doing]
        for number in expected:
            connection, header, body = await broker.requests.get()
            assert body == update(number)
            connection.answer(header, UpdateMetadataResponse())
            await answers.get()
        # Gone from there, too: what comes waits.
        manager.update_broker(BrokerRegistration(1, ()))
        assert await broker.lost.get() is connection
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(3), answers.put_nowait)
        await loop_turns()
        assert broker.requests.empty()


@pytest.mark.parametrize("turns", range(4))
async def test_a_broker_may_move_twice_in_quick_succession(turns):
    async with ScriptedBroker() as former, ScriptedBroker() as broker, channels() as manager:
        answers = asyncio.Queue()
        manager.add_broker(former.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0), answers.put_nowait)
        await former.requests.get()
        manager.update_broker(BrokerRegistration(1, (Endpoint("PLAINTEXT", "127.0.0.1", 1),)))
        for _ in range(turns):
            await asyncio.sleep(0)
        manager.update_broker(broker.registration())
        connection, header, body = await broker.requests.get()
        assert body == update(0)
        connection.answer(header, UpdateMetadataResponse())
        await answers.get()


async def test_the_controllers_own_listener_is_used_where_there_is_one():
    async with (
        ScriptedBroker() as broker,
        channels(
            listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            control_plane_listener_name="CONTROLLER",
        ) as manager,
    ):
        plain = Endpoint("PLAINTEXT", "127.0.0.1", 1)
        manager.add_broker(BrokerRegistration(1, (plain, Endpoint("CONTROLLER", "127.0.0.1", broker.port))))
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0))
        await broker.requests.get()


async def test_a_large_request_is_encoded_in_slices():
    count = 1500
    leadership = [LeaderAndIsrPartitionState(i, 1, 1, 0, (1,), 0, (1,)) for i in range(count)]
    metadata = [UpdateMetadataPartitionState(i, 1, 1, 0, (1,), 0, (1,)) for i in range(count)]
    async with ScriptedBroker() as broker, channels() as manager:
        manager.add_broker(broker.registration())
        for key, states, request, response in (
            (
                ApiKey.LEADER_AND_ISR,
                leadership,
                LeaderAndIsrRequest(
                    controller_id=7,
                    controller_epoch=1,
                    broker_epoch=2,
                    topic_states=[LeaderAndIsrTopicState("t", None, leadership)],
                ),
                LeaderAndIsrResponse(),
            ),
            (
                ApiKey.UPDATE_METADATA,
                metadata,
                UpdateMetadataRequest(
                    controller_id=7,
                    controller_epoch=1,
                    broker_epoch=2,
                    topic_states=[UpdateMetadataTopicState("t", None, metadata)],
                ),
                UpdateMetadataResponse(),
            ),
        ):
            manager.send_request(1, key, request)
            seen = set()
            while broker.requests.empty():
                seen.add(sum(state._encoded is not None for state in states))
                await asyncio.sleep(0)
            assert len(seen - {0, count}) >= 3
            connection, header, body = await broker.requests.get()
            assert body == request
            connection.answer(header, response)


async def test_a_callback_that_fails_is_a_fault_of_the_program():
    failures = []
    async with ScriptedBroker() as broker, channels(failures) as manager:

        def fail(response):
            raise ZeroDivisionError

        manager.add_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0), fail)
        connection, header, _ = await broker.requests.get()
        connection.answer(header, UpdateMetadataResponse())
        await broker.lost.get()
        await loop_turns()
        assert [type(failure) for failure in failures] == [ZeroDivisionError]


def led(number, epoch):
    return LeaderAndIsrPartitionState(number, 1, 1, epoch, (1,), epoch, (1,))


def changed(number, epoch):
    return UpdateMetadataPartitionState(number, 1, 1, epoch, (1,), epoch, (1,))


async def test_what_waits_for_a_broker_that_does_not_answer_is_bounded_and_nothing_is_lost():
    partitions, changes = 50, 30_000
    most = 0
    async with ScriptedBroker() as broker, channels() as manager:
        manager.add_broker(broker.registration())
        channel = manager._channels[1]
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0))
        connection, header, _ = await broker.requests.get()
        for epoch in range(changes):
            number = epoch % partitions
            leadership = LeaderAndIsrTopicState("t", None, [led(number, epoch)])
            metadata = UpdateMetadataTopicState("t", None, [changed(number, epoch)])
            manager.send_request(
                1,
                ApiKey.LEADER_AND_ISR,
                LeaderAndIsrRequest(controller_id=7, controller_epoch=1, broker_epoch=100, topic_states=[leadership]),
            )
            manager.send_request(
                1,
                ApiKey.UPDATE_METADATA,
                UpdateMetadataRequest(controller_id=7, controller_epoch=1, broker_epoch=100, topic_states=[metadata]),
            )
            await asyncio.sleep(0)
            most = max(most, manager.queue_size(1))
        assert most < COALESCE_FROM
        # The broker goes on: a few requests tell it everything, in any number of rounds.
        hosted, known, requests = {}, {}, 0
        waiting = manager.queue_size(1)
        while True:
            answer = LeaderAndIsrResponse() if header.api_key is ApiKey.LEADER_AND_ISR else UpdateMetadataResponse()
            connection.answer(header, answer)
            if requests == waiting:
                break
            connection, header, body = await broker.requests.get()
            requests += 1
            told = hosted if header.api_key is ApiKey.LEADER_AND_ISR else known
            told.update(
                (state.partition_index, state.leader_epoch)
                for topic in body.topic_states
                for state in topic.partition_states
            )
        last = {number: changes - partitions + number for number in range(partitions)}
        assert hosted == known == last
        await loop_turns()
        assert channel.size == 0
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(1))
        assert (await broker.requests.get())[2] == update(1)


async def test_requests_that_come_while_others_are_coalesced_come_after_them(monkeypatch):
    monkeypatch.setattr(channel_manager, "FEW", 0)
    monkeypatch.setattr(channel_manager, "COALESCE_FROM", 3)
    async with ScriptedBroker() as broker, channels() as manager:
        manager.add_broker(broker.registration())
        epochs = []
        for epoch in range(200):
            state = UpdateMetadataTopicState("t", None, [changed(0, epoch)])
            manager.send_request(
                1,
                ApiKey.UPDATE_METADATA,
                UpdateMetadataRequest(controller_id=7, controller_epoch=1, broker_epoch=100, topic_states=[state]),
            )
            if epoch % 7 == 0:
                connection, header, body = await broker.requests.get()
                epochs.append(body.topic_states[0].partition_states[0].leader_epoch)
                connection.answer(header, UpdateMetadataResponse())
        while epochs[-1] != 199:
            connection, header, body = await broker.requests.get()
            epochs.append(body.topic_states[0].partition_states[0].leader_epoch)
            connection.answer(header, UpdateMetadataResponse())
        assert epochs == sorted(epochs)
        assert len(epochs) < 150


async def test_shutdown_drops_everything():
    async with ScriptedBroker() as broker, channels() as manager:
        answers = []
        manager.add_broker(broker.registration())
        manager.send_request(1, ApiKey.UPDATE_METADATA, update(0), answers.append)
        connection, header, _ = await broker.requests.get()
        await manager.shutdown()
        connection.answer(header, UpdateMetadataResponse())
        assert await broker.lost.get() is connection
        assert answers == []
        assert [task for task in asyncio.all_tasks() if "_send_all" in repr(task)] == []
