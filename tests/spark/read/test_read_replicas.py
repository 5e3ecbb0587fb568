"""Reading from followers in the rack of the reader (KIP-392): whom a reader asks, and what it believes."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.client import read_replicas
from klamm.client.cluster import ClusterClient, make_client
from klamm.client.consumer.consumer import Consumer
from klamm.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from klamm.client.options import ClientOptions, ConsumerOptions, OffsetReset
from klamm.client.properties import parse_addresses
from klamm.client.read_replicas import ReadReplicas
from klamm.net.client import Connection, Disconnected
from klamm.processes.helper import Helper
from klamm.protocol.apis.fetch import PartitionData
from klamm.protocol.apis.list_offsets import ListOffsetsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey, request_class
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import TopicPartition
from klamm.spark import arrow
from klamm.spark.read.partition_reader import Loss, RangeFetcher
from klamm.spark.settings import DataLoss, FetchOptions, PartitionRange
from klamm.testing.cluster import Cluster
from support.clients import Librdkafka
from support.clients import Record as Written
from support.fetch_messages import fetch_response
from support.placed_topics import wait_until_committed
from support.played_connection import PlayedConnection

ID = UUID(int=1)
LEADER, FOLLOWER, STRANGER = 1, 2, 9
RECORDS = bytes(build_batch([Record(None, b"v")], base_offset=10))
OPTIONS = FetchOptions(ClientOptions((("nowhere", 1),)), poll_timeout_ms=300)

request_class(ApiKey.LIST_OFFSETS)

Answer = PartitionData | Exception


def found() -> PartitionData:
    return PartitionData(
        partition_index=0, error_code=0, high_watermark=100, last_stable_offset=100, log_start_offset=0, records=RECORDS
    )


def failed(code: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=0, error_code=code)


def empty(high_watermark: int) -> PartitionData:
    return PartitionData(
        partition_index=0, error_code=0, high_watermark=high_watermark, last_stable_offset=high_watermark
    )


def sent_to(follower: int) -> PartitionData:
    return PartitionData(partition_index=0, error_code=0, high_watermark=100, preferred_read_replica=follower)


@dataclass(eq=False)
class Racks(ClusterClient):
    """A cluster in which LEADER sends readers with a rack to `named`; `asked` has (broker, version) of each fetch."""

    of_follower: Answer = field(default_factory=found)
    of_leader: Answer = field(default_factory=found)
    named: int = FOLLOWER
    log: tuple[int, int] = (0, 100)
    asked: list[tuple[int, int]] = field(default_factory=list)
    metadata: ClusterMetadata = field(default_factory=ClusterMetadata)
    read_replicas: ReadReplicas = field(default_factory=lambda: ReadReplicas("a"))

    def __post_init__(self) -> None:
        self.of_epoch(3)

    def of_epoch(self, epoch: int) -> None:
        state = PartitionMetadata(0, LEADER, epoch, [LEADER, FOLLOWER], [LEADER, FOLLOWER])
        self.metadata.topics["t"] = TopicMetadata(0, {0: state}, ID)

    async def refresh_metadata(
        self, topics: Iterable[str] | None = None, *, elsewhere: bool = False
    ) -> ClusterMetadata:
        return self.metadata

    async def connection_to(self, broker_id: int) -> Connection:
        return RacksConnection(self, broker_id)

    def fetch(self, offset: int = 10) -> tuple[PartitionData | None, list[tuple[int, int]]]:
        fetcher = RangeFetcher(OPTIONS, PartitionRange("t", 0, 10, 20, ID.hex))

        async def fetched() -> tuple[PartitionData | None, Sequence[Loss]]:
            done = await fetcher.fetch(offset, 1000)(self)
            return done.answer, done.losses

        answer, losses = asyncio.run(fetched())
        return answer, [(loss.start_offset, loss.end_offset) for loss in losses]


class RacksConnection(PlayedConnection):
    def __init__(self, racks: Racks, broker_id: int) -> None:
        super().__init__(broker_id)
        self.racks = racks

    def version_of(self, api_key: ApiKey) -> int:
        return 12

    async def send(
        self,
        api_key: ApiKey,
        build: Callable[[int], Any],
        *,
        version: int | None = None,
        timeout_ms: int | None = None,
        expect_response: bool = True,
        body: object = None,
    ) -> Any:
        racks = self.racks
        version = version or 12
        if api_key is ApiKey.LIST_OFFSETS:
            assert self.broker_id == LEADER
            wanted = build(5).topics[0].partitions[0].timestamp
            struct = ListOffsetsResponse.ListOffsetsTopicResponse
            one = struct.ListOffsetsPartitionResponse(
                partition_index=0, error_code=0, offset=racks.log[0] if wanted == -2 else racks.log[1]
            )
            return ListOffsetsResponse(topics=[struct(name="t", partitions=[one])])
        request = build(version)
        racks.asked.append((self.broker_id, version))
        assert request.rack_id == ("a" if self.broker_id == LEADER else "")
        assert (
            request.topics[0].partitions[0].current_leader_epoch
            == racks.metadata.topics["t"].partitions[0].leader_epoch
        )
        if self.broker_id != LEADER:
            answer = racks.of_follower
        elif version > 10:
            answer = sent_to(racks.named)
        else:
            answer = racks.of_leader
        if isinstance(answer, Exception):
            raise answer
        return fetch_response(("t", [answer]))


REDIRECTED = [(LEADER, 12), (FOLLOWER, 12)]


def test_the_leader_sends_a_reader_to_the_follower_in_its_rack_once() -> None:
    racks = Racks(of_leader=Disconnected("nobody should ask"))
    for expected in (REDIRECTED, [*REDIRECTED, (FOLLOWER, 12)]):
        answer, losses = racks.fetch()
        assert answer is not None and answer.records == RECORDS and losses == []
        assert racks.asked == expected


@pytest.mark.parametrize(
    "answer",
    [
        failed(ErrorCode.OFFSET_OUT_OF_RANGE),
        failed(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        failed(ErrorCode.UNKNOWN_LEADER_EPOCH),
        failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        failed(ErrorCode.OFFSET_NOT_AVAILABLE),
        failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        empty(high_watermark=5),
        empty(high_watermark=100),
        sent_to(STRANGER),
        Disconnected("gone"),
        KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "broker 2 is not in the cluster"),
    ],
    ids=str,
)
def test_what_a_follower_says_is_asked_of_the_leader(answer: Answer) -> None:
    """An empty answer, too: a follower may lag behind, and only the leader's log says that there are no records."""
    racks = Racks(of_follower=answer)
    found, losses = racks.fetch()
    assert found is not None and found.records == RECORDS and losses == []
    assert racks.asked == [*REDIRECTED, (LEADER, 10)]
    racks.fetch()
    assert racks.asked == [*REDIRECTED, (LEADER, 10), (LEADER, 10)], "the leader, for a while"


def test_a_loss_is_one_when_the_leader_says_so() -> None:
    out_of_range = failed(ErrorCode.OFFSET_OUT_OF_RANGE)
    racks = Racks(of_follower=out_of_range, of_leader=out_of_range, log=(15, 100))
    with pytest.raises(DataLoss, match="the records from offset 10 to 14 were removed, the log begins at 15"):
        racks.fetch()


def test_a_follower_is_tried_again_later_and_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(read_replicas, "_now_s", lambda: now_s)
    racks = Racks(of_follower=Disconnected("gone"))
    tried = []
    for _ in range(400):
        racks.fetch()
        if (FOLLOWER, 12) in racks.asked:
            tried.append(round(now_s) - 1000)
        racks.asked.clear()
        now_s += 1
    assert tried == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]
    racks.of_follower = found()
    now_s += 60
    racks.fetch()
    racks.of_follower = Disconnected("gone again")
    racks.fetch()
    racks.asked.clear()
    now_s += 1
    racks.fetch()
    assert racks.asked[:2] == REDIRECTED, "after records the pause is short again"


def test_a_choice_ends_with_its_leader_and_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(read_replicas, "_now_s", lambda: now_s)
    racks = Racks()
    racks.fetch()
    racks.of_epoch(4)
    racks.fetch()
    assert racks.asked == REDIRECTED * 2
    now_s += read_replicas.CHOICE_S
    racks.fetch()
    assert racks.asked == REDIRECTED * 3


@pytest.mark.parametrize("named", [LEADER, STRANGER, -2, 2**31 - 1])
def test_a_leader_that_names_no_follower_answers_itself(named: int) -> None:
    racks = Racks(named=named)
    found, _ = racks.fetch()
    assert found is not None and found.records == RECORDS
    assert racks.asked == [(LEADER, 12), (LEADER, 10)]


# -- real brokers -----------------------------------------------------------------------------------------------------


class _Served:
    """Counts, in this process, the answers of followers that had records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = ReadReplicas.serves

        def serves(replicas: ReadReplicas, partition: TopicPartition) -> None:
            self.count += 1
            real(replicas, partition)

        monkeypatch.setattr(ReadReplicas, "serves", serves)


def test_readers_in_a_rack_read_from_its_follower_while_it_lives(
    klamm_helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = _Served(monkeypatch)
    selector = {"replica.selector.class": "klamm.plugins.replica_selection:RackAwareReplicaSelector"}
    racks = {broker_id: {"broker.rack": f"rack-{broker_id}"} for broker_id in range(3)}
    with Cluster(3, properties=selector, broker_properties=racks, helper=klamm_helper) as cluster:
        cluster.create_topic("t")
        leader = cluster.leader("t")
        assert leader is not None
        follower = (leader + 1) % 3
        values = [b"%d" % number * 100 for number in range(3000)]
        Librdkafka.write(cluster.bootstrap, "t", [Written(value) for value in values])
        # A reader leaves a follower that has nothing for it.
        wait_until_committed(cluster, "t", follower, len(values))
        options = {"kafka.client.rack": f"rack-{follower}", "kafka.fetch.max.bytes": "10000"}

        def read(**more: str) -> list[bytes]:
            return (
                arrow.read(cluster.bootstrap, subscribe="t", columns=["value"], options={**options, **more})
                .read_all()["value"]
                .to_pylist()
            )

        assert read() == values
        assert served.count > 0
        served.count = 0
        assert read(**{"kafka.isolation.level": "read_committed"}) == values
        assert served.count > 0

        assert asyncio.run(_consumed(cluster.bootstrap, f"rack-{follower}", len(values))) == values

        batches = iter(arrow.read(cluster.bootstrap, subscribe="t", columns=["value"], options=options))
        found = next(batches)["value"].to_pylist()
        cluster.kill(follower)
        served.count = 0
        for batch in batches:
            found += batch["value"].to_pylist()
        assert found == values
        assert read() == values
        assert served.count == 0


async def _consumed(bootstrap: str, rack: str, count: int) -> list[bytes | None]:
    """What klamm's consumer reads, in small fetches; one at least must come from a follower."""
    options = ClientOptions(parse_addresses("bootstrap.servers", bootstrap), client_rack=rack)
    client = make_client(options, SystemEnvironment().random)
    served: list[TopicPartition] = []
    with patch.object(client.read_replicas, "serves", served.append):
        consumer = Consumer(
            client, ConsumerOptions(auto_offset_reset=OffsetReset.EARLIEST, max_partition_fetch_bytes=10_000)
        )
        consumer.assign({TopicPartition("t", 0): None})
        values: list[bytes | None] = []
        async with asyncio.timeout(120):
            while len(values) < count:
                values += [record.value for record in await consumer.poll(1_000)]
    await consumer.close()
    await client.close()
    assert served
    return values
