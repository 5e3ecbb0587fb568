"""A broker with thousands of partitions: klamm beside Apache Kafka 2.8.2, on this machine, as ratios.

Both programs open the same directories, made by klamm: every partition has a few records. One broker, replication
factor 1, with a real ZooKeeper 3.5.9. Each start gets a fresh copy of the directories.

| what               | from                             | until                                                       |
|--------------------|----------------------------------|-------------------------------------------------------------|
| start, clean       | the command                      | the broker has told a client the leaders of all partitions  |
| start, unclean     | the same, after kill -9          | the same: the logs are recovered                            |
| produce to each    | the first record                 | acks=all for one record of 100 bytes in every partition     |
| stop               | SIGTERM                          | the end of the process                                      |

A cold start finds nothing of the directories in the page cache (as root; else there is none), a warm one what copying
them has left there. Memory per partition is what the process has more than the same program without partitions.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from results import Row, results, table
from rich.console import Console
from sides import (
    KAFKA_OPTIONS,
    KlammBroker,
    RealZooKeeper,
    forget_dead_broker,
    kafka_jars,
    listener,
    process_cpu_seconds,
    process_rss_bytes,
)

from support.oracles import RealKafka

PARTITIONS_PER_TOPIC = 100
TOPICS_PER_REQUEST = 20
RECORDS, RECORD_BYTES = 5, 1000
TIMEOUT_SECONDS = 600
# So long without a request, and what a broker does after its start is over.
SETTLE_SECONDS = 10
DROP_CACHES = Path("/proc/sys/vm/drop_caches")

ROWS: list[Row] = [
    ("clean_cold", "start after a clean stop, cold", "s", 1.0),
    ("clean_warm", "    warm", "s", 1.0),
    ("clean_warm_cpu", "    its CPU", "s", None),
    ("unclean_cold", "start after kill -9, cold", "s", 1.0),
    ("unclean_warm", "    warm", "s", 1.0),
    ("unclean_warm_cpu", "    its CPU", "s", None),
    ("idle_memory", "memory per partition, idle (RSS; JVM: live heap)", "bytes", 0.5),
    ("idle_rss", "    RSS of the broker", "MB", None),
    ("idle_files", "    open files", "", None),
    ("idle_maps", "    mapped regions", "", None),
    ("produce", "produce a record to each partition", "s", None),
    ("busy_memory", "memory per partition after that", "bytes", 0.5),
    ("busy_rss", "    RSS of the broker", "MB", None),
    ("busy_files", "    open files", "", None),
    ("stop", "stop", "s", 1.0),
]


class Program(ABC):
    """One program's broker, on any data directory."""

    name: str

    def __init__(self, directory: Path, zookeeper: RealZooKeeper) -> None:
        self._directory, self._zookeeper = directory, zookeeper
        self._broker: KlammBroker | RealKafka | None = None

    @abstractmethod
    def _make(self, directory: Path, properties: dict[str, str | int]) -> KlammBroker | RealKafka: ...

    def memory_bytes(self) -> int:
        """What the process needs now, without garbage where that can be told."""
        return process_rss_bytes(self.pid)

    def start(self, data: Path, topics: Collection[str]) -> float:
        """The seconds until all partitions of the topics have leaders."""
        self._broker = self._make(self._directory, {"log.dirs": str(data)})
        start = time.perf_counter()
        self._broker.launch()
        host, port = self._broker.bootstrap.split(":")
        while True:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
                break
            time.sleep(0.01)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for topic in topics:
            while not _has_leaders(admin, topic):
                if time.perf_counter() - start > TIMEOUT_SECONDS:
                    raise SystemExit(f"{self.name}: {topic} has no leaders after {TIMEOUT_SECONDS} s")
                time.sleep(0.02)
        if not topics:
            self._broker.wait_ready()
        return time.perf_counter() - start

    @property
    def bootstrap(self) -> str:
        assert self._broker is not None
        return self._broker.bootstrap

    @property
    def pid(self) -> int:
        return listener(int(self.bootstrap.rsplit(":", 1)[1]))

    def stop(self) -> float:
        assert self._broker is not None and self._broker.process is not None
        start = time.perf_counter()
        self._broker.process.stop(TIMEOUT_SECONDS)
        return time.perf_counter() - start

    def kill(self) -> None:
        if self._broker is not None:
            self._broker.kill()
            forget_dead_broker(self._zookeeper.connect)


class Klamm(Program):
    name = "klamm"

    def _make(self, directory: Path, properties: dict[str, str | int]) -> KlammBroker:
        return KlammBroker(directory, self._zookeeper.connect, properties=properties)


class Kafka(Program):
    name = "Apache Kafka 2.8.2"

    def _make(self, directory: Path, properties: dict[str, str | int]) -> RealKafka:
        return RealKafka(kafka_jars(), directory, self._zookeeper.connect, properties=properties, options=KAFKA_OPTIONS)

    def memory_bytes(self) -> int:
        # The heap has a fixed size; its live objects are what partitions change.
        command = ["jcmd", str(self.pid), "GC.class_histogram"]
        histogram = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        return int(histogram.strip().rsplit("\n", 1)[-1].split()[2])


PROGRAMS: dict[str, type[Program]] = {"kafka": Kafka, "klamm": Klamm}


def _has_leaders(admin: AdminClient, topic: str) -> bool:
    metadata = admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
    return (
        metadata.error is None
        and bool(metadata.partitions)
        and all(partition.leader >= 0 for partition in metadata.partitions.values())
    )


# -- the directories --------------------------------------------------------------------------------------------------


class Directories:
    """A cluster's ZooKeeper, and the directories of its only broker: after a clean stop, and after kill -9."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self.topics = [f"bench-{index:04}" for index in range(partitions // PARTITIONS_PER_TOPIC)]
        self.partitions = len(self.topics) * PARTITIONS_PER_TOPIC
        self.zookeeper = RealZooKeeper(kafka_jars(), directory / "zookeeper", properties={"tickTime": 2000}, options=())
        self._directory = directory

    def make(self) -> None:
        self.zookeeper.start()
        program, data = Klamm(self._directory / "maker", self.zookeeper), self._directory / "made"
        program.start(data, ())
        admin = AdminClient({"bootstrap.servers": program.bootstrap, "socket.timeout.ms": 300_000, "log_level": 0})
        for first in range(0, len(self.topics), TOPICS_PER_REQUEST):
            new = [NewTopic(name, PARTITIONS_PER_TOPIC, 1) for name in self.topics[first : first + TOPICS_PER_REQUEST]]
            for future in admin.create_topics(new, request_timeout=TIMEOUT_SECONDS).values():
                future.result()
        for _ in range(RECORDS):
            self.produce(program.bootstrap, RECORD_BYTES)
        program.stop()
        shutil.copytree(data, self._directory / "clean", symlinks=True)
        program.start(data, self.topics)
        self.produce(program.bootstrap, RECORD_BYTES)
        program.kill()
        data.rename(self._directory / "unclean")

    def copy(self, kind: str, *, is_cold: bool) -> Path:
        target = self._directory / "copy"
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", self._directory / kind, target], check=True)
        # Otherwise the broker would wait for the writes of the copy.
        os.sync()
        if is_cold:
            DROP_CACHES.write_text("3\n")
        return target

    def produce(self, bootstrap: str, size_bytes: int) -> float:
        """Writes a record to each partition; the seconds until the last was acknowledged."""
        errors: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                errors.append(error)

        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "log_level": 0})
        start = time.perf_counter()
        for topic in self.topics:
            for partition in range(PARTITIONS_PER_TOPIC):
                producer.produce(topic, bytes(size_bytes), partition=partition, on_delivery=delivered)
            producer.poll(0)
        if producer.flush(TIMEOUT_SECONDS) or errors:
            raise SystemExit(f"records were not acknowledged: {errors[:1]}")
        return time.perf_counter() - start


# -- the measurement --------------------------------------------------------------------------------------------------


def measure(program: Program, directories: Directories, empty_bytes: int) -> dict[str, float]:
    values: dict[str, float] = {}
    kinds = [(kind, is_cold) for kind in ("unclean", "clean") for is_cold in (True, False)]
    for kind, is_cold in kinds:
        if is_cold and not os.access(DROP_CACHES, os.W_OK):
            values[f"{kind}_cold"] = float("nan")
            continue
        data = directories.copy(kind, is_cold=is_cold)
        key = f"{kind}_{'cold' if is_cold else 'warm'}"
        values[key] = program.start(data, directories.topics)
        values[f"{key}_cpu"] = process_cpu_seconds(program.pid)
        if (kind, is_cold) != kinds[-1]:
            program.kill()
    values |= _state(program, "idle", empty_bytes, directories.partitions)
    values["produce"] = directories.produce(program.bootstrap, 100)
    values |= _state(program, "busy", empty_bytes, directories.partitions)
    values["stop"] = program.stop()
    return values


def _state(program: Program, when: str, empty_bytes: int, partitions: int) -> dict[str, float]:
    time.sleep(SETTLE_SECONDS)
    process = Path(f"/proc/{program.pid}")
    return {
        f"{when}_rss": process_rss_bytes(program.pid) / 1e6,
        f"{when}_memory": (program.memory_bytes() - empty_bytes) / partitions,
        f"{when}_files": len(list((process / "fd").iterdir())),
        f"{when}_maps": len((process / "maps").read_text().splitlines()),
    }


def memory_without_partitions(side: str, directory: Path) -> int:
    zookeeper = RealZooKeeper(kafka_jars(), directory / "zookeeper", properties={"tickTime": 2000}, options=())
    zookeeper.start()
    program = PROGRAMS[side](directory / side, zookeeper)
    try:
        program.start(directory / "data", ())
        time.sleep(SETTLE_SECONDS)
        return program.memory_bytes()
    finally:
        program.kill()
        zookeeper.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1, help="of both programs, in turn (default 1)")
    parser.add_argument("--side", choices=[*PROGRAMS, "both"], default="both", help="measure only one program")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    parser.add_argument("--dir", type=Path, help="where data goes (default: a temporary directory, removed at the end)")
    arguments = parser.parse_args()
    console = Console(width=max(120, Console().width))
    sides = [*PROGRAMS] if arguments.side == "both" else [arguments.side]
    samples: dict[str, list[dict[str, float]]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        directory = arguments.dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="klamm-bench-")))
        directories = Directories(directory, arguments.partitions)
        stack.callback(directories.zookeeper.kill)
        with console.status("making the directories"):
            empty_bytes = {side: memory_without_partitions(side, directory / f"empty-{side}") for side in sides}
            directories.make()
        for round_ in range(arguments.rounds):
            for side in sides:
                program = PROGRAMS[side](directory / side, directories.zookeeper)
                stack.callback(program.kill)
                with console.status(f"round {round_ + 1}: {program.name}"):
                    samples[program.name].append(measure(program, directories, empty_bytes[side]))
    entries = results(ROWS, samples)
    console.print(table(entries, f"{directories.partitions:,} partitions, one broker", samples))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"cores": os.cpu_count(), "rows": entries, "samples": samples}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
