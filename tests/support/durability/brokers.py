"""Clusters whose brokers can be killed: what the kill schedule needs of one, and clusters of either or both programs.

`Brokers` is the interface. Who leads and who is in sync is read from ZooKeeper with kazoo, so that it is the same look
at every program.
"""

import contextlib
import json
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from klamm.testing.cluster import Cluster
from support.clusters import KlammBroker
from support.oracles import RealKafka, RealZooKeeper, kafka_jars

Program = Literal["kafka", "klamm"]

POLL_S = 0.1
TIMEOUT_S = 120.0
SESSION_TIMEOUT_MS = 4000
# Kafka's own defaults but for what makes a test short and its files many.
PROPERTIES: dict[str, str | int] = {
    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
    "log.segment.bytes": 1 << 20,
    "offsets.topic.replication.factor": 3,
    "default.replication.factor": 3,
}
TINY_HEAP = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Brokers(ABC):
    """A running cluster. A broker that was killed can be started again, on the same data and the same port."""

    broker_ids: Sequence[int]
    bootstrap: str

    def __init__(self, zookeeper_connect: str) -> None:
        self._zookeeper = KazooClient(zookeeper_connect)
        self._zookeeper.start(TIMEOUT_S)

    @abstractmethod
    def kill(self, broker_id: int) -> None:
        """kill -9; returns when the process is gone."""

    @abstractmethod
    def start(self, broker_id: int) -> None:
        """Starts a broker that was killed; returns when it serves."""

    @abstractmethod
    def stop(self, broker_id: int) -> None:
        """An orderly end; returns when the process is gone."""

    @abstractmethod
    def log_directory(self, broker_id: int) -> Path:
        """Its log.dir."""

    @abstractmethod
    def program(self, broker_id: int) -> Program: ...

    @abstractmethod
    def server_log(self, broker_id: int) -> Path:
        """What the broker's process has said."""

    def close(self) -> None:
        self._zookeeper.stop()
        self._zookeeper.close()

    def controller_id(self) -> int | None:
        """Who holds /controller; None: nobody."""
        node = self._read("/controller")
        return None if node is None else int(node["brokerid"])

    def resign_controller(self) -> None:
        """Takes the controllership from its broker, as operators do: every broker then takes part in the election."""
        with contextlib.suppress(NoNodeError):
            self._zookeeper.delete("/controller")

    def move_controller(self, wanted: Callable[[int], bool], timeout_s: float = TIMEOUT_S) -> int:
        """Has elections until somebody wanted is the controller; returns who."""
        deadline = time.monotonic() + timeout_s
        while True:
            controller_id = self.wait_for_controller(timeout_s)
            if wanted(controller_id):
                return controller_id
            assert time.monotonic() < deadline, f"{controller_id} was elected again and again for {timeout_s} s"
            self.resign_controller()
            self.until(lambda: self.controller_id() is not None, "nobody became the controller")

    def wait_for_controller(self, timeout_s: float = TIMEOUT_S) -> int:
        self.until(lambda: self.controller_id() is not None, "nobody became the controller", timeout_s)
        controller_id = self.controller_id()
        assert controller_id is not None
        return controller_id

    def registration(self, broker_id: int) -> dict[str, Any]:
        """What the broker says of itself in ZooKeeper; empty while it is not there."""
        return self._read(f"/brokers/ids/{broker_id}") or {}

    def topic_id(self, topic: str) -> str | None:
        return (self._read(f"/brokers/topics/{topic}") or {}).get("topic_id")

    def replicas(self, topic: str, partition: int) -> list[int]:
        return list((self._read(f"/brokers/topics/{topic}") or {}).get("partitions", {}).get(str(partition), []))

    def isr(self, topic: str, partition: int) -> list[int]:
        return list(self._state(topic, partition)["isr"])

    def leader(self, topic: str, partition: int) -> int:
        """-1: nobody leads."""
        return int(self._state(topic, partition)["leader"])

    def leader_epoch(self, topic: str, partition: int) -> int:
        return int(self._state(topic, partition)["leader_epoch"])

    def wait_for_full_isr(self, topic: str, partitions: int, timeout_s: float = TIMEOUT_S) -> None:
        everyone = sorted(self.broker_ids)

        def full() -> bool:
            return all(sorted(self.isr(topic, partition)) == everyone for partition in range(partitions))

        try:
            self.until(full, "", timeout_s)
        except AssertionError:
            states = {partition: self._state(topic, partition) for partition in range(partitions)}
            raise AssertionError(f"not everyone is in sync after {timeout_s} s: {states}") from None

    def until(self, condition: Callable[[], bool], otherwise: str, timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{otherwise} within {timeout_s} s"
            time.sleep(POLL_S)

    def wait_until_unregistered(self, broker_id: int) -> None:
        self.until(
            lambda: self._read(f"/brokers/ids/{broker_id}") is None, f"the session of broker {broker_id} did not end"
        )

    def _knows_all(self, address: str) -> bool:
        # A new client for each look: librdkafka, told of a controller that is in no list yet, asks for it no more.
        metadata = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=TIMEOUT_S)
        return sorted(metadata.brokers) == sorted(self.broker_ids) and metadata.controller_id in metadata.brokers

    def _state(self, topic: str, partition: int) -> dict[str, Any]:
        state = self._read(f"/brokers/topics/{topic}/partitions/{partition}/state")
        return state if state is not None else {"leader": -1, "isr": [], "leader_epoch": -1}

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            data, _ = self._zookeeper.get(path)
        except NoNodeError:
            return None
        value: dict[str, Any] = json.loads(data)
        return value


class ProcessBrokers(Brokers):
    """Processes of one or both programs on one Apache ZooKeeper; `programs` says what each broker is, from id 0 on.
    `properties` are those of all brokers, `own` those of single brokers, by id.

    The brokers start together. A Kafka that was killed cannot start again before its ZooKeeper session has ended
    (docs/kafka-faults.md); its `start` waits for that.
    """

    def __init__(
        self,
        directory: Path,
        programs: Sequence[Program],
        zookeeper: RealZooKeeper,
        properties: Mapping[str, str | int] | None = None,
        own: Mapping[int, Mapping[str, str | int]] | None = None,
    ) -> None:
        super().__init__(zookeeper.connect)
        self._programs = list(programs)
        self.broker_ids = range(len(programs))
        for_all = {**PROPERTIES, **(properties or {})}
        self._servers: list[RealKafka | KlammBroker] = []
        for broker_id, program in enumerate(programs):
            place = directory / f"{program}-{broker_id}"
            properties = {**for_all, **(own or {}).get(broker_id, {})}
            if program == "kafka":
                self._servers.append(
                    RealKafka(
                        kafka_jars(),
                        place,
                        zookeeper.connect,
                        broker_id=broker_id,
                        properties=properties,
                        options=TINY_HEAP,
                    )
                )
            else:
                self._servers.append(KlammBroker(place, zookeeper.connect, broker_id=broker_id, properties=properties))
        self.bootstrap = ",".join(server.bootstrap for server in self._servers)

    @classmethod
    @contextlib.contextmanager
    def running(
        cls,
        directory: Path,
        programs: Sequence[Program],
        properties: Mapping[str, str | int] | None = None,
        own: Mapping[int, Mapping[str, str | int]] | None = None,
    ) -> Iterator[Self]:
        """A cluster on a ZooKeeper 3.5.9 of its own."""
        with contextlib.ExitStack() as stack:
            zookeeper = RealZooKeeper(kafka_jars(), directory / "zookeeper")
            stack.callback(zookeeper.kill)
            zookeeper.start()
            brokers = cls(directory, programs, zookeeper, properties, own)
            stack.callback(brokers.close)
            stack.callback(brokers.kill_all)
            brokers.start_all()
            yield brokers

    def start_all(self) -> None:
        """Returns when every broker knows of all."""
        for server in self._servers:
            server.launch()
        for server in self._servers:
            server.wait_ready()
            self.until(partial(self._knows_all, server.bootstrap), f"{server.bootstrap} did not know of all brokers")

    def kill_all(self) -> None:
        for server in self._servers:
            server.kill()

    def kill(self, broker_id: int) -> None:
        self._servers[broker_id].kill()

    def pause(self, broker_id: int) -> None:
        """SIGSTOP: alive but silent."""
        self._signal(broker_id, signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        self._signal(broker_id, signal.SIGCONT)

    def _signal(self, broker_id: int, number: int) -> None:
        process = self._servers[broker_id].process
        assert process is not None
        process.signal_group(number)

    def start(self, broker_id: int) -> None:
        if self.program(broker_id) == "kafka":
            self.wait_until_unregistered(broker_id)
        self._servers[broker_id].start()

    def stop(self, broker_id: int) -> None:
        self._servers[broker_id].stop()

    def log_directory(self, broker_id: int) -> Path:
        return self._servers[broker_id].data_directory

    def program(self, broker_id: int) -> Program:
        return self._programs[broker_id]

    def server_log(self, broker_id: int) -> Path:
        return self._servers[broker_id].log


class KlammBrokers(Brokers):
    """A `klamm.testing.Cluster`, which its owner opens and closes."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.zookeeper)
        self._cluster = cluster
        self.broker_ids, self.bootstrap = cluster.broker_ids, cluster.bootstrap

    @classmethod
    @contextlib.contextmanager
    def running(cls, directory: Path, properties: Mapping[str, str | int] | None = None) -> Iterator[Self]:
        """Three brokers and the embedded ZooKeeper, data and logs in `directory`."""
        properties = {**PROPERTIES, **(properties or {})}
        timeout_ms = int(properties.pop("zookeeper.session.timeout.ms"))
        with Cluster(3, directory=directory, properties=properties, zookeeper_session_timeout_ms=timeout_ms) as cluster:
            brokers = cls(cluster)
            try:
                yield brokers
            finally:
                brokers.close()

    def kill(self, broker_id: int) -> None:
        self._cluster.kill(broker_id)

    def start(self, broker_id: int) -> None:
        self._cluster.start(broker_id)

    def stop(self, broker_id: int) -> None:
        self._cluster.stop(broker_id)

    def restart(self, broker_id: int, properties: Mapping[str, str]) -> None:
        """An orderly end, and a start with these properties changed."""
        self._cluster.restart(broker_id, properties)

    def pause(self, broker_id: int) -> None:
        self._cluster.pause(broker_id)

    def resume(self, broker_id: int) -> None:
        self._cluster.resume(broker_id)

    def log_directory(self, broker_id: int) -> Path:
        return self._cluster.data_directory(broker_id)

    def program(self, broker_id: int) -> Program:
        return "klamm"

    def server_log(self, broker_id: int) -> Path:
        return self._cluster.directory / f"broker-{broker_id}.log"
