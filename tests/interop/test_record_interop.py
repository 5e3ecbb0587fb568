"""`klamm record` of a cluster of Apache Kafka 2.8.2 whose controller is killed and comes back, and what its file says.

A controller of Apache Kafka has no records, so everything that the file tells is made of versions of znodes.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from klamm.cli import main
from klamm.cockpit.recorded.why import NO_RECORDS, why_document
from klamm.protocol.vocabulary import NO_LEADER
from klamm.recording.difference import difference, words
from klamm.recording.reader import Recording
from klamm.znodes.topics import LeaderAndIsr, partition_state_path
from support.clusters import KLAMM
from support.oracles import RealKafka, RealZooKeeper
from support.processes import ManagedProcess

FIRST, SECOND = 1, 2
PROPERTIES: dict[str, str | int] = {"zookeeper.session.timeout.ms": 6_000, "auto.leader.rebalance.enable": "false"}


@dataclass
class Kafka:
    """Two brokers; the first, started before the other, is the controller."""

    brokers: dict[int, RealKafka]
    zookeeper: KazooClient

    def state(self, topic: str) -> LeaderAndIsr:
        data, stat = self.zookeeper.get(partition_state_path(topic, 0))
        return LeaderAndIsr.decode(topic, 0, data, stat.version)

    def until(self, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s
            time.sleep(0.2)


@pytest.fixture
def kafka(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any], tmp_path: Path
) -> Iterator[Kafka]:
    connect = f"{real_zookeeper.connect}/record"
    brokers = {
        broker_id: running(
            RealKafka(kafka_jars, tmp_path / str(broker_id), connect, broker_id=broker_id, properties=PROPERTIES)
        )
        for broker_id in (FIRST, SECOND)
    }
    for broker in brokers.values():
        broker.start()
    zookeeper = KazooClient(connect)
    zookeeper.start()
    yield Kafka(brokers, zookeeper)
    zookeeper.stop()


@contextmanager
def recorded(file: Path, bootstrap: str) -> Iterator[None]:
    """`klamm record` runs within the block, and ends as by Ctrl-C."""
    command: list[str | Path] = [KLAMM, "record", file, "--bootstrap-server", bootstrap]
    process = ManagedProcess("klamm record", command, file.with_suffix(".log"))
    try:
        process.wait_for(r"^Recording the cluster at ZooKeeper \S+; Ctrl-C ends it\.")
        yield
        assert process.stop() == 0
    finally:
        process.kill()
    assert f"To open it: klamm cockpit {file}" in process.output()


@pytest.mark.long
def test_a_recording_of_kafka_2_8_2_tells_of_a_killed_controller_and_of_elections(kafka: Kafka, tmp_path: Path) -> None:
    second = kafka.brokers[SECOND]
    admin = AdminClient({"bootstrap.servers": second.bootstrap})
    with recorded(tmp_path / "kafka.klamm", second.bootstrap):
        topics = [NewTopic("t", 1, replica_assignment=[[FIRST, SECOND]])]
        topics.append(NewTopic("alone", 1, replica_assignment=[[FIRST]]))
        for made in admin.create_topics(topics).values():
            made.result(120)
        kafka.brokers[FIRST].kill()
        kafka.until(lambda: (kafka.state("t").leader, kafka.state("alone").leader) == (SECOND, NO_LEADER))
        kafka.brokers[FIRST].start()
        kafka.until(lambda: len(kafka.state("t").isr) == 2 and kafka.state("alone").leader == FIRST)
        assert main.run(["elect", "preferred", "--topic", "t", "--bootstrap-server", second.bootstrap, "--yes"]) == 0
        last = {topic: kafka.state(topic) for topic in ("t", "alone")}

    with Recording(tmp_path / "kafka.klamm") as recording:
        assert (recording.source, recording.trouble) == ("live", None)
        texts = {each.entry.get("text"): each.number for each in recording.entries(0, recording.count)}
        before = texts["t-0 has leader 1 in epoch 0, the ISR is [1, 2]"]
        during = texts["t-0 has leader 2 in epoch 2, the ISR is [2]"]
        end = recording.count - 1
        assert moment(recording, before) == (
            FIRST,
            1,
            [FIRST, SECOND],
            (FIRST, 0, {FIRST, SECOND}),
            (FIRST, 0, {FIRST}),
        )
        assert moment(recording, during) == (SECOND, 2, [SECOND], (SECOND, 2, {SECOND}), (None, 1, {FIRST}))
        assert moment(recording, end) == (SECOND, 2, [FIRST, SECOND], *map(state_of, last.values()))
        assert last["t"].leader == FIRST
        assert words(difference(recording.moment(before), recording.moment(during))) == [
            "The controller is broker 2; it was broker 1.",
            "The controller epoch is 2; it was 1.",
            "Broker 1 is no longer registered.",
            "1 partition lost its leader: alone-0.",
            "1 partition moved from leader 1 to 2: t-0.",
            "Broker 1 left the ISR of 1 partition.",
        ]
        assert words(difference(recording.moment(during), recording.moment(end))) == [
            "Broker 1 is registered.",
            "1 partition has a leader again: alone-0.",
            "1 partition moved from leader 2 to 1: t-0.",
            "Broker 1 joined the ISR of 1 partition.",
        ]

        offline = why_document(recording, "alone", 0, during)
        assert offline is not None
        [condition] = offline["conditions"]
        assert condition["kind"] == "offline"
        assert condition["why"][:2] == (
            "no replica of the ISR (broker 1) can lead",
            "broker 1 is not live (it is in the ISR)",
        )
        assert condition["remedies"][0]["text"] == "Start broker 1. Nothing is lost: it has all acknowledged records."
        told = why_document(recording, "t", 0, end)
        assert told is not None
        assert [each["kind"] for each in told["conditions"]] == ["healthy"]
        assert told["story"]["why_no_more"] == NO_RECORDS
        decided = [each for each in told["story"]["entries"] if each["leader_epoch"] is not None]
        assert [
            (each["writer"], each["controller_epoch"], each["leader"], each["leader_epoch"]) for each in decided
        ] == [
            ("controller 1", 1, FIRST, 0),
            ("controller 2", 2, NO_LEADER, 1),
            ("controller 2", 2, SECOND, 2),
            ("leader 2", 2, SECOND, 2),
            ("controller 2", 2, FIRST, 3),
        ]
        others = [each["text"] for each in told["story"]["entries"] if each["leader_epoch"] is None]
        assert {"broker 1 is no longer registered", "broker 2 is the controller, controller epoch 2"} <= set(others)


def moment(recording: Recording, number: int) -> tuple[Any, ...]:
    """The controller, its epoch, the live brokers, and (leader, leader epoch, ISR) of both partitions."""
    state = recording.moment(number)
    of_topics = [state.partitions[topic, 0] for topic in ("t", "alone")]
    return (
        state.controller,
        state.cluster["controller_epoch"],
        sorted(state.brokers),
        *((each.leader, each.leader_epoch, set(each.isr)) for each in of_topics),
    )


def state_of(znode: LeaderAndIsr) -> tuple[int, int, set[int]]:
    return znode.leader, znode.leader_epoch, set(znode.isr)
