"""The state-change logs of three brokers, merged; and whether all replicas agree, while the brokers run and from their
data directories.
"""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from klamm.testing import Cluster, Helper
from support.planted import change_records, first_segment
from support.present import present

TOPIC = "castle"
PARTITIONS, RECORDS = 3, 300
LINE_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] ")
Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    """Broker 1 has been stopped and started, and the topic has records."""
    with Cluster(3, helper=klamm_helper) as started:
        for name in (TOPIC, "village"):
            started.create_topic(name, partitions=PARTITIONS, replication_factor=3)
        started.stop(1)
        started.start(1)
        producer = Producer({"bootstrap.servers": started.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(120) == 0
        started.until(lambda: not started.under_replicated())
        yield started


def test_the_state_change_logs_become_one(cluster: Cluster, klamm: Run) -> None:
    logs = ",".join(f"{cluster.directory}/logs/broker-{broker}/state-change.log" for broker in cluster.broker_ids)
    merged = klamm("log", "merge", "--logs", logs, "--topic", TOPIC, "--partitions", "0,2")
    lines = merged.splitlines()
    times = [present(LINE_TIME.match(line))[1] for line in lines]
    assert times == sorted(times)
    assert all(f"{TOPIC}-0" in line or f"{TOPIC}-2" in line for line in lines)
    assert {broker for line in lines for broker in re.findall(r"\[Broker id=(\d)\]", line)} == {"0", "1", "2"}
    # Between two times of the merged log, both inclusive.
    first, last = times[2], times[5]
    cut = klamm(
        *("log", "merge", "--logs", logs, "--topic", TOPIC, "--partitions", "0,2"),
        *("--start-time", first, "--end-time", last),
    )
    assert cut.splitlines() == [line for line, time in zip(lines, times, strict=True) if first <= time <= last]


def test_all_replicas_agree(cluster: Cluster, klamm: Run) -> None:
    verify = ("verify", "replicas", "--broker-list", cluster.bootstrap, "--topic-white-list", "cas.*")
    assert klamm(*verify).endswith("All replicas are equal.\n")


def test_a_replica_that_differs_is_found(cluster: Cluster, klamm: Run) -> None:
    cluster.stop(1)
    changed = change_records(first_segment(cluster.broker(1).data_directory, TOPIC), 0)
    cluster.start(1)
    cluster.until(lambda: not cluster.under_replicated())
    verify = ("verify", "replicas", "--broker-list", cluster.bootstrap, "--topic-white-list", "cas.*", "--json")
    partitions = {each["partition"]: each for each in json.loads(klamm(*verify, code=1))["partitions"]}
    assert {number: each["verdict"] for number, each in partitions.items()} == {0: "different", 1: "equal", 2: "equal"}
    (difference,) = partitions[0]["differences"]
    assert (difference["kind"], difference["first_offset"], difference["last_offset"]) == ("checksum", *changed)
