"""Our znodes against Apache Kafka 2.8.2: we read all that it writes, and it understands all that we write."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from klamm.base import json_bytes
from klamm.base.system_environment import SystemEnvironment
from klamm.znodes import brokers, cluster, configs, requests, topics
from klamm.znodes.brokers import BrokerRegistration, Endpoint
from klamm.znodes.cluster import Controller, Features, FeatureStatus, ProducerIdBlock
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment
from klamm.zookeeper.client import ZooKeeperClient
from support.oracles import RealKafka, RealZooKeeper

pytestmark = pytest.mark.loop("uvloop")

PATIENCE_SECONDS = 120


@asynccontextmanager
async def connected_store(connect: str) -> AsyncIterator[KafkaZooKeeper]:
    environment = SystemEnvironment()
    client = ZooKeeperClient(environment, connect)
    await client.start(PATIENCE_SECONDS * 1000)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield KafkaZooKeeper(client)
    finally:
        await client.close()
        environment.close()


async def watched(client: ZooKeeperClient, path: str) -> tuple[bool, asyncio.Event]:
    """Whether the znode exists, and what is set when that may have changed."""
    changed = asyncio.Event()
    return await client.exists(path, lambda _: changed.set()) is not None, changed


async def gone(client: ZooKeeperClient, path: str) -> None:
    """Returns when the znode does not exist."""
    while True:
        exists, changed = await watched(client, path)
        if not exists:
            return
        await changed.wait()


async def there(client: ZooKeeperClient, path: str) -> None:
    """Returns when the znode exists."""
    while True:
        exists, changed = await watched(client, path)
        if exists:
            return
        await changed.wait()


def same(ours: bytes, theirs: bytes) -> bool:
    return bool(json_bytes.decode(ours) == json_bytes.decode(theirs))


async def test_we_read_what_kafka_writes_and_would_write_the_same(
    real_kafka: RealKafka, real_zookeeper: RealZooKeeper
) -> None:
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    new = NewTopic("theirs", 3, 1, config={"retention.ms": "12345", "cleanup.policy": "compact,delete"})
    admin.create_topics([new])["theirs"].result()
    resource = ConfigResource(ConfigResource.Type.BROKER, "0", set_config={"log.cleaner.threads": "2"})
    admin.alter_configs([resource])[resource].result()
    async with connected_store(f"{real_zookeeper.connect}/real-kafka") as store:

        async def data(path: str) -> bytes:
            return (await store.client.get(path))[0]

        for path in cluster.PERSISTENT_PATHS:
            assert await store.client.exists(path) is not None, path

        registration = (await store.live_brokers())[0].registration
        host, _, port = real_kafka.bootstrap.rpartition(":")
        assert registration.endpoints == (Endpoint("PLAINTEXT", host, int(port), "PLAINTEXT"),)
        assert same(registration.encode(), await data(brokers.broker_path(0)))
        stat = await store.client.exists(brokers.broker_path(0))
        assert stat is not None
        assert (stat.version, (await store.live_brokers())[0].epoch) == (1, stat.czxid)

        controller = Controller.decode(await data("/controller"))
        assert controller.broker_id == 0
        assert same(controller.encode(), await data("/controller"))
        epoch = cluster.decode_controller_epoch(await data("/controller_epoch"))
        assert cluster.encode_controller_epoch(epoch) == await data("/controller_epoch")
        cluster_id = await store.get_or_create_cluster_id("not this one")
        assert same(cluster.encode_cluster_id(cluster_id), await data("/cluster/id"))
        block = ProducerIdBlock.decode(await data("/latest_producer_id_block"))
        assert same(block.encode(), await data("/latest_producer_id_block"))
        features = Features.decode(await data("/feature"))
        assert features == Features(FeatureStatus.ENABLED)
        assert same(features.encode(), await data("/feature"))

        assignment = await store.topic_assignment("theirs")
        assert assignment is not None
        assert assignment.partitions == {0: (0,), 1: (0,), 2: (0,)}
        assert assignment.topic_id is not None
        assert same(assignment.encode(), await data(topics.topic_path("theirs")))
        for partition in range(3):
            await there(store.client, topics.partition_state_path("theirs", partition))
        states = await store.partition_states([("theirs", 0), ("theirs", 1), ("theirs", 2), ("absent", 0)])
        assert states == {("theirs", number): LeaderAndIsr(0, 0, (0,), epoch) for number in range(3)}
        assert same(LeaderAndIsr(0, 0, (0,), epoch).encode(), await data(topics.partition_state_path("theirs", 0)))

        config = (await store.configs.of_topics(["theirs"]))["theirs"]
        assert config == {"retention.ms": "12345", "cleanup.policy": "compact,delete"}
        assert same(configs.encode_config(config), await data("/config/topics/theirs"))
        changes = await store.client.children(configs.CONFIG_CHANGES_PATH)
        entities = [
            configs.decode_config_change(name, await data(f"{configs.CONFIG_CHANGES_PATH}/{name}")) for name in changes
        ]
        assert "brokers/0" in entities
        assert same(
            configs.encode_config_change("brokers/0"),
            await data(f"{configs.CONFIG_CHANGES_PATH}/{changes[entities.index('brokers/0')]}"),
        )
        assert configs.decode_config("brokers/0", await data("/config/brokers/0")) == {"log.cleaner.threads": "2"}


async def test_kafka_understands_what_we_write(real_kafka: RealKafka, real_zookeeper: RealZooKeeper) -> None:
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    async with connected_store(f"{real_zookeeper.connect}/real-kafka") as store:
        client = store.client
        loop = asyncio.get_running_loop()
        await store.create_persistent_paths()

        topic_id = SystemEnvironment().random_uuid()
        await store.create_topic("ours", {0: [0], 1: [0]}, topic_id, {"retention.ms": "54321"})
        await there(client, topics.partition_state_path("ours", 1))
        await store.add_partitions("ours", {2: [0]})
        await there(client, topics.partition_state_path("ours", 2))
        while True:
            listed = await loop.run_in_executor(None, lambda: admin.list_topics("ours", timeout=120))
            if len(partitions := listed.topics["ours"].partitions) == 3:
                break
        assert {number: partition.replicas for number, partition in partitions.items()} == {0: [0], 1: [0], 2: [0]}
        # The controller of 2.8 gives a topic without an id one; it has left ours.
        assignment = await store.topic_assignment("ours")
        assert assignment == TopicAssignment({0: (0,), 1: (0,), 2: (0,)}, topic_id)

        resource = ConfigResource(ConfigResource.Type.TOPIC, "ours")

        async def retention() -> str:
            described = admin.describe_configs([resource])[resource]
            entries = await loop.run_in_executor(None, described.result)
            value: str = entries["retention.ms"].value
            return value

        assert await retention() == "54321"
        await store.configs.update("topics/ours", lambda _stored: {"retention.ms": "99999"})
        assert await retention() == "99999"

        # Each of these is removed by the controller once it has been understood and done.
        await client.create(requests.PREFERRED_REPLICA_ELECTION_PATH, requests.encode_partitions([("ours", 0)]))
        await gone(client, requests.PREFERRED_REPLICA_ELECTION_PATH)
        await client.create(requests.REASSIGN_PARTITIONS_PATH, requests.encode_reassignment({("ours", 1): [0]}))
        await gone(client, requests.REASSIGN_PARTITIONS_PATH)
        for prefix, content in (
            (requests.ISR_CHANGE_PREFIX, requests.encode_partitions([("ours", 0), ("ours", 1)])),
            (requests.LOG_DIR_EVENT_PREFIX, requests.encode_log_dir_event(0)),
        ):
            path, _ = await client.create(prefix, content, sequential=True)
            await gone(client, path)

        await store.mark_topic_for_deletion("ours")
        await gone(client, requests.delete_topic_path("ours"))
        assert "ours" not in await store.topic_names()
        assert await client.exists("/config/topics/ours") is None
        assert await store.live_brokers() != {}


async def test_kafka_goes_on_with_our_producer_id_blocks(real_kafka: RealKafka, real_zookeeper: RealZooKeeper) -> None:
    async with connected_store(f"{real_zookeeper.connect}/real-kafka") as store:
        first, last = await store.allocate_producer_id_block(7)
        assert last == first + 999
        theirs = ProducerIdBlock.decode((await store.client.get("/latest_producer_id_block"))[0])
        assert theirs == ProducerIdBlock(7, first, last)


async def test_kafka_sees_our_brokers(real_kafka: RealKafka, real_zookeeper: RealZooKeeper) -> None:
    """A broker that we register becomes part of the cluster's metadata."""
    admin = AdminClient({"bootstrap.servers": real_kafka.bootstrap})
    async with connected_store(f"{real_zookeeper.connect}/real-kafka") as store:
        registration = BrokerRegistration(
            77, (Endpoint("PLAINTEXT", "127.0.0.1", 1, "PLAINTEXT"),), rack="r", timestamp_ms=1
        )
        await store.register_broker(registration)
        while True:
            listed = await asyncio.get_running_loop().run_in_executor(None, lambda: admin.list_topics(timeout=120))
            if 77 in listed.brokers:
                break
        assert (listed.brokers[77].host, listed.brokers[77].port) == ("127.0.0.1", 1)
