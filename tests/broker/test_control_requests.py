"""What controllers and other brokers ask of a broker: who is refused, and what followers get."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.broker.requests.security import Operation
from klamm.broker.start.broker import Broker
from klamm.protocol import messages
from klamm.protocol.apis.fetch import EpochEndOffset, PartitionData
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrTopicState
from klamm.protocol.apis.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from support.authorizing import Allows
from support.fetch_messages import fetch_request, result_of, to_fetch
from support.one_broker import Client, OneBroker, batch, running, until, values

NONE = ErrorCode.NONE
STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH = ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH
LIVE = [UpdateMetadataBroker(id=0, v0_host="h", v0_port=1, endpoints=[UpdateMetadataEndpoint(1, "h", "PLAINTEXT", 0)])]


class Controller:
    """Sends what a controller sends, in its own epoch or another."""

    def __init__(self, cluster: OneBroker, client: Client) -> None:
        self.client = client
        self.epoch = cluster.controller_epoch
        self.broker_epoch = cluster.broker_epoch

    def state(self, leader_epoch: int, leader: int = 0, replicas: tuple[int, ...] = (0,)) -> LeaderAndIsrPartitionState:
        return LeaderAndIsrPartitionState(0, self.epoch, leader, leader_epoch, replicas, 0, replicas)

    async def lead(self, topic: str, leader_epoch: int, version: int = 4, **state: Any) -> tuple[int, list[Any]]:
        """The error code of the request, and those of its partitions."""
        topics = [LeaderAndIsrTopicState(topic, None, [self.state(leader_epoch, **state)])]
        body = LeaderAndIsrRequest(
            controller_id=0, controller_epoch=self.epoch, broker_epoch=self.broker_epoch, topic_states=topics
        )
        response = await self.client.request(ApiKey.LEADER_AND_ISR, version, body)
        return response.error_code, [one.error_code for topic in response.topics for one in topic.partition_errors]

    async def update(self, topic: str, leader_epoch: int, version: int = 7, *, leader: int = 0) -> int:
        state = UpdateMetadataPartitionState(0, self.epoch, leader, leader_epoch, (0,), 0, (0,))
        topics = [UpdateMetadataTopicState(topic, None, [state])]
        body = UpdateMetadataRequest(
            controller_id=0,
            controller_epoch=self.epoch,
            broker_epoch=self.broker_epoch,
            topic_states=topics,
            live_brokers=LIVE,
        )
        return int((await self.client.request(ApiKey.UPDATE_METADATA, version, body)).error_code)

    async def stop_replica(
        self, topic: str, leader_epoch: int = -1, version: int = 3, *, delete: bool = False
    ) -> tuple[int, list[int]]:
        state = StopReplicaPartitionState(0, leader_epoch, delete)
        body = StopReplicaRequest(
            controller_id=0,
            controller_epoch=self.epoch,
            broker_epoch=self.broker_epoch,
            delete_partitions=delete,
            topic_states=[StopReplicaTopicState(topic, [state])],
        )
        response = await self.client.request(ApiKey.STOP_REPLICA, version, body)
        return response.error_code, [one.error_code for one in response.partition_errors]


async def leader_epoch(client: Client, topic: str) -> int | None:
    """As the partition's leader knows it; None when it is not led here."""
    for epoch in range(10):
        want = to_fetch(0, 0, 1000, epoch=epoch)
        response = await client.request(ApiKey.FETCH, 12, fetch_request((topic, [want]), max_wait_ms=0))
        if result_of(response).error_code == NONE:
            return epoch
    return None


# -- the controller


async def test_brokers_whose_listeners_differ_are_told_of_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as (cluster, client):
        own, other = UpdateMetadataEndpoint(1, "h", "PLAINTEXT", 0), UpdateMetadataEndpoint(2, "h", "OTHER", 0)

        async def update(**live: tuple[UpdateMetadataEndpoint, ...]) -> list[str]:
            brokers = [
                UpdateMetadataBroker(id=int(name[1:]), endpoints=list(endpoints)) for name, endpoints in live.items()
            ]
            controller = Controller(cluster, client)
            body = UpdateMetadataRequest(
                controller_id=0,
                controller_epoch=controller.epoch,
                broker_epoch=controller.broker_epoch,
                topic_states=[],
                live_brokers=brokers,
            )
            code = int((await client.request(ApiKey.UPDATE_METADATA, 7, body)).error_code)
            told = [record.getMessage() for record in caplog.records if "Listeners" in record.getMessage()]
            caplog.clear()
            assert code == NONE
            return told

        assert await update(_0=(own,), _1=(own,)) == []
        assert await update(_0=(own,), _1=(own, other)) == [
            "Listeners are not identical across brokers: {0: ['PLAINTEXT'], 1: ['OTHER', 'PLAINTEXT']}"
        ]
        # It says so when something has changed, not with every request.
        assert await update(_0=(own,), _1=(own, other)) == []
        assert await update(_1=(own,), _2=(own, other)) == []


async def test_a_former_controller_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        snapshot = cluster.broker.parts.metadata_cache.snapshot
        former = Controller(cluster, client)
        former.epoch -= 1
        assert await former.lead("t", 5) == (STALE_CONTROLLER_EPOCH, [STALE_CONTROLLER_EPOCH])
        assert await former.stop_replica("t", delete=True) == (STALE_CONTROLLER_EPOCH, [])
        assert await former.update("t", 5) == STALE_CONTROLLER_EPOCH
        assert await leader_epoch(client, "t") == 0
        assert cluster.broker.parts.metadata_cache.snapshot is snapshot


async def test_a_newer_controller_ends_the_time_of_others(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        former, newer = Controller(cluster, client), Controller(cluster, client)
        newer.epoch += 1
        assert await newer.update("t", 1) == NONE
        assert (await former.lead("t", 5))[0] == STALE_CONTROLLER_EPOCH
        assert await newer.lead("t", 5) == (NONE, [NONE])
        assert await leader_epoch(client, "t") == 5


async def test_what_was_meant_for_the_broker_before_its_restart_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        before = cluster.broker_epoch
        await cluster.restart_broker()
        client = await cluster.connect()
        late = Controller(cluster, client)
        late.broker_epoch = before
        assert await late.lead("t", 5) == (STALE_BROKER_EPOCH, [STALE_BROKER_EPOCH])
        assert await late.stop_replica("t", delete=True) == (STALE_BROKER_EPOCH, [])
        assert await late.update("t", 5) == STALE_BROKER_EPOCH
        # The restart has raised it, no request has.
        assert await leader_epoch(client, "t") == 1
        # The controller may know of the newest registration before the broker does, and old versions say nothing.
        for right in (cluster.broker_epoch + 1, -1):
            late.broker_epoch = right
            assert await late.update("t", 5) == NONE


@pytest.mark.parametrize("version", range(6))
async def test_every_version_of_leader_and_isr(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        await client.produce("t", 0, batch(b"a"))
        controller = Controller(cluster, client)
        assert await controller.lead("t", 3, version) == (NONE, [NONE])
        # What comes twice, or too late, changes nothing.
        for epoch in (3, 2):
            assert await controller.lead("t", epoch, version) == (NONE, [STALE_CONTROLLER_EPOCH])
        assert await leader_epoch(client, "t") == 3
        assert (await controller.lead("new", 0, version, replicas=(7,)))[1] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await controller.lead("t", 4, version, leader=7, replicas=(0, 7)) == (NONE, [NONE])
        assert values((await client.fetch("t", 0, 0)).records) == [b"a"]


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("delete", [False, True])
async def test_every_version_of_stop_replica(tmp_path: Path, version: int, delete: bool) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        controller = Controller(cluster, client)
        await controller.lead("t", 3)
        if version == 3:
            assert await controller.stop_replica("t", 2, delete=delete) == (NONE, [ErrorCode.FENCED_LEADER_EPOCH])
        assert await controller.stop_replica("t", 4, version, delete=delete) == (NONE, [NONE])
        assert (tmp_path / "data" / "t-0").exists() != delete
        assert await controller.stop_replica("absent", 4, version, delete=delete) == (NONE, [NONE])


@pytest.mark.parametrize("version", range(8))
async def test_every_version_of_update_metadata(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (cluster, client):
        controller, cache = Controller(cluster, client), cluster.broker.parts.metadata_cache
        assert await controller.update("t", 5, version) == NONE
        assert (cache.snapshot.topics["t"][0].leader, cache.snapshot.topics["t"][0].leader_epoch) == (0, 5)
        endpoint = cache.snapshot.endpoint(0, "PLAINTEXT")
        assert endpoint is not None and (endpoint.host, endpoint.port) == ("h", 1)
        assert await controller.update("t", 5, version, leader=LEADER_DURING_DELETE) == NONE
        assert "t" not in cache.snapshot.topics


# -- what brokers ask of the controller


def alter_isr(leader_epoch: int, isr: list[int], version: int, topic: str = "t") -> list[Any]:
    request = messages.request_class(ApiKey.ALTER_ISR)
    partition = request.TopicData.PartitionData(
        partition_index=0, leader_epoch=leader_epoch, new_isr=isr, current_isr_version=version
    )
    return [request.TopicData(name=topic, partitions=[partition])]


async def test_alter_isr_is_checked(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        for broker_id, broker_epoch in ((0, cluster.broker_epoch - 1), (0, cluster.broker_epoch + 1), (9, 1)):
            answer = await client.ask(ApiKey.ALTER_ISR, broker_id=broker_id, broker_epoch=broker_epoch, topics=[])
            assert answer.error_code == STALE_BROKER_EPOCH
        for topics, code in (
            (alter_isr(0, [0], 0), NONE),
            (alter_isr(1, [0], 0), ErrorCode.FENCED_LEADER_EPOCH),
            (alter_isr(0, [], 0), ErrorCode.INVALID_REQUEST),
            (alter_isr(0, [0], 0, "absent"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            answer = await client.ask(ApiKey.ALTER_ISR, broker_id=0, broker_epoch=cluster.broker_epoch, topics=topics)
            assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (NONE, code)


@pytest.mark.parametrize("version", range(4))
async def test_controlled_shutdown_is_checked(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        absent = await client.ask(ApiKey.CONTROLLED_SHUTDOWN, version, broker_id=9)
        assert (absent.error_code, absent.remaining_partitions) == (ErrorCode.BROKER_NOT_AVAILABLE, [])
        if version >= 2:
            epoch = cluster.broker_epoch
            late = await client.ask(ApiKey.CONTROLLED_SHUTDOWN, version, broker_id=0, broker_epoch=epoch - 1)
            assert late.error_code == STALE_BROKER_EPOCH
        # A partition without another replica keeps nobody from stopping.
        alone = await client.ask(ApiKey.CONTROLLED_SHUTDOWN, version, broker_id=0)
        assert (alone.error_code, alone.remaining_partitions) == (NONE, [])


@contextlib.asynccontextmanager
async def another_broker(cluster: OneBroker) -> AsyncIterator[Client]:
    """A client of broker 1, which is not the controller."""
    broker = Broker(cluster.config(broker_id=1, log_dirs=cluster.directory / "another"), SystemEnvironment())
    try:
        await broker.start()
        await broker.wait_until_known()
        client = Client(*await asyncio.open_connection(*broker.endpoints["PLAINTEXT"]))
        yield client
        await client.close()
    finally:
        await broker.stop()


async def test_only_the_controller_answers_for_the_cluster(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, _), another_broker(cluster) as other:
        leaving = await other.ask(ApiKey.CONTROLLED_SHUTDOWN, broker_id=0, broker_epoch=cluster.broker_epoch)
        # As in Kafka, and not NOT_CONTROLLER.
        assert leaving.error_code == STALE_CONTROLLER_EPOCH
        changing = await other.ask(ApiKey.ALTER_ISR, broker_id=0, broker_epoch=cluster.broker_epoch, topics=[])
        assert changing.error_code == ErrorCode.NOT_CONTROLLER
        assert (await other.create_topic("t")).error_code == ErrorCode.NOT_CONTROLLER


# -- followers


async def fetch_as(client: Client, replica_id: int, offset: int, *, last_epoch: int = -1, **options: Any) -> Any:
    want = to_fetch(0, offset, 1 << 20, last_epoch=last_epoch, log_start_offset=0)
    body = fetch_request(("t", [want]), replica_id=replica_id, **{"max_wait_ms": 0, "min_bytes": 1} | options)
    result: PartitionData = result_of(await client.request(ApiKey.FETCH, 12, body))
    return result


async def with_follower(cluster: OneBroker, client: Client) -> None:
    """The broker leads t in epoch 1 and has three records; broker 1 follows, is in sync, and has none yet."""
    await client.create_topic("t")
    await cluster.begin_leader_epoch(client, "t", 1, isr=(0, 1), replicas=(0, 1))
    assert (await client.produce("t", 0, batch(b"a", b"b", b"c"), acks=1)).error_code == NONE


async def test_a_follower_reads_to_the_end_and_acknowledges_by_asking_on(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await with_follower(cluster, client)
        waiting = asyncio.ensure_future((await cluster.connect()).produce("t", 0, batch(b"d"), acks=-1))
        log = cluster.broker.parts.replica_manager.partition("t", 0).log
        await until(lambda: log.log_end_offset == 4)
        assert not (await client.fetch("t", 0, 0)).records
        result = await fetch_as(client, 1, 0)
        assert (values(result.records), result.high_watermark) == ([b"a", b"b", b"c", b"d"], 0)
        assert (await fetch_as(client, 1, 3)).high_watermark == 3
        assert not waiting.done()
        assert values((await client.fetch("t", 0, 0)).records) == [b"a", b"b", b"c"]
        assert (await fetch_as(client, 1, 4)).high_watermark == 4
        assert (await waiting).error_code == NONE


async def test_a_follower_waits_for_the_end_of_the_log(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await with_follower(cluster, client)
        waiting = asyncio.ensure_future(fetch_as(await cluster.connect(), 1, 3, max_wait_ms=60_000))
        purgatory = cluster.broker.parts.replica_manager.follower_fetch_purgatory
        await until(lambda: len(purgatory) == 1)
        assert (await client.produce("t", 0, batch(b"d"), acks=1)).error_code == NONE
        assert values((await waiting).records) == [b"d"]


async def test_a_stranger_is_no_follower(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await with_follower(cluster, client)
        stranger = await fetch_as(client, 7, 3)
        assert (stranger.error_code, stranger.records or b"") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        assert (await fetch_as(client, 1, 9)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await client.fetch("t", 0, 0)).high_watermark == 0


async def test_a_follower_whose_log_differs_acknowledges_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await with_follower(cluster, client)
        # Epoch 0 had no records here, so what the follower has of it must go.
        result = await fetch_as(client, 1, 2, last_epoch=0)
        assert (result.error_code, result.records or b"") == (NONE, b"")
        assert result.diverging_epoch == EpochEndOffset(epoch=0, end_offset=0)
        assert (await client.fetch("t", 0, 0)).high_watermark == 0
        assert values((await fetch_as(client, 1, 0)).records) == [b"a", b"b", b"c"]


async def end_of_log(client: Client, replica_id: int) -> int:
    request = messages.request_class(ApiKey.LIST_OFFSETS)
    partition = request.ListOffsetsTopic.ListOffsetsPartition(partition_index=0, current_leader_epoch=1, timestamp=-1)
    topics = [request.ListOffsetsTopic(name="t", partitions=[partition])]
    answer = await client.ask(ApiKey.LIST_OFFSETS, replica_id=replica_id, isolation_level=0, topics=topics)
    assert answer.topics[0].partitions[0].error_code == NONE
    return int(answer.topics[0].partitions[0].offset)


async def end_of_epoch(client: Client, epoch: int, replica_id: int) -> tuple[int, int, int]:
    request = messages.request_class(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    topic = request.OffsetForLeaderTopic
    wanted = topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=1, leader_epoch=epoch)
    topics = [topic(topic="t", partitions=[wanted])]
    answer = await client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, replica_id=replica_id, topics=topics)
    one = answer.topics[0].partitions[0]
    return one.error_code, one.leader_epoch, one.end_offset


async def test_a_follower_sees_the_end_of_the_log_and_consumers_what_is_replicated(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await with_follower(cluster, client)
        assert [await end_of_log(client, replica_id) for replica_id in (1, -1)] == [3, 0]
        assert await end_of_epoch(client, 1, 1) == (NONE, 1, 3)
        assert await end_of_epoch(client, 0, 1) == (NONE, 0, 0)


async def test_brokers_need_no_rights_on_topics(tmp_path: Path) -> None:
    authorizer = Allows()
    async with running(tmp_path, authorizer=authorizer) as (cluster, client):
        await with_follower(cluster, client)
        authorizer.rule = lambda operation, resource_type, name: operation is Operation.CLUSTER_ACTION
        assert values((await fetch_as(client, 1, 0)).records) == [b"a", b"b", b"c"]
        assert await end_of_epoch(client, 1, 1) == (NONE, 1, 3)
        assert (await client.fetch("t", 0, 0)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
