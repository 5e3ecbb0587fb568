"""The two programs under measurement: how each is started, which process is its broker, what that has used."""

import contextlib
import os
import shutil
import socket
import statistics
import sys
from abc import ABC, abstractmethod
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.clusters import KLAMM, KlammBroker, KlammZooKeeper, forget_dead_broker  # noqa: E402
from support.oracles import RealKafka, RealZooKeeper, java_command, kafka_jars  # noqa: E402
from support.processes import ManagedProcess, free_port  # noqa: E402

__all__ = [
    "Kafka",
    "Klamm",
    "KlammBroker",
    "KlammZooKeeper",
    "RealZooKeeper",
    "Side",
    "forget_dead_broker",
    "four_letters",
    "java_command",
    "kafka_jars",
    "listener",
    "number",
    "process_cpu_seconds",
    "process_rss_bytes",
]

# What Kafka's own start script gives a broker.
KAFKA_OPTIONS = (
    "-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)  # fmt: skip


class Side(ABC):
    """One program: brokers with their ZooKeeper, in a fresh directory each time that they are launched.

    A topic that is created by its first record has a replica on each of up to three brokers.
    """

    name: str

    def __init__(self, directory: Path, brokers: int = 1) -> None:
        self.directory, self.brokers = directory, brokers
        self.bootstrap = ""

    @abstractmethod
    def launch(self) -> None:
        """Starts the program from nothing and returns at once; `bootstrap` is then known."""

    @abstractmethod
    def wait_ready(self) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...

    def broker_pids(self) -> list[int]:
        """The processes that listen on the bootstrap ports."""
        return [listener(int(address.rsplit(":", 1)[1])) for address in self.bootstrap.split(",")]

    def broker_cpu_seconds(self) -> float:
        """User and system time of all threads of all brokers' processes so far."""
        return sum(map(process_cpu_seconds, self.broker_pids()))

    def broker_rss_bytes(self) -> float:
        """Of one broker, on average."""
        return statistics.mean(map(process_rss_bytes, self.broker_pids()))

    def _fresh(self) -> Path:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        return self.directory


class Kafka(Side):
    """Apache Kafka 2.8.2 with ZooKeeper 3.5.9, all launched at once: the brokers wait for ZooKeeper by themselves."""

    name = "Apache Kafka 2.8.2"

    def launch(self) -> None:
        directory, jars = self._fresh(), kafka_jars()
        self._zookeeper = RealZooKeeper(jars, directory / "zookeeper", properties={"tickTime": 2000}, options=())
        replicas = min(3, self.brokers)
        properties = {"default.replication.factor": replicas, "offsets.topic.replication.factor": replicas}
        self._kafkas = [
            RealKafka(
                jars,
                directory / f"kafka-{broker_id}",
                self._zookeeper.connect,
                broker_id=broker_id,
                properties=properties,
                options=KAFKA_OPTIONS,
            )
            for broker_id in range(self.brokers)
        ]
        self.bootstrap = ",".join(kafka.bootstrap for kafka in self._kafkas)
        self._zookeeper.launch()
        for kafka in self._kafkas:
            kafka.launch()

    def wait_ready(self) -> None:
        for kafka in self._kafkas:
            kafka.wait_ready()

    def kill(self) -> None:
        for kafka in self._kafkas:
            kafka.kill()
        self._zookeeper.kill()


class Klamm(Side):
    """klamm with its embedded ZooKeeper, as its users start it."""

    name = "klamm"

    def launch(self) -> None:
        directory = self._fresh()
        port = adjacent_free_ports(self.brokers)
        self.bootstrap = ",".join(f"127.0.0.1:{port + broker_id}" for broker_id in range(self.brokers))
        command: list[str | Path] = [
            KLAMM,
            "up",
            "--dir",
            directory / "data",
            "--port",
            str(port),
            "--brokers",
            str(self.brokers),
        ]
        self._process = ManagedProcess("klamm", command, directory / "klamm.log")

    def wait_ready(self) -> None:
        self._process.wait_for("clients can connect to")

    def kill(self) -> None:
        self._process.kill()


def adjacent_free_ports(count: int) -> int:
    """The first of so many ports that nobody uses now."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def process_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def process_rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def listener(port: int) -> int:
    """The process that accepts connections on a local TCP port, found as `ss -p` does."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rsplit(":", 1)[1], 16) == port and fields[3] == "0A":
                inodes.add(f"socket:[{fields[9]}]")
    for process in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            if any(os.readlink(descriptor) in inodes for descriptor in Path(f"/proc/{process}/fd").iterdir()):
                return process
        except OSError:
            continue  # it ended, or is not ours to look into
    raise SystemExit(f"nobody listens on port {port}")


def four_letters(address: str, word: str) -> str:
    """The answer of a ZooKeeper server to one of its four-letter words."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(word.encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def number(value: float | None) -> str:
    """Three digits are as many as a benchmark is good for."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
