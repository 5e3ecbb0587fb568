"""Kafka's generator of plans, as klamm has it for comparison, is that of `kafka-reassign-partitions --generate`.

The brokers are znodes alone: Kafka's tool asks ZooKeeper for their ids and racks.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from klamm.base.slices import in_one_go
from klamm.broker.topics.replica_assignment import assign_replicas
from klamm.cli.reassign.json_form import parse_reassignment
from klamm.cli.reassign.planning.goals import Goal, Racks
from klamm.cli.reassign.planning.kafka_placement import kafka_plan
from klamm.cli.reassign.planning.model import Broker, ClusterModel, Partition
from klamm.protocol.vocabulary import TopicPartition
from support.oracles import RealZooKeeper, java_tool

pytestmark = pytest.mark.long

RACKS = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "c", 7: "c"}
TOPICS = {"few": (3, 1), "many": (40, 3), "wide": (9, 5)}


@pytest.fixture(scope="module")
def zookeeper(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealZooKeeper]:
    server = RealZooKeeper(kafka_jars, tmp_path_factory.mktemp("zookeeper"))
    try:
        server.start()
        client = KazooClient(server.connect)
        client.start()
        for broker, rack in RACKS.items():
            value = {
                "version": 4,
                "host": "h",
                "port": 9092,
                "jmx_port": -1,
                "timestamp": "0",
                "endpoints": [f"PLAINTEXT://h:{9092 + broker}"],
                "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
                "rack": rack,
            }
            client.create(f"/brokers/ids/{broker}", json.dumps(value).encode(), makepath=True)
        for topic, (partitions, factor) in TOPICS.items():
            assignment = {str(number): list(RACKS)[:factor] for number in range(partitions)}
            value = {"version": 1, "partitions": assignment}
            client.create(f"/brokers/topics/{topic}", json.dumps(value).encode(), makepath=True)
        client.stop()
        client.close()
        yield server
    finally:
        server.kill()


@pytest.mark.parametrize("rack_aware", [True, False])
def test_kafka_places_topics_as_klamms_copy_of_its_algorithm(
    zookeeper: RealZooKeeper, kafka_jars: Path, tmp_path: Path, rack_aware: bool
) -> None:
    file = tmp_path / "topics.json"
    file.write_text(json.dumps({"version": 1, "topics": [{"topic": topic} for topic in TOPICS]}))
    brokers = [1, 2, 3, 4, 5, 6]
    options = [] if rack_aware else ["--disable-rack-aware"]
    printed = java_tool(
        kafka_jars,
        "kafka.admin.ReassignPartitionsCommand",
        *("--zookeeper", zookeeper.connect, "--generate", "--topics-to-move-json-file", file),
        *("--broker-list", ",".join(map(str, brokers)), *options),
    ).decode()
    lines = printed.splitlines()
    proposed = parse_reassignment(lines[lines.index("Proposed partition reassignment configuration") + 1], "kafka")
    racks = {broker: RACKS[broker] for broker in brokers} if rack_aware else None
    cluster = ClusterModel(
        {broker: Broker(rack) for broker, rack in RACKS.items()},
        {
            TopicPartition(topic, number): Partition(tuple(list(RACKS)[:factor]))
            for topic, (partitions, factor) in TOPICS.items()
            for number in range(partitions)
        },
    )
    ours = kafka_plan(cluster, Goal(broker_list=tuple(brokers), racks=Racks.KEEP if rack_aware else Racks.IGNORE))
    for topic, (partitions, factor) in TOPICS.items():
        possible = [
            in_one_go(assign_replicas(brokers, partitions, factor, start_index=start, shift=shift, racks=racks))
            for start in range(len(brokers))
            for shift in range(len(brokers))
        ]
        # Both draw where they start; from there everything follows.
        kafkas = {number: list(proposed[TopicPartition(topic, number)].replicas) for number in range(partitions)}
        assert kafkas in possible
        after = {key: placement.replicas for key, placement in ours.after.items()}
        klamms = {
            number: list(after.get(key, cluster.partitions[key].replicas))
            for number in range(partitions)
            for key in [TopicPartition(topic, number)]
        }
        assert klamms in possible
