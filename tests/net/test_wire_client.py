"""The wire client against toy brokers that misbehave on command."""

import asyncio
import contextlib
import struct
from uuid import UUID

import pytest
import uvloop

from klamm.client.cluster import ClusterClient, RetryPolicy
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
from klamm.net.framing import FrameReader
from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey, request_class, response_class
from klamm.protocol.primitives import PARTITIONS_PER_STEP
from klamm.protocol.stop_replica import StopReplicaRequest, StopReplicaResponse

FAST = RetryPolicy(deadline_ms=5_000, backoff_ms=1, max_backoff_ms=5)


class ToyConnection(FrameReader):
    def __init__(self, broker):
        super().__init__(lambda _: 10_000_000)
        self.broker = broker

    def connection_made(self, transport):
        super().connection_made(transport)
        self.transport = transport
        self.broker.connections.append(self)

    def frame_error(self, reason):
        assert self.broker.hang_up_on_garbage, reason
        self.transport.close()

    def frame_received(self, frame):
        header = messages.parse_request_header(frame)
        body = None
        low, high = self.broker.versions.get(header.api_key, (0, -1))
        if low <= header.api_version <= high:
            body = messages.decode_request(header.api_key, header.api_version, frame, header.body_position)
        self.broker.received(self, header, body)

    def answer(self, header, message, version=None):
        version = header.api_version if version is None else version
        self.transport.writelines(messages.encode_response(header.api_key, version, header.correlation_id, message))


class ToyBroker:
    """Answers ApiVersions; all else goes to `handler(connection, header, body)`, or into `requests`."""

    def __init__(self, handler=None, versions=None):
        self.versions = {key: (messages.ADVERTISED_MIN[key], high) for key, high in messages.ADVERTISED_MAX.items()}
        self.versions |= versions or {}
        self.handler = handler or (
            lambda connection, header, body: self.requests.put_nowait((connection, header, body))
        )
        self.hang_up_on_garbage = False
        self.requests = asyncio.Queue()
        self.connections = []
        self.headers = []

    async def start(self, port=0, ssl=None):
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: ToyConnection(self), "127.0.0.1", port, ssl=ssl)
        self.address = self.server.sockets[0].getsockname()
        return self

    def received(self, connection, header, body):
        self.headers.append(header)
        if header.api_key != ApiKey.API_VERSIONS:
            self.handler(connection, header, body)
            return
        response = response_class(ApiKey.API_VERSIONS)
        version = header.api_version if body is not None else 0
        connection.answer(
            header,
            response(
                error_code=0 if body is not None else ErrorCode.UNSUPPORTED_VERSION,
                api_keys=[
                    response.ApiVersion(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in self.versions.items()
                ],
            ),
            version,
        )

    def stop(self):
        self.server.close()
        for connection in self.connections:
            connection.transport.abort()


def run(test, timeout_s=60):
    async def bounded():
        async with asyncio.timeout(timeout_s):
            await test()

    # The production loop's transports differ from asyncio's in when they call what.
    for new_event_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(bounded())


@contextlib.asynccontextmanager
async def toy(*, ssl=None, **arguments):
    broker = await ToyBroker(**arguments).start(ssl=ssl)
    try:
        yield broker
    finally:
        broker.stop()


def heartbeat(group="g"):
    return lambda version: request_class(ApiKey.HEARTBEAT)(group_id=group, generation_id=1, member_id="m")


def heartbeat_response(version, error_code=0):
    return response_class(ApiKey.HEARTBEAT)(throttle_time_ms=0, error_code=error_code)


def echo_group_length(connection, header, body):
    connection.answer(header, heartbeat_response(header.api_version, len(body.group_id)))


# -- one connection ---------------------------------------------------------------------------------------------------


def test_versions_are_negotiated_and_requests_answered():
    async def test():
        async with toy(handler=echo_group_length, versions={ApiKey.HEARTBEAT: (0, 2)}) as broker:
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

    run(test)


def test_a_broker_that_does_not_know_our_api_versions():
    async def test():
        versions = {ApiKey.API_VERSIONS: (0, 1), ApiKey.FETCH: (0, 3)}
        async with toy(handler=echo_group_length, versions=versions) as broker:
            connection = await connect(*broker.address)
            assert [header.api_version for header in broker.headers] == [3, 1]
            with pytest.raises(UnsupportedVersion, match=r"Fetch \(1\): the broker has 0 to 3, klamm 4 to 12"):
                await connection.send(ApiKey.FETCH, lambda version: None)
            connection.close()

    run(test)


def test_without_negotiation_every_request_names_its_version():
    async def test():
        async with toy(handler=echo_group_length) as broker:
            connection = await connect(*broker.address, ConnectionOptions(negotiate_versions=False))
            assert (await connection.send(ApiKey.HEARTBEAT, heartbeat("ab"), version=0)).error_code == 2
            with pytest.raises(UnsupportedVersion, match="were not asked for"):
                await connection.send(ApiKey.HEARTBEAT, heartbeat())
            assert [header.api_key for header in broker.headers] == [ApiKey.HEARTBEAT]
            connection.close()

    run(test)


def test_many_requests_in_flight_are_bounded_ordered_and_answered_in_order():
    async def test():
        async with toy() as broker:
            connection = await connect(*broker.address, ConnectionOptions(max_in_flight=3))
            tasks = [
                asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("x" * count))) for count in range(10)
            ]
            waiting = [await broker.requests.get() for _ in range(3)]
            for answered in range(10):
                # The broker sees three requests, and the next only when it has answered one.
                assert broker.requests.empty()
                peer, header, body = waiting.pop(0)
                assert len(body.group_id) == answered
                echo_group_length(peer, header, body)
                if answered < 7:
                    waiting.append(await broker.requests.get())
            assert [response.error_code for response in await asyncio.gather(*tasks)] == list(range(10))
            connection.close()

    run(test)


def test_a_disconnection_fails_what_is_in_flight_and_what_waits():
    async def test():
        async with toy() as broker:
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

    run(test)


def test_a_disconnection_in_the_middle_of_a_response_says_so():
    async def test():
        def half(connection, header, body):
            connection.transport.write(b"\0\0\0\x20\0")
            connection.transport.close()

        async with toy(handler=half) as broker:
            connection = await connect(*broker.address)
            with pytest.raises(Disconnected, match="closed the connection in the middle of a response"):
                await connection.send(ApiKey.HEARTBEAT, heartbeat())

    run(test)


def test_a_time_out_closes_the_connection():
    async def test():
        async with toy() as broker:
            connection = await connect(*broker.address)
            patient = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat()))
            with pytest.raises(RequestTimedOut, match="no response to Heartbeat within 20 ms"):
                await connection.send(ApiKey.HEARTBEAT, heartbeat(), timeout_ms=20)
            with pytest.raises(Disconnected):
                await patient
            await connection.wait_closed()

    run(test)


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
def test_garbage_closes_the_connection(garbage, complaint):
    async def test():
        async with toy(handler=lambda connection, header, body: connection.transport.write(garbage)) as broker:
            connection = await connect(*broker.address)
            with pytest.raises(InvalidResponse, match=complaint):
                await connection.send(ApiKey.HEARTBEAT, heartbeat())
            assert not connection.connected
            await connection.wait_closed()

    run(test)


def test_a_large_response_is_decoded_while_others_have_the_loop():
    count = 5 * PARTITIONS_PER_STEP
    stopped = StopReplicaResponse(0, {"t": [(number, 0) for number in range(count)]})

    async def test():
        async with toy(handler=lambda connection, header, body: connection.answer(header, stopped)) as broker:
            connection = await connect(*broker.address)
            frames = []
            received = connection.frame_received
            # The frame and its decoding are seen apart: what runs in between has the loop.
            connection.frame_received = lambda frame: (received(frame), frames.append(frame))
            waiting = asyncio.ensure_future(connection.send(ApiKey.STOP_REPLICA, lambda _: StopReplicaRequest(1, 1)))
            turns = 0
            while not waiting.done():
                turns += bool(frames)
                await asyncio.sleep(0)
            assert waiting.result() == stopped
            assert turns >= 5

    run(test)


def test_garbage_in_a_large_response_closes_the_connection():
    def answer(connection, header, body):
        frame = b"".join(messages.encode_response(header.api_key, header.api_version, header.correlation_id, stopped))
        connection.transport.write(struct.pack(">i", len(frame) - 3) + frame[4:] + b"!")

    stopped = StopReplicaResponse(0, {"t": [(number, 0) for number in range(2 * PARTITIONS_PER_STEP)]})

    async def test():
        async with toy(handler=answer) as broker:
            connection = await connect(*broker.address)
            with pytest.raises(InvalidResponse, match="StopReplicaResponse: 1 bytes after the end"):
                await connection.send(ApiKey.STOP_REPLICA, lambda _: StopReplicaRequest(1, 1))
            assert not connection.connected
            await connection.wait_closed()

    run(test)


def test_an_unasked_response_closes_the_connection():
    async def test():
        async with toy() as broker:
            connection = await connect(*broker.address)
            broker.connections[0].transport.write(struct.pack(">ii", 4, 0))
            await connection.wait_closed()
            with pytest.raises(NotSent, match="expected is none"):
                await connection.send(ApiKey.HEARTBEAT, heartbeat())

    run(test)


def test_the_response_to_a_cancelled_request_is_dropped():
    async def test():
        async with toy() as broker:
            connection = await connect(*broker.address)
            task = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat()))
            first = await broker.requests.get()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            other = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("abc")))
            echo_group_length(*first)
            echo_group_length(*await broker.requests.get())
            assert (await other).error_code == 3
            connection.close()

    run(test)


def test_a_cancelled_sender_gives_up_its_turn():
    async def test():
        async with toy() as broker:
            connection = await connect(*broker.address, ConnectionOptions(max_in_flight=1))
            first = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("1")))
            held = await broker.requests.get()
            second = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("22")))
            third = asyncio.ensure_future(connection.send(ApiKey.HEARTBEAT, heartbeat("333")))
            await asyncio.sleep(0)
            second.cancel()
            echo_group_length(*held)
            echo_group_length(*await broker.requests.get())
            assert [(await first).error_code, (await third).error_code] == [1, 3]
            connection.close()

    run(test)


def test_requests_without_response_and_a_broker_that_does_not_read():
    async def test():
        def build(version):
            return ProduceRequest.of(None, 0, 1000, [("t", [(0, bytes(1_000_000))])])

        async with toy() as broker:
            connection = await connect(*broker.address)
            assert await connection.send(ApiKey.PRODUCE, build, expect_response=False) is None
            assert (await broker.requests.get())[2].acks == 0
            broker.connections[0].transport.pause_reading()

            async def flood():
                while True:
                    await connection.send(ApiKey.PRODUCE, build, expect_response=False)

            full = asyncio.Event()
            pause_writing = connection.pause_writing
            connection.pause_writing = lambda: (pause_writing(), full.set())
            flooding = asyncio.ensure_future(flood())
            await full.wait()
            await asyncio.sleep(0)
            # Blocked: what is written but not sent is a few buffers, whatever the sender wants to send.
            assert connection._transport.get_write_buffer_size() < 3_000_000
            broker.connections[0].transport.resume_reading()
            await broker.requests.get()
            connection.close()
            with pytest.raises(NotSent):
                await flooding

    run(test)


def test_closing_sends_what_was_written():
    async def test():
        async with toy() as broker:
            connection = await connect(*broker.address)

            def build(version):
                return ProduceRequest.of(None, 0, 1000, [("t", [(0, bytes(5_000_000))])])

            await connection.send(ApiKey.PRODUCE, build, expect_response=False)
            connection.close()
            assert len((await broker.requests.get())[2].topic_data[0].partition_data[0].records) == 5_000_000
            await connection.wait_closed()

    run(test)


def test_no_connection():
    async def test():
        async with toy() as broker:
            address = broker.address
        with pytest.raises(ConnectFailed, match=str(address[1])):
            await connect(*address)

        async def silent(reader, writer):
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        with pytest.raises(ConnectFailed, match="a connection, but no answer of a Kafka broker, within 20 ms"):
            await connect(*server.sockets[0].getsockname(), ConnectionOptions(connect_timeout_ms=20))
        server.close()

        async def rude(reader, writer):
            writer.close()

        server = await asyncio.start_server(rude, "127.0.0.1", 0)
        with pytest.raises(ConnectFailed):
            await connect(*server.sockets[0].getsockname())
        server.close()

    run(test)


def test_authentication_comes_before_use():
    async def test():
        async def greet(connection):
            assert (await connection.exchange(ApiKey.HEARTBEAT, heartbeat("secret"))).error_code == 6
            return 0

        async def fail(connection):
            raise AuthenticationFailed("no")

        async with toy(handler=echo_group_length) as broker:
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

    run(test)


# -- a cluster --------------------------------------------------------------------------------------------------------


class ToyCluster:
    """Toy brokers 1..n that share one idea of who leads topic t, partition 0, and count the heartbeats they answer."""

    def __init__(self):
        self.leader = 1
        self.controller = 1
        self.brokers = {}
        self.answered = []
        self.behaviour = {}
        self.topic_error = 0
        self.topic_id, self.leader_epoch = UUID(int=7), 5
        # Brokers that have heard nothing for a while: what they take for the leader and its epoch.
        self.cut_off = {}

    async def start(self, count):
        for broker_id in range(1, count + 1):
            handler = self.handler(broker_id)
            self.brokers[broker_id] = await ToyBroker(handler=handler).start()
        return self

    def handler(self, broker_id):
        def handle(connection, header, body):
            if header.api_key == ApiKey.METADATA:
                known = self.leader, self.leader_epoch
                self.leader, self.leader_epoch = self.cut_off.get(broker_id, known)
                connection.answer(header, self.metadata(header.api_version, body))
                self.leader, self.leader_epoch = known
                return
            self.answered.append(broker_id)
            behaviour = self.behaviour.get(broker_id)
            if behaviour is not None:
                behaviour(connection)
            else:
                wrong = broker_id != self.leader
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER if wrong else ErrorCode.NONE
                connection.answer(header, heartbeat_response(header.api_version, error))

        return handle

    def metadata(self, version, request):
        assert not request.allow_auto_topic_creation
        cls = response_class(ApiKey.METADATA)
        topic, broker = cls.MetadataResponseTopic, cls.MetadataResponseBroker
        partition = topic.MetadataResponsePartition
        names = ["t"] if request.topics is None else [topic.name for topic in request.topics]
        return cls(
            controller_id=self.controller,
            brokers=[
                broker(node_id=broker_id, host=toy.address[0], port=toy.address[1])
                for broker_id, toy in self.brokers.items()
            ],
            topics=[
                topic(
                    name=name,
                    topic_id=self.topic_id,
                    error_code=self.topic_error if name == "t" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    partitions=[
                        partition(
                            partition_index=0,
                            leader_id=self.leader,
                            leader_epoch=self.leader_epoch,
                            replica_nodes=[1, 2],
                        )
                    ]
                    if name == "t"
                    else [],
                )
                for name in names
            ],
        )

    def stop(self):
        for broker in self.brokers.values():
            broker.stop()


def on_cluster(test, count=2, retry=FAST):
    async def body():
        cluster = await ToyCluster().start(count)
        client = ClusterClient([cluster.brokers[1].address], ConnectionOptions(), retry)
        try:
            await test(cluster, client)
        finally:
            await client.close()
            cluster.stop()

    run(body)


def errors_of(response):
    return (response.error_code,)


def to_leader(client, **arguments):
    return client.send_to_leader("t", 0, ApiKey.HEARTBEAT, heartbeat(), errors_of=errors_of, **arguments)


def test_requests_follow_the_leader():
    async def test(cluster, client):
        assert (await to_leader(client)).error_code == 0
        cluster.leader = 2
        assert (await to_leader(client)).error_code == 0
        assert cluster.answered == [1, 1, 2]
        assert client.metadata.topics["t"].partitions[0].leader == 2
        # Without a look at the errors, the response is the caller's business.
        cluster.leader = 1
        response = await client.send_to_leader("t", 0, ApiKey.HEARTBEAT, heartbeat())
        assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    on_cluster(test)


def test_a_lost_broker_and_a_new_leader():
    async def test(cluster, client):
        await to_leader(client)
        cluster.brokers[1].stop()
        cluster.leader = 2
        client._bootstrap.append(cluster.brokers[2].address)
        assert (await to_leader(client)).error_code == 0
        assert cluster.answered == [1, 2]

    on_cluster(test)


def test_only_repeatable_requests_are_repeated_after_a_disconnection():
    async def test(cluster, client):
        def vanish(connection):
            del cluster.behaviour[1]
            connection.transport.abort()

        cluster.behaviour[1] = vanish
        with pytest.raises(Disconnected):
            await to_leader(client, repeatable=False)
        assert cluster.answered == [1]
        cluster.behaviour[1] = vanish
        assert (await to_leader(client)).error_code == 0
        assert cluster.answered == [1, 1, 1]

    on_cluster(test)


def test_a_connection_that_died_while_idle_is_replaced_even_for_unrepeatable_requests():
    async def test(cluster, client):
        await to_leader(client)
        connection = await client.connection_to(1)
        for peer in cluster.brokers[1].connections:
            peer.transport.abort()
        await connection.wait_closed()
        assert (await to_leader(client, repeatable=False)).error_code == 0
        assert await client.connection_to(1) is not connection

    on_cluster(test)


def test_controller_broker_and_any():
    async def test(cluster, client):
        cluster.controller = cluster.leader = 2
        response = await client.send_to_controller(ApiKey.HEARTBEAT, heartbeat(), errors_of=errors_of)
        assert response.error_code == 0 and cluster.answered == [2]
        cluster.controller = cluster.leader = 1
        response = await client.send_to_controller(ApiKey.HEARTBEAT, heartbeat(), errors_of=errors_of)
        assert response.error_code == 0 and cluster.answered == [2, 2, 1]
        await client.send_to_broker(2, ApiKey.HEARTBEAT, heartbeat())
        assert cluster.answered == [2, 2, 1, 2]
        assert (await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())).error_code in (0, 6)
        metadata = await client.refresh_metadata()
        assert sorted(metadata.brokers) == [1, 2] and list(metadata.topics) == ["t"]

    on_cluster(test)


def test_what_does_not_come_about_ends_with_a_reason():
    async def test(cluster, client):
        cluster.leader = -1
        with pytest.raises(KafkaError, match=r"LEADER_NOT_AVAILABLE \(5\): partition t-0 has no leader"):
            await to_leader(client)
        with pytest.raises(KafkaError, match=r"UNKNOWN_TOPIC_OR_PARTITION \(3\): topic t has 1 partitions, not 7"):
            await client.send_to_leader("t", 7, ApiKey.HEARTBEAT, heartbeat())
        with pytest.raises(KafkaError, match=r"UNKNOWN_TOPIC_OR_PARTITION \(3\): there is no topic other"):
            await client.send_to_leader("other", 0, ApiKey.HEARTBEAT, heartbeat())
        cluster.topic_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(KafkaError, match=r"TOPIC_AUTHORIZATION_FAILED \(29\): topic t"):
            await to_leader(client)
        cluster.controller = 9
        await client.refresh_metadata()
        with pytest.raises(KafkaError, match=r"NOT_CONTROLLER \(41\): the cluster has no controller"):
            await client.send_to_controller(ApiKey.HEARTBEAT, heartbeat())
        with pytest.raises(KafkaError, match=r"BROKER_NOT_AVAILABLE \(8\): broker 9 is not in the cluster"):
            await client.send_to_broker(9, ApiKey.HEARTBEAT, heartbeat())
        assert cluster.answered == []

    on_cluster(test, retry=RetryPolicy(deadline_ms=20, backoff_ms=1, max_backoff_ms=5))


def test_a_broker_that_is_cut_off_does_not_keep_the_client():
    async def test(cluster, client):
        assert (await to_leader(client)).error_code == 0
        cluster.cut_off[1] = (1, 5)
        cluster.leader, cluster.leader_epoch = 2, 6
        assert (await to_leader(client)).error_code == 0
        assert cluster.answered == [1, 1, 2]
        # What it says later is older than what is known; but a topic that was made anew begins anew.
        await client.send_to_broker(1, ApiKey.HEARTBEAT, heartbeat())
        cluster.cut_off[2] = (1, 5)
        await client.refresh_metadata()
        assert client.metadata.topics["t"].partitions[0].leader_epoch == 6
        cluster.topic_id, cluster.cut_off = UUID(int=8), {1: (1, 0), 2: (1, 0)}
        await client.refresh_metadata()
        assert client.metadata.topics["t"].partitions[0].leader_epoch == 0

    on_cluster(test)


def test_retriable_errors_are_returned_when_the_time_is_over():
    async def test(cluster, client):
        await client.refresh_metadata(["t"])
        cluster.metadata = lambda version, request: ToyCluster.metadata(stuck, version, request)
        stuck = ToyCluster()
        stuck.brokers = cluster.brokers
        cluster.leader = 2
        response = await to_leader(client)
        assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and len(cluster.answered) > 1

    on_cluster(test, retry=RetryPolicy(deadline_ms=30, backoff_ms=1, max_backoff_ms=5))


def test_nobody_answers():
    async def test():
        async with toy() as broker:
            address = broker.address
        client = ClusterClient([address], retry=RetryPolicy(deadline_ms=20, backoff_ms=1))
        with pytest.raises(ConnectFailed):
            await client.refresh_metadata()
        await client.close()
        with pytest.raises(ConnectFailed, match="this client is closed"):
            await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())

    run(test)
    with pytest.raises(ValueError, match="no bootstrap address"):
        ClusterClient([])


def test_concurrent_requests_share_one_connection():
    async def test(cluster, client):
        await asyncio.gather(*[to_leader(client) for _ in range(20)])
        assert len(cluster.brokers[1].connections) == 1
        assert cluster.answered == [1] * 20

    on_cluster(test)
