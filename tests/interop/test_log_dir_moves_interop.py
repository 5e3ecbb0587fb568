"""One program continues a move between log directories that the other has begun."""

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.client.admin.configs import ConfigResource, incremental_alter_configs
from klamm.client.admin.log_dirs import ReplicaInfo, TopicPartitionReplica, alter_replica_log_dirs, describe_log_dirs
from klamm.client.options import ClientOptions
from klamm.client.properties import parse_addresses
from klamm.client.threads import Work, call
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, OpType, TopicPartition
from support.clusters import Broker, KlammBroker
from support.oracles import RealKafka, RealZooKeeper

TOPIC = "moved"
PARTITION = TopicPartition(TOPIC, 0)
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
RECORDS = 4_000


def ask(broker: Broker, work: "Work[Any]") -> Any:
    return call(ClientOptions(parse_addresses("bootstrap", broker.bootstrap)), work)


def throttle(broker: Broker, rate: int | None) -> None:
    change = AlterConfigOp(THROTTLE, None if rate is None else str(rate), OpType.DELETE if rate is None else OpType.SET)
    resource = ConfigResource(ConfigResourceType.BROKER, "0")
    assert ask(broker, lambda client: incremental_alter_configs(client, {resource: [change]})) == {resource: None}


def replicas(broker: Broker) -> dict[str, ReplicaInfo]:
    """The current log and the future log, by the name of their log directory."""
    found = ask(broker, lambda client: describe_log_dirs(client, [0], [PARTITION]))[0]
    return {
        Path(path).name: directory.replicas[PARTITION]
        for path, directory in found.items()
        if PARTITION in directory.replicas
    }


def values(broker: Broker, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([Position(TOPIC, 0, 0)])
    found = [message.value().rstrip(b".") for message in consumer.consume(count, 60)]
    consumer.close()
    return found


def answers(broker: Broker) -> dict[str, str]:
    """What a broker says to moves of replicas, to the directory of the first."""
    long_name, directory = "x" * 220, str(broker.data_directory)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1), NewTopic(long_name, 1, 1)]).values():
        future.result(120)
    moves = {
        "present directory": (TOPIC, 0, directory),
        "no such directory": (TOPIC, 0, "/nowhere"),
        "a directory in other words": (TOPIC, 0, f"{directory}/"),
        "relative": (TOPIC, 0, "data"),
        "empty": (TOPIC, 0, ""),
        "no such partition": (TOPIC, 7, directory),
        "no such partition, no such directory": (TOPIC, 8, "/nowhere"),
        "no such topic": ("unknown", 0, directory),
        "no name of a topic": ("no/name", 0, directory),
        "negative": (TOPIC, -1, directory),
        "name too long": (long_name, 0, directory),
        "name too long, no such directory": (long_name, 1, "/nowhere"),
    }
    found = {}
    for case, (topic, partition, path) in moves.items():
        wanted = {TopicPartitionReplica(topic, partition, 0): path}
        (answer,) = ask(broker, partial(alter_replica_log_dirs, paths=wanted)).values()
        found[case] = "NONE" if answer is None else answer.code.name
    return found


def test_the_answers_are_kafkas(
    real_kafka: RealKafka, real_zookeeper: RealZooKeeper, tmp_path: Path, running: Callable[[Any], Any]
) -> None:
    klamm = running(KlammBroker(tmp_path / "klamm", f"{real_zookeeper.connect}/{uuid.uuid4().hex}"))
    klamm.start()
    expected = answers(real_kafka)
    assert expected["no such directory"] == "LOG_DIR_NOT_FOUND"
    assert answers(klamm) == expected


@pytest.mark.long
@pytest.mark.parametrize("order", ["klamm then Kafka", "Kafka then klamm"])
def test_a_move_that_one_program_has_begun_is_continued_by_the_other(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, tmp_path: Path, running: Callable[[Any], Any], order: str
) -> None:
    chroot = uuid.uuid4().hex
    properties: dict[str, str | int] = {
        "log.dirs": f"{tmp_path}/one,{tmp_path}/two",
        "log.segment.bytes": 500_000,
        "file.delete.delay.ms": 1_000,
        "log.segment.delete.delay.ms": 1_000,
    }
    connect = f"{real_zookeeper.connect}/{chroot}"
    klamm: Broker = running(KlammBroker(tmp_path / "klamm", connect, properties=properties))
    kafka: Broker = running(RealKafka(kafka_jars, tmp_path / "kafka", connect, properties=properties))
    first, second = (klamm, kafka) if order.startswith("klamm") else (kafka, klamm)

    first.start()
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(120)
    producer = Producer({"bootstrap.servers": first.bootstrap, "batch.num.messages": 10, "enable.idempotence": True})
    expected = [b"%d" % number for number in range(RECORDS)]
    for value in expected:
        producer.produce(TOPIC, value.ljust(1_000, b"."))
        producer.poll(0)
    assert producer.flush(120) == 0

    throttle(first, 200_000)
    (source,) = replicas(first)
    target = "two" if source == "one" else "one"
    replica = TopicPartitionReplica(TOPIC, 0, 0)
    altered = ask(first, lambda client: alter_replica_log_dirs(client, {replica: str(tmp_path / target)}))
    assert altered == {replica: None}
    while (found := replicas(first)).get(target, ReplicaInfo(0, 0, True)).size_bytes < 600_000:
        pass
    assert (found[source].is_future, found[target].is_future) == (False, True)
    assert 0 < found[target].offset_lag < RECORDS
    first.kill()
    (future,) = (tmp_path / target).glob(f"{TOPIC}-0.*-future")
    copied_bytes = sum(file.stat().st_size for file in future.glob("*.log"))
    assert copied_bytes > 500_000
    real_zookeeper.forget_broker(f"/{chroot}")

    second.start()
    assert values(second, RECORDS) == expected
    # The copy is continued, not begun again.
    while (at_start := replicas(second).get(target)) is None:
        pass
    assert at_start.is_future
    assert at_start.size_bytes > 400_000
    throttle(second, None)
    while list(replicas(second)) != [target]:
        pass
    assert not replicas(second)[target].is_future
    assert values(second, RECORDS) == expected
    while (tmp_path / source).joinpath(f"{TOPIC}-0").exists() or not (tmp_path / target / f"{TOPIC}-0").exists():
        pass
    second.stop()
    real_zookeeper.forget_broker(f"/{chroot}")
    first.start()
    assert values(first, RECORDS) == expected
    assert list(replicas(first)) == [target]
