"""Topics on the brokers that a test names, with exactly the batches that it writes, on a cluster of processes.

A topic is created when every broker knows it, not when the first one answers: a client may ask any broker next.
"""

import asyncio
from collections.abc import Mapping, Sequence

from klamm.client.admin.topics import NewTopic, create_topics
from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions
from klamm.client.threads import call
from klamm.client.verification.compare import Window
from klamm.client.verification.fetcher import ReplicaFetcher
from klamm.processes.readiness import wait_for_topic
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import TopicPartition
from klamm.testing.cluster import Cluster

TIMEOUT_S = 120


def options_of(cluster: Cluster) -> ClientOptions:
    return ClientOptions(tuple((broker.host, broker.port) for broker in cluster.brokers))


def create(
    cluster: Cluster, topic: str, assignment: Sequence[Sequence[int]], configs: Mapping[str, str] | None = None
) -> None:
    """A topic whose partitions have these replicas, the leader first."""
    placed = NewTopic(topic, replica_assignment=dict(enumerate(assignment)), configs=dict(configs or {}))
    created = call(options_of(cluster), lambda client: create_topics(client, [placed]))
    assert not isinstance(created[topic], Exception), created[topic]
    brokers = {broker.id: (broker.host, broker.port) for broker in cluster.brokers}
    asyncio.run(wait_for_topic(brokers, topic, TIMEOUT_S, lambda: None))


def write_batches(cluster: Cluster, topic: str, batches: Sequence[Sequence[Record]], partition: int = 0) -> None:
    """Appends each of these as one batch, which no producer promises. All replicas in sync have them then."""

    async def write(client: ClusterClient) -> None:
        for records in batches:
            batch = build_batch(records)
            answer = await client.send_to_leader(
                topic,
                partition,
                ApiKey.PRODUCE,
                lambda _: ProduceRequest.of(None, -1, 30_000, [(topic, [(partition, batch)])]),  # noqa: B023
                errors_of=codes,
                repeatable=False,
            )
            assert codes(answer) == [ErrorCode.NONE]

    def codes(response: ProduceResponse) -> list[int]:
        found = [each.error_code for of_topic in response.responses for each in of_topic.partition_responses]
        # Such a batch may be in the log, and a further attempt would append it twice.
        assert ErrorCode.REQUEST_TIMED_OUT not in found
        return found

    call(options_of(cluster), write)


def wait_until_committed(cluster: Cluster, topic: str, broker: int, end_offset: int, partition: int = 0) -> None:
    """Waits until a replica knows that the records before an offset are committed.

    A follower learns it from an answer of the leader, up to replica.fetch.wait.max.ms later than a producer does.
    """

    async def high_watermark(client: ClusterClient) -> int:
        await client.refresh_metadata([topic])
        fetcher = ReplicaFetcher(client, broker, TIMEOUT_S)
        answer = await fetcher.fetch(TopicPartition(topic, partition), end_offset - 1, 1, is_alone=True)
        fetcher.close()
        return answer.high_watermark if isinstance(answer, Window) else -1

    cluster.until(lambda: call(options_of(cluster), high_watermark) >= end_offset, TIMEOUT_S)
