"""The client of a cluster against scripted brokers that share one idea of the leaders."""

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from klamm.client.cluster import ClusterClient
from klamm.client.retries import RetryPolicy
from klamm.net.client import (
    ConnectFailed,
    ConnectionOptions,
    Disconnected,
    NoAnswer,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey, response_class
from support.heartbeats import FAST, heartbeat, heartbeat_response
from support.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.loop("asyncio", "uvloop")


class ToyCluster:
    """Toy brokers 1..n that share one idea of the leader of topic t, partition 0, and count answered heartbeats."""

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
            self.brokers[broker_id] = await ScriptedBroker(handler).start()
        return self

    def handler(self, broker_id):
        def handle(asked):
            connection, header, body = asked
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
                            error_code=ErrorCode.NONE,
                            partition_index=0,
                            leader_id=self.leader,
                            leader_epoch=self.leader_epoch,
                            replica_nodes=[1, 2],
                            isr_nodes=[1, 2],
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


@asynccontextmanager
async def on_cluster(count=2, retry=FAST):
    cluster = await ToyCluster().start(count)
    client = ClusterClient([cluster.brokers[1].address], ConnectionOptions(), retry)
    try:
        yield cluster, client
    finally:
        await client.close()
        cluster.stop()


def errors_of(response):
    return (response.error_code,)


def to_leader(client, **arguments):
    return client.send_to_leader("t", 0, ApiKey.HEARTBEAT, heartbeat(), errors_of=errors_of, **arguments)


async def test_requests_follow_the_leader():
    async with on_cluster() as (cluster, client):
        assert (await to_leader(client)).error_code == 0
        cluster.leader = 2
        assert (await to_leader(client)).error_code == 0
        assert cluster.answered == [1, 1, 2]
        assert client.metadata.topics["t"].partitions[0].leader == 2
        # Without a look at the errors, the response is the caller's business.
        cluster.leader = 1
        response = await client.send_to_leader("t", 0, ApiKey.HEARTBEAT, heartbeat())
        assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_lost_broker_and_a_new_leader():
    async with on_cluster() as (cluster, client):
        await to_leader(client)
        cluster.brokers[1].stop()
        cluster.leader = 2
        client._bootstrap.append(cluster.brokers[2].address)
        assert (await to_leader(client)).error_code == 0
        assert cluster.answered == [1, 2]


async def test_only_repeatable_requests_are_repeated_after_a_disconnection():
    async with on_cluster() as (cluster, client):

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


async def test_a_connection_that_died_while_idle_is_replaced_even_for_unrepeatable_requests():
    async with on_cluster() as (cluster, client):
        await to_leader(client)
        connection = await client.connection_to(1)
        for peer in cluster.brokers[1].connections:
            peer.transport.abort()
        await connection.wait_closed()
        assert (await to_leader(client, repeatable=False)).error_code == 0
        assert await client.connection_to(1) is not connection


async def test_any_broker_and_the_metadata_of_all():
    async with on_cluster() as (_, client):
        assert (await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())).error_code in (0, 6)
        metadata = await client.refresh_metadata()
        assert sorted(metadata.brokers) == [1, 2] and list(metadata.topics) == ["t"]


async def test_what_does_not_come_about_ends_with_a_reason():
    async with on_cluster(retry=RetryPolicy(deadline_ms=20, backoff_ms=1, max_backoff_ms=5)) as (cluster, client):
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
        with pytest.raises(KafkaError, match=r"BROKER_NOT_AVAILABLE \(8\): broker 9 is not in the cluster"):
            await client.connection_to(9)
        assert cluster.answered == []


async def test_a_broker_that_is_cut_off_does_not_keep_the_client():
    async with on_cluster() as (cluster, client):
        assert (await to_leader(client)).error_code == 0
        cluster.cut_off[1] = (1, 5)
        cluster.leader, cluster.leader_epoch = 2, 6
        assert (await to_leader(client)).error_code == 0
        assert cluster.answered == [1, 1, 2]
        # What it says later is older than what is known; but a topic that was made anew begins anew.
        await (await client.connection_to(1)).send(ApiKey.HEARTBEAT, heartbeat())
        cluster.cut_off[2] = (1, 5)
        await client.refresh_metadata()
        assert client.metadata.topics["t"].partitions[0].leader_epoch == 6
        cluster.topic_id, cluster.cut_off = UUID(int=8), {1: (1, 0), 2: (1, 0)}
        await client.refresh_metadata()
        assert client.metadata.topics["t"].partitions[0].leader_epoch == 0


async def test_retriable_errors_are_returned_when_the_time_is_over():
    async with on_cluster(retry=RetryPolicy(deadline_ms=30, backoff_ms=1, max_backoff_ms=5)) as (cluster, client):
        await client.refresh_metadata(["t"])
        stuck = ToyCluster()
        cluster.metadata = lambda version, request: ToyCluster.metadata(stuck, version, request)
        stuck.brokers = cluster.brokers
        cluster.leader = 2
        response = await to_leader(client)
        assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and len(cluster.answered) > 1


async def test_nobody_answers():
    async with ScriptedBroker() as broker:
        address = broker.address
    client = ClusterClient([address], retry=RetryPolicy(deadline_ms=20, backoff_ms=1))
    with pytest.raises(ConnectFailed):
        await client.refresh_metadata()
    await client.close()
    with pytest.raises(ConnectFailed, match="this client is closed"):
        await client.send_to_any(ApiKey.HEARTBEAT, heartbeat())
    with pytest.raises(ValueError, match="no bootstrap address"):
        ClusterClient([])


async def test_concurrent_requests_share_one_connection():
    async with on_cluster() as (cluster, client):
        await asyncio.gather(*[to_leader(client) for _ in range(20)])
        assert len(cluster.brokers[1].connections) == 1
        assert cluster.answered == [1] * 20


async def test_requests_to_a_broker_that_hangs_wait_for_one_attempt_to_connect_together():
    accepted = []

    def hang(reader, writer):
        accepted.append(writer)

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    client = ClusterClient([("127.0.0.1", 1)], ConnectionOptions(connect_timeout_ms=200))
    client.metadata.brokers = {3: server.sockets[0].getsockname()}
    found = await asyncio.gather(*[client.connection_to(3) for _ in range(5)], return_exceptions=True)
    assert [type(error) for error in found] == [NoAnswer] * 5
    assert len(accepted) == 1
    with pytest.raises(ConnectFailed):
        await client.connection_to(3)
    assert len(accepted) == 2
    await client.close()
    for writer in accepted:
        writer.close()
    server.close()
