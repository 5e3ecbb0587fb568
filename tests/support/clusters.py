"""A klamm cluster of processes whose broker can be killed, with the face of oracles.RealZooKeeper and RealKafka."""

import sys
from collections.abc import Mapping
from pathlib import Path

from kazoo.client import KazooClient

from support.oracles import RealKafka, RealZooKeeper
from support.processes import ManagedProcess, free_port

KLAMM = Path(sys.executable).with_name("klamm")


class KlammCluster:
    """`klamm up` with one broker, as a user starts it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bootstrap = ""
        self.process: ManagedProcess | None = None

    def start(self) -> None:
        command = [str(KLAMM), "up", "--dir", str(self.directory / "data"), "--port", "0", "--brokers", "1"]
        self.process = ManagedProcess("klamm up", command, self.directory / "up.log")
        self.bootstrap = self.process.wait_for(r"clients can connect to (\S+)").group(1)

    def stop(self) -> int:
        assert self.process is not None
        return self.process.stop()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


class KlammZooKeeper:
    """`klamm zookeeper`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.port = directory, free_port()
        self.connect = f"127.0.0.1:{self.port}"
        self.process: ManagedProcess | None = None

    def start(self) -> None:
        command = [str(KLAMM), "zookeeper", "--dir", str(self.directory / "data"), "--port", str(self.port)]
        self.process = ManagedProcess("klamm zookeeper", command, self.directory / "zookeeper.log")
        self.process.wait_for(r"is ready")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


class KlammBroker:
    """`klamm broker` on a properties file."""

    def __init__(
        self,
        directory: Path,
        zookeeper_connect: str,
        *,
        broker_id: int = 0,
        properties: Mapping[str, str | int] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.broker_id = directory, broker_id
        self.data_directory = directory / "data"
        self.log = directory / "broker.log"
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.process: ManagedProcess | None = None
        self._file = directory / "server.properties"
        settings = {
            "broker.id": broker_id,
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": self.data_directory,
            "zookeeper.connect": zookeeper_connect,
            **(properties or {}),
        }
        self._file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")

    def launch(self) -> None:
        """Starts the process without waiting until it is ready."""
        self.process = ManagedProcess("klamm broker", [KLAMM, "broker", self._file], self.log)

    def wait_ready(self) -> None:
        assert self.process is not None
        self.process.wait_for(rf"broker {self.broker_id} of cluster \S+ serves")

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def stop(self) -> None:
        """An orderly end (SIGTERM). Idempotent."""
        if self.process is not None:
            self.process.stop()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


ZooKeeper = KlammZooKeeper | RealZooKeeper
Broker = KlammBroker | RealKafka


def forget_dead_broker(zookeeper_connect: str, broker_id: int = 0) -> None:
    """Removes what a killed broker still holds in ZooKeeper, as the end of its session would seconds later; the
    controller is elected again."""
    client = KazooClient(zookeeper_connect)
    client.start()
    for path in (f"/brokers/ids/{broker_id}", "/controller"):
        if client.exists(path):
            client.delete(path)
    client.stop()
