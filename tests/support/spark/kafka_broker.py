"""A broker of Apache Kafka 2.8.2 with its ZooKeeper, for the tests of a file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.oracles import RealKafka, RealZooKeeper


@contextmanager
def running_kafka(jars: Path, directory: Path, properties: Mapping[str, object]) -> Iterator[RealKafka]:
    zookeeper = RealZooKeeper(jars, directory)
    zookeeper.start()
    broker = RealKafka(jars, directory, zookeeper.connect, properties={"offsets.topic.num.partitions": 1, **properties})
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        zookeeper.kill()
