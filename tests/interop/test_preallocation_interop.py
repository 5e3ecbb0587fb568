"""Preallocated segments of either program, left behind by a kill, are recovered by the other."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.clients import Librdkafka, Record
from support.clusters import KlammBroker, forget_dead_broker
from support.oracles import RealKafka, RealZooKeeper

SEGMENT_BYTES = 1 << 20
PROPERTIES: dict[str, str | int] = {
    "log.preallocate": "true",
    "log.segment.bytes": SEGMENT_BYTES,
    "zookeeper.session.timeout.ms": 4000,
    "offsets.topic.num.partitions": 1,
}


def write(bootstrap: str, topic: str, *values: bytes) -> None:
    Librdkafka.write(bootstrap, topic, [Record(value) for value in values])


def values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in Librdkafka.read(bootstrap, topic, count)]


@pytest.mark.long
def test_each_program_opens_what_the_other_has_preallocated(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, tmp_path: Path, running: Callable[[Any], Any]
) -> None:
    connect = f"{real_zookeeper.connect}/{uuid.uuid4().hex}"
    klamm = running(KlammBroker(tmp_path, connect, properties=PROPERTIES))
    kafka = running(RealKafka(kafka_jars, tmp_path, connect, properties=PROPERTIES))

    def file_bytes(topic: str) -> int:
        return (klamm.data_directory / f"{topic}-0" / f"{0:020d}.log").stat().st_size

    def create(bootstrap: str, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)

    klamm.start()
    create(klamm.bootstrap, "ours")
    write(klamm.bootstrap, "ours", b"a", b"b")
    assert file_bytes("ours") == SEGMENT_BYTES
    klamm.kill()
    forget_dead_broker(connect)

    kafka.start()
    assert values(kafka.bootstrap, "ours", 2) == [b"a", b"b"]
    write(kafka.bootstrap, "ours", b"c")
    create(kafka.bootstrap, "kafkas")
    write(kafka.bootstrap, "kafkas", b"d", b"e")
    assert file_bytes("ours") < SEGMENT_BYTES == file_bytes("kafkas")
    kafka.kill()
    forget_dead_broker(connect)

    klamm.start()
    assert values(klamm.bootstrap, "ours", 3) == [b"a", b"b", b"c"]
    assert values(klamm.bootstrap, "kafkas", 2) == [b"d", b"e"]
    write(klamm.bootstrap, "kafkas", b"f")
    klamm.stop()
    assert file_bytes("kafkas") < SEGMENT_BYTES
