"""The client's administrative functions against a cluster of two klamm brokers: what they send is understood."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeVar

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.client.admin.configs import ConfigResource, describe_configs, incremental_alter_configs
from klamm.client.admin.delete_records import TO_HIGH_WATERMARK, delete_records
from klamm.client.admin.elections import elect_leaders
from klamm.client.admin.groups import delete_groups, describe_groups, list_groups
from klamm.client.admin.log_dirs import TopicPartitionReplica, alter_replica_log_dirs, describe_log_dirs
from klamm.client.admin.reassignments import alter_partition_reassignments, list_partition_reassignments
from klamm.client.admin.topics import (
    CreatedTopic,
    NewPartitions,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    describe_topics,
)
from klamm.client.cluster import ClusterClient, make_client
from klamm.client.consumer.offsets import (
    OffsetAndMetadata,
    alter_consumer_group_offsets,
    delete_consumer_group_offsets,
    list_consumer_group_offsets,
    list_offsets,
    list_replica_offsets,
)
from klamm.client.fan_out import checked
from klamm.client.metadata import PartitionMetadata
from klamm.client.options import ClientOptions
from klamm.client.properties import parse_addresses
from klamm.config.definition import ConfigSource
from klamm.processes.helper import Helper
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    UNKNOWN_OFFSET,
    AlterConfigOp,
    ConfigResourceType,
    ElectionType,
    OpType,
    TopicPartition,
)
from klamm.testing import Cluster
from support.spark.producing import numbered, produce

K = TypeVar("K")
Use = Callable[[Callable[[ClusterClient], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    """Two brokers that the tests leave as they are; each test uses topics and groups of its own."""
    with Cluster(2, helper=klamm_helper, properties={"log.retention.ms": -1}) as running:
        yield running


@pytest.fixture
def use(cluster: Cluster) -> Use:
    """Runs a test with a client of the cluster."""

    def run(test: Callable[[ClusterClient], Awaitable[None]]) -> None:
        async def with_client() -> None:
            options = ClientOptions(parse_addresses("bootstrap", cluster.bootstrap))
            client = make_client(options, SystemEnvironment().random)
            try:
                await test(client)
            finally:
                await client.close()

        asyncio.run(asyncio.wait_for(with_client(), 120))

    return run


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Asks again until the cluster has come so far."""
    while not await holds():  # noqa: ASYNC110  # nothing else tells
        await asyncio.sleep(0.02)


def errors(results: Mapping[K, object]) -> dict[K, str]:
    """The errors among results, by Kafka's names."""
    return {key: each.code.name for key, each in results.items() if isinstance(each, KafkaError)}


def test_records_are_deleted_on_all_replicas(use: Use, cluster: Cluster) -> None:
    cluster.create_topic("trimmed", partitions=3, replication_factor=2)
    partitions = [TopicPartition("trimmed", number) for number in range(3)]
    produce(cluster.bootstrap, "trimmed", [one for each in partitions for one in numbered(10, each.partition)])

    async def test(client: ClusterClient) -> None:
        asked = {partitions[0]: 4, partitions[1]: TO_HIGH_WATERMARK, partitions[2]: 11, TopicPartition("missing", 0): 0}
        deleted = await delete_records(client, asked, timeout_ms=10_000)
        assert errors(deleted) == {
            partitions[2]: "OFFSET_OUT_OF_RANGE",
            TopicPartition("missing", 0): "UNKNOWN_TOPIC_OR_PARTITION",
        }
        assert [deleted[partition] for partition in partitions[:2]] == [4, 10]
        replicas = [TopicPartitionReplica("trimmed", number, broker) for number in (0, 1) for broker in (0, 1)]
        starts = await list_replica_offsets(client, replicas, EARLIEST_TIMESTAMP)
        assert [checked(starts[replica]).offset for replica in replicas] == [4, 4, 10, 10]

    use(test)


def test_topics(use: Use) -> None:
    async def test(client: ClusterClient) -> None:
        assigned = NewTopic("assigned", replica_assignment={0: [0], 1: [1]}, configs={"retention.ms": "5"})
        created = await create_topics(client, [NewTopic("plain", 3, 2), assigned, NewTopic("no/name", 1, 1)])
        assert errors(created) == {"no/name": "INVALID_TOPIC_EXCEPTION"}
        plain = checked(created["plain"])
        assert plain == CreatedTopic(plain.topic_id, 3, 2)
        assert plain.topic_id is not None
        assert errors(await create_topics(client, [NewTopic("plain")])) == {"plain": "TOPIC_ALREADY_EXISTS"}
        assert await create_topics(client, [NewTopic("never", 1, 1)], validate_only=True) != {}

        grown = {"plain": NewPartitions(4), "assigned": NewPartitions(3, [[1]]), "never": NewPartitions(2)}
        assert errors(await create_partitions(client, grown)) == {"never": "UNKNOWN_TOPIC_OR_PARTITION"}
        found = await describe_topics(client)
        assert {"plain", "assigned"} <= found.keys()

        async def has_grown() -> bool:
            """The controller answers before every broker knows the new partition."""
            return len(checked((await describe_topics(client, ["assigned"]))["assigned"]).partitions) == 3

        await until(has_grown)
        described = await describe_topics(client, ["assigned", "never"])
        assert errors(described) == {"never": "UNKNOWN_TOPIC_OR_PARTITION"}
        topic = checked(described["assigned"])
        assert {number: each.replicas for number, each in topic.partitions.items()} == {0: [0], 1: [1], 2: [1]}
        assert not topic.is_internal

        assert errors(await delete_topics(client, ["plain", "assigned", "never"])) == {
            "never": "UNKNOWN_TOPIC_OR_PARTITION"
        }

        async def are_gone() -> bool:
            return not (await describe_topics(client)).keys() & {"plain", "assigned"}

        await until(are_gone)
        assert await describe_topics(client, []) == {}

    use(test)


def test_configs(use: Use, cluster: Cluster) -> None:
    cluster.create_topic("configured", configs={"retention.ms": 7})
    topic = ConfigResource(ConfigResourceType.TOPIC, "configured")
    broker = ConfigResource(ConfigResourceType.BROKER, "1")
    everyone = ConfigResource(ConfigResourceType.BROKER, "")
    missing = ConfigResource(ConfigResourceType.TOPIC, "missing")

    async def test(client: ClusterClient) -> None:
        found = await describe_configs(client, [topic, broker, missing], ["retention.ms", "log.dirs"])
        assert errors(found) == {missing: "UNKNOWN_TOPIC_OR_PARTITION"}
        (retention,) = checked(found[topic]).values()
        assert (retention.value, retention.source) == ("7", ConfigSource.DYNAMIC_TOPIC_CONFIG)
        directories = checked(found[broker])["log.dirs"]
        assert str(directories.value).endswith("broker-1"), "a broker describes itself"
        assert (directories.source, directories.is_read_only) == (ConfigSource.STATIC_BROKER_CONFIG, True)

        changes = {
            topic: [
                AlterConfigOp("cleanup.policy", "compact", OpType.APPEND),
                AlterConfigOp("retention.ms", None, OpType.DELETE),
            ],
            broker: [AlterConfigOp("log.segment.bytes", "100000", OpType.SET)],
            everyone: [AlterConfigOp("log.segment.bytes", "200000", OpType.SET)],
            missing: [AlterConfigOp("retention.ms", "1", OpType.SET)],
        }
        assert errors(await incremental_alter_configs(client, changes)) == {missing: "UNKNOWN_TOPIC_OR_PARTITION"}
        entries = checked((await describe_configs(client, [topic]))[topic])
        assert entries["cleanup.policy"].value == "delete,compact"
        assert entries["retention.ms"].source is not ConfigSource.DYNAMIC_TOPIC_CONFIG

    use(test)


def test_reassignments_and_elections(use: Use, cluster: Cluster) -> None:
    cluster.create_topic("moved", partitions=2, replication_factor=2)
    first, second, unknown = (TopicPartition("moved", number) for number in (0, 1, 9))

    async def test(client: ClusterClient) -> None:
        async def states() -> dict[int, PartitionMetadata]:
            return checked((await describe_topics(client, ["moved"]))["moved"]).partitions

        replicas = (await states())[0].replicas
        reversed_ = list(reversed(replicas))
        wanted = {first: reversed_, second: [0], unknown: [0]}
        assert errors(await alter_partition_reassignments(client, wanted)) == {unknown: "UNKNOWN_TOPIC_OR_PARTITION"}

        async def are_moved() -> bool:
            known = await states()
            return (
                known[0].replicas == reversed_
                and known[1].isr == [0]
                and not await list_partition_reassignments(client)
            )

        await until(are_moved)
        assert await list_partition_reassignments(client, [first]) == {}
        cancelled = await alter_partition_reassignments(client, {first: None})
        assert errors(cancelled) == {first: "NO_REASSIGNMENT_IN_PROGRESS"}

        elected = await elect_leaders(client, ElectionType.PREFERRED, [first, second, unknown])
        assert errors(elected).items() >= {second: "ELECTION_NOT_NEEDED", unknown: "UNKNOWN_TOPIC_OR_PARTITION"}.items()

        async def is_led_by_the_preferred_replica() -> bool:
            return (await states())[0].leader == reversed_[0]

        await until(is_led_by_the_preferred_replica)
        assert errors(await elect_leaders(client, ElectionType.PREFERRED)) == {}
        assert errors(await elect_leaders(client, ElectionType.UNCLEAN, [first])) == {first: "ELECTION_NOT_NEEDED"}

    use(test)


def test_log_directories(use: Use, cluster: Cluster) -> None:
    cluster.create_topic("stored", replication_factor=2)
    produce(cluster.bootstrap, "stored", numbered(10))
    stored = TopicPartition("stored", 0)

    async def test(client: ClusterClient) -> None:
        found = await describe_log_dirs(client, [0, 1], [stored])
        for broker_id in (0, 1):
            ((path, directory),) = checked(found[broker_id]).items()
            assert path.endswith(f"broker-{broker_id}")
            assert directory.error is None
            assert directory.replicas[stored].size_bytes > 100
            assert not directory.replicas[stored].is_future
        ((path, everything),) = checked((await describe_log_dirs(client, [0]))[0]).items()
        assert stored in everything.replicas
        here, nowhere = TopicPartitionReplica("stored", 0, 0), TopicPartitionReplica("stored", 0, 1)
        altered = await alter_replica_log_dirs(client, {here: path, nowhere: "/x"})
        assert altered[here] is None
        assert errors(altered) == {nowhere: "LOG_DIR_NOT_FOUND"}

    use(test)


def test_offsets_of_partitions(use: Use, cluster: Cluster) -> None:
    cluster.create_topic("read", partitions=2, replication_factor=1)
    produce(cluster.bootstrap, "read", numbered(5))
    read, empty, missing = (TopicPartition("read", number) for number in (0, 1, 2))

    async def test(client: ClusterClient) -> None:
        ends = await list_offsets(client, dict.fromkeys([read, empty, missing], LATEST_TIMESTAMP))
        assert errors(ends) == {missing: "UNKNOWN_TOPIC_OR_PARTITION"}
        assert [checked(ends[each]).offset for each in (read, empty)] == [5, 0]
        mixed = await list_offsets(client, {read: EARLIEST_TIMESTAMP, empty: 0})
        assert [checked(each).offset for each in mixed.values()] == [0, UNKNOWN_OFFSET]
        (first,) = (await list_offsets(client, {read: 0})).values()
        assert (checked(first).offset, checked(first).timestamp_ms > 0) == (0, True)

    use(test)


def test_ends_of_replicas(use: Use, cluster: Cluster) -> None:
    cluster.create_topic("copied", replication_factor=2)
    produce(cluster.bootstrap, "copied", numbered(7))
    cluster.until(lambda: cluster.isr("copied") == [0, 1] or cluster.isr("copied") == [1, 0])

    async def test(client: ClusterClient) -> None:
        replicas = [TopicPartitionReplica("copied", 0, broker_id) for broker_id in (0, 1)]
        elsewhere = [TopicPartitionReplica("copied", 1, 0), TopicPartitionReplica("copied", 0, 7)]
        ends = await list_replica_offsets(client, [*replicas, *elsewhere])
        assert errors(ends) == dict(zip(elsewhere, ["UNKNOWN_TOPIC_OR_PARTITION", "BROKER_NOT_AVAILABLE"], strict=True))
        assert [checked(ends[each]).offset for each in replicas] == [7, 7]
        begins = await list_replica_offsets(client, replicas, EARLIEST_TIMESTAMP)
        assert [checked(begins[each]).offset for each in replicas] == [0, 0]

    use(test)


def test_groups_and_their_offsets(use: Use, cluster: Cluster) -> None:
    cluster.create_topic("consumed", partitions=2)
    one, two, missing = (
        TopicPartition(topic, number) for topic, number in (("consumed", 0), ("consumed", 1), ("x", 0))
    )
    groups = [f"group-{number}" for number in range(6)]

    async def test(client: ClusterClient) -> None:
        for number, group in enumerate(groups):
            offsets = {
                one: OffsetAndMetadata(number),
                two: OffsetAndMetadata(number, "note"),
                missing: OffsetAndMetadata(1),
            }
            assert errors(await alter_consumer_group_offsets(client, group, offsets)) == {
                missing: "UNKNOWN_TOPIC_OR_PARTITION"
            }
        assert [each.group for each in await list_groups(client)] == groups
        assert await list_groups(client, ["Stable"]) == []
        assert [each.group for each in await list_groups(client, ["Empty"])] == groups
        described = await describe_groups(client, [*groups, "none"])
        assert {name: checked(each).state for name, each in described.items()} == {
            **dict.fromkeys(groups, "Empty"),
            "none": "Dead",
        }
        committed = await list_consumer_group_offsets(client, [*groups, "none"])
        assert [checked(committed[group])[two] for group in groups] == [
            OffsetAndMetadata(number, "note") for number in range(6)
        ]
        assert committed["none"] == {}
        deleted = await delete_consumer_group_offsets(client, groups[0], [one])
        assert deleted == {one: None}
        whole = await delete_consumer_group_offsets(client, "none", [one])
        assert isinstance(whole, KafkaError)
        assert whole.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert errors(await delete_groups(client, [*groups, "none"])) == {"none": "GROUP_ID_NOT_FOUND"}
        assert await list_groups(client) == []

    use(test)
