"""Connections of a client, against brokers that misbehave by script."""

import asyncio
import struct

import pytest

from klamm.client.cluster import ClusterClient
from klamm.net.client import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionOptions,
    Disconnected,
    InvalidResponse,
    NotSent,
    RequestTimedOut,
    UnsupportedVersion,
    connect,
)
from klamm.protocol import messages
from klamm.protocol.apis.heartbeat import HeartbeatResponse
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.apis.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from klamm.protocol.messages import ApiKey
from support.heartbeats import FAST, echo_group_length, heartbeat
from support.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.loop("asyncio", "uvloop")


async def test_versions_are_negotiated_and_requests_answered():
    async with ScriptedBroker(echo_group_length, versions={ApiKey.HEARTBEAT: (0, 2)}) as broker:
        connection = await connect(*broker.address, ConnectionOptions(client_id="me"))
        response = await connection.send(ApiKey.HEARTBEAT, heartbeat("four"))
        assert response.error_code == 4
        assert [(header.api_key, header.api_version, header.client_id) for header in broker.headers] == [
            (ApiKey.API_VERSIONS, 3, "me"),
            (ApiKey.HEARTBEAT, 2, "me"),
        ]
        assert connection.version_of(ApiKey.METADATA) == 11
        connection.close()
        await connection.wait_closed()
        with pytest.raises(NotSent, match="closed by this client"):
            await connection.send(ApiKey.HEARTBEAT, heartbeat())


async def test_a_broker_that_does_not_know_our_api_versions():
    versions = {ApiKey.API_VERSIONS: (0, 1), ApiKey.FETCH: (0, 3)}
    async with ScriptedBroker(echo_group_length, versions=versions) as broker:
        connection = await connect(*broker.address)
        assert [header.api_version for header in broker.headers] == [3, 1]
        with pytest.raises(UnsupportedVersion, match=r"Fetch \(1\): the broker has 0 to 3, klamm 4 to 12"):
            await connection.send(ApiKey.FETCH, lambda version: pytest.fail("it is not sent"))
        connection.close()


async def test_without_negotiation_every_request_names_its_version():
    async with ScriptedBroker(echo_group_length) as broker:
        connection = await connect(*broker.address, ConnectionOptions(negotiate_versions=False))
        assert (await connection.send(ApiKey.HEARTBEAT, heartbeat("ab"), version=0)).error_code == 2
        with pytest.raises(UnsupportedVersion, match="were not asked for"):
            await connection.send(ApiKey.HEARTBEAT, heartbeat())
        assert [header.api_key for header in broker.headers] == [ApiKey.HEARTBEAT]
        connection.close()


async def test_many_requests_in_flight_are_bounded_ordered_and_answered_in_order():
    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address, ConnectionOptions(max_in_flight=3))
        tasks = [
            asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("x" * count))) for count in range(10)
        ]
        waiting = [await broker.requests.get() for _ in range(3)]
        for answered in range(10):
            # The broker sees three requests, and the next only when it has answered one.
            assert broker.requests.empty()
            asked = waiting.pop(0)
            assert len(asked.body.group_id) == answered
            asked.answer(echo_group_length(asked))
            if answered < 7:
                waiting.append(await broker.requests.get())
        assert [response.error_code for response in await asyncio.gather(*tasks)] == list(range(10))
        connection.close()


async def test_a_disconnection_fails_what_is_in_flight_and_what_waits():
    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address, ConnectionOptions(max_in_flight=2))
        tasks = [asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat())) for _ in range(4)]
        for _ in range(2):
            await broker.requests.get()
        broker.connections[0].transport.abort()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, Disconnected) for result in results] == [True, True, False, False]
        assert [isinstance(result, NotSent) for result in results] == [False, False, True, True]
        assert len({id(result) for result in results}) == 4
        assert not connection.connected
        await connection.wait_closed()


async def test_a_disconnection_in_the_middle_of_a_response_says_so():
    def half(asked):
        asked.connection.transport.write(b"\0\0\0\x20\0")
        asked.connection.transport.close()

    async with ScriptedBroker(half) as broker:
        connection = await connect(*broker.address)
        with pytest.raises(Disconnected, match="closed the connection in the middle of a response"):
            await connection.send(ApiKey.HEARTBEAT, heartbeat())


async def test_a_time_out_closes_the_connection():
    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address)
        patient = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat()))
        with pytest.raises(RequestTimedOut, match="no response to Heartbeat within 20 ms"):
            await connection.send(ApiKey.HEARTBEAT, heartbeat(), timeout_ms=20)
        with pytest.raises(Disconnected):
            await patient
        await connection.wait_closed()


@pytest.mark.parametrize(
    ("garbage", "complaint"),
    [
        (struct.pack(">ii", 4, 999), "a response to request 999, expected is 1"),
        (struct.pack(">i", -5), "a frame of -5 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of 1213486160 bytes.*allowed are 0 to 134217728"),
        (struct.pack(">ih", 2, 1), "a response of 2 bytes"),
        (struct.pack(">iib", 5, 1, 0), "throttle_time_ms: the frame ends within the field"),
        (struct.pack(">iibihbb", 13, 1, 0, 0, 0, 0, 0) + b"\0", "1 bytes after the end|bytes after the end"),
    ],
)
async def test_garbage_closes_the_connection(garbage, complaint):
    async with ScriptedBroker(lambda asked: asked.connection.transport.write(garbage)) as broker:
        connection = await connect(*broker.address)
        with pytest.raises(InvalidResponse, match=complaint):
            await connection.send(ApiKey.HEARTBEAT, heartbeat())
        assert not connection.connected
        await connection.wait_closed()


async def test_a_large_response_is_decoded_while_others_have_the_loop():
    count = 5000
    stopped = StopReplicaResponse(0, [StopReplicaPartitionError("t", number, 0) for number in range(count)])
    async with ScriptedBroker(lambda _: stopped) as broker:
        connection = await connect(*broker.address)
        frames = []
        received = connection.frame_received
        # The frame and its decoding are seen apart: what runs in between has the loop.

        def noted(frame: bytearray) -> None:
            received(frame)
            frames.append(frame)

        connection.frame_received = noted
        waiting = asyncio.ensure_future(
            connection.send(ApiKey.STOP_REPLICA, lambda _: StopReplicaRequest(controller_id=1, controller_epoch=1))
        )
        turns = 0
        while not waiting.done():
            turns += bool(frames)
            await asyncio.sleep(0)
        assert waiting.result() == stopped
        assert turns >= 5


async def test_garbage_in_a_large_response_closes_the_connection():
    def answer(asked):
        connection, header, _ = asked
        frame = b"".join(messages.encode_response(header.api_key, header.api_version, header.correlation_id, stopped))
        connection.transport.write(struct.pack(">i", len(frame) - 3) + frame[4:] + b"!")

    stopped = StopReplicaResponse(0, [StopReplicaPartitionError("t", number, 0) for number in range(2000)])
    async with ScriptedBroker(answer) as broker:
        connection = await connect(*broker.address)
        with pytest.raises(InvalidResponse, match="1 bytes after the end"):
            await connection.send(
                ApiKey.STOP_REPLICA, lambda _: StopReplicaRequest(controller_id=1, controller_epoch=1)
            )
        assert not connection.connected
        await connection.wait_closed()


async def test_an_unasked_response_closes_the_connection():
    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address)
        broker.connections[0].transport.write(struct.pack(">ii", 4, 0))
        await connection.wait_closed()
        with pytest.raises(NotSent, match="expected is none"):
            await connection.send(ApiKey.HEARTBEAT, heartbeat())


async def test_the_response_to_a_cancelled_request_is_dropped():
    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address)
        task = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat()))
        first = await broker.requests.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        other = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("abc")))
        first.answer(echo_group_length(first))
        asked = await broker.next()
        asked.answer(echo_group_length(asked))
        assert (await other).error_code == 3
        connection.close()


async def test_a_cancelled_sender_gives_up_its_turn():
    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address, ConnectionOptions(max_in_flight=1))
        first = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("1")))
        held = await broker.requests.get()
        second = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("22")))
        third = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("333")))
        await asyncio.sleep(0)
        second.cancel()
        held.answer(echo_group_length(held))
        asked = await broker.next()
        asked.answer(echo_group_length(asked))
        assert [(await first).error_code, (await third).error_code] == [1, 3]
        connection.close()


async def test_requests_without_response_and_a_broker_that_does_not_read():
    def build(version):
        return ProduceRequest.of(None, 0, 1000, [("t", [(0, bytes(1_000_000))])])

    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address)
        assert await connection.send(ApiKey.PRODUCE, build, expect_response=False) is None
        assert (await broker.requests.get())[2].acks == 0
        broker.connections[0].transport.pause_reading()

        async def flood():
            while True:
                await connection.send(ApiKey.PRODUCE, build, expect_response=False)

        full = asyncio.Event()
        pause_writing = connection.pause_writing

        def paused() -> None:
            pause_writing()
            full.set()

        connection.pause_writing = paused
        flooding = asyncio.ensure_future(flood())
        await full.wait()
        await asyncio.sleep(0)
        # Blocked: what is written but not sent is a few buffers, whatever the sender wants to send.
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 3_000_000
        broker.connections[0].transport.resume_reading()
        await broker.requests.get()
        connection.close()
        with pytest.raises(NotSent):
            await flooding


async def test_closing_sends_what_was_written():
    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address)

        def build(version):
            return ProduceRequest.of(None, 0, 1000, [("t", [(0, bytes(5_000_000))])])

        await connection.send(ApiKey.PRODUCE, build, expect_response=False)
        connection.close()
        assert len((await broker.requests.get())[2].topic_data[0].partition_data[0].records) == 5_000_000
        await connection.wait_closed()


async def test_no_connection():
    async with ScriptedBroker() as broker:
        address = broker.address
    with pytest.raises(ConnectFailed, match=str(address[1])):
        await connect(*address)

    async def silent(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    with pytest.raises(ConnectFailed, match="a connection, but no answer of a Kafka broker, within 20 ms"):
        await connect(host, port, ConnectionOptions(connect_timeout_ms=20))
    server.close()

    async def rude(reader, writer):
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    with pytest.raises(ConnectFailed):
        await connect(*server.sockets[0].getsockname())
    server.close()


async def test_authentication_comes_before_use():
    async def greet(connection):
        assert (await connection.exchange(ApiKey.HEARTBEAT, heartbeat("secret"))).error_code == 6
        return 0

    async def fail(connection):
        raise AuthenticationFailed("no")

    async with ScriptedBroker(echo_group_length) as broker:
        connection = await connect(*broker.address, ConnectionOptions(authenticate=greet))
        assert connection.connected
        connection.close()
        with pytest.raises(AuthenticationFailed, match="no"):
            await connect(*broker.address, ConnectionOptions(authenticate=fail))

        # An error of the kind that no waiting mends is not repeated.
        client = ClusterClient([broker.address], ConnectionOptions(authenticate=fail), FAST)
        with pytest.raises(AuthenticationFailed, match="no"):
            await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())
        assert len(broker.connections) == 3


async def test_a_throttled_client_sends_nothing_until_its_time_is_over():
    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address, ConnectionOptions(request_timeout_ms=5_000))
        loop = asyncio.get_running_loop()
        first = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("a")))
        (await broker.requests.get()).answer(HeartbeatResponse(throttle_time_ms=100, error_code=0))
        await first
        began_s = loop.time()
        second = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("b")))
        asked = await broker.requests.get()
        assert loop.time() - began_s > 0.09
        asked.answer(HeartbeatResponse(throttle_time_ms=60_000, error_code=0))
        await second
        third = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("c")))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(NotSent):
            await third


async def test_requests_sent_before_a_throttle_have_its_time_more():
    async with ScriptedBroker() as broker:
        connection = await connect(*broker.address, ConnectionOptions(request_timeout_ms=60_000))
        began_s = asyncio.get_running_loop().time()
        both = [asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat(name))) for name in "ab"]
        first, second = [await broker.requests.get() for _ in both]
        first.answer(HeartbeatResponse(throttle_time_ms=600_000, error_code=0))
        await both[0]
        # No longer than a request may take, a minute, and then the second's own minute.
        assert 60 <= connection._throttled_until_s - began_s < 600
        (waiting,) = connection._pending
        assert waiting.timer.when() == pytest.approx(connection._throttled_until_s + 60, abs=0.01)
        second.answer(HeartbeatResponse(throttle_time_ms=0, error_code=0))
        assert (await both[1]).error_code == 0
        connection.close()
