"""Consumer groups: klamm beside Apache Kafka 2.8.2, on this machine, as ratios.

Each program runs three brokers with a real ZooKeeper 3.5.9; __consumer_offsets has three replicas, so that a commit is
answered when it is on three brokers (in one row: a single broker and replica). What asks them is the same for both, and
speaks the protocol itself: a client library would be most of what is measured.

| what            | from                                               | until                                      |
|-----------------|----------------------------------------------------|--------------------------------------------|
| stable group    | 100 consumers begin to join, none knows its id     | all have their partition in one generation |
| commits         | 50 connections, a group each, one commit at a time | a number of seconds later                  |
| group fail-over | a coordinator's session has ended (kill -9)        | its groups' offsets come from the others   |
| load            | the same, of one group with a million commits      |                                            |
| compacted load  | the same, of 1,000 groups with `--commits` in all, |                                            |
|                 | when the cleaner has nothing left to do            |                                            |

The group fail-over is that of 1,000 groups with 100 offsets each. The initial rebalance delay is 0 and consumers send
a heartbeat every 100 ms: with the defaults of 3 s both programs would be measured waiting.
A commit is that of one offset; a request of the rows about loads has 100. With --only-compacted the compacted load is
all that is measured: `bench/groups.py --only-compacted --side klamm --commits 2000000`. Its log cleaners look for work
each second, so that the wait for them is short.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table
from sides import KAFKA_OPTIONS, KlammBroker, RealZooKeeper, kafka_jars, listener, number, process_cpu_seconds

from klamm.base.system_environment import SystemEnvironment
from klamm.client.consumer.group_member import Membership, heartbeat_request, join_request, sync_request
from klamm.client.consumer.offsets import OffsetAndMetadata, offset_commit_request, offset_fetch_request
from klamm.client.fan_out import find_coordinator_request
from klamm.net.client import ClientError, Connection, connect
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey, decode_response, encode_request
from klamm.protocol.vocabulary import TopicPartition
from klamm.zookeeper.client import ZooKeeperClient
from support.oracles import RealKafka

REPLICATION_FACTORS = ("default.replication.factor", "offsets.topic.replication.factor")
PROPERTIES: dict[str, str | int] = {
    "group.initial.rebalance.delay.ms": 0,
    "auto.leader.rebalance.enable": "false",
    "zookeeper.session.timeout.ms": 6000,
}
TOPIC = "groups-bench"
PARTITIONS = 100
HEARTBEAT_INTERVAL_MS = 100
SESSION_TIMEOUT_MS = 30_000
COMMITTERS = 50
WARM_UP_SECONDS = 3
OFFSETS_PER_GROUP = 100
ASKING_AT_ONCE = 8
MILLION = 1_000_000
# The cleaner has nothing left to do when all logs stay as they are for so long.
CLEANER_BACKOFF_MS = 1000
AT_REST_SECONDS = 8
RETRY_SECONDS = 0.02
TIMEOUT_SECONDS = 120
RETRIABLE = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
}

# What Kafka's and klamm's brokers log.
_LOADED = re.compile(r"(?:loaded \d+ groups of|group metadata from) __consumer_offsets-\d+ in (\d+) m")

# Key, title, unit, which ratio klamm / Kafka is wanted: (at most, at least).
Row = tuple[str, str, str, tuple[float | None, float | None]]

ROWS: list[Row] = [
    ("stable", "100 consumers until the group is stable", "s", (0.5, None)),
    ("commits", "commits of one offset", "/s", (None, 1.0)),
    ("commit_cpu", "    CPU of the brokers per commit", "µs", (None, None)),
    ("commit_p99", "    p99 of a commit", "ms", (None, None)),
    ("commits_10", "commits of ten offsets", "/s", (None, 1.0)),
    ("commits_alone", "commits of one offset, one broker", "/s", (None, 1.0)),
    ("failover", "group fail-over, 1,000 groups, 100,000 offsets", "s", (0.5, None)),
    ("load", "fail-over of a group after 1,000,000 commits", "s", (None, None)),
    ("compacted", "fail-over of 1,000 groups after --commits, compacted", "s", (None, None)),
    ("compacted_load", "    longest load of a partition, the wait for others included", "ms", (None, None)),
    ("compacted_mb", "    __consumer_offsets on a broker by then", "MB", (None, None)),
]


class Cluster:
    """Brokers of one program and a ZooKeeper, in a fresh directory; as many replicas as brokers."""

    def __init__(self, side: str, directory: Path, brokers: int = 3, **properties_: str | int) -> None:
        jars = kafka_jars()
        self.zookeeper = RealZooKeeper(jars, directory / "zookeeper", properties={"tickTime": 2000}, options=())
        connect_string = self.zookeeper.connect
        properties = PROPERTIES | dict.fromkeys(REPLICATION_FACTORS, brokers)
        properties |= {name.replace("_", "."): value for name, value in properties_.items()}
        self.brokers: list[RealKafka | KlammBroker] = [
            RealKafka(
                jars, directory / f"{id_}", connect_string, broker_id=id_, properties=properties, options=KAFKA_OPTIONS
            )
            if side == "kafka"
            else KlammBroker(directory / f"{id_}", connect_string, broker_id=id_, properties=properties)
            for id_ in range(brokers)
        ]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        self.zookeeper.start()
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready()
        # librdkafka, told that there is no controller yet, would not ask again for minutes: each look is a new one's.
        while AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=30).controller_id < 0:
            time.sleep(0.1)

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()
        self.zookeeper.kill()

    def cpu_seconds(self) -> float:
        return sum(process_cpu_seconds(listener(int(broker.bootstrap.rsplit(":")[1]))) for broker in self.brokers)


# -- the protocol -----------------------------------------------------------------------------------------------------


class Clients:
    """Finds coordinators, through any broker that lives, and keeps a connection to each broker."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._connections: dict[str, Connection] = {}

    def forget(self, address: str) -> None:
        """That broker lives no more."""
        self._addresses.remove(address)
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def connection(self, address: str) -> Connection:
        known = self._connections.get(address)
        if known is None or not known.connected:
            host, port = address.split(":")
            known = self._connections[address] = await connect(host, int(port))
        return known

    async def coordinator(self, group: str) -> str:
        """Its address, once there is one."""
        request = find_coordinator_request(group)
        while True:
            for address in self._addresses:
                with contextlib.suppress(ClientError):
                    connection = await self.connection(address)
                    response = await connection.send(ApiKey.FIND_COORDINATOR, lambda version: request)
                    found = f"{response.host}:{response.port}"
                    if not response.error_code and found in self._addresses:
                        return found
            await asyncio.sleep(RETRY_SECONDS)

    async def committed(self, group: str, partitions: Sequence[int]) -> dict[int, int]:
        """The committed offsets, as soon as a coordinator tells them."""
        request = offset_fetch_request(group, [TopicPartition(TOPIC, number) for number in partitions])
        while True:
            with contextlib.suppress(ClientError):
                connection = await self.connection(await self.coordinator(group))
                response = await connection.send(ApiKey.OFFSET_FETCH, lambda version: request)
                if not response.error_code:
                    return {p.partition_index: p.committed_offset for t in response.topics for p in t.partitions}
                if response.error_code not in RETRIABLE:
                    raise SystemExit(f"OffsetFetch of {group}: error {response.error_code}")
            await asyncio.sleep(RETRY_SECONDS)


def commit_frame(group: str, offsets: dict[int, int]) -> bytes:
    wanted = {TopicPartition(TOPIC, number): OffsetAndMetadata(offset) for number, offset in offsets.items()}
    body = offset_commit_request(group, wanted)
    return b"".join(encode_request(ApiKey.OFFSET_COMMIT, 8, 1, "bench", body))


class Committer(asyncio.Protocol):
    """Sends frames, each when the one before it is answered, until `stop`; checks that nothing was refused.

    What has been found good once is not looked into again: the answers are all the same.
    """

    def __init__(self, frames: Sequence[bytes], rounds: int | None = None) -> None:
        self._frames, self._left = frames, rounds
        self._received = bytearray()
        self._good = b""
        self._sent_at = 0.0
        self._index = 0
        self.latencies: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._frames[self._index % len(self._frames)])
        self._index += 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4 or len(self._received) < 4 + struct.unpack_from(">i", self._received)[0]:
            return
        answer, self._received = bytes(self._received), bytearray()
        if answer != self._good:
            self._check(answer)
        self.latencies.append(time.perf_counter() - self._sent_at)
        if self._left is not None and self._index >= self._left:
            self.stop()
        else:
            self._send()

    def _check(self, answer: bytes) -> None:
        response = decode_response(ApiKey.OFFSET_COMMIT, 8, answer[4:])
        errors = set(response.error_codes().values())
        if errors != {0}:
            self.done.set_exception(SystemExit(f"a commit was answered with the errors {sorted(errors)}"))
            self._transport.close()
            return
        self._good = answer

    def stop(self) -> None:
        self._transport.close()
        if not self.done.done():
            self.done.set_result(None)


class Consumer:
    """A member of the group: joins, syncs, sends heartbeats, and joins again when it hears of a rebalance."""

    def __init__(self, group: str, count: int) -> None:
        self._membership = Membership(group)
        self._count = count
        self.generation = -1
        self.assignment = b""

    async def run(self, address: str) -> None:
        host, port = address.split(":")
        self._connection = await connect(host, int(port))
        try:
            while True:
                if await self._join():
                    await self._work()
        finally:
            self._connection.close()

    async def _send(self, key: ApiKey, request: Any) -> Any:
        return await self._connection.send(key, lambda version: request)

    async def _join(self) -> bool:
        self.generation = -1
        membership = self._membership
        request = join_request(
            membership,
            "consumer",
            {"range": b"\0\1\0\0\0\0"},
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        )
        joined = await self._send(ApiKey.JOIN_GROUP, request)
        membership.member_id, membership.generation_id = joined.member_id, joined.generation_id
        if joined.error_code:
            if joined.error_code not in {ErrorCode.MEMBER_ID_REQUIRED, *RETRIABLE}:
                raise SystemExit(f"JoinGroup: error {joined.error_code}")
            return False
        assignments = {member.member_id: str(index).encode() for index, member in enumerate(joined.members)}
        synced = await self._send(ApiKey.SYNC_GROUP, sync_request(membership, "consumer", "range", assignments))
        if synced.error_code:
            return False
        self.generation, self.assignment = joined.generation_id, bytes(synced.assignment)
        return True

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_MS / 1000)
            answer = await self._send(ApiKey.HEARTBEAT, heartbeat_request(self._membership))
            if answer.error_code:
                return


# -- the measurements -------------------------------------------------------------------------------------------------


async def stable(clients: Clients, round_: int, count: int = 100) -> float:
    group = f"stable-{round_}"
    address = await clients.coordinator(group)
    await clients.committed(group, [0])  # The coordinator has loaded the group's partition.
    consumers = [Consumer(group, count) for _ in range(count)]
    start = time.perf_counter()
    tasks = [asyncio.ensure_future(consumer.run(address)) for consumer in consumers]
    while True:
        await asyncio.sleep(0.001)
        for task in tasks:
            if task.done():
                task.result()
        if (
            len({consumer.generation for consumer in consumers}) == 1
            and consumers[0].generation > 0
            and len({consumer.assignment for consumer in consumers}) == count
        ):
            break
        if time.perf_counter() - start > TIMEOUT_SECONDS:
            raise SystemExit(f"{count} consumers were not in one generation after {TIMEOUT_SECONDS} s")
    elapsed = time.perf_counter() - start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return elapsed


async def commits(cluster: Cluster, clients: Clients, offsets: int, seconds: float) -> dict[str, float]:
    """Commits a second, the brokers' CPU for one in microseconds, and the 99th percentile of its time in ms."""
    loop = asyncio.get_running_loop()
    committers = []
    for index in range(COMMITTERS):
        group = f"commits-{offsets}-{index}"
        frames = [commit_frame(group, dict.fromkeys(range(offsets), value)) for value in range(100)]
        host, port = (await clients.coordinator(group)).split(":")
        await clients.committed(group, [0])
        _, committer = await loop.create_connection(partial(Committer, frames), host, int(port))
        committers.append(committer)
    await asyncio.sleep(WARM_UP_SECONDS)
    for committer in committers:
        committer.latencies.clear()
    cpu, start = cluster.cpu_seconds(), time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed, cpu = time.perf_counter() - start, cluster.cpu_seconds() - cpu
    latencies = sorted(latency for committer in committers for latency in committer.latencies)
    for committer in committers:
        committer.stop()
    await asyncio.gather(*(committer.done for committer in committers))
    return {
        "rate": len(latencies) / elapsed,
        "cpu": cpu / len(latencies) * 1e6,
        "p99": latencies[len(latencies) * 99 // 100] * 1000,
    }


async def fill(clients: Clients, groups: Sequence[str], rounds: int) -> None:
    """Commits the offsets of all partitions to each group, `rounds` times; the last ones are the group's own."""
    loop = asyncio.get_running_loop()
    for start in range(0, len(groups), COMMITTERS):
        committers = []
        for number_, group in enumerate(groups[start : start + COMMITTERS], start):
            host, port = (await clients.coordinator(group)).split(":")
            await clients.committed(group, [0])
            frames = [commit_frame(group, expected(number_))]
            _, committer = await loop.create_connection(partial(Committer, frames, rounds), host, int(port))
            committers.append(committer)
        await asyncio.gather(*(committer.done for committer in committers))


def expected(group_number: int) -> dict[int, int]:
    return {partition: group_number * 1000 + partition for partition in range(OFFSETS_PER_GROUP)}


async def fail_over(cluster: Cluster, clients: Clients, groups: Sequence[str]) -> float:
    """Kills the coordinator of the first group. From the end of its session until each group that it had coordinated
    has all its offsets from another broker."""
    by_address = defaultdict(list)
    for number_, group in enumerate(groups):
        by_address[await clients.coordinator(group)].append((number_, group))
    victim = await clients.coordinator(groups[0])
    broker = next(broker for broker in cluster.brokers if broker.bootstrap == victim)
    zookeeper = ZooKeeperClient(SystemEnvironment(), cluster.zookeeper.connect)
    await zookeeper.start()
    gone: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    path = f"/brokers/ids/{cluster.brokers.index(broker)}"
    await zookeeper.exists(path, lambda _event: gone.set_result(time.perf_counter()))
    clients.forget(victim)
    broker.kill()
    start = await gone

    # Hundreds that ask again and again would take the processor from the brokers.
    turn = asyncio.Semaphore(ASKING_AT_ONCE)

    async def moved(number_: int, group: str) -> None:
        async with turn:
            offsets = await clients.committed(group, range(OFFSETS_PER_GROUP))
        if offsets != expected(number_):
            raise SystemExit(f"{group} has lost offsets: {offsets} instead of {expected(number_)}")

    await asyncio.gather(*(moved(*one) for one in by_address[victim]))
    elapsed = time.perf_counter() - start
    await zookeeper.close()
    return elapsed


@contextlib.asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[Clients]:
    """The cluster with the topic that offsets are committed for, until the end of the block."""
    try:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, len(cluster.brokers))]).values():
            future.result()
        yield Clients([broker.bootstrap for broker in cluster.brokers])
    finally:
        cluster.kill()


async def measure(side: str, directory: Path, seconds: float, million: int) -> dict[str, float]:
    values: dict[str, float] = {}
    cluster = Cluster(side, directory / "main")
    async with running(cluster) as clients:
        values["stable"] = statistics.median([await stable(clients, round_) for round_ in range(5)])
        one = await commits(cluster, clients, 1, seconds)
        values |= {"commits": one["rate"], "commit_cpu": one["cpu"], "commit_p99": one["p99"]}
        values["commits_10"] = (await commits(cluster, clients, 10, seconds))["rate"]
        groups = [f"failover-{index}" for index in range(1000)]
        await fill(clients, groups, 1)
        values["failover"] = await fail_over(cluster, clients, groups)
    cluster = Cluster(side, directory / "alone", brokers=1)
    async with running(cluster) as clients:
        values["commits_alone"] = (await commits(cluster, clients, 1, seconds))["rate"]
    cluster = Cluster(side, directory / "load")
    async with running(cluster) as clients:
        await fill(clients, ["million"], million // OFFSETS_PER_GROUP)
        values["load"] = await fail_over(cluster, clients, ["million"])
    return values


async def measure_compacted(side: str, directory: Path, commits_: int) -> dict[str, float]:
    cluster = Cluster(side, directory / "compacted", log_cleaner_backoff_ms=CLEANER_BACKOFF_MS)
    async with running(cluster) as clients:
        groups = [f"compacted-{index}" for index in range(1000)]
        await fill(clients, groups, max(1, commits_ // OFFSETS_PER_GROUP // len(groups)))
        size_bytes = await compacted(cluster)
        before = [len(loads_ms(broker)) for broker in cluster.brokers]
        seconds = await fail_over(cluster, clients, groups)
        loads = [loads_ms(broker)[count:] for broker, count in zip(cluster.brokers, before, strict=True)]
        longest_ms = max(each for of_broker in loads for each in of_broker)
        return {"compacted": seconds, "compacted_load": longest_ms, "compacted_mb": size_bytes / 1e6}


def loads_ms(broker: RealKafka | KlammBroker) -> list[int]:
    """How long each load of a partition's groups took, as the broker's log says."""
    return [int(found) for found in _LOADED.findall(broker.log.read_text())]


async def compacted(cluster: Cluster) -> int:
    """Returns when no broker compacts any more: the size of __consumer_offsets on the first one."""
    sizes: list[int] = []
    since = time.perf_counter()
    while time.perf_counter() - since < AT_REST_SECONDS:
        await asyncio.sleep(1)
        found = [await asyncio.to_thread(offsets_size_bytes, broker.data_directory) for broker in cluster.brokers]
        if found != sizes:
            sizes, since = found, time.perf_counter()
    return sizes[0]


def offsets_size_bytes(data_directory: Path) -> int:
    size_bytes = 0
    for path in data_directory.glob("__consumer_offsets-*/*.log"):
        with contextlib.suppress(FileNotFoundError):
            size_bytes += path.stat().st_size
    return size_bytes


# -- the results ------------------------------------------------------------------------------------------------------


def table(measured: str, rows: Sequence[Row], samples: dict[str, list[dict[str, float]]]) -> Table:
    """The medians of each program's samples and their ratios; a row without samples is left out."""
    made = Table(title=f"{measured}, this machine ({os.cpu_count()} cores)")
    made.add_column("what", no_wrap=True)
    for side in samples:
        made.add_column(side, justify="right")
    made.add_column("unit")
    made.add_column("klamm / Kafka", justify="right")
    made.add_column("target", justify="right")
    for key, title, unit, (most, least) in rows:
        if any(key not in run for runs in samples.values() for run in runs):
            continue
        medians = {side: statistics.median(run[key] for run in runs) for side, runs in samples.items()}
        ratio = medians["klamm"] / medians["kafka"] if len(medians) == 2 else None
        missed = ratio is not None and ((most is not None and ratio > most) or (least is not None and ratio < least))
        target = f"≤ {most:g}" if most is not None else f"≥ {least:g}" if least is not None else ""
        colour = "default" if ratio is None or not target else "red" if missed else "green"
        made.add_row(
            title,
            *(number(value) for value in medians.values()),
            unit,
            f"[{colour}]{number(ratio)}[/]" if ratio is not None else "",
            target,
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="of everything, each with fresh clusters (default 1)")
    parser.add_argument("--seconds", type=float, default=10, help="how long commits are counted (default 10)")
    parser.add_argument("--million", type=int, default=MILLION, help="commits before the last fail-over")
    parser.add_argument("--commits", type=int, default=10 * MILLION, help="of 1,000 groups, before they are compacted")
    parser.add_argument("--only-compacted", action="store_true", help="measure only the rows of compacted groups")
    parser.add_argument("--side", choices=["kafka", "klamm", "both"], default="both", help="measure only one program")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    arguments = parser.parse_args()
    console = Console(width=max(120, Console().width))
    sides = ["kafka", "klamm"] if arguments.side == "both" else [arguments.side]
    samples: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory:
        for round_ in range(arguments.rounds):
            for side in sides:
                with console.status(f"round {round_ + 1}: {side}"):
                    place = Path(directory) / f"{side}-{round_}"
                    values = (
                        {}
                        if arguments.only_compacted
                        else uvloop.run(measure(side, place, arguments.seconds, arguments.million))
                    )
                    values |= uvloop.run(measure_compacted(side, place, arguments.commits))
                    samples[side].append(values)
    console.print(table("consumer groups, 3 brokers, RF 3", ROWS, samples))
    if arguments.json:
        arguments.json.write_text(json.dumps({"cores": os.cpu_count(), "samples": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
