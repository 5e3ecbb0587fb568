"""Transactions: klamm beside Apache Kafka 2.8.2, on this machine, as ratios.

Each program runs three brokers, and then one, with a real ZooKeeper 3.5.9; every topic has as many replicas as there
are brokers, so with three a commit is answered when it is on three brokers. The client is librdkafka for both. A
transaction writes to the three partitions of a topic as librdkafka spreads its records, flushes, and commits.

| what              | from                                         | until                                        |
|-------------------|----------------------------------------------|----------------------------------------------|
| commit            | the records are flushed                      | `commit_transaction` has returned            |
| transaction       | `begin_transaction`                          | the same                                     |
| transactions of n | one producer, one transaction after another  | a number of seconds later                    |
| 16 producers      | each one transaction of one record at a time | the same                                     |

The first seconds warm the brokers up and are not counted; every tenth transaction in them is aborted. At the end of a
measurement a consumer with read_committed must get the records of the committed transactions, each once, and no other.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from groups import Cluster, Row, table
from rich.console import Console

PARTITIONS = 3
RECORD_BYTES = 100
MANY_RECORDS = 1000
PRODUCERS = 16
ABORT_EVERY = 10
TIMEOUT_SECONDS = 60

# What is measured: key, title, producers, records of a transaction.
MEASUREMENTS = [
    ("one", "transactions of 1 record", 1, 1),
    ("thousand", f"transactions of {MANY_RECORDS:,} records", 1, MANY_RECORDS),
    ("many", f"transactions of 1 record, {PRODUCERS} producers", PRODUCERS, 1),
]


def rows(brokers: int) -> list[Row]:
    """Key, title, unit, which ratio klamm / Kafka is wanted: (at most, at least)."""
    found: list[Row] = []
    of = "3 brokers" if brokers > 1 else "1 broker"
    for key, title, _, _ in MEASUREMENTS:
        found += [
            (f"{key}_{brokers}", f"{title}, {of}", "/s", (None, 1.0)),
            (f"{key}_{brokers}_commit_p50", "    commit, p50", "ms", (1.0, None)),
            (f"{key}_{brokers}_commit_p99", "    commit, p99", "ms", (1.0, None)),
            (f"{key}_{brokers}_whole_p50", "    transaction, p50", "ms", (1.0, None)),
            (f"{key}_{brokers}_whole_p99", "    transaction, p99", "ms", (1.0, None)),
            (f"{key}_{brokers}_cpu", "    CPU of the brokers per transaction", "ms", (None, None)),
        ]
    return found


class Committed(NamedTuple):
    """One transaction: when it was committed, and how long that and the whole of it took, in seconds."""

    at: float
    commit_seconds: float
    whole_seconds: float


class Writer(threading.Thread):
    """One producer that writes transaction after transaction until `stop`. While it warms up, it aborts some."""

    def __init__(self, bootstrap: str, topic: str, name: str, records: int) -> None:
        super().__init__()
        self._producer = Producer({
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "linger.ms": 0 if records == 1 else 5,
            "transaction.timeout.ms": TIMEOUT_SECONDS * 1000,
        })  # fmt: skip
        self._topic, self._name, self._records = topic, name, records
        self._stop_asked = threading.Event()
        self.is_warm = False
        self.committed: list[Committed] = []
        self.values: set[bytes] = set()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._producer.init_transactions(TIMEOUT_SECONDS)
            number = 0
            while not self._stop_asked.is_set():
                self._transaction(number)
                number += 1
        except Exception as error:  # shown by `stop`
            self.error = error

    def _transaction(self, number: int) -> None:
        producer = self._producer
        values = [f"{self._name} {number} {index} ".encode().ljust(RECORD_BYTES) for index in range(self._records)]
        start = time.perf_counter()
        producer.begin_transaction()
        for value in values:
            producer.produce(self._topic, value)
        producer.flush(TIMEOUT_SECONDS)
        if not self.is_warm and number % ABORT_EVERY == ABORT_EVERY - 1:
            producer.abort_transaction(TIMEOUT_SECONDS)
            return
        flushed = time.perf_counter()
        producer.commit_transaction(TIMEOUT_SECONDS)
        end = time.perf_counter()
        self.committed.append(Committed(end, end - flushed, end - start))
        self.values.update(values)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()
        if self.error is not None:
            raise SystemExit(f"{self._name}: {self.error}")


def measure(
    cluster: Cluster, key: str, producers: int, records: int, warm_up: float, seconds: float
) -> dict[str, float]:
    topic = f"transactions-{key}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, len(cluster.brokers))]).values():
        future.result()
    writers = [Writer(cluster.bootstrap, topic, f"{key}-{index}", records) for index in range(producers)]
    for writer in writers:
        writer.start()
    time.sleep(warm_up)
    for writer in writers:
        writer.is_warm = True
    cpu, start = cluster.cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    cpu, end = cluster.cpu_seconds() - cpu, time.perf_counter()
    for writer in writers:
        writer.stop()
    counted = [each for writer in writers for each in writer.committed if start <= each.at < end]
    if not counted:
        raise SystemExit(f"no transaction of {records} records was committed in {seconds} s")
    check(cluster.bootstrap, topic, set().union(*(writer.values for writer in writers)))
    name = f"{key}_{len(cluster.brokers)}"
    return {
        name: len(counted) / (end - start),
        f"{name}_cpu": cpu / len(counted) * 1000,
        **percentiles(f"{name}_commit", [each.commit_seconds for each in counted]),
        **percentiles(f"{name}_whole", [each.whole_seconds for each in counted]),
    }


def percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    return {
        f"{name}_p50": statistics.median(ordered) * 1000,
        f"{name}_p99": ordered[len(ordered) * 99 // 100] * 1000,
    }


def check(bootstrap: str, topic: str, expected: set[bytes]) -> None:
    """A consumer with read_committed gets exactly the committed records."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap,
        "group.id": "check",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[bytes | None] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(ended) < PARTITIONS:
        if time.monotonic() > deadline:
            raise SystemExit(f"{topic}: {len(found)} of {len(expected)} records, and no more in {TIMEOUT_SECONDS} s")
        for message in consumer.consume(10_000, 1):
            if message.error() is None:
                deadline = time.monotonic() + TIMEOUT_SECONDS
                found.append(message.value())
                ended.discard(message.partition())
            else:
                ended.add(message.partition())
    consumer.close()
    if len(found) != len(expected) or set(found) != expected:
        raise SystemExit(f"{topic}: {len(found)} records were read, {len(expected)} were committed")


def measure_side(side: str, directory: Path, brokers: int, warm_up: float, seconds: float) -> dict[str, float]:
    values: dict[str, float] = {}
    cluster = Cluster(
        side,
        directory / str(brokers),
        brokers,
        transaction_state_log_replication_factor=brokers,
        transaction_state_log_min_isr=min(2, brokers),
    )
    try:
        cluster.start()
        for key, _, producers, records in MEASUREMENTS:
            values |= measure(cluster, key, producers, records, warm_up, seconds)
    finally:
        cluster.kill()
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="of everything, each with fresh clusters (default 1)")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds before each measurement (default 10)")
    parser.add_argument("--seconds", type=float, default=10, help="how long transactions are counted (default 10)")
    parser.add_argument("--brokers", type=int, nargs="+", default=[3, 1], help="brokers of a cluster (default 3 and 1)")
    parser.add_argument("--side", choices=["kafka", "klamm", "both"], default="both", help="measure only one program")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    arguments = parser.parse_args()
    console = Console(width=max(120, Console().width))
    sides = ["kafka", "klamm"] if arguments.side == "both" else [arguments.side]
    samples: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory:
        for round_ in range(arguments.rounds):
            for side in sides:
                values: dict[str, float] = {}
                for brokers in arguments.brokers:
                    with console.status(f"round {round_ + 1}: {side}, {brokers} brokers"):
                        place = Path(directory) / f"{side}-{round_}"
                        values |= measure_side(side, place, brokers, arguments.warm_up, arguments.seconds)
                samples[side].append(values)
    wanted = [row for brokers in arguments.brokers for row in rows(brokers)]
    console.print(table("transactions", wanted, samples))
    if arguments.json:
        arguments.json.write_text(json.dumps({"cores": os.cpu_count(), "samples": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
