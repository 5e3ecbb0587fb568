"""The end of transactions in partitions: the requests that write markers and describe producers, and who sends them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.coordinators.marker_appends import MarkerAppends
from klamm.broker.coordinators.transaction_markers import TransactionMarkers
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.config.broker import BrokerConfig
from klamm.coordinator.groups.group_coordinator import GroupCoordinator
from klamm.coordinator.transactions.ports import TransactionMarker
from klamm.protocol.apis.describe_producers import DescribeProducersRequest
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.apis.write_txn_markers import WriteTxnMarkersResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.record_batch import parse_header
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import TopicAssignment
from klamm.zookeeper.keeper_exceptions import SessionExpired
from support.group_wire import find_coordinator
from support.known_znodes import KnownZnodes
from support.one_broker import Client, batch, running, until
from support.present import present
from support.scripted_broker import Asked, ScriptedBroker
from support.transaction_wire import PRODUCER, marker, produce, transactional, write_markers

TOPIC = DescribeProducersRequest.TopicRequest


async def stable(client: Client, partition: int = 0) -> tuple[int, int]:
    """The last stable offset and the high watermark."""
    fetched = await client.fetch("t", partition, 0, isolation_level=1)
    return fetched.last_stable_offset, fetched.high_watermark


# -- WriteTxnMarkers


@pytest.mark.parametrize("version", [0, 1])
async def test_a_marker_ends_the_transaction_of_its_producer_only(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=2)
        await produce(client, transactional(b"a"))
        await produce(client, transactional(b"b", producer_id=8))
        assert await stable(client) == (0, 2)
        codes = await write_markers(client, marker(("t", 0)), version=version)
        assert codes == {PRODUCER: {("t", 0): 0}}
        assert await stable(client) == (1, 3)
        codes = await write_markers(client, marker(("t", 0), producer_id=8, commits=False), version=version)
        assert codes == {8: {("t", 0): 0}}
        assert await stable(client) == (4, 4)
        fetched = await client.fetch("t", 0, 0, isolation_level=1)
        assert [(one.producer_id, one.first_offset) for one in present(fetched.aborted_transactions)] == [(8, 1)]


async def test_each_partition_of_each_marker_has_its_own_result(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=2)
        await produce(client, transactional(b"a"))
        await produce(client, transactional(b"b", producer_id=8, epoch=3), partition=1)
        codes = await write_markers(
            client,
            marker(("t", 0), ("absent", 0), ("t", 9), ("t", -1)),
            marker(("t", 1), producer_id=8, epoch=2),
            marker(producer_id=9),
        )
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == {
            PRODUCER: {("t", 0): 0, ("absent", 0): unknown, ("t", 9): unknown, ("t", -1): unknown},
            8: {("t", 1): ErrorCode.INVALID_PRODUCER_EPOCH},
            9: {},
        }
        assert (await stable(client), await stable(client, 1)) == ((2, 2), (0, 1))
        assert await write_markers(client) == {}


async def test_a_partition_named_twice_gets_one_marker_and_a_repeated_one_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        await produce(client, transactional(b"a"))
        assert await write_markers(client, marker(("t", 0), ("t", 0))) == {PRODUCER: {("t", 0): 0}}
        assert await stable(client) == (2, 2)
        # The coordinator does not know that the first one was written.
        assert await write_markers(client, marker(("t", 0)), marker(("t", 0))) == {PRODUCER: {("t", 0): 0}}
        assert await stable(client) == (4, 4)
        assert (await client.fetch("t", 0, 0, isolation_level=1)).aborted_transactions == []


@pytest.mark.parametrize("odd", [{"producer_id": -1}, {"epoch": -1}, {"producer_id": -(2**63)}])
async def test_a_marker_without_a_producer_refuses_its_request(tmp_path: Path, odd: dict[str, Any]) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        codes = await write_markers(client, marker(("t", 0), producer_id=8), marker(("t", 0), **odd))
        assert {code for of_producer in codes.values() for code in of_producer.values()} == {ErrorCode.INVALID_REQUEST}
        assert await stable(client) == (0, 0)


async def test_a_marker_of_a_former_coordinator_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t")
        await write_markers(client, marker(("t", 0), coordinator_epoch=5))
        await produce(client, transactional(b"a"))
        codes = await write_markers(client, marker(("t", 0), coordinator_epoch=4))
        assert codes == {PRODUCER: {("t", 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED}}
        assert await stable(client) == (1, 2)
        assert await write_markers(client, marker(("t", 0), coordinator_epoch=5)) == {PRODUCER: {("t", 0): 0}}
        assert await stable(client) == (3, 3)


async def test_a_marker_is_answered_when_all_in_sync_replicas_have_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        await cluster.begin_leader_epoch(client, "t", 1, isr=(0, 1), replicas=(0, 1))
        asking = asyncio.create_task(write_markers(client, marker(("t", 0), ("t", 1))))
        replicas = cluster.broker.parts.replica_manager
        await until(lambda: len(replicas.produce_purgatory) == 1)
        assert not asking.done()
        await cluster.begin_leader_epoch(await cluster.connect(), "t", 2)
        assert await asking == {PRODUCER: {("t", 0): 0, ("t", 1): 0}}


async def test_a_marker_that_is_not_replicated_in_time_is_uncertain_and_written_again(tmp_path: Path) -> None:
    async with running(tmp_path, request_timeout_ms=200) as (cluster, client):
        await client.create_topic("t")
        await produce(client, transactional(b"a"))
        await cluster.begin_leader_epoch(client, "t", 1, isr=(0, 1), replicas=(0, 1))
        codes = await write_markers(client, marker(("t", 0)))
        assert codes == {PRODUCER: {("t", 0): ErrorCode.REQUEST_TIMED_OUT}}
        await cluster.begin_leader_epoch(client, "t", 2)
        assert await write_markers(client, marker(("t", 0))) == {PRODUCER: {("t", 0): 0}}
        assert await stable(client) == (3, 3)


async def test_groups_are_told_of_replicated_markers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each marker with its offset, in the order of the log, and before it is answered."""
    told: list[tuple[int, int, int, bool]] = []

    def transaction_ended(
        _: object, partition: int, producer_id: int, marker_offset: int, *, is_committed: bool
    ) -> Iterator[None]:
        yield
        yield
        told.append((partition, producer_id, marker_offset, is_committed))

    monkeypatch.setattr(GroupCoordinator, "transaction_ended", transaction_ended)
    async with running(tmp_path, offsets_topic_num_partitions=2, offsets_topic_replication_factor=1) as (
        cluster,
        client,
    ):
        await find_coordinator(client)
        await client.create_topic("t")
        offsets = "__consumer_offsets"
        await cluster.begin_leader_epoch(client, offsets, 1, isr=(0, 1), replicas=(0, 1))
        writing = asyncio.create_task(
            write_markers(
                client,
                marker((offsets, 0), (offsets, 1), ("t", 0), (offsets, 7), commits=False),
                marker((offsets, 0), producer_id=8),
            )
        )
        # One partition waits for its replica, and holds no group of another one up.
        await until(lambda: len(told) == 1)
        assert not writing.done()
        await cluster.begin_leader_epoch(await cluster.connect(), offsets, 2)
        codes = await writing
        assert codes == {
            PRODUCER: {
                (offsets, 0): 0,
                (offsets, 1): 0,
                ("t", 0): 0,
                (offsets, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            },
            8: {(offsets, 0): 0},
        }
        assert told == [(1, PRODUCER, 0, False), (0, PRODUCER, 0, False), (0, 8, 1, True)]


async def test_a_marker_is_followed_although_the_coordinator_hangs_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def transaction_ended(_: object, partition: int, *args: object, **options: object) -> Iterator[None]:
        told.append(partition)
        yield from ()

    monkeypatch.setattr(GroupCoordinator, "transaction_ended", transaction_ended)
    async with running(tmp_path, offsets_topic_num_partitions=1, offsets_topic_replication_factor=1) as (
        cluster,
        client,
    ):
        await find_coordinator(client)
        await cluster.begin_leader_epoch(client, "__consumer_offsets", 1, isr=(0, 1), replicas=(0, 1))
        gone = await cluster.connect()
        writing = asyncio.create_task(write_markers(gone, marker(("__consumer_offsets", 0))))
        replicas = cluster.broker.parts.replica_manager
        await until(lambda: len(replicas.produce_purgatory) == 1)
        await gone.close()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await writing
        assert told == []
        await cluster.begin_leader_epoch(client, "__consumer_offsets", 2)
        assert told == [0]


async def test_a_marker_needs_min_insync_replicas(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", min_insync_replicas="2")
        codes = await write_markers(client, marker(("t", 0)))
        assert codes == {PRODUCER: {("t", 0): ErrorCode.NOT_ENOUGH_REPLICAS}}
        assert await stable(client) == (0, 0)


# -- DescribeProducers


async def test_producers_and_their_open_transactions_are_described(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create_topic("t", partitions=2)
        await produce(client, transactional(b"a", b"b"))
        of_eight = batch(b"c", producer_id=8, producer_epoch=2, base_sequence=0)
        await produce(client, of_eight, id=None)
        await produce(client, transactional(b"d", producer_id=9, epoch=4))
        await write_markers(client, marker(("t", 0), producer_id=9, epoch=4, coordinator_epoch=6))
        topics = [TOPIC(name="t", partition_indexes=[0, 1, 0, 5]), TOPIC(name="absent", partition_indexes=[0])]
        answer = await client.ask(ApiKey.DESCRIBE_PRODUCERS, topics=topics)
        told = {(topic.name, one.partition_index): one for topic in answer.topics for one in topic.partitions}
        assert {key: one.error_code for key, one in told.items()} == {
            ("t", 0): 0,
            ("t", 1): 0,
            ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert [len(topic.partitions) for topic in answer.topics] == [3, 1]
        assert told["t", 1].active_producers == []
        producers = {one.producer_id: one for one in told["t", 0].active_producers}
        assert {
            id: (one.producer_epoch, one.last_sequence, one.coordinator_epoch, one.current_txn_start_offset)
            for id, one in producers.items()
        } == {7: (0, 1, -1, 0), 8: (2, 0, -1, -1), 9: (4, 0, 6, -1)}
        assert producers[8].last_timestamp == parse_header(of_eight).max_timestamp
        assert producers[9].last_timestamp >= producers[7].last_timestamp > 1000


# -- the sender of markers


class Scene(MarkerAppends):
    """The markers of broker 5. `addresses` has the live brokers."""

    def __init__(self, store: KafkaZooKeeper | None = None, **properties: str) -> None:
        self.addresses: dict[int, tuple[str, int]] = {}
        self.appended: list[TransactionMarker] = []
        self.cache = MetadataCache()
        properties |= {"zookeeper.connect": "z"}
        config = BrokerConfig.from_properties({key.replace("_", "."): value for key, value in properties.items()})
        zookeeper = store or KnownZnodes()
        self.markers = TransactionMarkers(config, 5, self.cache, self.addresses.get, self, lambda: zookeeper)

    async def append(self, markers: Sequence[TransactionMarker]) -> Any:
        """Stands for `MarkerAppends.append`."""
        self.appended += markers
        appended = asyncio.get_running_loop().create_future()
        appended.set_result({("here", 0): ErrorCode.NONE})
        return [appended]

    async def write(self, *partitions: tuple[str, int], to: int = 1) -> Any:
        (codes,) = await self.markers.write(to, [to_send(*partitions)])
        return codes


def to_send(*partitions: tuple[str, int], producer_id: int = PRODUCER) -> TransactionMarker:
    return TransactionMarker(producer_id, 0, True, 3, partitions)


def answer_all(asked: Asked, code: ErrorCode = ErrorCode.NONE) -> WriteTxnMarkersResponse:
    result = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic, partition = (
        result.WritableTxnMarkerTopicResult,
        (result.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult),
    )
    return WriteTxnMarkersResponse(
        markers=[
            result(
                producer_id=one.producer_id,
                topics=[
                    topic(
                        name=named.name,
                        partitions=[
                            partition(partition_index=number, error_code=code) for number in named.partition_indexes
                        ],
                    )
                    for named in one.topics
                ],
            )
            for one in asked.body.markers
        ]
    )


NONE, UNCERTAIN = ErrorCode.NONE, ErrorCode.NETWORK_EXCEPTION


@pytest.mark.parametrize(("protocol", "version"), [("2.7", 0), ("2.8-IV0", 1), ("2.8", 1)])
async def test_the_version_is_that_of_the_protocol_between_brokers(protocol: str, version: int) -> None:
    scene = Scene(inter_broker_protocol_version=protocol)
    async with ScriptedBroker(answer_all) as broker:
        scene.addresses[1] = broker.address
        assert await scene.write(("t", 0)) == {("t", 0): NONE}
        (asked,) = broker.asked
        assert (asked.header.api_version, asked.header.client_id) == (version, "broker-5-txn-marker-sender")
        (sent,) = asked.body.markers
        assert (sent.producer_id, sent.producer_epoch, sent.transaction_result, sent.coordinator_epoch) == (
            PRODUCER,
            0,
            True,
            3,
        )
        scene.markers.stop()


async def test_the_markers_of_one_call_share_a_request_and_all_requests_a_connection() -> None:
    scene = Scene()
    async with ScriptedBroker() as broker:
        scene.addresses[1] = broker.address
        markers = [to_send(("t", number), producer_id=number) for number in range(5)]
        for code in NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER:
            writing = asyncio.create_task(scene.markers.write(1, markers))
            asked = await broker.next()
            assert [one.producer_id for one in asked.body.markers] == [0, 1, 2, 3, 4]
            asked.answer(answer_all(asked, code))
            assert await writing == [{("t", number): code} for number in range(5)]
        assert len(broker.connections) == 1
        scene.markers.stop()


async def test_partitions_without_a_result_are_uncertain() -> None:
    scene = Scene()
    async with ScriptedBroker() as broker:
        scene.addresses[1] = broker.address
        writing = asyncio.create_task(scene.write(("t", 0), ("t", 1)))
        asked = await broker.next()
        answer = answer_all(asked)
        del answer.markers[0].topics[0].partitions[1]
        asked.answer(answer)
        assert await writing == {("t", 0): NONE, ("t", 1): UNCERTAIN}
        writing = asyncio.create_task(scene.write(("t", 0)))
        (await broker.next()).answer(WriteTxnMarkersResponse(markers=[]))
        assert await writing == {("t", 0): UNCERTAIN}
        scene.markers.stop()


async def fails(writing: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        await writing
    return raised.value.code


async def test_a_broker_that_does_not_answer_leaves_markers_uncertain() -> None:
    scene = Scene()
    assert await fails(scene.write(("t", 0))) is ErrorCode.BROKER_NOT_AVAILABLE
    async with ScriptedBroker() as broker:
        scene.addresses[1] = broker.address
        writing = asyncio.create_task(scene.write(("t", 0)))
        (await broker.next()).hang_up()
        assert await fails(writing) is UNCERTAIN
        writing = asyncio.create_task(scene.write(("t", 0)))
        asked = await broker.next()
        asked.answer(answer_all(asked))
        assert await writing == {("t", 0): NONE}
        assert len(broker.connections) == 2
    assert await fails(scene.write(("t", 0))) is UNCERTAIN
    scene.markers.stop()


async def test_a_broker_that_has_died_or_moved_is_not_waited_for() -> None:
    scene = Scene()
    async with ScriptedBroker() as silent, ScriptedBroker(answer_all) as other:
        for address in None, other.address:
            scene.addresses[1] = silent.address
            writing = asyncio.create_task(scene.write(("t", 0)))
            await silent.next()
            scene.markers.brokers_changed()
            await asyncio.sleep(0)
            assert not writing.done()
            if address is None:
                del scene.addresses[1]
            else:
                scene.addresses[1] = address
            scene.markers.brokers_changed()
            assert await fails(writing) is UNCERTAIN
        assert await scene.write(("t", 0)) == {("t", 0): NONE}
        scene.markers.stop()


async def test_no_marker_waits_for_connections_that_have_been_stopped() -> None:
    scene = Scene()
    async with ScriptedBroker() as silent:
        scene.addresses[1] = silent.address
        writing = asyncio.create_task(scene.write(("t", 0)))
        await silent.next()
        scene.markers.stop()
        assert await fails(writing) is UNCERTAIN


async def test_a_leader_on_the_coordinators_own_broker_needs_no_connection() -> None:
    scene = Scene()
    assert await scene.write(("here", 0), to=5) == {("here", 0): NONE}
    assert scene.appended == [to_send(("here", 0))]


async def test_the_leader_is_that_of_the_metadata() -> None:
    scene = Scene()
    states = [
        UpdateMetadataPartitionState(number, 1, leader, 0, (0,), 0, (0,))
        for number, leader in enumerate((3, -1, LEADER_DURING_DELETE))
    ]
    scene.cache.update(
        UpdateMetadataRequest(
            controller_id=0,
            controller_epoch=1,
            broker_epoch=1,
            topic_states=[UpdateMetadataTopicState("t", None, states)],
            live_brokers=[],
        )
    )
    assert [scene.markers.leader(("t", number)) for number in range(4)] == [3, -1, None, None]
    assert scene.markers.leader(("absent", 0)) is None


async def test_partitions_that_do_not_exist_are_told_from_those_that_are_only_unknown(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        markers: TransactionMarkers = cluster.broker.parts.transaction_markers
        assert await markers.deleted([("t", 0), ("t", 2), ("absent", 0), ("t", 1)]) == [("t", 2), ("absent", 0)]


class TopicsInZooKeeper(KnownZnodes):
    """`a` and `b` exist, with one partition each; `b` is marked for deletion."""

    async def existing_topics(self, names: Iterable[str]) -> dict[str, None]:
        return {name: None for name in names if name in "ab"}

    async def topic_deletions(self, watch: Callable[[], None] | None = None) -> list[str]:
        return ["b"]

    async def topic_assignments(
        self,
        names: Sequence[str],
        watch: Callable[[str], None] | None = None,
        malformed: dict[str, str] | None = None,
    ) -> dict[str, TopicAssignment]:
        return {name: TopicAssignment({0: (0,)}) for name in names}


async def test_a_topic_counts_as_deleted_from_when_its_deletion_has_begun() -> None:
    """Its replicas on a dead broker may exist for hours, and no producer waits for them."""
    scene = Scene(TopicsInZooKeeper())
    asked = [("a", 0), ("b", 0), ("a", 1), ("c", 0)]
    # This broker has just started, and the controller may not have seen the mark.
    assert await scene.markers.deleted(asked) == [("a", 1), ("c", 0)]
    scene.cache.update(
        UpdateMetadataRequest(controller_id=0, controller_epoch=1, broker_epoch=1, topic_states=[], live_brokers=[])
    )
    assert await scene.markers.deleted(asked) == [("b", 0), ("a", 1), ("c", 0)]
    states = [UpdateMetadataPartitionState(0, 1, 0, 0, (0,), 0, (0,))]
    scene.cache.update(
        UpdateMetadataRequest(
            controller_id=0,
            controller_epoch=1,
            broker_epoch=1,
            topic_states=[UpdateMetadataTopicState("b", None, states)],
            live_brokers=[],
        )
    )
    assert await scene.markers.deleted(asked) == [("a", 1), ("c", 0)]


class LostSession(KnownZnodes):
    async def existing_topics(self, names: Iterable[str]) -> dict[str, None]:
        raise SessionExpired


async def test_without_zookeeper_no_partition_passes_for_deleted() -> None:
    scene = Scene(LostSession())
    assert await fails(scene.markers.deleted([("absent", 0)])) is ErrorCode.REQUEST_TIMED_OUT
