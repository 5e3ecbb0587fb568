"""Kafka Streams counts words exactly once, while brokers restart one after another and the application is killed.

With `processing.guarantee` exactly once the stores hold how often each word was written, and a reader of the output
at read_committed sees every count of a word once, from 1 on. `--bootstrap kafka` runs this on Apache Kafka.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME
from support.copying.check import read
from support.durability.brokers import Brokers, KlammBrokers, ProcessBrokers
from support.streams.word_count import INPUT, OUTPUT, PARTITIONS, TIMEOUT_S, Application, Count, Lines

BROKERS = 3
TRANSACTION_STATE_TOPIC_NAME = "__transaction_state"
PROPERTIES: dict[str, str | int] = {
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": BROKERS,
    "transaction.state.log.min.isr": 2,
    "group.initial.rebalance.delay.ms": 0,
}


@pytest.fixture
def brokers(against_kafka: bool, tmp_path: Path) -> Iterator[Brokers]:
    with ExitStack() as stack:
        running: Brokers
        if against_kafka:
            running = stack.enter_context(ProcessBrokers.running(tmp_path, ["kafka"] * BROKERS, PROPERTIES))
        else:
            running = stack.enter_context(KlammBrokers.running(tmp_path, PROPERTIES))
        admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
        topics = [NewTopic(topic, PARTITIONS, BROKERS) for topic in (INPUT, OUTPUT)]
        for created in admin.create_topics(topics).values():
            created.result(TIMEOUT_S)
        for topic in (INPUT, OUTPUT):
            running.wait_for_full_isr(topic, PARTITIONS)
        yield running


@pytest.mark.java
@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "guarantee"), [("2.8", "exactly_once"), ("2.8", "exactly_once_beta"), ("3.9", "exactly_once_v2")]
)
def test_every_word_is_counted_exactly_once(
    version: str, guarantee: str, brokers: Brokers, tmp_path: Path, java: None
) -> None:
    start: Callable[[str], Application] = partial(
        Application, version, brokers.bootstrap, BROKERS, tmp_path, options={"processing.guarantee": guarantee}
    )
    lines = Lines(brokers.bootstrap)
    application = start("first")
    application.wait_for("@ state RUNNING", TIMEOUT_S)
    for broker_id in brokers.broker_ids:
        lines.write(300)
        brokers.stop(broker_id)
        lines.write(300)
        brokers.start(broker_id)
        for topic in (INPUT, OUTPUT, GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME):
            brokers.wait_for_full_isr(topic, PARTITIONS)
    # In the middle of a transaction, probably: the next instance aborts it and begins where the last commit was.
    lines.write(600)
    application.kill()
    lines.write(300)
    application = start("second")
    application.wait_for("@ state RUNNING", TIMEOUT_S)
    once = {word: Count(times, times) for word, times in lines.truth.items()}
    brokers.until(lambda: application.counts() == once, f"the counts are not {once}, but {application.counts()}")
    application.close()

    counts: dict[str, list[int]] = {}
    for records in read(brokers.bootstrap, [(OUTPUT, number) for number in range(PARTITIONS)], committed=True).values():
        for record in records:
            assert record.key is not None
            counts.setdefault(record.key.decode(), []).append(int(record.value))
    assert counts == {word: list(range(1, times + 1)) for word, times in lines.truth.items()}
