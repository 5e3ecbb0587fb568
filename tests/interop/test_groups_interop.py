"""`klamm groups` beside Apache Kafka 2.8.2's kafka-consumer-groups: the same groups, the same lines.

Both tools ask a broker of Kafka's, and one of klamm's: what they then agree on is also what klamm's coordinator tells.
"""

import contextlib
import io
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from klamm.cli import main
from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support.long_rows import long
from support.oracles import JavaTools, RealKafka

LONG_TOPIC = "groups-with-a-name-that-csv-quotes"
ODD_GROUP = 'g, "odd" group'
RECORDS = 30

# What Kafka's tool has to say about itself; the rest of its first warning is about its future.
WARNING = "WARN: No action will be performed as the --execute option is missing."

Tool = Callable[..., str]


@pytest.fixture(scope="module", params=[pytest.param("real_kafka", marks=pytest.mark.long), "klamm"])
def cluster(klamm_helper: Helper, request: pytest.FixtureRequest) -> Iterator[str]:
    """The bootstrap address of one broker."""
    if request.param == "real_kafka":
        kafka: RealKafka = request.getfixturevalue(request.param)
        yield kafka.bootstrap
    else:
        with Cluster(brokers=1, helper=klamm_helper) as klamm:
            yield klamm.bootstrap


@pytest.fixture(scope="module")
def bootstrap(cluster: str) -> str:
    """A cluster with topics and records, a second apart until now."""
    address = cluster
    topics = [NewTopic("groups-a", 3, 1), NewTopic("groups-b", 2, 1), NewTopic(LONG_TOPIC, 1, 1)]
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics(topics).values():
        created.result(120)
    producer = Producer({"bootstrap.servers": address})
    now_ms = int(time.time() * 1000)
    for number in range(RECORDS):
        timestamp = now_ms - (RECORDS - number) * 3_600_000  # So far apart that it is no matter which tool asks first.
        for topic, partition in (("groups-a", number % 2), ("groups-b", 0), (LONG_TOPIC, 0)):
            producer.produce(topic, b"v", partition=partition, timestamp=timestamp)
    assert producer.flush(120) == 0
    commit(address, "g-idle", {("groups-a", 0): 5, ("groups-a", 1): 7, ("groups-b", 0): 15})
    commit(address, ODD_GROUP, {("groups-a", 0): 1, (LONG_TOPIC, 0): 4})
    return address


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """Makes a group that has offsets and no members."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    partitions = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    for committed in consumer.commit(offsets=partitions, asynchronous=False):
        assert committed.error is None
    consumer.close()


@pytest.fixture(scope="module")
def members(bootstrap: str) -> Iterator[None]:
    """Groups with members: of one client and of two, with static members, with members that have nothing to do."""
    ended = threading.Event()
    consumers: list[tuple[Callable[[], object], Callable[[], object]]] = []

    def librdkafka(group: str, topics: Sequence[str], **options: str) -> None:
        names = {name.replace("_", "."): value for name, value in options.items()}
        offsets = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **offsets, **names})
        consumer.subscribe(list(topics))
        consumers.append((lambda: consumer.poll(0.01), consumer.close))

    def kafka_python(group: str, topics: Sequence[str], client_id: str) -> None:
        consumer = KafkaConsumer(
            *topics, bootstrap_servers=bootstrap, group_id=group, client_id=client_id, enable_auto_commit=False
        )
        consumers.append((lambda: consumer.poll(10), consumer.close))

    librdkafka("g-live", ["groups-a", "groups-b"], client_id="one")
    librdkafka("g-live", ["groups-a"], client_id="two")
    kafka_python("g-mixed", ["groups-b", LONG_TOPIC], "python")
    librdkafka("g-mixed", ["groups-b"], client_id="c", partition_assignment_strategy="range")
    for number in (1, 2):
        librdkafka("g-static", ["groups-a"], client_id="s", group_instance_id=f"instance-{number}")
    for number in range(4):
        librdkafka(
            "g-crowd", ["groups-b"], client_id=f"a-long-client-{number}", partition_assignment_strategy="roundrobin"
        )

    def poll(poll_once: Callable[[], object]) -> None:
        while not ended.is_set():
            poll_once()

    threads = [threading.Thread(target=poll, args=(poll_once,)) for poll_once, _ in consumers]
    for thread in threads:
        thread.start()
    wait_until_stable(bootstrap, {"g-live": 2, "g-mixed": 2, "g-static": 2, "g-crowd": 4})
    yield
    ended.set()
    for thread in threads:
        thread.join()
    for _, close in consumers:
        close()


def wait_until_stable(bootstrap: str, groups: dict[str, int]) -> None:
    """Waits until the groups have so many members, all with what they have read committed."""
    deadline = time.monotonic() + 120
    while True:
        named = " ".join(f"--group {group}" for group in groups)
        # Until its first member has joined, a group is one that does not exist.
        states = ours(bootstrap, f"describe {named} --state", code=None)
        offsets = ours(bootstrap, f"describe {named}", code=None)
        stable = all(re.search(rf"^{group} .* Stable +{count}$", states, re.M) for group, count in groups.items())
        # What is not committed by then never is: empty partitions, and those of kafka-python.
        lagging = re.search(r" [1-9]\d* +(-|[1-9]\d*) +(?!python-)\S+-[0-9a-f]{8}-", offsets)
        if stable and not lagging and "rebalancing" not in offsets + states:
            return
        assert time.monotonic() < deadline, states + offsets
        time.sleep(0.2)


@pytest.fixture(scope="module")
def theirs(bootstrap: str, kafka_tools: JavaTools) -> Tool:
    """Runs kafka-consumer-groups and returns all that it says."""

    def run(arguments: str) -> str:
        tool = "kafka.admin.ConsumerGroupCommand"
        code, out, err = kafka_tools.outcome(tool, "--bootstrap-server", bootstrap, *shlex.split(arguments))
        said = (err + out).decode()
        assert code == 0, said
        return re.sub(rf"^{WARNING}.*$", WARNING, said, flags=re.M)

    return run


def ours(bootstrap: str, arguments: str, *, code: int | None = 0) -> str:
    """Runs `klamm groups` and returns all that it says, errors with Kafka's prefix instead of klamm's. `code`: how it
    must end; None: anyhow."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        ended = main.run(["groups", *shlex.split(arguments), "--bootstrap-server", bootstrap])
    said = written.getvalue().decode()
    assert code in (None, ended), said
    return re.sub(r"^klamm: ", "\nError: ", said, flags=re.M)


def blocks(said: str) -> list[list[str]]:
    """What stands between empty lines, its lines in any order: Kafka's tool has none for groups and partitions."""
    return sorted(sorted(block.splitlines()) for block in re.split(r"\n\n+", said.strip("\n")))


@pytest.mark.parametrize(
    "arguments",
    [
        "list",
        "list --state",
        "list --state Stable,Empty",
        "list --state Dead",
        "describe --all-groups",
        "describe --all-groups --offsets",
        "describe --all-groups --members",
        "describe --all-groups --members --verbose",
        "describe --all-groups --state",
        "describe --group g-idle --group g-live --timeout 20000",
        "describe --group g-idle --members",
    ],
)
@pytest.mark.usefixtures("members")
def test_groups_are_shown_as_kafka_does(bootstrap: str, theirs: Tool, arguments: str) -> None:
    assert blocks(ours(bootstrap, arguments)) == blocks(theirs(f"--{arguments}"))


@pytest.mark.parametrize("arguments", ["", "--members", "--state"])
def test_a_group_that_does_not_exist(bootstrap: str, theirs: Tool, arguments: str) -> None:
    described = f"describe --group g-idle --group g-never {arguments}"
    said = ours(bootstrap, described, code=1)
    assert blocks(said) == blocks(theirs(f"--{described}"))
    assert "\nError: Consumer group 'g-never' does not exist.\n" in said


RESETS = [
    "--group g-idle --topic groups-a --to-earliest",
    "--group g-idle --topic groups-a:0,1 --shift-by -6 --dry-run",
    "--group g-idle --all-topics --by-duration PT10H30M0.5S --dry-run",
    "--group g-idle --all-topics --to-datetime 2120-01-01T00:00:00.000+05:30 --dry-run",
    f"--group '{ODD_GROUP}' --group g-idle --all-topics --to-current --dry-run --export",
]
MORE_RESETS = [
    "--group g-idle --topic groups-a --to-earliest --dry-run",
    "--group g-idle --all-topics --to-latest --dry-run",
    "--group g-idle --topic groups-a:0,1 --topic groups-b --to-current --dry-run",
    "--group g-idle --all-topics --shift-by 9 --dry-run",
    "--group g-idle --topic groups-a --to-offset 10 --dry-run",
    "--group g-idle --topic groups-a:0 --to-offset -10 --dry-run",
    "--group g-idle --all-topics --by-duration P1DT2H --dry-run",
    "--group g-idle --all-topics --by-duration -PT1M --dry-run",
    "--group g-idle --all-topics --to-datetime 2020-01-01T00:00:00.000 --dry-run",
    "--group g-new --topic groups-a --to-latest --dry-run --export",
    f"--group '{ODD_GROUP}' --all-topics --to-current --dry-run --export",
]


@pytest.mark.parametrize("arguments", [*RESETS, *long(*MORE_RESETS)])
def test_resets_are_planned_as_kafka_does(bootstrap: str, theirs: Tool, arguments: str) -> None:
    said = ours(bootstrap, f"reset-offsets {arguments}")
    assert blocks(said) == blocks(theirs(f"--reset-offsets {arguments}"))


@pytest.mark.usefixtures("members")
def test_the_offsets_of_an_active_group_are_not_reset(bootstrap: str, theirs: Tool) -> None:
    before = ours(bootstrap, "describe --group g-live")
    arguments = "--group g-live --group g-idle --topic groups-a --to-earliest --export"
    said = ours(bootstrap, f"reset-offsets {arguments} --dry-run", code=1)
    assert blocks(said) == blocks(theirs(f"--reset-offsets {arguments} --dry-run"))
    ours(bootstrap, "reset-offsets --group g-live --topic groups-a --to-earliest --execute", code=1)
    assert ours(bootstrap, "describe --group g-live") == before


def test_a_time_in_between(bootstrap: str, theirs: Tool) -> None:
    """Half of the records are left after it, and both tools find the same first one."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000", time.gmtime(time.time() - RECORDS // 2 * 3_600 - 1_800))
    arguments = f"--group g-idle --all-topics --to-datetime {moment} --dry-run"
    assert blocks(ours(bootstrap, f"reset-offsets {arguments}")) == blocks(theirs(f"--reset-offsets {arguments}"))


@pytest.mark.parametrize("groups", ["--group g-here", "--group g-here --group g-there"])
def test_files_go_from_one_tool_to_the_other(bootstrap: str, theirs: Tool, groups: str, tmp_path: Path) -> None:
    for group in ("g-here", "g-there"):
        commit(bootstrap, group, {("groups-a", 0): 3, ("groups-b", 0): 4, (LONG_TOPIC, 0): 5})
    exported = f"{groups} --all-topics --to-current --dry-run --export"
    from_klamm, from_kafka = tmp_path / "klamm.csv", tmp_path / "kafka.csv"
    from_klamm.write_text(ours(bootstrap, f"reset-offsets {exported}"))
    from_kafka.write_text(theirs(f"--reset-offsets {exported}"))
    offsets = ours(bootstrap, f"describe {groups}")

    ours(bootstrap, f"reset-offsets {groups} --all-topics --to-earliest --execute")
    assert ours(bootstrap, f"describe {groups}") != offsets
    ours(bootstrap, f"reset-offsets {groups} --from-file {from_kafka} --execute")
    assert ours(bootstrap, f"describe {groups}") == offsets

    said = theirs(f"--reset-offsets {groups} --all-topics --to-latest --execute")
    assert ours(bootstrap, f"describe {groups}") != offsets
    assert "NEW-OFFSET" in said
    theirs(f"--reset-offsets {groups} --from-file {from_klamm} --execute")
    assert ours(bootstrap, f"describe {groups}") == offsets


def test_a_file_without_the_group(bootstrap: str, theirs: Tool, tmp_path: Path) -> None:
    file = tmp_path / "plan.csv"
    file.write_text("g-idle,groups-a,0,2\n")
    arguments = f"--group g-idle --group g-new --from-file {file} --dry-run"
    said = ours(bootstrap, f"reset-offsets {arguments}", code=1)
    assert blocks(said) == blocks(theirs(f"--reset-offsets {arguments}"))


# Kafka's tool names Java's classes where ours has the protocol's names.
JAVA_ERROR = re.compile(r"(java\.util\.concurrent\.ExecutionException: )?org\.apache\.kafka\.common\.errors\.\w+: ")
OUR_ERROR = re.compile(r"\b[A-Z]+(_[A-Z]+)+ \(\d+\): ")


@pytest.mark.usefixtures("members")
def test_groups_are_deleted(bootstrap: str, theirs: Tool) -> None:
    def deleted(by: Tool) -> list[list[str]]:
        for group in ("g-gone-1", "g-gone-2"):
            commit(bootstrap, group, {("groups-a", 0): 1})
        some = by("delete --group g-gone-1 --group g-live --group g-never", code=1)
        return blocks(some + by("delete --group g-gone-2"))

    assert_same(bootstrap, theirs, deleted)
    assert "g-gone" not in ours(bootstrap, "list")


@pytest.mark.parametrize(
    ("group", "topics", "code"),
    [
        ("g-partial", "--topic groups-a:0", 0),
        ("g-partial", "--topic groups-a --topic groups-b:0", 0),
        ("g-live", "--topic groups-a", 1),
        ("g-never", "--topic groups-a:0,1", 1),
    ],
)
@pytest.mark.usefixtures("members")
def test_offsets_are_deleted(bootstrap: str, theirs: Tool, group: str, topics: str, code: int) -> None:
    def deleted(by: Tool) -> list[list[str]]:
        # A group whose last offset goes is gone, too: this one keeps one.
        commit(bootstrap, "g-partial", {("groups-a", 0): 1, ("groups-a", 1): 2, ("groups-b", 0): 3, (LONG_TOPIC, 0): 4})
        said = by(f"delete-offsets --group {group} {topics}", code=code)
        return blocks(said + ours(bootstrap, "describe --group g-partial"))

    assert_same(bootstrap, theirs, deleted)


def assert_same(bootstrap: str, theirs: Tool, act: Callable[[Tool], list[list[str]]]) -> None:
    """The same act with both tools: the same is said but for the names of errors and their texts."""

    def by_klamm(arguments: str, code: int = 0) -> str:
        return re.sub(rf"{OUR_ERROR.pattern}.*", "REFUSED", ours(bootstrap, arguments, code=code))

    def by_kafka(arguments: str, code: int = 0) -> str:
        return re.sub(rf"{JAVA_ERROR.pattern}.*", "REFUSED", theirs(f"--{arguments}"))

    assert act(by_klamm) == act(by_kafka)
