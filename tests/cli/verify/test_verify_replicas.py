"""`klamm verify replicas` on a cluster of klamm's: differences that are planted, brokers that are away."""

import contextlib
import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from klamm.cli import main
from klamm.processes.helper import Helper
from klamm.protocol.record.records import Record
from klamm.testing import Cluster
from support.placed_topics import write_batches
from support.planted import change_records, drop_batch, first_segment, flip_bit

RECORDS = 40
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: "


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    """Three brokers; each test uses topics of its own."""
    properties = {"replica.high.watermark.checkpoint.interval.ms": 100}
    with Cluster(3, helper=klamm_helper, properties=properties) as running:
        yield running


def create(cluster: Cluster, topic: str, assignment: str) -> None:
    """Makes a topic whose partitions are on these brokers."""
    where = ("--bootstrap-server", cluster.bootstrap)
    assert main.run(["topics", "create", "--topic", topic, "--replica-assignment", assignment, *where]) == 0
    cluster.until(lambda: len(cluster.isr(topic)) == len(assignment.partition(",")[0].split(":")))


def produce(cluster: Cluster, topic: str, count: int = RECORDS, partition: int = 0) -> None:
    """Writes records, each as a batch of its own."""
    write_batches(cluster, topic, [[Record(None, b"value-%d" % number)] for number in range(count)], partition)


def verify(*arguments: str, code: int = 0) -> str:
    """What the command prints, without the times; its error goes into the failure."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        ended = main.run(["verify", "replicas", *arguments])
    assert ended == code, output.getvalue() + errors.getvalue()
    return re.sub(f"^{TIME}", "", output.getvalue() + errors.getvalue(), flags=re.M)


def online(cluster: Cluster, topic: str, *arguments: str, code: int = 0) -> str:
    where = ("--bootstrap-server", cluster.bootstrap, "--topic-white-list", topic)
    return verify(*where, *arguments, code=code)


def offline(cluster: Cluster, topic: str, *arguments: str, code: int = 0) -> str:
    directories = ",".join(str(broker.data_directory) for broker in cluster.brokers)
    return verify("--log-dirs", directories, "--topic-white-list", topic, *arguments, code=code)


def wait_for_checkpoints(cluster: Cluster, topic: str, *brokers: int, offset: int = RECORDS) -> None:
    """Waits until the directories of the brokers say that the records are committed."""
    files = [cluster.broker(broker).data_directory / "replication-offset-checkpoint" for broker in brokers]
    cluster.until(lambda: all(file.exists() and f"{topic} 0 {offset}\n" in file.read_text() for file in files))


def partition_of(text: str) -> dict[str, Any]:
    (partition,) = json.loads(text)["partitions"]
    found: dict[str, Any] = partition
    return found


def test_equal_replicas(cluster: Cluster) -> None:
    cluster.create_topic("equal", partitions=2, replication_factor=3)
    produce(cluster, "equal")
    said = online(cluster, "equal").splitlines()
    assert said[0] == "verification process is started."
    assert re.fullmatch(r"Verified 2 partitions on 6 replicas: 40 batches, \d+\.\d KB read\.", said[1])
    assert said[2:] == ["All replicas are equal."]
    found = json.loads(online(cluster, "equal", "--json"))
    assert found["is_fine"] and [each["verdict"] for each in found["partitions"]] == ["equal", "equal"]
    assert [each["to_offset"] for each in found["partitions"]] == [RECORDS, 0]


def test_planted_differences_are_found_by_asking_brokers_and_in_their_directories(cluster: Cluster) -> None:
    create(cluster, "planted", "0:1:2")
    produce(cluster, "planted")
    cluster.stop(2)
    segment = first_segment(cluster.broker(2).data_directory, "planted")
    places = [change_records(segment, 3), flip_bit(segment, 7), drop_batch(segment, 20)]
    assert places == [(3, 3), (7, 7), (20, 20)]
    cluster.start(2)
    cluster.until(lambda: 2 in cluster.isr("planted"))
    wait_for_checkpoints(cluster, "planted", 0, 1, 2)
    expected = [
        ("checksum", 3, 2, 0),
        ("corrupt", 7, 2, 2),
        ("missing", 20, 2, 0),
    ]
    for run in (online, offline):
        partition = partition_of(run(cluster, "planted", "--json", code=1))
        found = [
            (each["kind"], each["first_offset"], each["replica"], each["other_replica"])
            for each in partition["differences"]
        ]
        assert found == expected
        assert (partition["verdict"], partition["to_offset"], partition["different_batches"]) == (
            "different",
            RECORDS,
            3,
        )
        said = run(cluster, "planted", code=1)
        assert re.search(
            r"^partition planted-0 has unmatched checksum at offset 3; replica 0's checksum \d+;"
            r" replica 2's checksum \d+$",
            said,
            re.M,
        )
        assert "partition planted-0: replica 2 has no batch for offset 20, replica 0 has\n" in said
        assert said.endswith("1 partition differs.\n")


def test_a_dead_broker_does_not_stop_the_verification_of_the_others(cluster: Cluster) -> None:
    create(cluster, "dead", "0:1:2")
    create(cluster, "dead-of-two", "0:2")
    for topic in ("dead", "dead-of-two"):
        produce(cluster, topic)
    cluster.kill(2)
    cluster.until(lambda: cluster.isr("dead") == [0, 1])
    said = online(cluster, "dead", "--patience-ms", "300", code=3)
    assert re.search(r"^partition dead-0: replica 2 is not verified: ", said, re.M)
    assert re.search(
        r"^Verified 1 partition on 2 replicas: 40 batches, .*\n0 partitions differ, 1 partition was verified only in",
        said,
        re.M,
    )
    partition = partition_of(online(cluster, "dead", "--patience-ms", "300", "--json", code=3))
    assert (partition["verdict"], partition["to_offset"]) == ("partly-equal", RECORDS)
    said = online(cluster, "dead.*", "--patience-ms", "300", code=3)
    assert "nothing to compare with" in said
    verdict = "0 partitions differ, 1 partition could not be verified, 1 partition was verified only in part."
    assert said.endswith(f"{verdict}\n")
    cluster.start(2)
    cluster.until(lambda: sorted(cluster.isr("dead")) == [0, 1, 2] and sorted(cluster.isr("dead-of-two")) == [0, 2])
    assert online(cluster, "dead.*").endswith("All replicas are equal.\n")


def test_an_uncommitted_tail_is_no_difference(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, "tail", "0:1")
    produce(cluster, "tail")
    wait_for_checkpoints(cluster, "tail", 0, 1)
    cluster.stop(1)
    copy = tmp_path / "broker-1"
    shutil.copytree(cluster.broker(1).data_directory, copy)
    cluster.start(1)
    segment = first_segment(copy, "tail")
    change_records(segment, RECORDS - 1)
    checkpoint = copy / "replication-offset-checkpoint"
    checkpoint.write_text(re.sub(r"^tail 0 \d+$", f"tail 0 {RECORDS - 1}", checkpoint.read_text(), flags=re.M))
    directories = f"{cluster.broker(0).data_directory},{copy}"
    said = verify("--log-dirs", directories, "--topic", "tail", code=3)
    assert "tail-0: replica 1 was verified only to offset 39: it is 1 offset behind\n" in said
    assert said.endswith("0 partitions differ, 1 partition was verified only in part.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--topic-white-list", "no-such"], 3, "klamm: No topics found."),
        (["--topic-white-list", "("], 2, "is not a valid regular expression"),
        (["--time", "-3"], 2, "--time"),
        (["--log-dirs", "/nowhere"], 3, "klamm: /nowhere has no meta.properties: it is no log directory of a broker"),
        (["--log-dirs", "/a", "--continuous"], 2, "goes with --once"),
    ],
)
def test_wrong_calls_say_what_is_wrong(cluster: Cluster, arguments: list[str], code: int, error: str) -> None:
    assert error in verify("--bootstrap-server", cluster.bootstrap, *arguments, code=code)


def test_directories_of_one_broker_have_nothing_to_compare_with(cluster: Cluster) -> None:
    directory = cluster.broker(0).data_directory
    said = verify("--log-dirs", str(directory), code=3)
    assert "at least two brokers" in said


class Following:
    """`klamm verify replicas --continuous` as a process, and its lines."""

    def __init__(self, cluster: Cluster, topic: str, *options: str) -> None:
        command = [sys.executable, "-m", "klamm", "verify", "replicas", "--continuous", "--topic", topic, *options]
        where = ["--bootstrap-server", cluster.bootstrap, "--report-interval-ms", "100", "--max-wait-ms", "50"]
        self.process = subprocess.Popen([*command, *where], stdout=subprocess.PIPE, text=True)

    def line(self, pattern: str) -> str:
        """The next line that matches, without its time."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.search(pattern, line):
                return re.sub(f"^{TIME}", "", line.rstrip())
        raise AssertionError(f"the command has ended without {pattern}")

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120)

    def __enter__(self) -> "Following":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_a_verification_without_an_end_follows_what_is_written(cluster: Cluster) -> None:
    create(cluster, "followed", "0:1:2")
    produce(cluster, "followed", 5)
    with Following(cluster, "followed") as following:
        assert following.line("started") == "verification process is started."
        expected = "max lag is 0 for partition followed-0 at offset 5 among 1 partitions"
        assert following.line("max lag is 0") == expected
        produce(cluster, "followed", 5)
        following.line("max lag is 0 for partition followed-0 at offset 10 ")
        assert following.interrupt() == 130


def test_a_verification_without_an_end_outlives_a_broker_and_takes_it_in_again(cluster: Cluster) -> None:
    create(cluster, "outlived", "0:1:2")
    with Following(cluster, "outlived", "--patience-ms", "300", "--json") as following:
        following.line('"report"')
        cluster.kill(2)
        cluster.until(lambda: 2 not in cluster.isr("outlived"))
        aside = json.loads(following.line("not-verified"))
        assert (aside["topic"], aside["replica"], aside["from_offset"]) == ("outlived", 2, 0)
        produce(cluster, "outlived", 5)
        following.line('"offset": 5')
        cluster.start(2)
        cluster.until(lambda: 2 in cluster.isr("outlived"))
        again = json.loads(following.line("verified-again"))
        assert (again["replica"], again["missed_from_offset"]) == (2, 0)
        assert following.interrupt() == 130


def test_an_interrupted_verification_that_has_found_a_difference_ends_with_1(cluster: Cluster) -> None:
    create(cluster, "interrupted", "0:1:2")
    produce(cluster, "interrupted", 5)
    cluster.stop(2)
    change_records(first_segment(cluster.broker(2).data_directory, "interrupted"), 3)
    cluster.start(2)
    cluster.until(lambda: 2 in cluster.isr("interrupted"))
    with Following(cluster, "interrupted", "--time", "-2") as following:
        assert following.line("unmatched").startswith("partition interrupted-0 has unmatched checksum at offset 3; ")
        following.line("max lag is 0")
        assert following.interrupt() == 1


def test_records_that_were_deleted_are_no_difference(cluster: Cluster) -> None:
    create(cluster, "trimmed", "0:1:2")
    produce(cluster, "trimmed")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_records([TopicPartition("trimmed", 0, 15)])[TopicPartition("trimmed", 0)].result(120)
    wait_for_checkpoints(cluster, "trimmed", 0, 1, 2)
    for run in (online, offline):
        partition = partition_of(run(cluster, "trimmed", "--json"))
        assert (partition["verdict"], partition["to_offset"], partition["removed_offsets"]) == ("equal", RECORDS, 0)
    assert partition_of(online(cluster, "trimmed", "--json"))["from_offset"] == 15
