"""The metrics of two brokers of Apache Kafka 2.8.2 behind Prometheus' JMX exporter, and of two brokers of klamm after
the same work: names, types, labels, and the values that do not depend on time."""

import json
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from prometheus_client.parser import text_string_to_metric_families

from klamm.cli import main
from support.clusters import KlammBroker
from support.metrics import RECORDED, Shape, exporter_rules, recorded, scraped
from support.metrics.page import klamm_shapes
from support.oracles import SMALL_HEAP, RealKafka, RealZooKeeper, jmx_exporter_jar
from support.processes import free_port
from support.waiting import until

BROKERS = (0, 1)
TOPIC = "t"
PROPERTIES: dict[str, str | int] = {
    "offsets.topic.replication.factor": 2,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.replication.factor": 2,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}
# Quotas that bind no client, of each kind.
QUOTAS = (
    b'{"version":1,"config":{"producer_byte_rate":"1000000000","consumer_byte_rate":"1000000000","request_percentage":"10000",'
    b'"controller_mutation_rate":"1000000"}}'
)
# The values that must be the same, for the partitions of the topic where the name has labels of a partition.
SAME = (
    "kafka_cluster_partition_atminisr",
    "kafka_cluster_partition_insyncreplicascount",
    "kafka_cluster_partition_replicascount",
    "kafka_cluster_partition_underminisr",
    "kafka_cluster_partition_underreplicated",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_globalpartitioncount",
    "kafka_controller_kafkacontroller_globaltopiccount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_log_log_logendoffset",
    "kafka_log_log_logstartoffset",
    "kafka_log_log_numlogsegments",
    "kafka_log_log_size",
    "kafka_log_logmanager_offlinelogdirectorycount",
    "kafka_server_kafkaserver_brokerstate",
    "kafka_server_fetcherlagmetrics_consumerlag",
    "kafka_server_replicafetchermanager_deadthreadcount",
    "kafka_server_replicafetchermanager_failedpartitionscount",
    "kafka_server_replicafetchermanager_maxlag",
    "kafka_server_replicamanager_offlinereplicacount",
    "kafka_server_replicamanager_partitioncount",
    "kafka_server_replicamanager_reassigningpartitions",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_sessionexpirelistener_zookeeperdisconnects_total",
    "kafka_server_sessionexpirelistener_zookeeperexpires_total",
    "kafka_server_sessionexpirelistener_zookeepersyncconnects_total",
)
# The same, of the topic alone: other numbers of the broker contain those of internal topics.
SAME_OF_TOPIC = (
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
    "kafka_server_brokertopicmetrics_messagesin_total",
    "kafka_server_brokertopicmetrics_totalproducerequests_total",
)

pytestmark = pytest.mark.long
Values = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def kafka_brokers(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any], tmp_path: Path
) -> list[tuple[str, str]]:
    """The bootstrap address and the URL of the metrics of each broker."""
    connect = f"{real_zookeeper.connect}/{tmp_path.name}-kafka"
    set_quotas(connect)
    rules = tmp_path / "rules.yml"
    rules.write_text(exporter_rules(), encoding="utf-8")
    brokers = []
    for broker_id in BROKERS:
        port = free_port()
        options = (*SMALL_HEAP, f"-javaagent:{jmx_exporter_jar()}=127.0.0.1:{port}:{rules}")
        directory = tmp_path / f"kafka-{broker_id}"
        broker = RealKafka(kafka_jars, directory, connect, broker_id=broker_id, properties=PROPERTIES, options=options)
        running(broker).start()
        brokers.append((broker.bootstrap, f"http://127.0.0.1:{port}/metrics"))
    return brokers


@pytest.fixture
def klamm_brokers(
    real_zookeeper: RealZooKeeper, running: Callable[[Any], Any], tmp_path: Path
) -> list[tuple[str, str]]:
    """As `kafka_brokers`."""
    connect = f"{real_zookeeper.connect}/{tmp_path.name}-klamm"
    set_quotas(connect)
    brokers = []
    for broker_id in BROKERS:
        port = free_port()
        properties = PROPERTIES | {"klamm.metrics.port": port}
        broker = KlammBroker(tmp_path / f"klamm-{broker_id}", connect, broker_id=broker_id, properties=properties)
        running(broker).start()
        brokers.append((broker.bootstrap, f"http://127.0.0.1:{port}/metrics"))
    return brokers


def set_quotas(connect: str) -> None:
    servers, _, chroot = connect.partition("/")
    client = KazooClient(servers)
    client.start()
    client.create(f"/{chroot}/config/users/<default>/clients/<default>", QUOTAS, makepath=True)
    client.stop()


def work(bootstrap: str) -> None:
    """A topic with a replica on each broker, a transaction, and a group that reads it and commits."""
    client = {"bootstrap.servers": bootstrap}
    topic = NewTopic(TOPIC, 2, replica_assignment=[[0, 1], [1, 0]], config={"flush.messages": "1"})
    admin = AdminClient({**client})
    [created] = admin.create_topics([topic]).values()
    created.result(120)
    producer = Producer(client | {"transactional.id": "x"})
    producer.init_transactions(120)
    producer.begin_transaction()
    for number in range(6):
        producer.produce(TOPIC, b"value", partition=number % 2)
        # One record a batch, so that all logs have the same size.
        producer.flush(120)
    producer.commit_transaction(30)
    consumer = Consumer(
        client | {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    consumer.subscribe([TOPIC])
    read = 0
    while read < 6:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        read += 1
    consumer.commit(asynchronous=False)
    consumer.close()


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return str(answer.read().decode())


def values(text: str) -> Values:
    """The values that must be the same, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if (sample.name in SAME and sample.labels.get("topic", TOPIC) == TOPIC)
        or (sample.name in SAME_OF_TOPIC and sample.labels.get("topic") == TOPIC)
    }


def all_shapes(brokers: Iterable[tuple[str, str]]) -> set[Shape]:
    return {shape for _, url in brokers for shape in scraped(scrape(url))}


def test_the_record_of_kafkas_metrics_is_what_kafka_shows(kafka_brokers: list[tuple[str, str]]) -> None:
    work(kafka_brokers[0][0])
    found = all_shapes(kafka_brokers)
    lines = "".join(f"{shape}\n" for shape in sorted(found))
    assert found == recorded(), f"write this into {RECORDED}:\n{lines}"


async def test_klamm_shows_what_it_registers(klamm_brokers: list[tuple[str, str]], tmp_path: Path) -> None:
    work(klamm_brokers[0][0])
    assert all_shapes(klamm_brokers) - await klamm_shapes(tmp_path / "registered") == set()


def test_values_are_kafkas(kafka_brokers: list[tuple[str, str]], klamm_brokers: list[tuple[str, str]]) -> None:
    for brokers in (kafka_brokers, klamm_brokers):
        work(brokers[0][0])
    for (_, kafka_url), (_, klamm_url) in zip(kafka_brokers, klamm_brokers, strict=True):
        until(lambda: values(scrape(klamm_url)) == values(scrape(kafka_url)), timeout_s=120)  # noqa: B023
    assert {name for name, _ in values(scrape(kafka_brokers[0][1]))} == {*SAME, *SAME_OF_TOPIC}


def test_klamm_metrics_shows_brokers_of_kafka(
    kafka_brokers: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    work(kafka_brokers[0][0])
    assert main.run(["metrics", *(f"--url={url}" for _, url in kafka_brokers), "--json"]) == 0
    brokers = json.loads(capsys.readouterr().out)
    assert [broker["url"] for broker in brokers] == [url for _, url in kafka_brokers]
    assert sum(broker["controller"] for broker in brokers) == 1
    for broker in brokers:
        assert {broker[name] for name in ("under_replicated_partitions", "offline_replicas", "controller_queue")} == {0}
        assert None not in [broker[name] for name in ("messages_in_per_s", "bytes_out_per_s", "requests_per_s")]
        assert broker["memory_bytes"] > 0
        assert "FetchFollower" in [api["api"] for api in broker["apis"]]
