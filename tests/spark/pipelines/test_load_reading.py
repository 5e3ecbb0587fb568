"""klamm pipeline load: which offsets are planned, and how they are read from brokers. No session of Spark's."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions
from klamm.client.threads import call
from klamm.client.verification.compare import Window
from klamm.client.verification.fetcher import ReplicaFetcher
from klamm.client.verification.partition import PATIENCE_S, Answer
from klamm.processes.helper import Helper
from klamm.protocol.record.records import Record
from klamm.protocol.vocabulary import TopicPartition as KlammPartition
from klamm.spark.pipelines.load import ClusterCount, Counted, OffsetRange, _count_range, _plan, cut
from klamm.spark.pipelines.load_options import LoadOptions
from klamm.spark.pipelines.load_windows import Windows
from klamm.spark.pipelines.replicas import _window
from klamm.testing.cluster import Cluster
from support import placed_topics
from support.placed_topics import options_of, write_batches

SECOND_MS = 1000
# 2024-05-01, 10:00 UTC.
BEGIN_MS = 1_714_557_600_000


@pytest.fixture(scope="module")
def cluster_of_three(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(3, helper=klamm_helper) as cluster:
        yield cluster


def planned(client: ClientOptions, topic: str, options: LoadOptions) -> tuple[ClusterCount, list[OffsetRange]]:
    return call(client, partial(_plan, matches=lambda name: name == topic, options=options))


def create(cluster: Cluster, topic: str, assignment: list[list[int]]) -> None:
    placed_topics.create(cluster, topic, assignment, {"retention.ms": "-1"})


def write(cluster: Cluster, topic: str, seconds: Sequence[int], partition: int = 0) -> None:
    """A batch of ten records for each second after `BEGIN_MS`."""
    times = (BEGIN_MS + second * SECOND_MS for second in seconds)
    write_batches(cluster, topic, [[Record(None, b"v", time)] * 10 for time in times], partition)


def test_time_is_chosen_and_removed_records_are_noticed(cluster_of_three: Cluster) -> None:
    """Timestamps do not ascend: the batch of second 3 comes last."""
    client = options_of(cluster_of_three)
    admin = AdminClient({"bootstrap.servers": cluster_of_three.bootstrap})
    create(cluster_of_three, "timed", [[0, 1]])
    write(cluster_of_three, "timed", [1, 2, 4, 5, 3])
    key = KlammPartition("timed", 0)

    def found(start: int | None, end: int | None) -> tuple[bool, set[int]]:
        """Whether records of that time may have been removed, and the seconds that have batches."""
        start_ms, end_ms = (None if second is None else BEGIN_MS + second * SECOND_MS for second in (start, end))
        options = LoadOptions(start_ms, end_ms)
        count, ranges = planned(client, "timed", options)
        counted = [_count_range(client, options, each)[0] for each in ranges]
        seconds = {number - BEGIN_MS // SECOND_MS for each in counted for number in each.windows.cells}
        return count.partitions[key].is_cut, seconds

    assert found(None, None) == (False, {1, 2, 3, 4, 5})
    assert found(3, None) == (False, {3, 4, 5})
    assert found(2, 4) == (False, {2, 3})
    assert found(6, None) == (False, set())
    admin.delete_records([TopicPartition("timed", 0, 20)])[TopicPartition("timed", 0, 20)].result()
    assert found(None, None) == (True, {3, 4, 5})
    assert found(2, None) == (True, {3, 4, 5})
    assert found(5, None) == (False, {5})


@pytest.mark.parametrize("offsets_per_task", [1, 7, 10, 1000])
def test_a_range_that_ends_within_a_batch_counts_no_batch_twice(
    cluster_of_three: Cluster, offsets_per_task: int
) -> None:
    client, topic = options_of(cluster_of_three), f"cut-{offsets_per_task}"
    create(cluster_of_three, topic, [[1, 2]])
    write(cluster_of_three, topic, [1, 2, 3])
    _, ranges = planned(client, topic, LoadOptions())
    counted = [_count_range(client, LoadOptions(), each)[0] for each in cut(ranges, offsets_per_task)]
    whole = Counted(Windows())
    for each in counted:
        whole.merge(each)
    assert {number - BEGIN_MS // SECOND_MS: each.records for number, each in whole.windows.cells.items()} == {
        1: 10,
        2: 10,
        3: 10,
    }
    assert whole.total.batches == 3


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("load", "replicas"):
        monkeypatch.setattr(f"klamm.spark.pipelines.{module}.PATIENCE_S", 1.0)


@pytest.mark.usefixtures("little_patience")
def test_a_partition_without_a_leader_is_named_and_the_others_are_counted(klamm_helper: Helper) -> None:
    with Cluster(3, helper=klamm_helper) as cluster:
        client = options_of(cluster)
        create(cluster, "half", [[0], [2]])
        write(cluster, "half", [1], 0)
        write(cluster, "half", [1], 1)
        cluster.kill(2)
        cluster.until(lambda: cluster.leader("half", 1) is None)
        count, ranges = planned(client, "half", LoadOptions())
        assert [each.partition for each in ranges] == [KlammPartition("half", 0)]
        ((partition, reason),) = count.skipped
        assert partition == "half-1"
        assert "LEADER_NOT_AVAILABLE" in reason
        found, _ = _count_range(client, LoadOptions(), ranges[0])
        assert (found.total.records, found.failure) == (10, None)


@pytest.mark.usefixtures("little_patience")
def test_a_range_is_read_from_a_follower_where_the_leader_has_died(klamm_helper: Helper) -> None:
    with Cluster(3, helper=klamm_helper) as cluster:
        client = options_of(cluster)
        create(cluster, "led", [[2, 1]])
        write(cluster, "led", [1, 2, 3])
        _, (planned_range,) = planned(client, "led", LoadOptions())
        assert planned_range.brokers == (2, 1)
        cluster.kill(2)
        cluster.until(lambda: cluster.leader("led") == 1)
        found, _ = _count_range(client, LoadOptions(), planned_range)
        assert (found.total.records, found.failure) == (30, None)


def test_a_followers_high_watermark_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower has all records before it learns that they are committed."""
    partition = KlammPartition("t", 0)
    behind, known = Window(b"", 20), Window(b"records", 30)

    class Fetcher(ReplicaFetcher):
        def __init__(self, client: ClusterClient, answers: Sequence[Window]) -> None:
            super().__init__(client, 1, PATIENCE_S)
            self.answers = list(answers)

        async def fetch(
            self, partition: TopicPartition, offset: int, max_bytes: int, *, is_alone: bool = False
        ) -> Answer:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def asked(answers: Sequence[Window], end_offset: int | None) -> Window:
        client = ClusterClient([("nowhere", 1)])
        fetcher = Fetcher(client, answers)
        return (await _window(client, fetcher=fetcher, partition=partition, offset=20, end_offset=end_offset))[0]

    def ask(*answers: Window, end_offset: int | None) -> Window:
        return asyncio.run(asked(answers, end_offset))

    assert ask(behind, behind, known, end_offset=30) == known
    assert ask(behind, known, end_offset=None) == behind
    assert ask(behind, known, end_offset=20) == behind
    monkeypatch.setattr("klamm.spark.pipelines.replicas.PATIENCE_S", 0.2)
    assert ask(behind, end_offset=30) == behind
