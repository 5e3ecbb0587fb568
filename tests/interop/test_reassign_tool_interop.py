"""`klamm reassign` on Apache Kafka 2.8.2 and on Kafka 4.3 in KRaft mode, beside Kafka's own tool."""

import contextlib
import io
import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.cli import main
from klamm.cli.reassign.access import BrokerAccess
from klamm.cli.reassign.throttles import ConfigKey
from klamm.cli.shared.options import ClusterOptions
from klamm.config.throttles import BROKER_THROTTLES, LEADER_RATE, TOPIC_THROTTLES
from klamm.diagnosis.cluster_view import read_cluster
from support.oracles import RealKafka, RealKraft, RealZooKeeper, java_tool

pytestmark = pytest.mark.long

KLAMM = [sys.executable, "-m", "klamm.cli.main"]
BROKERS = (1, 2, 3)
RECORD = b"x" * 10_000
RECORDS = 200  # to each partition: 2 MB
# At the slow rate a partition needs half an hour: no move ends before a tool that looks at it has started.
SLOW, FAST = 1_000, 100_000_000


class KafkaCluster:
    """Three brokers of Apache Kafka with two log directories each, and the tools of both projects."""

    def __init__(self, brokers: Mapping[int, Any], jars: Path, tool: str, zookeeper: str | None = None) -> None:
        self.brokers, self.zookeeper, self._jars, self._tool = brokers, zookeeper, jars, tool
        self.bootstrap = ",".join(broker.address for broker in brokers.values())

    def kafka(self, *arguments: str | Path) -> list[str]:
        at = [] if "--zookeeper" in arguments else ["--bootstrap-server", self.bootstrap]
        lines = java_tool(self._jars, self._tool, *at, *arguments).decode().splitlines()
        # Kafka 4's tool says it in other words.
        return [re.sub(r"(Reassignment of partition .* is) completed\.$", r"\1 complete.", line) for line in lines]

    def klamm(self, *arguments: str | Path, code: int = 0) -> list[str]:
        stdout, stderr = io.StringIO(), io.StringIO()
        at = [] if "--zookeeper" in arguments else ["--bootstrap-server", self.bootstrap]
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            ended = main.run(["reassign", *map(str, arguments), *at])
        assert ended == code, stdout.getvalue() + stderr.getvalue()
        return stdout.getvalue().splitlines()

    def events(self, *arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.klamm(*arguments, "--yes", "--json", code=code)]

    @contextlib.contextmanager
    def executing(self, *arguments: str | Path) -> "Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]]":
        """`klamm reassign execute` in a process of its own, and its events. It is killed at the end."""
        command = [*KLAMM, "reassign", "execute", *map(str, arguments), "--bootstrap-server", self.bootstrap]
        with subprocess.Popen(
            [*command, "--yes", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            try:
                yield process, map(json.loads, process.stdout)
            finally:
                process.kill()

    def clean_up(self) -> None:
        """What a failed test leaves behind would fail those after it: dead brokers, moves and throttles."""
        for broker in self.brokers.values():
            if not broker.process.alive():
                broker.start()
        self.klamm("cancel", "--all", "--yes")
        rates = {f"brokers/{broker}": dict[str, str | None].fromkeys(BROKER_THROTTLES) for broker in BROKERS}
        errors = ClusterOptions(self.bootstrap).call(lambda client: BrokerAccess(client).change_configs(rates))
        assert not any(errors.values()), errors

    def create(self, topic: str, assignment: list[list[int]], *, with_records: bool = True) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(topic, num_partitions=len(assignment), replica_assignment=assignment)
        admin.create_topics([new])[topic].result(120)
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "log_level": 0})
        for number in range(len(assignment) if with_records else 0):
            for _ in range(RECORDS):
                producer.produce(topic, RECORD, partition=number)
        assert producer.flush(120) == 0

    def replicas(self, topic: str) -> list[list[int]]:
        view = ClusterOptions(self.bootstrap).call(lambda client: read_cluster(client, [topic]))
        return [list(each.replicas) for _, each in sorted(view.partitions.items())]

    def throttles(self, topic: str) -> dict[str, str]:
        """What is set, with the topic's entity as `topic`."""
        entities: dict[str, Sequence[str]] = {f"brokers/{broker}": BROKER_THROTTLES for broker in BROKERS}
        entities[f"topics/{topic}"] = TOPIC_THROTTLES
        keys = [ConfigKey(entity, name) for entity, names in entities.items() for name in names]
        found = ClusterOptions(self.bootstrap).call(lambda client: BrokerAccess(client).read_configs(keys))
        return {
            f"{key.entity.replace(f'topics/{topic}', 'topic')} {key.name}": value
            for key, value in found.items()
            if value is not None
        }

    def until(self, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s
            time.sleep(0.2)

    def until_throttled(self, topic: str) -> dict[str, str]:
        self.until(lambda: len(self.throttles(topic)) == 8)
        return self.throttles(topic)

    def until_not_throttled(self, topic: str) -> None:
        self.until(lambda: self.throttles(topic) == {})

    def until_moved(self, topic: str, replicas: list[list[int]]) -> None:
        self.until(lambda: self.replicas(topic) == replicas)


@pytest.fixture(scope="module")
def kafka28(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("kafka-2.8")
    zookeeper = RealZooKeeper(kafka_jars, directory / "zookeeper")
    brokers = []
    try:
        zookeeper.start()
        for broker_id in BROKERS:
            own = directory / str(broker_id)
            properties: dict[str, str | int] = {
                "log.dirs": f"{own}/data,{own}/other",
                "replica.fetch.max.bytes": 20_000,
            }
            brokers.append(RealKafka(kafka_jars, own, zookeeper.connect, broker_id=broker_id, properties=properties))
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_ready()
        by_id = dict(zip(BROKERS, brokers, strict=True))
        yield KafkaCluster(by_id, kafka_jars, "kafka.admin.ReassignPartitionsCommand", zookeeper.connect)
    finally:
        for server in [*brokers, zookeeper]:
            server.kill()


@pytest.fixture(scope="module")
def kafka4(kafka4_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("kafka-4")
    of_broker: dict[int, dict[str, str | int]] = {
        broker: {"log.dirs": f"{directory}/{broker}/data,{directory}/{broker}/other", "replica.fetch.max.bytes": 20_000}
        for broker in BROKERS
    }
    servers = RealKraft(kafka4_jars, directory, size=len(BROKERS), of_broker=of_broker)
    try:
        servers.start()
        yield KafkaCluster(
            dict(zip(BROKERS, servers.brokers, strict=True)),
            kafka4_jars,
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        )
    finally:
        servers.kill()


@pytest.fixture(params=["kafka28", "kafka4"])
def cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    found: KafkaCluster = request.getfixturevalue(request.param)
    yield found
    found.clean_up()


def plan(directory: Path, topic: str, *replicas: list[int], log_dirs: list[list[str]] | None = None) -> Path:
    partitions: list[dict[str, Any]] = [
        {"topic": topic, "partition": number, "replicas": ids} for number, ids in enumerate(replicas)
    ]
    for partition, directories in zip(partitions, log_dirs or [], strict=False):
        partition["log_dirs"] = directories
    directory.mkdir(exist_ok=True)
    file = directory / f"{topic}.json"
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return file


def renamed(lines: list[str], topic: str) -> list[str]:
    """The lines with another topic's name. Kafka 4's tool also prints in which directories the replicas are."""
    return [re.sub(r'"log_dirs":\[[^]]*\]', '"log_dirs":[]', line.replace(topic, "TOPIC")) for line in lines]


def test_execute_sets_prints_and_moves_what_kafkas_tool_does(cluster: KafkaCluster, tmp_path: Path) -> None:
    printed, throttles = [], []
    for topic in ("by-kafka", "by-klamm"):
        cluster.create(topic, [[1, 2], [2, 3], [3, 1]])
        wanted = plan(tmp_path, topic, [2, 3], [3, 2], [1, 2])
        options = ("--reassignment-json-file", wanted, "--throttle", str(FAST))
        if topic == "by-kafka":
            lines = cluster.kafka("--execute", *options)
        else:
            lines = cluster.klamm("execute", *options, "--no-wait", "--yes")
        printed.append(renamed(lines, topic))
        throttles.append(cluster.until_throttled(topic))
        cluster.until_moved(topic, [[2, 3], [3, 2], [1, 2]])
        if topic == "by-kafka":
            cluster.until(lambda: not any("in progress" in line for line in cluster.klamm("list")[1:]))
            verified = cluster.kafka("--verify", "--reassignment-json-file", wanted, "--preserve-throttles")
            assert verified == cluster.klamm("verify", "--reassignment-json-file", wanted, "--preserve-throttles")
            assert cluster.klamm("verify", "--reassignment-json-file", wanted)[-2:] == [
                "Clearing broker-level throttles on brokers 1,2,3",
                "Clearing topic-level throttles on topic by-kafka",
            ]
        else:
            cluster.klamm("verify", "--reassignment-json-file", wanted)
        cluster.until_not_throttled(topic)
    # Kafka's tool moves the reordered partition too, and does not say less about it.
    assert printed[1] == printed[0]
    assert throttles[1] == throttles[0]
    assert throttles[0]["topic leader.replication.throttled.replicas"] == "0:1,0:2,1:2,1:3,2:1,2:3"


def test_list_verify_and_cancel_print_what_kafkas_tool_does(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic = "in-progress"
    cluster.create(topic, [[1, 2], [2, 1]])
    wanted = plan(tmp_path, topic, [2, 3], [1, 2])
    options = ("--reassignment-json-file", wanted)
    cluster.klamm("execute", *options, "--throttle", str(SLOW), "--no-wait", "--yes")
    assert cluster.klamm("list") == cluster.kafka("--list")
    assert cluster.klamm("list")[1] == f"{topic}-0: replicas: 2,3,1. adding: 3. removing: 1."
    verified = cluster.klamm("verify", *options, "--preserve-throttles", code=1)
    assert verified == cluster.kafka("--verify", *options, "--preserve-throttles")
    assert f"Reassignment of partition {topic}-0 is still in progress." in verified
    assert cluster.klamm("cancel", *options, "--yes")[:2] == [
        f"Successfully cancelled partition reassignment for: {topic}-0",
        "None of the specified partition moves are active.",
    ]
    cluster.until(lambda: cluster.throttles(topic) == {})
    # Kafka's brokers leave 2,1, because they only remove the added replica.
    cluster.until(lambda: cluster.replicas(topic) == [[1, 2], [1, 2]])
    assert (
        cluster.klamm("cancel", *options, "--preserve-throttles")
        == cluster.kafka("--cancel", *options, "--preserve-throttles")
    )  # fmt: skip
    assert cluster.klamm("list") == cluster.kafka("--list") == ["No partition reassignments found."]


def test_a_killed_execution_is_resumed_faster_and_undone_by_kafkas_tool(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic = "killed"
    cluster.create(topic, [[1, 2], [2, 1], [1, 2]])
    wanted = plan(tmp_path, topic, [2, 3], [1, 3], [1, 3])
    options = ["--reassignment-json-file", str(wanted)]
    with cluster.executing(*options, "--throttle", str(SLOW), "--batch-size", "2") as (process, events):
        started = next(each for each in events if each["event"] == "started")
        assert len(started["partitions"]) == 2
        process.kill()
    assert cluster.throttles(topic)[f"brokers/1 {LEADER_RATE}"] == str(SLOW)
    cluster.klamm("throttle", "--rate", str(FAST), *options)
    cluster.until(lambda: cluster.throttles(topic)[f"brokers/3 {LEADER_RATE}"] == str(FAST))
    resumed = cluster.events("execute", "--resume", *options)
    assert resumed[-1]["complete"] is True
    progress = [each for each in resumed if each["event"] == "progress"]
    assert progress[0]["total_bytes"] > 3 * RECORDS * len(RECORD)
    cluster.until(lambda: cluster.throttles(topic) == {})
    assert cluster.replicas(topic) == [[2, 3], [1, 3], [1, 3]]
    cluster.kafka("--execute", "--reassignment-json-file", tmp_path / f"{topic}.rollback.json")
    cluster.until(lambda: cluster.replicas(topic) == [[1, 2], [2, 1], [1, 2]])


def test_replicas_move_into_chosen_directories(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic = "directories"
    cluster.create(topic, [[1, 2]])
    paths = ClusterOptions(cluster.bootstrap).call(lambda client: BrokerAccess(client).log_dirs([3], [])
    )[3]  # fmt: skip
    other = next(path for path in paths if path.endswith("other"))
    at_one = other.replace("/3/", "/1/")
    wanted = plan(tmp_path, topic, [1, 3], log_dirs=[[at_one, other]])
    options = ("--reassignment-json-file", wanted)
    events = cluster.events("execute", *options, "--replica-alter-log-dirs-throttle", str(FAST))
    assert events[-1]["complete"] is True
    verified = cluster.kafka("--verify", *options, "--preserve-throttles")
    assert verified == cluster.klamm("verify", *options, "--preserve-throttles")
    assert f"Reassignment of replica {topic}-0-3 completed successfully." in verified
    cluster.until(lambda: cluster.throttles(topic) == {})


def test_a_broker_that_dies_holds_up_only_its_own_partitions(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic, dead = "dead-broker", cluster.brokers[3]
    cluster.create(topic, [[1, 2], [3, 1], [2, 1]])
    wanted = plan(tmp_path, topic, [1, 3], [2, 1], [2, 3])
    options = ("--reassignment-json-file", str(wanted))
    with cluster.executing(*options, "--throttle", str(SLOW), "--timeout", "2000") as (_, events):
        assert next(each for each in events if each["event"] == "started")
        dead.kill()  # It may be the controller, which is replaced some seconds later.
        cluster.klamm("throttle", "--rate", str(FAST), *options)
        rest = list(events)
    completed = [each["partition"] for each in rest if each["event"] == "completed"]
    assert completed == [f"{topic}-1"], rest
    assert rest[-1]["unfinished"] == dict.fromkeys([f"{topic}-0", f"{topic}-2"], "broker 3 is not alive")
    assert rest[-1]["throttles_left"], "two partitions are still moving"
    dead.start()
    assert cluster.events("execute", "--resume", *options)[-1]["complete"] is True
    assert cluster.replicas(topic) == [[1, 3], [2, 1], [2, 3]]
    assert cluster.throttles(topic) == {}


def test_a_batch_gets_the_throttle_again_that_kafkas_verify_has_deleted(cluster: KafkaCluster, tmp_path: Path) -> None:
    """A dead broker lengthens the time between two batches."""
    topic, dead = "verified-between", cluster.brokers[3]
    cluster.create(topic, [[1, 2], [1, 2]])
    wanted = plan(tmp_path, topic, [2, 1], [1, 3])
    options = ("--reassignment-json-file", str(wanted))
    dead.kill()
    with cluster.executing(*options, "--throttle", str(SLOW)) as (_, events):
        assert next(each for each in events if each["event"] == "completed")["partition"] == f"{topic}-0"
        other = plan(tmp_path / "other", topic, [2, 1])
        assert "Clearing topic-level throttles on topic " + topic in cluster.kafka(
            "--verify", "--reassignment-json-file", other
        )
        assert cluster.throttles(topic) == {}
        dead.start()
        before = list(itertools.takewhile(lambda each: each["event"] != "started", events))
        assert [each["entities"][0] for each in before if each["event"] == "throttle_set_again"] == ["brokers/1"]
        throttles = cluster.throttles(topic)
        assert throttles["topic follower.replication.throttled.replicas"] == "1:3"
        assert {value for key, value in throttles.items() if key.endswith("rate")} == {str(SLOW)}
        cluster.klamm("throttle", "--rate", str(FAST), *options)
        assert list(events)[-1]["complete"] is True
    assert cluster.throttles(topic) == {}


def test_kafka_takes_the_wildcard_of_a_long_list(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.cli.reassign.throttles.MAX_LIST_BYTES", 6)
    topic = "long-list"
    cluster.create(topic, [[1, 2], [1, 2]])
    options = ("--reassignment-json-file", plan(tmp_path, topic, [1, 3], [1, 3]))
    cluster.klamm("execute", *options, "--throttle", str(SLOW), "--no-wait", "--yes")
    cluster.until(lambda: len(cluster.throttles(topic)) == 8)
    lists = {key: value for key, value in cluster.throttles(topic).items() if key.startswith("topic")}
    assert lists == {
        "topic leader.replication.throttled.replicas": "*",
        "topic follower.replication.throttled.replicas": "*",
    }
    assert cluster.events("execute", "--resume", *options, "--throttle", str(FAST))[-1]["complete"] is True
    assert cluster.throttles(topic) == {}


def test_through_zookeeper_as_kafkas_tool(kafka28: KafkaCluster, tmp_path: Path) -> None:
    assert kafka28.zookeeper is not None
    at = ("--zookeeper", kafka28.zookeeper)
    printed, throttles = [], []
    for topic in ("znode-by-kafka", "znode-by-klamm"):
        kafka28.create(topic, [[1, 2], [2, 3]])
        wanted = plan(tmp_path, topic, [2, 3], [3, 1])
        options = ("--reassignment-json-file", wanted, "--throttle", str(FAST), *at)
        if topic == "znode-by-kafka":
            lines = [line for line in kafka28.kafka("--execute", *options) if "deprecated" not in line]
        else:
            lines = kafka28.klamm("execute", *options, "--no-wait", "--yes")
        printed.append(renamed(lines, topic))
        throttles.append(kafka28.until_throttled(topic))
        kafka28.until_moved(topic, [[2, 3], [3, 1]])
        kafka28.until(lambda: kafka28.kafka("--list") == ["No partition reassignments found."])
        kafka28.klamm("verify", "--reassignment-json-file", wanted, *at)
        kafka28.until_not_throttled(topic)
    assert printed[0] == printed[1]
    assert throttles[0] == throttles[1]


def test_a_broker_of_kafka_is_emptied_and_kafkas_tool_finds_the_plan_complete(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    cluster.create("emptied", [[1, 2], [2, 3], [3, 1]])
    file = tmp_path / "emptied.json"
    command = ["brokers", "decommission", "--broker", "3", "--plan-file", str(file), "--throttle", str(FAST)]
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        ended = main.run([*command, "--yes", "--bootstrap-server", cluster.bootstrap])
    view = ClusterOptions(cluster.bootstrap).call(read_cluster)
    assert not [key for key, each in view.partitions.items() if 3 in each.replicas], stderr.getvalue()
    assert (ended, stdout.getvalue().splitlines()[-1]) == (0, "Broker 3 has no replicas and can be shut down.")
    assert cluster.replicas("emptied")[0] == [1, 2]
    assert cluster.throttles("emptied") == {}
    verified = cluster.kafka("--verify", "--reassignment-json-file", file)
    assert [line for line in verified if "is complete." in line and "emptied" in line] == [
        "Reassignment of partition emptied-1 is complete.",
        "Reassignment of partition emptied-2 is complete.",
    ]
