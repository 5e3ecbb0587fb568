"""Brokers for the tests of a file: Apache Kafka 2.8.2 with its ZooKeeper, and either of the two programs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.testing.cluster import Cluster
from support.oracles import RealKafka, RealZooKeeper

KLAMM = "klamm"
WITH_TRANSACTIONS = (KLAMM, pytest.param("Kafka 2.8.2", marks=pytest.mark.long))
"""The programs whose brokers have transactions."""


@contextmanager
def running_kafka(jars: Path, directory: Path, properties: Mapping[str, str | int]) -> Iterator[RealKafka]:
    zookeeper = RealZooKeeper(jars, directory)
    zookeeper.start()
    broker = RealKafka(jars, directory, zookeeper.connect, properties={"offsets.topic.num.partitions": 1, **properties})
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        zookeeper.kill()


@contextmanager
def running_with_transactions(
    request: pytest.FixtureRequest, directory: Path, **properties: str | int
) -> Iterator[RealKafka | Cluster]:
    """A broker of the program that `request.param` names, which soon aborts transactions that time out."""
    every: dict[str, str | int] = {
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 2,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
        **properties,
    }
    if request.param == KLAMM:
        with Cluster(1, helper=request.getfixturevalue("klamm_helper"), properties=every) as cluster:
            yield cluster
    else:
        with running_kafka(request.getfixturevalue("kafka_jars"), directory, every) as broker:
            yield broker
