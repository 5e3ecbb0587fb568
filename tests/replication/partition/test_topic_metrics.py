"""What a broker counts of topics (BrokerTopicMetrics)."""

from pathlib import Path

import pytest

from klamm.base.metrics import Metrics
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.replication.partition.topic_metrics import TopicStatistics, _Of
from support.fetch_messages import fetch_request, to_fetch
from support.metrics import Values
from support.one_broker import OneBroker, batch, running

TOPIC = "kafka.server:type=BrokerTopicMetrics,name={},topic=t"
ALL = "kafka.server:type=BrokerTopicMetrics,name={}"


def values(cluster: OneBroker) -> Values:
    endpoint = cluster.broker.parts.metrics_endpoint
    assert endpoint is not None
    return Values.of(endpoint.metrics)


def shown(statistics: TopicStatistics) -> Values:
    metrics = Metrics()
    statistics.register(metrics)
    return Values.of(metrics)


async def test_what_clients_write_and_read(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t", 2)
        await client.create_topic("other", 1)
        records = batch(b"a", b"b", b"c")
        for topic, partition in (("t", 0), ("t", 1), ("other", 0)):
            assert (await client.produce(topic, partition, records)).error_code == 0
        await client.request(ApiKey.FETCH, 12, fetch_request(("t", [to_fetch(0, 0, 1000)]), min_bytes=1))
        found = values(cluster)
        for name, of_topic, of_broker in (
            ("MessagesInPerSec", 6, 9),
            ("BytesInPerSec", 2 * len(records), 3 * len(records)),
            ("BytesOutPerSec", len(records), len(records)),
            ("TotalProduceRequestsPerSec", 2, 3),
            ("TotalFetchRequestsPerSec", 1, 1),
        ):
            assert (name, found[TOPIC.format(name)], found[ALL.format(name)]) == (name, of_topic, of_broker)
        assert found[ALL.format("ReplicationBytesOutPerSec")] == found[ALL.format("BytesRejectedPerSec")] == 0


async def test_what_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t", 1, cleanup_policy="compact", max_message_bytes="200")
        good = batch(b"a")
        corrupt = good[:-1] + b"x"
        wrong_offset = (5).to_bytes(8) + good[8:]
        old = good[:16] + b"\1" + good[17:]
        large = batch(bytes(300))
        for records in (corrupt, wrong_offset, old, large, good):
            produce = ProduceRequest.of(None, 1, 1000, [("t", [(0, records)])])
            await client.request(ApiKey.PRODUCE, 9, produce)
        found = values(cluster)
        for name, count in {
            "InvalidMessageCrcRecordsPerSec": 1,
            "InvalidOffsetOrSequenceRecordsPerSec": 1,
            "InvalidMagicNumberRecordsPerSec": 1,
            "NoKeyCompactedTopicRecordsPerSec": 1,
            "BytesRejectedPerSec": len(large),
            "TotalProduceRequestsPerSec": 5,
            "MessagesInPerSec": 0,
            # As in Kafka, batches that are too large or corrupt are no failures.
            "FailedProduceRequestsPerSec": 3,
        }.items():
            assert (name, found[ALL.format(name)]) == (name, count)


def test_a_deleted_topic_is_no_longer_shown_and_stays_in_the_sum() -> None:
    statistics = TopicStatistics()
    for _ in range(2):
        counts = statistics.hosts_one_more("t")
    counts.messages_in, counts.produce_requests = 5, 1
    statistics.hosts_one_less("t")
    assert shown(statistics)[TOPIC.format("MessagesInPerSec")] == 5
    statistics.hosts_one_less("t")
    found = shown(statistics)
    assert ("kafka_server_brokertopicmetrics_messagesin_total", (("topic", "t"),)) not in found.by_name
    assert found[ALL.format("MessagesInPerSec")] == 5
    assert statistics.hosts_one_more("t").messages_in == 0


def test_topics_that_are_not_hosted_have_no_names() -> None:
    statistics = TopicStatistics()
    for number in range(1000):
        statistics.of(f"made-up-{number}").refused(10, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        statistics.of(f"elsewhere-{number}").refused(10, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    found = shown(statistics)
    assert not [labels for _, labels in found.by_name if labels]
    assert found[ALL.format("TotalProduceRequestsPerSec")] == 1000


def test_copies_for_a_reassignment_count_twice() -> None:
    statistics = TopicStatistics()
    counts = statistics.hosts_one_more("t")
    counts.fetched_from_leader(10, is_reassignment=False)
    counts.fetched_from_leader(20, is_reassignment=True)
    counts.sent_to_follower(40, is_reassignment=True)
    found = shown(statistics)
    assert found[ALL.format("ReplicationBytesInPerSec")] == 30
    assert found[ALL.format("ReassignmentBytesInPerSec")] == 20
    assert found[ALL.format("ReplicationBytesOutPerSec")] == found[ALL.format("ReassignmentBytesOutPerSec")] == 40


def test_a_step_of_a_scrape_looks_at_a_bounded_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.replication.partition.topic_metrics.CHEAP_SLICE", 10)
    statistics = TopicStatistics()
    for number in range(95):
        statistics.hosts_one_more(f"t{number}").messages_in = 2
    statistics.of("t94").produce_requests = 1
    seen, since_pause = [], []
    for value in statistics._values("failed_fetch_requests", _Of.TOPICS_WITH_ANY):
        seen.append(value)
    assert seen.count(None) == 2 * 95 // 10
    for value in statistics._values("messages_in", _Of.BROKER_ONLY):
        since_pause.append(value)
        if value is None:
            statistics.hosts_one_less(f"t{len(since_pause)}")
    # Topics that went meanwhile are counted once.
    assert since_pause[-1] == (("",), 190)
    assert shown(statistics)[ALL.format("MessagesInPerSec")] == 190
