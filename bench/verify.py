"""`klamm verify replicas` beside Kafka's kafka-replica-verification: the same replicas on the same cluster.

    bench/verify.py --size-mb 5000                       three brokers of Apache Kafka 2.8.2
    bench/verify.py --size-mb 5000 --cluster klamm       three brokers of klamm

A topic gets `--size-mb` of records, three times replicated. Both tools verify it from its beginning, in turn, and the
ratio of their times is printed: from the start of the program, as a user waits; without the program's start; and of the
processor time, which depends least on what else the machine does. Then one broker's log is
changed (two bytes, with a checksum that fits), and a batch is removed; both tools look again.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from sides import KAFKA_OPTIONS, ROOT, RealZooKeeper, kafka_jars

sys.path.insert(0, str(ROOT))

from klamm.testing import Cluster
from support.oracles import RealKafka, java_command
from support.planted import change_records, drop_batch, first_segment

TOPIC = "verified"
BROKERS = 3
RECORD_BYTES = 1024
# What Kafka's start script gives a tool.
TOOL_OPTIONS = ("-Xmx256M",)


class Brokers(ABC):
    bootstrap: str

    @abstractmethod
    def data_directory(self, broker: int) -> Path: ...

    @abstractmethod
    def stop(self, broker: int) -> None: ...

    @abstractmethod
    def start(self, broker: int) -> None: ...


class KafkaBrokers(Brokers):
    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        jars = kafka_jars()
        zookeeper = RealZooKeeper(jars, directory / "zookeeper")
        stack.callback(zookeeper.kill)
        zookeeper.start()
        self.brokers = [
            RealKafka(jars, directory / f"kafka-{id_}", zookeeper.connect, broker_id=id_, options=KAFKA_OPTIONS)
            for id_ in range(BROKERS)
        ]
        for broker in self.brokers:
            stack.callback(broker.kill)
            broker.start()
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)

    def data_directory(self, broker: int) -> Path:
        return self.brokers[broker].data_directory

    def stop(self, broker: int) -> None:
        self.brokers[broker].stop()

    def start(self, broker: int) -> None:
        self.brokers[broker].start()


class KlammBrokers(Brokers):
    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.cluster = stack.enter_context(Cluster(BROKERS, directory=directory / "klamm"))
        self.bootstrap = self.cluster.bootstrap

    def data_directory(self, broker: int) -> Path:
        return self.cluster.broker(broker).data_directory

    def stop(self, broker: int) -> None:
        self.cluster.stop(broker)

    def start(self, broker: int) -> None:
        self.cluster.start(broker)


def fill(bootstrap: str, size_mb: int, partitions: int) -> int:
    """Writes the records to all partitions in turn; returns how many offsets each has at least."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # Each partition on all brokers, with its leader in turn.
    assignment = [[(number + each) % BROKERS for each in range(BROKERS)] for number in range(partitions)]
    created = admin.create_topics([NewTopic(TOPIC, partitions, replica_assignment=assignment)])
    created[TOPIC].result(60)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "queue.buffering.max.messages": 400_000}
    )
    from client import payload

    value = payload(RECORD_BYTES)
    count = size_mb * 1024 * 1024 // RECORD_BYTES // partitions
    chunk = [{"value": value}] * 1000
    for _ in range(0, count, 1000):
        for number in range(partitions):
            while len(producer) > 200_000:
                producer.poll(0.01)
            producer.produce_batch(TOPIC, chunk, partition=number)
    if producer.flush(600):
        raise SystemExit("records were not acknowledged within 600 s")
    return count


def wait_in_sync(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + 120
    while True:
        topic = admin.list_topics(TOPIC, timeout=30).topics[TOPIC]
        if all(len(each.isrs) == BROKERS for each in topic.partitions.values()):
            # The followers' high watermarks follow with their next fetch.
            time.sleep(2)
            return
        if time.monotonic() > deadline:
            raise SystemExit("the replicas are not in sync after 120 s")
        time.sleep(0.2)


def cpu_seconds(process: "subprocess.Popen[str]") -> float:
    """Waits for the end of a process; returns the processor time that it has used."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def theirs(bootstrap: str, timeout_s: float = 600, cpu_s: list[float] | None = None) -> Generator[str]:
    """The lines of Kafka's tool, which is killed when no more of them are wanted, or when its time is over: at a
    difference of offsets it wants to end and hangs in doing so."""
    command = java_command(
        kafka_jars(), "kafka.tools.ReplicaVerificationTool", "--broker-list", bootstrap, "--topic-white-list", TOPIC,
        "--time", "-2", "--report-interval-ms", "50", options=TOOL_OPTIONS,
    )  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        yield from process.stdout
    finally:
        timer.cancel()
        process.kill()
        used_s = cpu_seconds(process)
        if cpu_s is not None:
            cpu_s.append(used_s)


def time_theirs(bootstrap: str) -> dict[str, float]:
    began = time.perf_counter()
    started = began
    ended: float | None = None
    cpu_s: list[float] = []
    with contextlib.closing(theirs(bootstrap, cpu_s=cpu_s)) as lines:
        for line in lines:
            if "verification process is started" in line:
                started = time.perf_counter()
            if "match" in line:
                raise SystemExit(f"Kafka's tool has found a difference: {line}")
            if "max lag is 0 " in line:
                ended = time.perf_counter()
                break
    if ended is None:
        raise SystemExit("Kafka's tool ended before it had verified everything")
    return {"whole_s": ended - began, "verifying_s": ended - started, "cpu_s": cpu_s[0]}


def run_ours(bootstrap: str, *options: str) -> tuple[list[str], dict[str, float]]:
    command = [sys.executable, "-m", "klamm", "verify", "replicas", "--bootstrap-server", bootstrap]
    began = time.perf_counter()
    started = began
    process = subprocess.Popen(
        [*command, "--topic-white-list", TOPIC, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if "verification process is started" in line:
            started = time.perf_counter()
    cpu_s = cpu_seconds(process)
    ended = time.perf_counter()
    return lines, {"whole_s": ended - began, "verifying_s": ended - started, "cpu_s": cpu_s}


def time_ours(bootstrap: str, size_mb: int) -> dict[str, float]:
    lines, times = run_ours(bootstrap)
    if not lines or lines[-1] != "All replicas are equal.":
        raise SystemExit("\n".join(lines))
    return times


def plant(brokers: Brokers, count: int) -> list[str]:
    """Changes the last broker's replicas of two partitions; returns what was changed."""
    last = BROKERS - 1
    brokers.stop(last)
    # The segments are large; of the first one, a batch near its beginning is changed.
    first, second = (first_segment(brokers.data_directory(last), TOPIC, number) for number in (0, 1))
    places = [f"partition 0, offsets {change_records(first, 5)}", f"partition 1, offsets {drop_batch(second, 7)}"]
    brokers.start(last)
    wait_in_sync(brokers.bootstrap)
    return places


def look_again(brokers: Brokers, timeout_s: float) -> None:
    lines, _ = run_ours(brokers.bootstrap)
    print("klamm:", *(line for line in lines if "verification process" not in line), sep="\n  ")
    found = []
    for line in theirs(brokers.bootstrap, timeout_s):
        if "match" in line:
            found.append(line.rstrip())
        if "max lag is 0 " in line or len(found) >= 5:
            break
    print("Apache Kafka 2.8.2:", *(found or ["no difference found"]), sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size-mb", type=int, default=5000, help="of the records of one replica (default 5000)")
    parser.add_argument("--partitions", type=int, default=6, help="of the topic (default 6)")
    parser.add_argument("--rounds", type=int, default=3, help="of each tool (default 3)")
    parser.add_argument("--cluster", choices=["kafka", "klamm"], default="kafka", help="whose brokers (default kafka)")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    parser.add_argument("--dir", type=Path, help="where data goes (default: a temporary directory)")
    arguments = parser.parse_args()
    samples: dict[str, list[dict[str, float]]] = {"klamm": [], "kafka": []}
    with contextlib.ExitStack() as stack:
        directory = arguments.dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="klamm-bench-")))
        brokers: Brokers = (KafkaBrokers if arguments.cluster == "kafka" else KlammBrokers)(directory, stack)
        count = fill(brokers.bootstrap, arguments.size_mb, arguments.partitions)
        wait_in_sync(brokers.bootstrap)
        for number in range(arguments.rounds):
            samples["kafka"].append(time_theirs(brokers.bootstrap))
            samples["klamm"].append(time_ours(brokers.bootstrap, arguments.size_mb))
            print(f"round {number + 1}: {json.dumps({name: each[-1] for name, each in samples.items()})}", flush=True)
        places = plant(brokers, count)
        print("planted:", *places, sep="\n  ")
        look_again(brokers, 20 + 3 * max(each["whole_s"] for each in samples["kafka"]))
    result: dict[str, Any] = {"size_mb": arguments.size_mb, "cluster": arguments.cluster, "samples": samples}
    for key in ("whole_s", "verifying_s", "cpu_s"):
        medians = {name: statistics.median(each[key] for each in found) for name, found in samples.items()}
        ratio = medians["kafka"] / medians["klamm"]
        replicated_mb = BROKERS * arguments.size_mb
        rates = ", ".join(
            f"{name} {seconds:.1f} s ({replicated_mb / seconds:.0f} MB/s)" for name, seconds in medians.items()
        )
        what = {"whole_s": "whole", "verifying_s": "verifying", "cpu_s": "processor time of the tool"}[key]
        print(f"{what}: {rates}; ratio {ratio:.2f}")
        result[key] = {**medians, "ratio": ratio}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
