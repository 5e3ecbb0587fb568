"""The two programs under measurement: how each is started, which process is its broker, what that has used."""

import os
import shutil
import sys
from abc import ABC, abstractmethod
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "interop")]

from clusters import KLAMM, KlammZooKeeper  # noqa: E402
from oracles import RealKafka, RealZooKeeper, kafka_jars  # noqa: E402
from processes import ManagedProcess, free_port  # noqa: E402

__all__ = [
    "Kafka",
    "Klamm",
    "KlammZooKeeper",
    "RealZooKeeper",
    "Side",
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
    """One program: a broker with its ZooKeeper, in a fresh directory each time that it is launched."""

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bootstrap = ""

    @abstractmethod
    def launch(self) -> None:
        """Starts the program from nothing and returns at once; `bootstrap` is then known."""

    @abstractmethod
    def wait_ready(self) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...

    def broker_pid(self) -> int:
        """The process that listens on the bootstrap port."""
        return listener(int(self.bootstrap.rsplit(":", 1)[1]))

    def broker_cpu_seconds(self) -> float:
        """User and system time of all threads of the broker's process so far."""
        return process_cpu_seconds(self.broker_pid())

    def broker_rss_bytes(self) -> int:
        return process_rss_bytes(self.broker_pid())

    def _fresh(self) -> Path:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        return self.directory


class Kafka(Side):
    """Apache Kafka 2.8.2 with ZooKeeper 3.5.9, both launched at once: the broker waits for ZooKeeper by itself."""

    name = "Apache Kafka 2.8.2"

    def launch(self) -> None:
        directory, jars = self._fresh(), kafka_jars()
        self._zookeeper = RealZooKeeper(jars, directory / "zookeeper", properties={"tickTime": 2000}, options=())
        self._kafka = RealKafka(jars, directory / "kafka", self._zookeeper.connect, options=KAFKA_OPTIONS)
        self.bootstrap = self._kafka.bootstrap
        self._zookeeper.launch()
        self._kafka.launch()

    def wait_ready(self) -> None:
        self._kafka.wait_ready()

    def kill(self) -> None:
        self._kafka.kill()
        self._zookeeper.kill()


class Klamm(Side):
    """klamm with its embedded ZooKeeper, as its users start it."""

    name = "klamm"

    def launch(self) -> None:
        directory = self._fresh()
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        command = [KLAMM, "up", "--dir", directory / "data", "--port", str(port)]
        self._process = ManagedProcess("klamm", command, directory / "klamm.log")

    def wait_ready(self) -> None:
        self._process.wait_for(str(self.bootstrap))

    def kill(self) -> None:
        self._process.kill()


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


def number(value: float | None) -> str:
    """Three digits are as many as a benchmark is good for."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
