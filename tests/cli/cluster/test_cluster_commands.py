"""The commands against a cluster that `klamm up` runs: everything real, from the shell's side."""

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.cli import main
from klamm.client.consumer.group_consumer import GroupConsumer
from klamm.client.consumer.group_member import leave_request
from klamm.processes.helper import Helper
from klamm.protocol.messages import ApiKey
from klamm.testing import Cluster
from support.processes import ManagedProcess, free_port

KLAMM = [sys.executable, "-m", "klamm.cli.main"]


class Up:
    """A running `klamm up --json`, with one broker unless the options say otherwise."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        log = directory.parents[0 if directory.parent.exists() else 1] / f"{directory.name}.out"
        command: list[str | Path] = [*KLAMM, "up", "--json", "--dir", directory, "--brokers", "1", *options]
        self.process = ManagedProcess("up", command, log)

    def event(self, name: str) -> dict[str, Any]:
        """Waits for an event's first line."""
        found: dict[str, Any] = json.loads(self.process.wait_for(rf'^{{"event": "{name}".*').group())
        return found

    def start(self) -> "Up":
        self.bootstrap = self.event("ready")["bootstrap"]
        return self


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*options: str, directory: str = "data") -> Up:
        started.append(Up(tmp_path / directory, *options))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster for the tests that leave it as it is; each uses topics of its own."""
    running = Up(tmp_path_factory.mktemp("cluster") / "data", "--port", "0")
    try:
        yield running.start()
        assert running.process.stop() == 0
    finally:
        running.process.kill()


Run = Callable[..., str]


@pytest.fixture
def klamm(cluster: Up, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command against the cluster and returns what it prints; its error goes into the failure."""

    def run(*arguments: str, code: int = 0) -> str:
        ended = main.run([*arguments, "--bootstrap-server", cluster.bootstrap])
        output = capsysbinary.readouterr()
        assert ended == code, output.err
        return (output.err if code else output.out).decode()

    return run


def ends(pid: int, timeout_s: float = 120) -> bool:
    """Waits until a process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


# -- topics -------------------------------------------------------------------------------------------------------


def test_topics_from_creation_to_deletion(klamm: Run) -> None:
    topic = ("--topic", "life")
    create = ("topics", "create", *topic, "--partitions", "2")
    assert klamm(*create, "--config", "retention.ms=60000", "--config", "segment.ms=1000") == "Created topic life.\n"
    assert klamm(*create, code=1) == "klamm: TOPIC_ALREADY_EXISTS (36): Topic 'life' already exists.\n"
    assert klamm(*create, "--if-not-exists") == ""
    first, *partitions = klamm("topics", "describe", *topic).splitlines()
    assert re.fullmatch(
        r"Topic: life\tTopicId: [\w-]{22}\tPartitionCount: 2\tReplicationFactor: 1"
        r"\tConfigs: retention\.ms=60000,segment\.ms=1000",
        first,
    )
    assert partitions == [
        "\tTopic: life\tPartition: 0\tLeader: 0\tReplicas: 0\tIsr: 0",
        "\tTopic: life\tPartition: 1\tLeader: 0\tReplicas: 0\tIsr: 0",
    ]
    assert klamm("topics", "describe", *topic, "--under-replicated-partitions", "--unavailable-partitions") == ""
    klamm("topics", "alter", *topic, "--partitions", "3", "--yes")
    (described,) = json.loads(klamm("topics", "describe", "--topic", "li.e", "--json"))
    assert described["partition_count"] == 3
    assert described["partitions"][2] == {
        "partition": 2,
        "leader": 0,
        "replicas": [0],
        "isr": [0],
        "adding_replicas": [],
        "removing_replicas": [],
        "reasons": [],
    }
    assert described["configs"] == {"retention.ms": "60000", "segment.ms": "1000"}
    assert klamm("topics", "alter", *topic, "--partitions", "1", code=1) == (
        "klamm: The number of partitions for a topic can only be increased. Topic life currently has 3 partitions,"
        " 1 would not be an increase.\n"
    )
    klamm("topics", "delete", *topic, "--yes")
    assert "life" not in klamm("topics", "list").split()
    missing = "klamm: Topic 'life' does not exist as expected\n"
    assert klamm("topics", "delete", *topic, code=1) == missing
    assert klamm("topics", "describe", *topic, code=1) == missing
    assert klamm("topics", "delete", *topic, "--if-exists") == ""


def test_lists_and_patterns(klamm: Run) -> None:
    for name in ("list-a", "list-b"):
        klamm("topics", "create", "--topic", name)
    assert klamm("topics", "list", "--topic", "list-.*") == "list-a\nlist-b\n"
    assert json.loads(klamm("topics", "list", "--topic", "list-a,list-b", "--exclude-internal", "--json")) == [
        "list-a",
        "list-b",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config", "no.such=1"], "klamm: INVALID_CONFIG (40): no.such is not a topic config\n"),
        (["--replication-factor", "2"], "klamm: INVALID_REPLICATION_FACTOR (38): "),
    ],
)
def test_what_the_broker_refuses_is_told_in_its_words(klamm: Run, options: list[str], message: str) -> None:
    assert klamm("topics", "create", "--topic", "refused", *options, code=1).startswith(message)
    assert "refused" not in klamm("topics", "list").split()


def test_assigned_replicas(klamm: Run) -> None:
    klamm("topics", "create", "--topic", "assigned", "--replica-assignment", "0,0,0")
    assert "PartitionCount: 3" in klamm("topics", "describe", "--topic", "assigned")


@pytest.fixture
def impatient(tmp_path: Path) -> list[str]:
    """Options of a user who does not want to wait."""
    (tmp_path / "impatient.properties").write_text(
        "default.api.timeout.ms=500\nsocket.connection.setup.timeout.ms=500\n"
    )
    return ["--command-config", str(tmp_path / "impatient.properties")]


@pytest.mark.parametrize("command", ["topics list", "consume --topic t", "produce --topic t --file /dev/null"])
def test_no_broker_there(capsys: pytest.CaptureFixture[str], impatient: list[str], command: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    assert main.run([*command.split(), "--bootstrap-server", nobody, *impatient]) == 1
    told = f"klamm: no broker answers at {nobody}: {nobody}: connection refused, no program listens at this port\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a Kafka broker, its answer is a frame of 1213486160 bytes"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not a Kafka broker, its answer is a frame of 1397966893 bytes"),
        (b"", "a connection, but no answer of a Kafka broker, within 500 ms"),
    ],
)
def test_another_program_than_a_broker_is_told(
    capsys: pytest.CaptureFixture[str], impatient: list[str], answer: bytes, message: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(listening.accept()[0])
                    accepted[-1].sendall(answer)

        accepted: list[socket.socket] = []
        server = threading.Thread(target=serve)
        server.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        servers = f"{address},nowhere.invalid:9092"
        assert main.run(["topics", "list", "--bootstrap-server", servers, *impatient]) == 1
        listening.shutdown(socket.SHUT_RDWR)
        server.join()
        for connection in accepted:
            connection.close()
    told = capsys.readouterr().err
    assert told.startswith(f"klamm: no broker answers at {address},nowhere.invalid:9092: {address}: {message}")
    assert "; nowhere.invalid:9092: unknown host: " in told


# -- produce and consume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression_type", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_bytes_come_back_as_they_were(klamm: Run, tmp_path: Path, compression_type: str) -> None:
    topic = f"bytes-{compression_type}"
    content = b"plain\n\n \xff\xfe binary \x00 \r\n" + b"x" * 100_000 + b"\nno end of line"
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    told = klamm("produce", "--topic", topic, "--file", str(source), "--compression-type", compression_type, "--json")
    assert json.loads(told) == {"topic": topic, "delivered": 5, "failed": 0}
    klamm("consume", "--topic", topic, "--offset", "earliest", "--max-messages", "5", "--output", str(target))
    assert target.read_bytes() == content + b"\n"


def test_keys_headers_and_partitions(klamm: Run, tmp_path: Path) -> None:
    klamm("topics", "create", "--topic", "full", "--partitions", "2")
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a:1,b:\tk1=v1\0\tk2=v\xff\0")
    second.write_bytes(b"\t=")
    produce = ("produce", "--topic", "full", "--null", "--key-separator", "=", "--headers", "--partition", "1")
    klamm(*produce, "--file", str(first), "--file", str(second))
    consume = ("consume", "--topic", "full", "--partition", "1", "--offset", "0", "--max-messages", "3")
    records = [json.loads(line) for line in klamm(*consume, "--json").splitlines()]
    assert [(record["partition"], record["offset"], record["key"]) for record in records] == [
        (1, 0, "k1"),
        (1, 1, "k2"),
        (1, 2, ""),
    ]
    assert records[0]["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value": ""}]
    assert records[1]["value_base64"] == "dv8="
    assert records[2]["value"] == ""
    lines = klamm(*consume[:-4], "--offset", "2", "--max-messages", "1", "--print-key", "--print-offset",
                  "--print-timestamp", "--print-headers", "--separator", "|")  # fmt: skip
    assert re.fullmatch(r"CreateTime:\d{13}\tPartition:1\tOffset:2\tNO_HEADERS\t\t\|", lines)


def test_standard_input_and_the_end_by_silence(klamm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    klamm("produce", "--topic", "silent", "--acks", "1")
    consume = ("consume", "--topic", "silent", "--offset")
    assert klamm(*consume, "earliest", "--max-messages", "2") == "one\ntwo\n"
    assert klamm(*consume, "2", "--timeout-ms", "300") == ""
    assert klamm("consume", "--topic", "silent", "--timeout-ms", "0") == ""


def test_records_of_a_pipe_are_sent_as_they_come(cluster: Up, klamm: Run) -> None:
    command: list[str | Path] = [*KLAMM, "produce", "--topic", "piped", "--bootstrap-server", cluster.bootstrap]
    klamm("topics", "create", "--topic", "piped")
    producer = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert producer.stdin is not None
    try:
        producer.stdin.write(b"first\nsecond\n")
        producer.stdin.flush()
        consume = ("consume", "--topic", "piped", "--offset", "earliest", "--max-messages")
        assert klamm(*consume, "2") == "first\nsecond\n"
        producer.stdin.write(b"third")
        producer.stdin.close()
        assert producer.wait(120) == 0
        assert klamm(*consume, "3").endswith("third\n")
    finally:
        producer.kill()
        producer.wait()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--topic", "never-made"], "klamm: topic never-made does not exist\n"),
        (["--topic", "few", "--partition", "5"], "klamm: few has no partition 5, it has 1 partitions\n"),
        (["--topic", "few", "--offset", "9"], "klamm: offset 9 is not in partition 0 of few, which has 0 to 0\n"),
    ],
)
def test_what_cannot_be_consumed(klamm: Run, options: list[str], message: str) -> None:
    klamm("topics", "create", "--topic", "few", "--if-not-exists")
    assert klamm("consume", *options, code=1) == message
    assert "never-made" not in klamm("topics", "list").split()


def test_a_group_goes_on_where_it_was(klamm: Run, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("1\n2\n3\n")
    klamm("produce", "--topic", "grouped", "--file", str(source))
    consume = ("consume", "--topic", "grouped", "--group", "village", "--from-beginning", "--max-messages")
    assert klamm(*consume, "2") == "1\n2\n"
    assert klamm(*consume, "1") == "3\n", "--from-beginning is for groups that have committed nothing"
    assert re.search(r"^village +grouped +0 +3 +3 +0 ", klamm("groups", "describe", "--group", "village"), re.MULTILINE)
    without_group = ("consume", "--topic", "grouped", "--from-beginning", "--max-messages", "3")
    assert klamm(*without_group) == "1\n2\n3\n"


def test_a_member_that_its_group_has_removed_says_so_and_goes_on(
    klamm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Ctrl-Z for longer than its session: what it could not commit is written again."""
    source = tmp_path / "source"
    source.write_text("1\n2\n3\n")
    klamm("produce", "--topic", "stopped", "--file", str(source))
    commit, commits = GroupConsumer.commit, 0

    async def commit_too_late(consumer: GroupConsumer) -> None:
        nonlocal commits
        commits += 1
        if commits == 1:
            await consumer._member._ask(ApiKey.LEAVE_GROUP, leave_request(consumer.membership))
        await commit(consumer)

    monkeypatch.setattr(GroupConsumer, "commit", commit_too_late)
    consume = ("consume", "--topic", "stopped", "--group", "sleepers", "--from-beginning", "--max-messages")
    written = klamm(*consume, "5")
    assert [line for line in written.splitlines() if not line.startswith("klamm:")] == ["1", "2", "3", "1", "2"]
    assert klamm(*consume, "1") == "3\n"


@pytest.mark.long
def test_a_member_whose_output_stands_still_during_a_rebalance_stays_in_its_group(
    klamm_helper: Helper, tmp_path: Path
) -> None:
    """For longer than its session. It commits what it has written, and then the other member gets its partition."""
    properties = {"group.min.session.timeout.ms": 1_000, "group.initial.rebalance.delay.ms": 0, "num.partitions": 2}
    config, source, output = (tmp_path / name for name in ("client.properties", "source", "output"))
    config.write_text("session.timeout.ms=1000\nheartbeat.interval.ms=200\n")
    source.write_text("".join(f"{number:1000}\n" for number in range(4_000)))
    os.mkfifo(output)
    with contextlib.ExitStack() as at_end, Cluster(1, properties=properties, helper=klamm_helper) as cluster:
        to_cluster = ["--bootstrap-server", cluster.bootstrap, "--topic", "slow"]
        assert main.run(["produce", *to_cluster, "--file", str(source)]) == 0
        members = []
        for options in (["--output", output], ["--max-messages", "1"]):
            consume = [*KLAMM, "consume", *to_cluster, "--group", "readers", "--from-beginning", "--command-config"]
            members.append(ManagedProcess("consume", [*consume, config, *options], tmp_path / f"{len(members)}.log"))
            at_end.callback(members[-1].kill)
            if len(members) == 1:
                pipe = at_end.enter_context(output.open("rb", buffering=0))
                assert pipe.read(1)  # More than a pipe holds comes at once.
        slow, other = members
        time.sleep(3)
        assert other.alive()
        reader = threading.Thread(target=lambda: list(iter(lambda: pipe.read(1 << 16), b"")), daemon=True)
        reader.start()
        assert other.wait() == 0
        assert slow.alive()
        assert "klamm:" not in slow.output()
        slow.kill()
        reader.join()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from-beginning", "--offset", "3"], "Invalid value for --offset: cannot be given together with --from-"),
        (["--group", "g", "--offset", "3"], "Invalid value for --offset: cannot be given together with --group"),
        (["--group", "g", "--partition", "0"], "Invalid value for --partition: cannot be given together with --group"),
        (["--offset", "first"], "Invalid value for --offset: 'first' is not earliest, latest or a number"),
    ],
)
def test_options_of_consume_that_exclude_each_other(klamm: Run, options: list[str], message: str) -> None:
    assert klamm("consume", "--topic", "t", *options, code=2).startswith(f"klamm: {message}")


def test_records_that_are_not_delivered_are_counted(klamm: Run, tmp_path: Path) -> None:
    klamm("topics", "create", "--topic", "narrow", "--config", "max.message.bytes=1000")
    source = tmp_path / "source"
    source.write_bytes(b"small\n" + b"x" * 5000 + b"\n")
    told = klamm("produce", "--topic", "narrow", "--file", str(source), code=1)
    assert told.startswith("klamm: 1 records were not delivered: MESSAGE_TOO_LARGE (10): ")
    assert klamm("consume", "--topic", "narrow", "--offset", "earliest", "--max-messages", "1") == "small\n"
    assert klamm("consume", "--topic", "narrow", "--offset", "1", "--timeout-ms", "300") == ""


def test_the_properties_of_a_producer_and_of_a_consumer(klamm: Run, tmp_path: Path) -> None:
    source, config = tmp_path / "source", tmp_path / "client.properties"
    source.write_bytes(b"small\n" + b"x" * 5000 + b"\n")
    config.write_text("max.request.size=1000\nauto.offset.reset=earliest\nmax.poll.records=1\n")
    told = klamm("produce", "--topic", "modest", "--file", str(source), "--command-config", str(config), code=1)
    assert re.fullmatch(
        r"klamm: record 2: MESSAGE_TOO_LARGE \(10\): a record needs \d+ bytes, max.request.size allows 1000;"
        r" the 1 records before it were delivered\n",
        told,
    )
    consume = ("consume", "--topic", "modest", "--max-messages", "1", "--command-config", str(config))
    assert klamm(*consume) == "small\n"
    config.write_text("isolation.level=serializable\n")
    assert klamm(*consume, code=1).endswith(
        "isolation.level is 'serializable'; allowed: read_uncommitted, read_committed\n"
    )


def test_input_that_is_not_as_promised(klamm: Run, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"k=v\nk=v\nnothing\nk=v\n")
    produce = ("produce", "--topic", "keyed", "--file", str(source), "--key-separator", "=")
    assert klamm(*produce, code=1) == (
        "klamm: record 3: no key separator '='; the 2 records before it were delivered\n"
    )
    assert klamm("produce", "--topic", "keyed", "--partition", "4", "--file", str(source), code=1) == (
        "klamm: keyed has no partition 4, it has 1 partitions\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consume_with_130(cluster: Up, klamm: Run, tmp_path: Path, number: int) -> None:
    klamm("topics", "create", "--topic", "endless", "--if-not-exists")
    source = tmp_path / "source"
    source.write_text("seen\n")
    klamm("produce", "--topic", "endless", "--file", str(source))
    command: list[str | Path] = [
        *KLAMM,
        "consume",
        "--topic",
        "endless",
        "--offset",
        "earliest",
        "--bootstrap-server",
        cluster.bootstrap,
    ]
    consumer = ManagedProcess("consume", command, tmp_path / "consume.out")
    try:
        consumer.wait_for("^seen$")
        assert consumer.stop(number=number) == 130
        assert set(consumer.output().split("\n")) == {"seen", ""}
    finally:
        consumer.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_produce_which_says_what_was_delivered(cluster: Up, klamm: Run, number: int) -> None:
    klamm("topics", "create", "--topic", f"signal-{number}")
    command: list[str | Path] = [
        *KLAMM,
        "produce",
        "--topic",
        f"signal-{number}",
        "--bootstrap-server",
        cluster.bootstrap,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as producer:
        assert producer.stdin is not None and producer.stderr is not None
        producer.stdin.write(b"1\n2\n")
        producer.stdin.flush()
        read = ("consume", "--topic", f"signal-{number}", "--from-beginning", "--max-messages", "2")
        assert klamm(*read) == "1\n2\n"
        producer.send_signal(number)
        assert producer.wait(120) == 130
        told = producer.stderr.read().decode()
    # The records may be read before their acknowledgement has come.
    counts = re.match(r"klamm: interrupted: (\d) records delivered, (\d) without an acknowledgement", told)
    assert counts is not None and int(counts[1]) + int(counts[2]) == 2, told


# -- several brokers ----------------------------------------------------------------------------------------------


def test_three_brokers_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command: list[str | Path] = [*KLAMM, "up", "--json", "--port", "0", "--dir", tmp_path / "data"]
    process = ManagedProcess("up", command, tmp_path / "up.out")
    try:
        ready = json.loads(process.wait_for(r'^{"event": "ready".*').group())
        events = [json.loads(line) for line in process.output().splitlines()]
        addresses = [event["address"] for event in events if event["event"] == "broker_ready"]
        assert len(addresses) == 3
        assert ready["bootstrap"] == ",".join(addresses)
        assert ready["controller"] in (0, 1, 2)
        bootstrap = ("--bootstrap-server", ready["bootstrap"])
        assert main.run(["topics", "create", "--topic", "t", "--partitions", "3", *bootstrap]) == 0
        capsys.readouterr()
        assert main.run(["topics", "describe", "--topic", "t", *bootstrap]) == 0
        first, *partitions = capsys.readouterr().out.splitlines()
        assert "\tPartitionCount: 3\tReplicationFactor: 3\t" in first
        leaders = set()
        for number, line in enumerate(partitions):
            found = re.fullmatch(rf"\tTopic: t\tPartition: {number}\tLeader: (\d)\tReplicas: (\S+)\tIsr: (\S+)", line)
            assert found is not None
            leaders.add(found[1])
            assert found[2].startswith(found[1]), "the preferred leader leads"
            assert sorted(found[2].split(",")) == sorted(found[3].split(",")) == ["0", "1", "2"]
        assert leaders == {"0", "1", "2"}
        assert process.stop() == 0
    finally:
        process.kill()


def test_leaders_and_isr_are_told_as_they_are(klamm_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    c = klamm_cluster
    c.create_topic("t", configs={"min.insync.replicas": 2})
    c.create_topic("alone", replication_factor=1)
    (owner,) = c.replicas("alone")
    c.stop(owner)
    c.until(lambda: c.leader("alone") is None and len(c.isr("t")) == 2)

    def describe(*options: str) -> str:
        bootstrap = next(broker.address for broker in c.brokers if broker.running)
        assert main.run(["topics", "describe", *options, "--bootstrap-server", bootstrap]) == 0
        return capsys.readouterr().out

    replicas, isr = c.replicas("t"), c.isr("t")
    c.until(lambda: f"Isr: {isr[0]},{isr[1]}\t" in describe("--topic", "t"))
    c.until(lambda: "Leader: none" in describe("--topic", "alone"))
    told = f"Leader: {c.leader('t')}\tReplicas: {','.join(map(str, replicas))}\tIsr: {isr[0]},{isr[1]}"
    dead = f"broker {owner} is not live"
    in_t = f"\tTopic: t\tPartition: 0\t{told}\tReason: {dead}\n"
    in_alone = (
        f"\tTopic: alone\tPartition: 0\tLeader: none\tReplicas: {owner}\tIsr: {owner}"
        f"\tReason: no replica of the ISR (broker {owner}) can lead; {dead}\n"
    )
    assert describe("--topic", "t").endswith(in_t)
    assert describe("--under-replicated-partitions") == in_t
    assert describe("--unavailable-partitions") == in_alone
    (described,) = json.loads(describe("--topic", "t", "--json"))
    (partition,) = described["partitions"]
    assert [partition[key] for key in ("leader", "replicas", "isr")] == [c.leader("t"), replicas, isr]
    assert partition["reasons"] == [dead]


# -- the life of a cluster ----------------------------------------------------------------------------------------


def test_a_cluster_comes_back_with_its_data(up: Callable[..., Up], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("kept\n")
    first = up("--port", "0").start()
    assert main.run(["produce", "--topic", "t", "--file", str(source), "--bootstrap-server", first.bootstrap]) == 0
    assert first.process.stop(number=signal.SIGINT) == 0
    events = [json.loads(line)["event"] for line in first.process.output().splitlines()]
    assert events[:4] == ["starting", "zookeeper_ready", "broker_ready", "ready"]
    assert events[-2:] == ["stopping", "stopped"]
    second = up("--port", "0").start()
    target = tmp_path / "target"
    consume = ["consume", "--topic", "t", "--offset", "earliest", "--max-messages", "1", "--output", str(target)]
    assert main.run([*consume, "--bootstrap-server", second.bootstrap]) == 0
    assert target.read_text() == "kept\n"


def test_ctrl_c_before_it_is_ready_is_an_interruption(up: Callable[..., Up]) -> None:
    cluster = up("--port", "0")
    cluster.event("starting")
    assert cluster.process.stop(number=signal.SIGINT) == 130
    assert "Traceback" not in cluster.process.output()


def test_one_of_several_brokers_dies(up: Callable[..., Up], tmp_path: Path) -> None:
    cluster = up("--port", "0", "--brokers", "2").start()
    assert len(cluster.bootstrap.split(",")) == 2
    os.kill(cluster.event("broker_ready")["pid"], signal.SIGKILL)
    died = cluster.event("died")
    file = cluster.directory / "broker-0.properties"
    assert (died["name"], died["restarts"], died["command"]) == ("broker-0", False, f"klamm broker {file}")
    broker = ManagedProcess("broker", [*KLAMM, "broker", file], tmp_path / "broker.out")
    try:
        broker.wait_for(f"broker 0 of cluster .* serves .*{cluster.bootstrap.partition(',')[0].partition(':')[2]}")
    finally:
        broker.kill()
    assert cluster.process.stop() == 1
    assert "klamm: these servers had died: broker-0" in cluster.process.output()


def test_servers_that_die_are_started_again_where_that_is_wanted(up: Callable[..., Up]) -> None:
    cluster = up("--port", "0", "--restart").start()
    first = cluster.event("broker_ready")
    os.kill(first["pid"], signal.SIGKILL)
    again = json.loads(cluster.process.wait_for(rf'^{{"event": "broker_ready".*"pid": (?!{first["pid"]}\b).*').group())
    assert again["address"] == first["address"] == cluster.bootstrap
    died = cluster.event("died")
    assert (died["name"], died["restarts"], died["command"]) == ("broker-0", True, None)
    zookeeper = cluster.event("zookeeper_ready")
    os.kill(zookeeper["pid"], signal.SIGKILL)
    cluster.process.wait_for(
        rf'^{{"event": "zookeeper_ready", "address": "{zookeeper["address"]}", "pid": (?!{zookeeper["pid"]}\b)'
    )
    assert main.run(["topics", "create", "--topic", "t", "--bootstrap-server", cluster.bootstrap]) == 0
    assert cluster.process.stop() == 0


def test_on_a_terminal_the_status_is_live(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    command: list[str | Path] = [*KLAMM, "up", "--brokers", "1", "--port", "0", "--dir", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env={**os.environ, "TERM": "xterm"})
    os.close(inside)
    shown = b""
    try:
        while b"0 topics with 0 partitions" not in shown:
            shown += os.read(terminal, 4096)
        assert b"clients can connect to 127.0.0.1:" in shown
        assert b"Ctrl-C stops" in shown
        process.send_signal(signal.SIGINT)
        while b"stopped" not in shown:
            shown += os.read(terminal, 4096)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_kill_9_leaves_no_process(up: Callable[..., Up]) -> None:
    cluster = up("--port", "0").start()
    pids = [cluster.event("zookeeper_ready")["pid"], cluster.event("broker_ready")["pid"]]
    os.kill(cluster.process.pid, signal.SIGKILL)
    assert all(map(ends, pids))


def test_the_last_brokers_death_is_told_and_ends_the_cluster(up: Callable[..., Up]) -> None:
    cluster = up("--port", "0").start()
    zookeeper, broker = cluster.event("zookeeper_ready")["pid"], cluster.event("broker_ready")["pid"]
    os.kill(broker, signal.SIGKILL)
    died = cluster.event("died")
    assert died["name"] == "broker-0"
    assert died["exit_code"] == -9
    assert died["reason"].startswith("broker-0 was ended by SIGKILL; the end of ")
    assert cluster.process.wait() == 1
    assert "klamm: the cluster cannot continue without broker-0" in cluster.process.output()
    assert ends(zookeeper)


def test_a_port_in_use_is_told(up: Callable[..., Up], cluster: Up) -> None:
    port = cluster.bootstrap.rpartition(":")[2]
    refused = up("--port", port, directory="parent/data")
    assert refused.process.wait() == 1
    told = f"klamm: listener PLAINTEXT://127.0.0.1:{port}: address already in use; another program uses it\n"
    assert refused.process.output() == told
    assert not refused.directory.parent.exists(), "a start that is refused makes no directories"


def test_a_directory_in_use_is_told(cluster: Up) -> None:
    command: list[str | Path] = [*KLAMM, "up", "--brokers", "1", "--port", "0", "--dir", str(cluster.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"klamm: zookeeper: {cluster.directory / 'zookeeper'} is in use by another server\n"


def test_plain_words_when_it_is_not_a_terminal(tmp_path: Path) -> None:
    command: list[str | Path] = [*KLAMM, "up", "--brokers", "1", "--port", "0", "--dir", tmp_path / "data"]
    process = ManagedProcess("up", command, tmp_path / "out")
    try:
        process.wait_for(r"^ZooKeeper is ready at 127\.0\.0\.1:\d+ \(pid \d+\)$")
        process.wait_for(r"^clients can connect to 127\.0\.0\.1:\d+ \(the controller is broker 0; after [\d.]+ s\)$")
        process.wait_for(r"^1 broker up, 0 topics with 0 partitions, for 0:00:\d\d$")
        assert process.stop() == 0
        assert process.output().endswith("stopping\nstopped\n")
    finally:
        process.kill()


# -- single servers -----------------------------------------------------------------------------------------------


def test_zookeeper_and_a_broker_alone(tmp_path: Path) -> None:
    command: list[str | Path] = [*KLAMM, "zookeeper", "--port", "0", "--dir", tmp_path / "zookeeper"]
    zookeeper = ManagedProcess("zookeeper", command, tmp_path / "zookeeper.out")
    broker = None
    try:
        address = zookeeper.wait_for(r"^127\.0\.0\.1:\d+$").group()
        file = tmp_path / "server.properties"
        file.write_text(f"broker.id=5\nzookeeper.connect={address}\nlog.dirs=logs\nlisteners=PLAINTEXT://127.0.0.1:0\n")
        command = [
            *KLAMM,
            "broker",
            file,
            "--override",
            f"log.dirs={tmp_path / 'logs'}",
            "--override",
            "odd.key=1",
        ]
        broker = ManagedProcess("broker", command, tmp_path / "broker.out")
        broker.wait_for("unknown configuration key: odd.key")
        broker.wait_for("broker 5 of cluster .* serves")
        assert broker.stop() == 0
        assert zookeeper.stop(number=signal.SIGINT) == 0
    finally:
        for process in (broker, zookeeper):
            if process is not None:
                process.kill()


def test_a_broker_without_zookeeper_gives_up(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    nobody = f"127.0.0.1:{free_port()}"
    file.write_text(f"zookeeper.connect={nobody}\nzookeeper.connection.timeout.ms=300\nlog.dir={tmp_path}\n")
    done = subprocess.run([*KLAMM, "broker", file], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"klamm: ZooKeeper at {nobody} does not answer (waited zookeeper.connection.timeout.ms=300)"
    )
