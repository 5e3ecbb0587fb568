"""A controller's work on thousands of partitions: klamm beside Apache Kafka 2.8.2, on this machine, as ratios.

Each program runs two brokers with a real ZooKeeper 3.5.9. The partitions, three replicas each, are on three stub
brokers: they register in ZooKeeper, answer whatever the controller sends at once, and what they were sent is decoded
only when no more requests come, so that they take no time from the controller.

| what        | from                                  | until                                                          |
|-------------|---------------------------------------|----------------------------------------------------------------|
| create      | CreateTopics of all topics            | each stub has had a LeaderAndIsr about every partition         |
| failover    | /controller is deleted                | the same, of the next controller epoch                         |
| shutdown    | ControlledShutdown of the second stub | its response, which must name no partition                     |
| broker loss | the third stub's session ends         | the first stub has had new leaders for all that it had led     |

Then one more failover, during which each of the two brokers gets a record every 25 ms: how long those take
that go to the broker that becomes the controller.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from confluent_kafka.admin import AdminClient, NewTopic
from results import Row, results, table
from rich.console import Console
from sides import (
    KAFKA_OPTIONS,
    KlammBroker,
    RealZooKeeper,
    kafka_jars,
    listener,
    process_cpu_seconds,
    process_rss_bytes,
)

from klamm.base.system_environment import SystemEnvironment
from klamm.protocol.messages import decode_request, parse_request_header
from klamm.zookeeper.client import ZooKeeperClient
from support.oracles import RealKafka

CLIENT = Path(__file__).with_name("client.py")
STUBS = (100, 101, 102)
BROKERS = (0, 1)
PARTITIONS_PER_TOPIC = 100
TOPICS_PER_REQUEST = 20
# So long without a request, and what the controller had to say is said.
QUIET_SECONDS = 1.0
TIMEOUT_SECONDS = 300
LATENCY_INTERVAL_MS = 25

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA = 4, 5, 6
# The body of an answer that says: all well, nothing to add; in the only versions that the stubs speak (all flexible).
ANSWERS = {LEADER_AND_ISR: b"\0\0\x01\0", STOP_REPLICA: b"\0\0\x01\0", UPDATE_METADATA: b"\0\0\0"}
OLDEST = {LEADER_AND_ISR: 5, STOP_REPLICA: 3, UPDATE_METADATA: 7}

Partition = tuple[str, int]

ROWS: list[Row] = [
    ("create", "create", "s", 0.5),
    ("create_cpu", "    CPU of both brokers", "s", None),
    ("create_zk", "    CPU of ZooKeeper", "s", None),
    ("failover", "failover", "s", 0.5),
    ("failover_cpu", "    CPU of both brokers", "s", None),
    ("failover_zk", "    CPU of ZooKeeper", "s", None),
    ("shutdown", "controlled shutdown", "s", 0.5),
    ("shutdown_cpu", "    CPU of both brokers", "s", None),
    ("shutdown_zk", "    CPU of ZooKeeper", "s", None),
    ("loss", "broker loss", "s", 0.5),
    ("loss_cpu", "    CPU of both brokers", "s", None),
    ("loss_zk", "    CPU of ZooKeeper", "s", None),
    ("memory", "memory of the controller per partition (RSS; JVM: live heap)", "bytes", None),
    ("rss", "RSS of the controller's process", "MB", None),
    ("p50", "a record to the controller's broker during a failover, p50", "ms", None),
    ("p99", "    p99 (klamm: at most 50 ms)", "ms", None),
    ("max", "    max", "ms", None),
]


# -- the stubs --------------------------------------------------------------------------------------------------------


class Stub:
    """One stub broker: what it was told, by controller epoch, as far as it was decoded."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.last_request = time.perf_counter()
        self.leaders: dict[int, dict[Partition, int]] = defaultdict(dict)
        self._frames: list[tuple[float, bytes]] = []

    async def start(self, zookeeper_connect: str) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: StubConnection(self), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        registration = {
            "features": {},
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"],
            "jmx_port": -1,
            "port": port,
            "host": "127.0.0.1",
            "version": 5,
            "timestamp": str(int(time.time() * 1000)),
        }
        self.session = ZooKeeperClient(SystemEnvironment(), zookeeper_connect)
        await self.session.start()
        path = f"/brokers/ids/{self.broker_id}"
        _, stat = await self.session.create(path, json.dumps(registration).encode(), ephemeral=True)
        self.epoch = stat.czxid

    def answer(self, frame: bytes) -> bytes:
        self.last_request = time.perf_counter()
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if key not in ANSWERS:
            return b""  # A client asks whom it takes for a broker.
        if version < OLDEST[key]:
            raise SystemExit(f"the stubs do not speak version {version} of API key {key}")
        if key == LEADER_AND_ISR:
            self._frames.append((self.last_request, frame))
        body = ANSWERS[key]
        # A flexible header: the correlation id and no tagged fields.
        return struct.pack(">iib", len(body) + 5, correlation_id, 0) + body

    def decode(self, is_enough: Callable[[], bool]) -> float | None:
        """Decodes until `is_enough`; when that request had come, None if all of them were not."""
        while self._frames:
            came, frame = self._frames.pop(0)
            header = parse_request_header(bytearray(frame))
            request = decode_request(header.api_key, header.api_version, frame, header.body_position)
            known = self.leaders[request.controller_epoch]
            for topic in request.topic_states:
                for state in topic.partition_states:
                    known[topic.topic_name, state.partition_index] = state.leader
            if is_enough():
                return came
        return None


class StubConnection(asyncio.Protocol):
    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            self._transport.write(self._stub.answer(bytes(self._received[4:end])))
            del self._received[:end]


async def quiet(stubs: Iterable[Stub]) -> None:
    """Returns when no stub has been sent anything for a while."""
    stubs = list(stubs)
    while True:
        left = max(stub.last_request for stub in stubs) + QUIET_SECONDS - time.perf_counter()
        if left <= 0:
            return
        await asyncio.sleep(left)


# -- the programs -----------------------------------------------------------------------------------------------------


class Cluster(ABC):
    """Two brokers of one program with a ZooKeeper, in a fresh directory."""

    name: str

    def __init__(self, directory: Path) -> None:
        options = {"tickTime": 2000}
        self.zookeeper = RealZooKeeper(kafka_jars(), directory / "zookeeper", properties=options, options=())
        self.addresses: list[str] = []

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...

    def pid(self, broker_id: int) -> int:
        return listener(int(self.addresses[broker_id].rsplit(":", 1)[1]))

    def memory_bytes(self, broker_id: int) -> int:
        """What the broker's process needs now, without garbage where that can be told."""
        return process_rss_bytes(self.pid(broker_id))

    def cpu_seconds(self) -> tuple[float, float]:
        """Of both brokers together, and of ZooKeeper, so far."""
        assert self.zookeeper.process is not None
        brokers = sum(process_cpu_seconds(self.pid(broker_id)) for broker_id in BROKERS)
        return brokers, process_cpu_seconds(listener(self.zookeeper.port))


class KafkaCluster(Cluster):
    name = "Apache Kafka 2.8.2"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._brokers = [
            RealKafka(
                kafka_jars(), directory / f"kafka-{id_}", self.zookeeper.connect, broker_id=id_, options=KAFKA_OPTIONS
            )
            for id_ in BROKERS
        ]
        self.addresses = [broker.bootstrap for broker in self._brokers]

    def start(self) -> None:
        self.zookeeper.start()
        for broker in self._brokers:
            broker.start()

    def kill(self) -> None:
        for broker in self._brokers:
            broker.kill()
        self.zookeeper.kill()

    def memory_bytes(self, broker_id: int) -> int:
        # The heap has a fixed size; its live objects are what a controller's partitions change.
        command = ["jcmd", str(self.pid(broker_id)), "GC.class_histogram"]
        histogram = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        return int(histogram.strip().rsplit("\n", 1)[-1].split()[2])


class KlammCluster(Cluster):
    name = "klamm"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._brokers = [
            KlammBroker(directory / f"klamm-{id_}", self.zookeeper.connect, broker_id=id_) for id_ in BROKERS
        ]
        self.addresses = [broker.bootstrap for broker in self._brokers]

    def start(self) -> None:
        self.zookeeper.start()
        for broker in self._brokers:
            broker.start()

    def kill(self) -> None:
        for broker in self._brokers:
            broker.kill()
        self.zookeeper.kill()


CLUSTERS: dict[str, type[Cluster]] = {"kafka": KafkaCluster, "klamm": KlammCluster}


# -- the measurements -------------------------------------------------------------------------------------------------


class Measurement:
    """One program at one number of partitions; `values` are the rows' numbers."""

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        self.cluster = cluster
        self.values: dict[str, float] = {}
        self._stubs = {broker_id: Stub(broker_id) for broker_id in STUBS}
        self._topics = [f"bench-{index}" for index in range(partitions // PARTITIONS_PER_TOPIC)]
        self._partitions = len(self._topics) * PARTITIONS_PER_TOPIC
        self._zookeeper = ZooKeeperClient(SystemEnvironment(), cluster.zookeeper.connect)
        self._admin = AdminClient({"bootstrap.servers": ",".join(cluster.addresses), "socket.timeout.ms": 300_000})

    async def run(self) -> None:
        for stub in self._stubs.values():
            await stub.start(self.cluster.zookeeper.connect)
        await self._zookeeper.start()
        await asyncio.sleep(2)
        latency_topics = [NewTopic(f"latency-{id_}", 1, replica_assignment=[[id_]]) for id_ in BROKERS]
        await self._create(latency_topics)
        await quiet(self._stubs.values())
        memory = {id_: self.cluster.memory_bytes(id_) for id_ in BROKERS}
        for phase, work in (
            ("create", self._create_all),
            ("failover", self._failover),
            ("shutdown", self._shutdown),
            ("loss", self._loss),
        ):
            brokers, zookeeper = self.cluster.cpu_seconds()
            self.values[phase] = await work()
            await quiet(self._stubs.values())
            brokers_after, zookeeper_after = self.cluster.cpu_seconds()
            self.values |= {f"{phase}_cpu": brokers_after - brokers, f"{phase}_zk": zookeeper_after - zookeeper}
        controller = await self._controller_id()
        grown = self.cluster.memory_bytes(controller) - memory[controller]
        rss = process_rss_bytes(self.cluster.pid(controller))
        self.values |= {"memory": grown / self._partitions, "rss": rss / 1e6}
        self.values |= await self._latencies()

    async def _create(self, topics: list[NewTopic]) -> None:
        futures = self._admin.create_topics(topics, operation_timeout=0, request_timeout=TIMEOUT_SECONDS)
        for future in futures.values():
            await asyncio.wrap_future(future)

    async def _create_all(self) -> float:
        assignment = [[STUBS[(first + index) % 3] for index in range(3)] for first in range(PARTITIONS_PER_TOPIC)]
        topics = [NewTopic(name, PARTITIONS_PER_TOPIC, replica_assignment=assignment) for name in self._topics]
        start = time.perf_counter()
        for first in range(0, len(topics), TOPICS_PER_REQUEST):
            await self._create(topics[first : first + TOPICS_PER_REQUEST])
        epoch = await self._epoch()
        return await self._told(STUBS, lambda stub: len(stub.leaders[epoch]) >= self._partitions) - start

    async def _failover(self, stubs: Collection[int] = STUBS) -> float:
        epoch = await self._epoch()
        start = time.perf_counter()
        await self._zookeeper.delete("/controller")

        def has_all(stub: Stub) -> bool:
            return any(key > epoch and len(known) >= self._partitions for key, known in stub.leaders.items())

        return await self._told(stubs, has_all) - start

    async def _shutdown(self) -> float:
        host, port = self.cluster.addresses[await self._controller_id()].split(":")
        stub = self._stubs[STUBS[1]]
        body = struct.pack(">hhih5sb", 7, 3, 1, 5, b"bench", 0) + struct.pack(">iqb", stub.broker_id, stub.epoch, 0)
        start = time.perf_counter()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(size)
        elapsed = time.perf_counter() - start
        writer.close()
        # The correlation id, no tagged fields, no error, no partition left, no tagged fields.
        if answer[4:] != b"\0\0\0\x01\0":
            raise SystemExit(f"{self.cluster.name}: ControlledShutdown was answered with {answer[4:].hex()}")
        return elapsed

    async def _loss(self) -> float:
        first, _, lost = (self._stubs[broker_id] for broker_id in STUBS)
        first.decode(lambda: False)
        known = first.leaders[max(first.leaders)]
        led = [partition for partition, leader in known.items() if leader == lost.broker_id]
        start = time.perf_counter()
        await lost.session.close()
        return (
            await self._told(
                [first.broker_id], lambda stub: all(known[partition] != lost.broker_id for partition in led)
            )
            - start
        )

    async def _latencies(self) -> dict[str, float]:
        clients = {id_: paced_client(address, f"latency-{id_}") for id_, address in enumerate(self.cluster.addresses)}
        await asyncio.sleep(3)
        start = time.perf_counter()
        end = start + await self._failover(STUBS[:1])
        answers = {id_: json.loads(client.communicate()[0]) for id_, client in clients.items()}
        samples = answers[await self._controller_id()]
        during = [latency_ms for due, latency_ms in samples if start <= due <= end]
        percentiles = statistics.quantiles(during, n=100, method="inclusive")
        return {"p50": percentiles[49], "p99": percentiles[98], "max": max(during)}

    async def _told(self, stubs: Collection[int], is_told: Callable[[Stub], bool]) -> float:
        """When the last of these stubs had been told."""
        deadline = time.perf_counter() + TIMEOUT_SECONDS
        waiting = [self._stubs[broker_id] for broker_id in stubs]
        last = 0.0
        while waiting:
            await asyncio.sleep(QUIET_SECONDS)
            await quiet(self._stubs.values())
            for stub in [*waiting]:
                came = stub.decode(partial(is_told, stub))
                if came is not None:
                    last = max(last, came)
                    waiting.remove(stub)
            if time.perf_counter() > deadline:
                raise SystemExit(
                    f"{self.cluster.name}: stub {waiting[0].broker_id} was not told in {TIMEOUT_SECONDS} s"
                )
        return last

    async def _epoch(self) -> int:
        return int((await self._zookeeper.get("/controller_epoch"))[0])

    async def _controller_id(self) -> int:
        return int(json.loads((await self._zookeeper.get("/controller"))[0])["brokerid"])


def paced_client(bootstrap: str, topic: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(CLIENT), "paced", "--bootstrap", bootstrap, "--topic", topic]
    command += ["--interval-ms", str(LATENCY_INTERVAL_MS)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measure(side: str, directory: Path, partitions: int) -> dict[str, float]:
    cluster = CLUSTERS[side](directory)
    try:
        cluster.start()
        measurement = Measurement(cluster, partitions)
        uvloop.run(measurement.run())
        return measurement.values
    finally:
        cluster.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 10_000, 50_000], help="how many, in turn")
    parser.add_argument("--rounds", type=int, default=1, help="of each number, each with fresh clusters (default 1)")
    parser.add_argument("--side", choices=[*CLUSTERS, "both"], default="both", help="measure only one program")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    parser.add_argument("--dir", type=Path, help="where data goes (default: a temporary directory, removed at the end)")
    arguments = parser.parse_args()
    console = Console(width=max(120, Console().width))
    sides = [*CLUSTERS] if arguments.side == "both" else [arguments.side]
    written = []
    with contextlib.ExitStack() as stack:
        directory = arguments.dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="klamm-bench-")))
        for partitions in arguments.partitions:
            samples: dict[str, list[dict[str, float]]] = defaultdict(list)
            for round_ in range(arguments.rounds):
                for side in sides:
                    with console.status(f"{partitions:,} partitions, round {round_ + 1}: {CLUSTERS[side].name}"):
                        place = directory / f"{side}-{partitions}-{round_}"
                        samples[CLUSTERS[side].name].append(measure(side, place, partitions))
            entries = results(ROWS, samples)
            console.print(table(entries, f"{partitions:,} partitions, RF 3", samples))
            written.append({"partitions": partitions, "rows": entries, "samples": samples})
    if arguments.json:
        arguments.json.write_text(json.dumps({"cores": os.cpu_count(), "runs": written}, indent=1) + "\n")


if __name__ == "__main__":
    main()
