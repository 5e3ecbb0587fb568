"""What leaders may answer to a fetch, one answer after another, from a cluster that is made up here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from klamm.client.cluster import ClusterClient
from klamm.client.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from klamm.client.options import ClientOptions
from klamm.client.read_replicas import ReadReplicas
from klamm.net.client import Connection, Disconnected, UnsupportedVersion
from klamm.protocol.apis.fetch import FetchRequest, PartitionData
from klamm.protocol.apis.list_offsets import ListOffsetsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey, request_class
from klamm.protocol.record.records import Record, build_batch
from klamm.simulation.machine.loop import simulated_loop
from klamm.spark.read import partition_reader
from klamm.spark.read.partition_reader import Loss, RangeFetcher, read_range
from klamm.spark.settings import DataLoss, FetchOptions, PartitionRange
from support.fetch_messages import fetch_response
from support.played_connection import PlayedConnection

ID, OTHER_ID = UUID(int=1), UUID(int=2)
RANGE = PartitionRange("t", 0, 10, 20, ID.hex)
RECORDS = bytes(build_batch([Record(None, b"v")], base_offset=10))
OPTIONS = FetchOptions(ClientOptions((("nowhere", 1),)), poll_timeout_ms=400)

# Loading it may take longer than OPTIONS waits.
request_class(ApiKey.LIST_OFFSETS)

Answer = PartitionData | Exception | None


@dataclass(eq=False)
class FakeCluster(ClusterClient):
    """A client whose connections give `answers` to fetches, in turn, the last one for ever."""

    answers: list[Answer]
    log: tuple[int, int] = (0, 100)
    topics: list[TopicMetadata] = field(default_factory=lambda: [topic()])
    requests: list[FetchRequest] = field(default_factory=list)
    refreshes: list[bool] = field(default_factory=list)
    metadata: ClusterMetadata = field(default_factory=ClusterMetadata)
    read_replicas: ReadReplicas = field(default_factory=lambda: ReadReplicas(""))
    api_versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    forgets_versions: bool = False  # when it is asked

    async def refresh_metadata(
        self, topics: Iterable[str] | None = None, *, elsewhere: bool = False
    ) -> ClusterMetadata:
        self.refreshes.append(elsewhere)
        self.metadata.topics["t"] = self.topics.pop(0) if len(self.topics) > 1 else self.topics[0]
        return self.metadata

    async def connection_to(self, broker_id: int) -> Connection:
        return FakeConnection(self, broker_id)


class FakeConnection(PlayedConnection):
    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        super().__init__(broker_id)
        self._cluster = cluster
        self.api_versions = {**cluster.api_versions}

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
        cluster = self._cluster
        if cluster.forgets_versions:
            cluster.api_versions = {}
        if api_key is ApiKey.LIST_OFFSETS:
            request = build(5)
            wanted = request.topics[0].partitions[0].timestamp
            struct = ListOffsetsResponse.ListOffsetsTopicResponse
            end = struct.ListOffsetsPartitionResponse(
                partition_index=0, error_code=0, offset=cluster.log[0] if wanted == -2 else cluster.log[1]
            )
            return ListOffsetsResponse(topics=[struct(name="t", partitions=[end])])
        cluster.requests.append(build(version or 12))
        answer = cluster.answers.pop(0) if len(cluster.answers) > 1 else cluster.answers[0]
        if isinstance(answer, Exception):
            raise answer
        response = fetch_response(*([("t", [answer])] if answer is not None else []))
        if version == 13:
            for topic in response.responses:
                topic.topic, topic.topic_id = "", cluster.requests[-1].topics[0].topic_id
        return response


def topic(leader: int = 1, epoch: int = 3, identity: UUID | None = ID, error: int = 0) -> TopicMetadata:
    return TopicMetadata(error, {0: PartitionMetadata(0, leader, epoch, [1], [1])}, identity)


def found(records: bytes = RECORDS) -> PartitionData:
    return PartitionData(
        partition_index=0, error_code=0, high_watermark=100, last_stable_offset=100, log_start_offset=0, records=records
    )


def failed(code: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=0, error_code=code)


def nothing(high_watermark: int, last_stable_offset: int) -> PartitionData:
    return PartitionData(
        partition_index=0, error_code=0, high_watermark=high_watermark, last_stable_offset=last_stable_offset
    )


async def fetched(
    cluster: FakeCluster, fetcher: RangeFetcher, offset: int
) -> tuple[PartitionData | None, Sequence[Loss]]:
    done = await fetcher.fetch(offset, 1000)(cluster)
    return done.answer, done.losses


def fetch(cluster: FakeCluster, offset: int = 10, options: FetchOptions = OPTIONS) -> PartitionData | None:
    return losing_fetch(cluster, offset, options)[0]


def losing_fetch(
    cluster: FakeCluster, offset: int = 10, options: FetchOptions = OPTIONS
) -> tuple[PartitionData | None, list[tuple[int, int]]]:
    """What is fetched, and the offsets that are lost."""
    answer, losses = simulated_loop().run_until_complete(fetched(cluster, RangeFetcher(options, RANGE), offset))
    return answer, [(loss.start_offset, loss.end_offset) for loss in losses]


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_reader, "GRACE_MS", 100)


def test_a_fetch_names_the_leader_epoch_and_isolation_level() -> None:
    cluster = FakeCluster([found()])
    answer = fetch(cluster)
    assert answer is not None
    assert answer.records == RECORDS
    (request,) = cluster.requests
    (partition,) = request.topics[0].partitions
    assert (partition.current_leader_epoch, partition.fetch_offset, partition.partition_max_bytes) == (3, 10, 1000)
    assert (request.isolation_level, request.replica_id, request.max_bytes) == (0, -1, 1000)
    committed = FetchOptions(OPTIONS.client, read_committed=True)
    cluster = FakeCluster([found()])
    fetch(cluster, options=committed)
    assert cluster.requests[0].isolation_level == 1


@pytest.mark.parametrize(
    "passing",
    [
        failed(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        failed(ErrorCode.FENCED_LEADER_EPOCH),
        failed(ErrorCode.UNKNOWN_LEADER_EPOCH),
        failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        failed(ErrorCode.OFFSET_OUT_OF_RANGE),
        Disconnected("gone"),
        None,
        nothing(15, 15),
    ],
    ids=str,
)
def test_what_passes_is_tried_again_with_new_metadata_from_elsewhere(passing: Answer) -> None:
    cluster = FakeCluster([passing, found()])
    assert fetch(cluster) is not None
    assert cluster.refreshes[-1] is True
    assert len(cluster.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED), UnsupportedVersion("Fetch")],
    ids=str,
)
def test_what_does_not_pass_is_an_error_at_once(answer: Answer) -> None:
    cluster = FakeCluster([answer])
    with pytest.raises((KafkaError, UnsupportedVersion)):
        fetch(cluster)
    assert len(cluster.requests) == 1


def test_what_should_pass_and_does_not() -> None:
    with pytest.raises(
        KafkaError, match=r"NOT_LEADER_OR_FOLLOWER \(6\): t-0: broker 1 refuses to fetch from offset 10"
    ):
        fetch(FakeCluster([failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)]))
    with pytest.raises(Disconnected, match="gone"):
        fetch(FakeCluster([Disconnected("gone")]))
    with pytest.raises(KafkaError, match=r"LEADER_NOT_AVAILABLE \(5\): t-0 has no leader"):
        fetch(FakeCluster([found()], topics=[topic(leader=-1)]))


def test_nothing_is_left_of_the_rest_of_the_range() -> None:
    """As after compaction: the high watermark has passed the range, and the leader has no batch in it."""
    assert fetch(FakeCluster([nothing(20, 20)])) is None
    assert fetch(FakeCluster([found()]), offset=20) is None


def test_read_committed_waits_for_the_last_stable_offset() -> None:
    committed = FetchOptions(OPTIONS.client, read_committed=True, poll_timeout_ms=100)
    with pytest.raises(KafkaError, match="the last stable offset is 15"):
        fetch(FakeCluster([nothing(20, 15)]), options=committed)
    assert fetch(FakeCluster([nothing(20, 15), nothing(20, 20)]), options=committed) is None


def test_another_topic_id_is_believed_when_it_stays() -> None:
    assert fetch(FakeCluster([found()], topics=[topic(identity=OTHER_ID), topic()])) is not None
    with pytest.raises(DataLoss, match="deleted and created again"):
        fetch(FakeCluster([found()], topics=[topic(identity=OTHER_ID)]))
    # Brokers before 2.8 tell no id.
    assert fetch(FakeCluster([found()], topics=[topic(identity=None)])) is not None


def test_the_id_is_compared_at_both_ends_of_the_range() -> None:
    with pytest.raises(DataLoss, match="deleted and created again"):
        fetch(FakeCluster([found()], topics=[topic(identity=OTHER_ID)]), offset=20)
    # What was read before it was deleted, was read.
    assert fetch(FakeCluster([found()], topics=[topic(error=3)]), offset=20) is None
    cluster = FakeCluster([found()])
    cluster.metadata.topics["t"] = topic()
    fetch(cluster, offset=12)
    assert cluster.refreshes == []


def test_leaders_that_know_topics_by_their_ids_are_asked_for_the_id_and_no_metadata() -> None:
    cluster = FakeCluster([found()], api_versions={ApiKey.FETCH: (4, 17)})
    cluster.metadata.topics["t"] = topic()
    tolerant = FetchOptions(OPTIONS.client, fail_on_data_loss=False)
    for options in (OPTIONS, tolerant):
        fetcher = RangeFetcher(options, RANGE)
        for offset in (10, 20):
            simulated_loop().run_until_complete(fetched(cluster, fetcher, offset))
    assert [request.topics[0].topic_id for request in cluster.requests] == [ID, ID]
    assert cluster.refreshes == []


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID])
def test_a_leader_that_does_not_know_the_id_is_a_loss_when_the_metadata_says_so(code: ErrorCode) -> None:
    by_id: dict[int, tuple[int, int]] = {ApiKey.FETCH: (4, 17)}
    with pytest.raises(DataLoss, match="deleted and created again"):
        fetch(FakeCluster([failed(code)], topics=[topic(), topic(identity=OTHER_ID)], api_versions=by_id))
    with pytest.raises(DataLoss, match="no longer exists"):
        fetch(FakeCluster([failed(code)], topics=[topic(), topic(error=3)], api_versions=by_id))
    # A broker that has just started.
    assert fetch(FakeCluster([failed(code), found()], api_versions=by_id)) is not None


def test_a_leader_that_knows_no_ids_after_one_that_does(answering: Callable[..., list[int]]) -> None:
    """As while brokers are upgraded: the metadata is read at the end."""
    cluster = FakeCluster([found(batch_of(10, 13)), found(batch_of(15, 19))], api_versions={ApiKey.FETCH: (4, 17)})
    assert answering(cluster) == [10, 13, 15, 19]
    assert cluster.refreshes == [False]
    cluster = FakeCluster([found(batch_of(10, 13)), found(batch_of(15, 19))], api_versions={ApiKey.FETCH: (4, 17)})
    cluster.forgets_versions = True
    assert answering(cluster) == [10, 13, 15, 19]
    assert cluster.refreshes == [False, False]


def test_an_offset_behind_the_end_is_believed_when_it_stays_there() -> None:
    out_of_range = failed(ErrorCode.OFFSET_OUT_OF_RANGE)
    assert fetch(FakeCluster([out_of_range, out_of_range, found()], log=(0, 5))) is not None
    with pytest.raises(DataLoss, match="t-0: the log ends at offset 5, but 10 to 19 were there"):
        fetch(FakeCluster([out_of_range], log=(0, 5)))


def test_a_loss_is_not_believed_because_brokers_were_gone_before() -> None:
    """The first broker that is there again knows no topic yet."""
    patient = FetchOptions(OPTIONS.client, poll_timeout_ms=5000)
    gone = Disconnected("gone")
    cluster = FakeCluster([gone, gone, gone, found()], topics=[topic(), topic(), topic(), topic(error=3), topic()])
    assert fetch(cluster, options=patient) is not None
    # Nor at the end of all waiting.
    cluster = FakeCluster([gone, gone, gone, gone, found()], topics=[*4 * [topic()], topic(error=3), topic()])
    assert fetch(cluster) is not None


def test_a_log_that_is_shorter_than_the_range_is_a_loss_in_the_end() -> None:
    with pytest.raises(DataLoss, match="t-0: the log ends at offset 13, but 12 to 19 were to be read; with failOnData"):
        fetch(FakeCluster([nothing(13, 13)], log=(0, 13)), 12)
    tolerant = FetchOptions(OPTIONS.client, fail_on_data_loss=False, poll_timeout_ms=400)
    assert losing_fetch(FakeCluster([nothing(13, 13)], log=(0, 13)), 12, tolerant) == (None, [(12, 20)])
    # Records that are only late are waited for.
    assert fetch(FakeCluster([nothing(13, 13), nothing(13, 13), found()], log=(0, 13)), 12) is not None


def test_without_fail_on_data_loss_reading_goes_on_where_the_log_begins() -> None:
    tolerant = FetchOptions(OPTIONS.client, fail_on_data_loss=False)
    out_of_range = failed(ErrorCode.OFFSET_OUT_OF_RANGE)
    cluster = FakeCluster([out_of_range, found()], log=(13, 100))
    answer, losses = losing_fetch(cluster, options=tolerant)
    assert answer is not None
    assert losses == [(10, 13)]
    assert [request.topics[0].partitions[0].fetch_offset for request in cluster.requests] == [10, 13]
    assert losing_fetch(FakeCluster([out_of_range], log=(50, 100)), options=tolerant) == (None, [(10, 20)])
    assert losing_fetch(FakeCluster([out_of_range], log=(0, 5)), 12, options=tolerant) == (None, [(12, 20)])
    # Which records of the range were the other topic's, nobody knows.
    replaced = FakeCluster([found()], topics=[topic(identity=OTHER_ID)])
    assert losing_fetch(replaced, 20, options=tolerant) == (None, [(10, 20)])


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """The offsets that are read from a cluster."""

    def answering(cluster: FakeCluster, options: FetchOptions = OPTIONS, **arguments: Any) -> list[int]:
        from concurrent.futures import Future

        def start(_: ClientOptions, work: Callable[[Any], Any]) -> "Future[Any]":
            future: Future[Any] = Future()
            future.set_result(simulated_loop().run_until_complete(work(cluster)))
            return future

        monkeypatch.setattr(partition_reader, "start", start)
        made = read_range(options, RANGE, ("offset",), **arguments)
        return [offset for batch in made for offset in batch.column("offset").to_pylist()]

    return answering


def batch_of(*offsets: int) -> bytes:
    return bytes(build_batch([Record(None, b"v", 1, (), offset) for offset in offsets], base_offset=offsets[0]))


def test_losses_are_told_and_what_was_removed_is_not_handed_out(answering: Callable[..., list[int]]) -> None:
    """The log begins within a batch, of which a leader returns the whole, and again later."""
    tolerant, losses = FetchOptions(OPTIONS.client, fail_on_data_loss=False), list[Loss]()
    out_of_range = failed(ErrorCode.OFFSET_OUT_OF_RANGE)
    cluster = FakeCluster([out_of_range, found(batch_of(11, 12, 13, 14)), found(batch_of(15, 19))], log=(13, 100))
    assert answering(cluster, tolerant, on_loss=losses.append) == [13, 14, 15, 19]
    assert losses == [(10, 13, "t-0: the records from offset 10 to 12 were removed, the log begins at 13")]
    cluster = FakeCluster([found(batch_of(10, 13)), out_of_range], log=(20, 100))
    losses.clear()
    assert answering(cluster, tolerant, on_loss=losses.append) == [10, 13]
    assert [loss[:2] for loss in losses] == [(14, 20)]


def test_a_leader_that_returns_other_offsets_than_those_asked_for(answering: Callable[..., list[int]]) -> None:
    earlier = bytes(build_batch([Record(None, b"v")], base_offset=3))
    with pytest.raises(KafkaError, match="t-0 at offset 10: the leader returned no batch that reaches this offset"):
        answering(FakeCluster([found(earlier)]))
    with pytest.raises(KafkaError, match="t-0 at offset 10: the leader returned no batch that reaches this offset"):
        answering(FakeCluster([found(RECORDS[:-1])]))
    # A batch may begin before the offset and end after the range, and offsets may be missing.
    assert answering(FakeCluster([found(batch_of(7, 9, 10, 12, 19, 20, 22))])) == [10, 12, 19]
