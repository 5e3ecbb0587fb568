"""`klamm topics` and `klamm elect` beside kafka-topics and kafka-leader-election, on clusters of Apache Kafka 2.8.2 and
of Apache Kafka 4.3 in KRaft mode. Reasons, and what 4.3 adds to Kafka's lines, are left out of the comparison."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from klamm.access.clients import command_options
from klamm.cli import main
from klamm.cli.shared.clients import client_in_thread
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.diagnosis.cluster_view import read_cluster
from klamm.protocol.vocabulary import TopicPartition
from support.clusters import forget_dead_broker
from support.oracles import JavaServer, RealKafka, RealKraft, RealZooKeeper, java_tool
from support.spark.producing import numbered, produce
from support.waiting import until

Klamm = Callable[..., str]

RACKS = {1: "a", 2: "a", 3: "b"}


class Kafka:
    """Three brokers of either version, 1 to 3, and Kafka's own tools for them. Tools do not ask a `silent` broker."""

    def __init__(self, brokers: Mapping[int, JavaServer], jars: Path, package: str, zookeeper: str = "") -> None:
        self.brokers, self.jars, self.package, self.zookeeper = brokers, jars, package, zookeeper
        self.silent: set[int] = set()

    @property
    def bootstrap(self) -> str:
        return ",".join(each.address for number, each in self.brokers.items() if number not in self.silent)

    def tool(self, name: str, *arguments: str) -> str:
        where = () if "--zookeeper" in arguments else ("--bootstrap-server", self.bootstrap)
        return java_tool(self.jars, f"{self.package}.{name}", *where, *arguments).decode()

    def topics(self, *arguments: str) -> list[str]:
        """The lines of kafka-topics, sorted."""
        return lines(self.tool("TopicCommand", *arguments))

    @contextmanager
    def without(self, number: int) -> Iterator[None]:
        """A broker is stopped, and back at the end."""
        broker = self.brokers[number]
        self.silent.add(number)
        broker.stop()
        try:
            yield
        finally:
            broker.start()
            self.silent.discard(number)

    @contextmanager
    def without_notice(self, number: int) -> Iterator[None]:
        """A broker does nothing, and counts as live. The tools of 2.8.2 wait for a broker that is paused."""
        broker = self.brokers[number]
        self.silent.add(number)
        (broker.kill if self.zookeeper else broker.pause)()
        try:
            yield
        finally:
            if self.zookeeper:
                forget_dead_broker(self.zookeeper, number)
                broker.start()
            else:
                broker.resume()
            self.silent.discard(number)


def lines(printed: str) -> list[str]:
    """The lines of a description, sorted, without reasons and the columns that only 4.3 has."""
    return sorted(re.sub(r"\t(Elr|Reason): .*", "", line) for line in printed.splitlines() if line)


@pytest.fixture(scope="module")
def kafka3(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kafka]:
    """Three brokers of Kafka 2.8.2 in two racks. A broker that is silent counts as live for a minute."""
    connect = f"{real_zookeeper.connect}/topics-and-elect"
    directory = tmp_path_factory.mktemp("kafka3")
    properties: dict[str, str | int] = {
        "zookeeper.session.timeout.ms": 60_000,
        "auto.leader.rebalance.enable": "false",
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 3,
    }
    brokers = [
        RealKafka(
            kafka_jars,
            directory / str(number),
            connect,
            broker_id=number,
            properties={**properties, "broker.rack": rack},
        )
        for number, rack in RACKS.items()
    ]
    try:
        for each in brokers:
            each.launch()
        for each in brokers:
            each.wait_ready()
        yield Kafka(dict(zip(RACKS, brokers, strict=True)), kafka_jars, "kafka.admin", connect)
    finally:
        for each in brokers:
            each.kill()


@pytest.fixture(scope="module")
def kraft3(kafka4_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Three brokers of Kafka 4.3 in two racks. A broker that is silent counts as live for nine seconds."""
    racks = {number: {"broker.rack": rack} for number, rack in RACKS.items()}
    properties: dict[str, str | int] = {"auto.leader.rebalance.enable": "false", "offsets.topic.num.partitions": 1}
    directory = tmp_path_factory.mktemp("kraft3")
    cluster = RealKraft(kafka4_jars, directory, size=3, properties=properties, of_broker=racks)
    try:
        cluster.start()
        yield Kafka(dict(zip(RACKS, cluster.brokers, strict=True)), kafka4_jars, "org.apache.kafka.tools")
    finally:
        cluster.kill()


@pytest.fixture(params=["kafka3", "kraft3"])
def kafka(request: pytest.FixtureRequest) -> Kafka:
    found: Kafka = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def klamm(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command and returns stdout, or with `both` stdout and stderr."""

    def run(kafka: Kafka, *arguments: str, code: int = 0, both: bool = False) -> str:
        where = () if "--zookeeper" in arguments else ("--bootstrap-server", kafka.bootstrap)
        capsys.readouterr()
        ended = main.run([*arguments, *where])
        output = capsys.readouterr()
        assert ended == code, output.err
        return output.out + output.err if both else output.out

    return run


def described(klamm: Klamm, kafka: Kafka, topic: str) -> dict[int, tuple[int, list[int]]]:
    """The leader and the ISR of each partition."""
    (found,) = json.loads(klamm(kafka, "topics", "describe", "--topic", topic, "--json"))
    return {each["partition"]: (each["leader"], each["isr"]) for each in found["partitions"]}


@pytest.mark.long
def test_topics_from_creation_to_deletion(kafka: Kafka, klamm: Klamm) -> None:
    create = ("topics", "create", "--topic", "life", "--partitions", "3", "--replication-factor", "2")
    assert klamm(kafka, *create, "--config", "retention.ms=60000") == "Created topic life.\n"
    assert "TOPIC_ALREADY_EXISTS" in klamm(kafka, *create, code=1, both=True)
    assert klamm(kafka, *create, "--if-not-exists") == ""
    kafka.tool("TopicCommand", "--create", "--topic", "theirs", "--partitions", "2", "--replication-factor", "3")
    until(lambda: all(len(isr) == 3 for _, isr in described(klamm, kafka, "theirs").values()))
    for options in ((), ("--topic", "life"), ("--topics-with-overrides",)):
        ours = lines(klamm(kafka, "topics", "describe", *options, "--exclude-internal"))
        assert ours == kafka.topics("--describe", *options, "--exclude-internal")
    (life,) = json.loads(klamm(kafka, "topics", "describe", "--topic", "life", "--json"))
    assert all(3 in each["replicas"] for each in life["partitions"]), "the brokers place over racks"

    change = ("topics", "alter", "--topic", "life", "--partitions", "5")
    configs = ("--config", "segment.ms=60000", "--delete-config", "retention.ms")
    assert klamm(kafka, *change, *configs, "--yes") == "Updated config for topic life.\nAdding partitions succeeded!\n"
    assert "5 would not be an increase" in klamm(kafka, *change, "--yes", code=1, both=True)
    until(lambda: all(len(isr) == 2 for _, isr in described(klamm, kafka, "life").values()))
    assert lines(klamm(kafka, "topics", "describe", "--topic", "life")) == kafka.topics("--describe", "--topic", "life")

    unaware = ("topics", "create", "--topic", "unaware", "--partitions", "6", "--replication-factor", "2")
    klamm(kafka, *unaware, "--disable-rack-aware")
    (placed,) = json.loads(klamm(kafka, "topics", "describe", "--topic", "unaware", "--json"))
    assert any(3 not in each["replicas"] for each in placed["partitions"])
    assert klamm(kafka, "topics", "delete", "--topic", "life,theirs,unaware", "--yes") == ""
    until(lambda: klamm(kafka, "topics", "list", "--exclude-internal") == "")
    assert kafka.tool("TopicCommand", "--list", "--exclude-internal").split() == []


@pytest.mark.long
def test_what_the_filters_choose_when_a_broker_is_down(kafka: Kafka, klamm: Klamm) -> None:
    for name, replicas, minimum in (("pair", "2:3", 2), ("single", "3", 1), ("wide", "3:1:2", 1), ("safe", "1:2", 1)):
        configs = ("--replica-assignment", replicas, "--config", f"min.insync.replicas={minimum}")
        klamm(kafka, "topics", "create", "--topic", name, *configs)
    sizes = {"pair": 2, "single": 1, "wide": 3, "safe": 2}
    until(lambda: all(len(described(klamm, kafka, name)[0][1]) == size for name, size in sizes.items()))
    with kafka.without(3):
        until(lambda: described(klamm, kafka, "wide")[0][0] == 1 and described(klamm, kafka, "single")[0][0] == -1)
        of_these = ("--topic", "pair|single|wide|safe")
        for option in (
            "--under-replicated-partitions",
            "--at-min-isr-partitions",
            "--under-min-isr-partitions",
            "--unavailable-partitions",
            "--exclude-internal",
        ):
            ours = lines(klamm(kafka, "topics", "describe", option, *of_these))
            assert ours == kafka.topics("--describe", option, *of_these), option
        shown = klamm(kafka, "topics", "describe", "--under-replicated-partitions", "--topic", "wide")
        assert shown.endswith("\tReason: broker 3 is not live\n")
        refused = klamm(kafka, "elect", "preferred", "--topic", "wide", "--yes", code=1)
        assert refused.startswith(
            "Error completing leader election (PREFERRED) for partition: wide-0: PREFERRED_LEADER_"
        )
    until(lambda: len(described(klamm, kafka, "wide")[0][1]) == 3)
    elects = "\tReason: the preferred leader, broker 3, is in the ISR: `klamm elect preferred` elects it\n"
    assert klamm(kafka, "topics", "describe", "--off-preferred-partitions", *of_these).endswith(elects)
    done = klamm(kafka, "elect", "preferred", "--topic", "wide", "--yes")
    assert done == "Successfully completed leader election (PREFERRED) for partitions wide-0\n"
    # Each description is by a broker, which hears of an election after the controller has answered.
    until(lambda: described(klamm, kafka, "wide")[0][0] == 3)
    theirs = kafka.tool("LeaderElectionCommand", "--election-type", "preferred", "--topic", "wide", "--partition", "0")
    assert "Valid replica already elected for partitions" in theirs
    named = ("elect", "preferred", "--topic", "wide", "--partition", "0", "--yes")
    assert klamm(kafka, *named) == "Valid replica already elected for partitions wide-0\n"
    klamm(kafka, "topics", "delete", *of_these, "--yes")


@pytest.mark.long
def test_a_reassignment_in_progress_is_shown_alike(kafka: Kafka, klamm: Klamm) -> None:
    with client_in_thread(command_options(kafka.bootstrap, None)) as client:
        controller_id = client.call(read_cluster).controller_id
    new = 2 if controller_id == 3 and kafka.zookeeper else 3
    old = 5 - new
    klamm(kafka, "topics", "create", "--topic", "moving", "--replica-assignment", f"1:{old},{old}:1")
    with kafka.without_notice(new):
        with client_in_thread(command_options(kafka.bootstrap, None)) as client:
            moves = {TopicPartition("moving", 0): (1, new), TopicPartition("moving", 1): (old, 1, new)}
            assert set(client.call(alter_partition_reassignments, moves).values()) == {None}
        describe = ("topics", "describe", "--topic", "moving")
        until(lambda: klamm(kafka, *describe).count(f"\tAdding Replicas: {new}\t") == 2)
        assert lines(klamm(kafka, *describe)) == kafka.topics("--describe", "--topic", "moving")
    until(lambda: sorted(described(klamm, kafka, "moving")[0][1]) == sorted([1, new]))
    klamm(kafka, "topics", "delete", "--topic", "moving", "--yes")


@pytest.mark.long
def test_an_unclean_election_says_what_it_loses(kafka: Kafka, klamm: Klamm) -> None:
    klamm(kafka, "topics", "create", "--topic", "lost", "--replica-assignment", "3:2")
    produce(kafka.bootstrap, "lost", numbered(10))
    until(lambda: len(described(klamm, kafka, "lost")[0][1]) == 2)
    with ExitStack() as stack:
        with kafka.without(2):
            until(lambda: described(klamm, kafka, "lost")[0][1] == [3])
            produce(kafka.brokers[3].address, "lost", numbered(7))
            stack.enter_context(kafka.without(3))
        until(lambda: described(klamm, kafka, "lost")[0][0] == -1)
        named = ("elect", "unclean", "--topic", "lost", "--partition", "0")
        until(lambda: "ends at offset 10" in klamm(kafka, *named, code=1, both=True))
        assert klamm(kafka, *named, "--yes", both=True).splitlines() == [
            "Successfully completed leader election (UNCLEAN) for partitions lost-0",
            "lost-0: leader none -> 2, whose log ends at offset 10; the loss is unknown: broker 3 is not live, and what"
            " only it has is lost",
        ]
        until(lambda: described(klamm, kafka, "lost") == {0: (2, [2])})
    klamm(kafka, "topics", "delete", "--topic", "lost", "--yes")


@pytest.mark.long
def test_topics_and_elections_through_the_znodes_of_kafka(kafka3: Kafka, klamm: Klamm) -> None:
    over_znodes = ("--zookeeper", kafka3.zookeeper)
    create = ("topics", "create", "--topic", "zk", "--partitions", "4", "--replication-factor", "2", *over_znodes)
    assert klamm(kafka3, *create, "--config", "retention.ms=60000") == "Created topic zk.\n"
    until(lambda: "zk" in lines(klamm(kafka3, "topics", "list")))
    until(lambda: all(len(isr) == 2 for _, isr in described(klamm, kafka3, "zk").values()))
    for options in (("--topic", "zk"), ("--topic", "zk", "--topics-with-overrides")):
        ours = lines(klamm(kafka3, "topics", "describe", *options, *over_znodes))
        assert ours == kafka3.topics("--describe", *options, *over_znodes)
    assert lines(klamm(kafka3, "topics", "describe", "--topic", "zk")) == kafka3.topics("--describe", "--topic", "zk")
    change = ("--partitions", "6", "--config", "segment.ms=60000", "--delete-config", "retention.ms", "--yes")
    klamm(kafka3, "topics", "alter", "--topic", "zk", *change, *over_znodes)
    until(lambda: len(described(klamm, kafka3, "zk")) == 6 and described(klamm, kafka3, "zk")[5][0] > 0)
    until(lambda: kafka3.topics("--describe", "--topic", "zk")[-1].endswith("\tConfigs: segment.ms=60000"))

    with kafka3.without(3):
        until(lambda: klamm(kafka3, "topics", "describe", "--off-preferred-partitions", "--topic", "zk") != "")
    until(lambda: all(len(isr) == 2 for _, isr in described(klamm, kafka3, "zk").values()))
    elected = klamm(kafka3, "elect", "preferred", "--topic", "zk", "--yes", *over_znodes)
    assert elected.splitlines()[-1].startswith("Successfully completed leader election (PREFERRED) for partitions zk-")
    until(lambda: klamm(kafka3, "topics", "describe", "--off-preferred-partitions", "--topic", "zk") == "")
    deleted = klamm(kafka3, "topics", "delete", "--topic", "zk", "--yes", *over_znodes)
    assert deleted.startswith("Topic zk is marked for deletion.\n")
    until(lambda: "zk" not in klamm(kafka3, "topics", "list").split())
