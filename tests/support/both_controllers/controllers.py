"""The two brokers, 100 and 101, one of which is the controller: of Apache Kafka 2.8.2, each a JVM, or of klamm, in this
loop, so that a test can plant a fault in them. They hold no replica of the scenario's topics."""

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path

from klamm.base.environment import Environment
from klamm.broker.start.broker import Broker
from klamm.config.broker import BrokerConfig
from klamm.zookeeper.client import State
from support.both_controllers.recorder import SESSION_TIMEOUT_MS
from support.oracles import RealKafka
from support.processes import free_port

BROKER_IDS = (100, 101)

PROPERTIES: dict[str, str | int] = {
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    # A recorder that does not answer is waited for as long as the scenario wants.
    "controller.socket.timeout.ms": 3_600_000,
    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
    "controlled.shutdown.enable": "false",
    "unclean.leader.election.enable": "false",
    "num.network.threads": 1,
    "num.io.threads": 2,
    "background.threads": 2,
    "log.cleaner.enable": "false",
}


class Controllers(ABC):
    """`ports` has where each listens, once it runs."""

    name: str

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}

    @abstractmethod
    async def start(self, broker_id: int) -> None:
        """Returns when the broker serves."""

    @abstractmethod
    async def kill(self, broker_id: int) -> None:
        """Ends the broker; what its session holds in ZooKeeper stays."""

    async def start_all(self) -> None:
        await asyncio.gather(*map(self.start, BROKER_IDS))

    async def stop(self) -> None:
        for broker_id in list(self.ports):
            await self.kill(broker_id)


class KafkaControllers(Controllers):
    name = "Kafka 2.8.2"

    def __init__(self, jars: Path, directory: Path, connect: str) -> None:
        super().__init__()
        self._jars, self._directory, self._connect = jars, directory, connect
        self._brokers: dict[int, RealKafka] = {}

    async def start(self, broker_id: int) -> None:
        if broker_id not in self._brokers:
            self._brokers[broker_id] = RealKafka(
                self._jars,
                self._directory / str(broker_id),
                self._connect,
                broker_id=broker_id,
                properties=PROPERTIES,
                options=("-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            )
        broker = self._brokers[broker_id]
        broker.launch()
        assert broker.process is not None
        process = broker.process
        await asyncio.to_thread(process.wait_for, r"started \(kafka\.server\.KafkaServer\)", 3600)
        self.ports[broker_id] = broker.port

    async def kill(self, broker_id: int) -> None:
        await asyncio.to_thread(self._brokers[broker_id].kill)
        del self.ports[broker_id]

    def log(self, broker_id: int) -> str:
        return self._brokers[broker_id].output()


class KlammControllers(Controllers):
    name = "klamm"

    def __init__(self, environment: Environment, directory: Path, connect: str) -> None:
        super().__init__()
        self._environment, self._directory, self._connect = environment, directory, connect
        self._brokers: dict[int, Broker] = {}
        self._own_ports: dict[int, int] = {}

    async def start(self, broker_id: int) -> None:
        port = self._own_ports.setdefault(broker_id, free_port())
        config = BrokerConfig.from_properties(
            {
                **{key: str(value) for key, value in PROPERTIES.items()},
                "broker.id": str(broker_id),
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": str(self._directory / str(broker_id)),
                "zookeeper.connect": self._connect,
            }
        )
        broker = self._brokers[broker_id] = Broker(config, self._environment)
        await broker.start()
        await broker.wait_until_known()
        self.ports[broker_id] = port

    async def kill(self, broker_id: int) -> None:
        broker = self._brokers.pop(broker_id)
        del self.ports[broker_id]
        if session := broker.zookeeper.store.client:
            session._finish(State.CLOSED, "killed")
        await broker.stop()

    def failure(self) -> BaseException | None:
        for broker in self._brokers.values():
            if broker.failure.done():
                return broker.failure.result()
        return None
