"""The longest step that a broker takes on its loop when it is asked for everything at once.

A broker is one loop: while a step runs, nobody else is served, and a step that outlasts the ZooKeeper session costs
every leadership. The broker runs with a meter around each callback of its loop, which counts CPU time of the thread,
so that a busy machine changes little, and names the code that was running. Each row is one kind of work at a number of
partitions; a target of 20 ms holds for all. ZooKeeper (klamm's) and the client are processes of their own.

    .venv/bin/python bench/steps.py --partitions 10000 50000
    .venv/bin/python bench/steps.py --only fetch metadata --where
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table
from sides import KlammZooKeeper

from klamm.protocol import messages
from klamm.protocol.apis.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from klamm.protocol.apis.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from klamm.protocol.apis.api_versions import ApiVersionsRequest
from klamm.protocol.apis.create_topics import CreateTopicsRequest
from klamm.protocol.apis.delete_topics import DeleteTopicsRequest
from klamm.protocol.apis.describe_configs import DescribeConfigsRequest
from klamm.protocol.apis.describe_log_dirs import DescribeLogDirsRequest
from klamm.protocol.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.apis.list_offsets import ListOffsetsRequest
from klamm.protocol.apis.list_partition_reassignments import ListPartitionReassignmentsRequest
from klamm.protocol.apis.metadata import MetadataRequest
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import Record, build_batch
from support.processes import free_port

PARTITIONS_PER_TOPIC = 100
TARGET_MS = 20
REPORTED_STEPS = 5
TOPICS_PER_REQUEST = 100
MOVED_TOPICS = 10
GROUPS = 5_000
FLOOD = 100_000
TIMEOUT_S = 600


# -- the broker's process ---------------------------------------------------------------------------------------------


class StepMeter:
    """Times every callback of asyncio's loop. `take` returns the longest since the last call."""

    def __init__(self, *, samples: bool) -> None:
        self._longest: list[tuple[float, str]] = []
        self._began = 0.0
        self._where = ""
        self._thread = threading.get_ident()
        run = asyncio.Handle._run
        meter = self

        def timed(handle: asyncio.Handle) -> None:
            meter._where, meter._began = "", time.monotonic()
            began = time.thread_time()
            run(handle)
            elapsed_ms = (time.thread_time() - began) * 1000
            meter._began = 0.0
            if elapsed_ms > 5:
                meter._longest.append((elapsed_ms, meter._where or _name(handle)))

        patch.object(asyncio.Handle, "_run", timed).start()
        if samples:
            threading.Thread(target=self._sample, daemon=True).start()

    def take(self) -> list[tuple[float, str]]:
        longest, self._longest = sorted(self._longest, reverse=True)[:REPORTED_STEPS], []
        return longest

    def _sample(self) -> None:
        """Looks where a step is that runs for long already."""
        while True:
            time.sleep(0.004)
            if self._began and time.monotonic() - self._began > 0.010:
                frame = sys._current_frames().get(self._thread)
                names: list[str] = []
                while frame is not None and len(names) < 5:
                    if "/klamm/" in frame.f_code.co_filename:
                        names.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                    frame = frame.f_back
                found = " < ".join(names)
                if found and found not in self._where:
                    self._where = f"{self._where} | {found}"[-600:]


def _name(handle: asyncio.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]  # asyncio's own, when it warns of slow callbacks
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine: Any = owner.get_coro()
        names = []
        while coroutine is not None:
            names.append(getattr(coroutine, "__name__", "?"))
            coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
        return " > ".join(names)
    return str(getattr(callback, "__qualname__", callback))


async def serve(file: Path) -> None:
    """A broker that stops when stdin ends, or as told: "take" prints the longest steps, "stop" ends in order."""
    from klamm.access.properties import read_properties
    from klamm.base.system_environment import SystemEnvironment, raise_open_file_limit
    from klamm.broker.start.broker import Broker
    from klamm.config.broker import BrokerConfig
    from klamm.processes.garbage import GarbageCollection

    raise_open_file_limit()
    environment = SystemEnvironment()
    broker = Broker(BrokerConfig.from_properties(read_properties(file)), environment)
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    GarbageCollection(loop)
    meter = StepMeter(samples="KLAMM_STEPS_WHERE" in os.environ)
    await broker.start()
    await broker.wait_until_known()
    print(json.dumps({"metrics_port": broker.metrics_port}), flush=True)
    while command := await commands.readline():
        if command == b"stop\n":
            await broker.stop()
        print(json.dumps(meter.take()), flush=True)
        if command == b"stop\n":
            return
        if broker.failure.done():
            raise SystemExit(f"the broker has failed: {broker.failure.result()!r}")


class MeteredBroker:
    """The broker's process as the client sees it."""

    def __init__(self, directory: Path, zookeeper_connect: str, broker_id: int) -> None:
        self.port = free_port()
        self.id = broker_id
        self.file = directory / f"broker-{broker_id}.properties"
        self.file.write_text(
            f"broker.id={broker_id}\nlisteners=PLAINTEXT://127.0.0.1:{self.port}\n"
            f"log.dirs={directory}/data-{broker_id}-a,{directory}/data-{broker_id}-b\n"
            f"zookeeper.connect={zookeeper_connect}\n"
            "zookeeper.session.timeout.ms=60000\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=5\n"
            "klamm.metrics.port=0\nauto.create.topics.enable=false\n",
            encoding="utf-8",
        )
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, __file__, "--serve", str(self.file)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.metrics_port = self._read()["metrics_port"]

    def take(self) -> list[tuple[float, str]]:
        steps: list[tuple[float, str]] = self._tell("take")
        return steps

    def stop(self) -> list[tuple[float, str]]:
        steps: list[tuple[float, str]] = self._tell("stop")
        assert self.process is not None
        self.process.wait()
        return steps

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _tell(self, command: str) -> Any:
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the broker has ended")
        return json.loads(line)


# -- the client -------------------------------------------------------------------------------------------------------


class Client:
    """One connection, one request after another."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)

    def send(self, key: ApiKey, body: Any, version: int) -> Any:
        self.write(key, body, version)
        return messages.decode_response(key, version, self.read())

    def write(self, key: ApiKey, body: Any, version: int) -> None:
        self._socket.sendall(b"".join(messages.encode_request(key, version, 1, "bench", body)))

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise SystemExit("the broker has closed the connection")
            data += part
        return bytes(data)

    def ask(self, api_key: ApiKey, /, **fields: Any) -> Any:
        version = messages.ADVERTISED_MAX[api_key]
        return self.send(api_key, messages.request_class(api_key)(**fields), version)


class Work:
    """What the broker is asked for, in the order of the rows. Each method is a row; it returns when all is done."""

    def __init__(self, brokers: list[MeteredBroker], partitions: int) -> None:
        self._brokers = brokers
        self._topics = [f"steps-{index}" for index in range(partitions // PARTITIONS_PER_TOPIC)]
        self._client = Client(brokers[0].port)

    def rows(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        yield "create topics, a hundred in a request", self.create
        yield "metadata of all topics", self.metadata
        yield "fetch of all partitions, full", self.fetch
        yield "    waiting, then one record", self.fetch_waiting
        yield "    incremental, all have records", self.fetch_incremental
        yield "list offsets of all partitions", self.list_offsets
        yield "describe configs of all topics", self.describe_configs
        yield "describe log dirs", self.describe_log_dirs
        yield "scrape metrics", self.scrape
        yield f"{FLOOD} requests in one write", self.flood
        yield "commit and fetch offsets of all partitions", self.offsets
        yield f"{GROUPS} groups: list, describe, delete", self.groups
        yield "follow all partitions", self.follow
        yield "    records to all, copied", self.copy
        yield f"move {MOVED_TOPICS * PARTITIONS_PER_TOPIC} replicas to another log directory", self.move_log_dirs
        yield "idle for 15 s: checkpoints", lambda: time.sleep(15)
        yield "controlled shutdown and stop", self.stop
        yield "start after it", self.start
        yield "start after kill -9", self.start_after_kill
        yield "    first record to each of 1000 partitions", self.produce
        yield "delete topics, one request", self.delete

    def _each(self) -> Iterator[tuple[str, range]]:
        for topic in self._topics:
            yield topic, range(PARTITIONS_PER_TOPIC)

    def create(self) -> None:
        assignment = [
            CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment(partition_index=number, broker_ids=[0])
            for number in range(PARTITIONS_PER_TOPIC)
        ]
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=-1, replication_factor=-1, assignments=assignment, configs=[]
            )
            for name in self._topics
        ]
        for start in range(0, len(topics), TOPICS_PER_REQUEST):
            piece = topics[start : start + TOPICS_PER_REQUEST]
            self._client.ask(ApiKey.CREATE_TOPICS, topics=piece, timeout_ms=300_000, validate_only=False)
        self._wait_for_leaders()

    def _wait_for_leaders(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        names = [
            MetadataRequest.MetadataRequestTopic(name=self._topics[-1]),
            MetadataRequest.MetadataRequestTopic(name=self._topics[0]),
        ]
        while time.monotonic() < deadline:
            response = self._client.ask(ApiKey.METADATA, topics=names, allow_auto_topic_creation=False)
            if all(len(topic.partitions) == PARTITIONS_PER_TOPIC for topic in response.topics) and all(
                partition.leader_id >= 0 for topic in response.topics for partition in topic.partitions
            ):
                time.sleep(2)
                return
            time.sleep(0.5)
        raise SystemExit("the topics have no leaders")

    def metadata(self) -> None:
        for _ in range(2):
            self._client.write(ApiKey.METADATA, MetadataRequest(topics=None), version=9)
            self._client.read()

    def _fetch(self, session: int, epoch: int, offset: int, wait_ms: int, min_bytes: int) -> Any:
        topics: list[FetchTopic] = []
        if epoch == 0:
            topics = [
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1024 * 1024)
                        for number in numbers
                    ],
                )
                for topic, numbers in self._each()
            ]
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=50_000_000,
            session_id=session,
            session_epoch=epoch,
            topics=topics,
        )

    def fetch(self) -> None:
        self._session = self._client.send(ApiKey.FETCH, self._fetch(0, 0, 0, 0, 1), 12).session_id

    def fetch_waiting(self) -> None:
        self._client.write(ApiKey.FETCH, self._fetch(self._session, 1, 0, 5000, 1), 12)
        time.sleep(2)
        self._produce_to([(self._topics[0], [0])])
        self._client.read()

    def fetch_incremental(self) -> None:
        self._produce_to([(topic, list(numbers)) for topic, numbers in self._each()])
        self._client.send(ApiKey.FETCH, self._fetch(self._session, 2, 0, 0, 1), 12)

    def _produce_to(self, topics: list[tuple[str, list[int]]], acks: int = 1) -> None:
        batch = build_batch([Record(None, b"x" * 10, int(time.time() * 1000))])
        client = Client(self._brokers[0].port)
        for topic, numbers in topics:
            body = ProduceRequest.of(None, acks, 60_000, [(topic, [(number, batch) for number in numbers])])
            client.send(ApiKey.PRODUCE, body, 9)

    def list_offsets(self) -> None:
        topics = [
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                        partition_index=number, current_leader_epoch=-1, timestamp=-1
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in self._each()
        ]
        self._client.ask(ApiKey.LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=topics)

    def describe_configs(self) -> None:
        resources = [
            DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
            for name in self._topics
        ]
        self._client.ask(ApiKey.DESCRIBE_CONFIGS, resources=resources)

    def describe_log_dirs(self) -> None:
        self._client.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None)

    def scrape(self) -> None:
        for _ in range(2):
            urllib.request.urlopen(f"http://127.0.0.1:{self._brokers[0].metrics_port}/metrics").read()

    def flood(self) -> None:
        client = Client(self._brokers[0].port)
        request = ApiVersionsRequest()
        frame = b"".join(messages.encode_request(ApiKey.API_VERSIONS, 0, 1, "bench", request))
        sender = threading.Thread(target=client.send_raw, args=(frame * FLOOD,))
        sender.start()
        for _ in range(FLOOD):
            client.read()
        sender.join()

    def _ready_for_groups(self) -> None:
        while True:
            found = self._client.ask(ApiKey.FIND_COORDINATOR, key="g", key_type=0)
            if found.error_code == 0:
                break
            time.sleep(0.5)
        time.sleep(1)

    def _commit(self, group: str, topics: list[tuple[str, range]]) -> None:
        offsets = {(topic, number): 5 for topic, numbers in topics for number in numbers}
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            response = self._client.send(ApiKey.OFFSET_COMMIT, OffsetCommitRequest.of(group, offsets), 8)
            codes = set(response.error_codes().values())
            if codes == {0}:
                return
            # The coordinator is not ready yet.
            time.sleep(0.5)
        raise SystemExit(f"OffsetCommit is answered with {codes}")

    def offsets(self) -> None:
        self._ready_for_groups()
        topics = list(self._each())
        for part in range(0, len(topics), 10):
            self._commit("large", topics[part : part + 10])
        self._client.ask(ApiKey.OFFSET_FETCH, group_id="large", topics=None, require_stable=False, **{})

    def groups(self) -> None:
        self._ready_for_groups()
        names = [f"group-{number}" for number in range(GROUPS)]
        topic = [(self._topics[0], range(1))]
        for name in names:
            self._commit(name, topic)
        self._client.ask(ApiKey.LIST_GROUPS, states_filter=[])
        self._client.ask(ApiKey.DESCRIBE_GROUPS, groups=names, include_authorized_operations=False)
        self._client.ask(ApiKey.DELETE_GROUPS, groups_names=names)

    def follow(self) -> Any:
        """The leader's and the follower's steps."""
        other = self._brokers[1]
        other.start()
        topic = AlterPartitionReassignmentsRequest.ReassignableTopic
        topics = [
            topic(
                name=name,
                partitions=[topic.ReassignablePartition(partition_index=number, replicas=[0, 1]) for number in numbers],
            )
            for name, numbers in self._each()
        ]
        self._client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, timeout_ms=300_000, topics=topics)
        pending = ListPartitionReassignmentsRequest(timeout_ms=60_000, topics=None)
        while self._client.send(ApiKey.LIST_PARTITION_REASSIGNMENTS, pending, 0).topics:
            time.sleep(1)
        return sorted(self._brokers[0].take() + other.take(), reverse=True)

    def copy(self) -> Any:
        """Records to all partitions, all on their way at once, to the leader and from there to the follower."""
        self._produce_to([(topic, list(numbers)) for topic, numbers in self._each()], acks=-1)
        return sorted(self._brokers[0].take() + self._brokers[1].take(), reverse=True)

    def move_log_dirs(self) -> None:
        """Each of the first partitions to the directory in which it is not."""
        names = self._topics[:MOVED_TOPICS]
        struct = AlterReplicaLogDirsRequest.AlterReplicaLogDir
        held = {each.log_dir: each.topics for each in self._log_dirs(names)}
        first, second = held
        dirs = [
            struct(
                path=path,
                topics=[
                    struct.AlterReplicaLogDirTopic(
                        name=topic.name, partitions=[each.partition_index for each in topic.partitions]
                    )
                    for topic in held[other]
                ],
            )
            for path, other in ((first, second), (second, first))
        ]
        answer = self._client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, dirs=dirs)
        assert {each.error_code for topic in answer.results for each in topic.partitions} == {0}
        while any(each.is_future_key for found in self._log_dirs(names) for each in _replicas_of(found)):
            time.sleep(0.5)

    def _log_dirs(self, names: list[str]) -> Any:
        struct = DescribeLogDirsRequest.DescribableLogDirTopic
        topics = [struct(topic=name, partitions=list(range(PARTITIONS_PER_TOPIC))) for name in names]
        return self._client.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=topics).results

    def stop(self) -> Any:
        return self._brokers[0].stop()

    def start(self) -> None:
        self._brokers[0].start()
        self._client = Client(self._brokers[0].port)
        self._wait_for_leaders()

    def start_after_kill(self) -> None:
        self._brokers[0].kill()
        self.start()

    def produce(self) -> None:
        self._produce_to([(topic, list(range(PARTITIONS_PER_TOPIC))) for topic in self._topics[:10]])

    def delete(self) -> None:
        version = 5
        self._client.send(
            ApiKey.DELETE_TOPICS,
            DeleteTopicsRequest(topic_names=self._topics, timeout_ms=300_000),
            version,
        )
        time.sleep(10)


def _replicas_of(log_dir: Any) -> Iterator[Any]:
    for topic in log_dir.topics:
        yield from topic.partitions


def measure(directory: Path, partitions: int, only: list[str]) -> dict[str, list[tuple[float, str]]]:
    zookeeper = KlammZooKeeper(directory / "zookeeper")
    zookeeper.start()
    brokers = [MeteredBroker(directory, zookeeper.connect, broker_id) for broker_id in (0, 1)]
    results: dict[str, list[tuple[float, str]]] = {}
    try:
        brokers[0].start()
        work = Work(brokers, partitions)
        for name, step in work.rows():
            if only and not any(word in name for word in only):
                continue
            steps = step()
            if steps is None:
                steps = brokers[0].take()
            results[name] = steps
            print(partitions, name, [f"{ms:.0f} {where}" for ms, where in steps], file=sys.stderr, flush=True)
    finally:
        for broker in brokers:
            broker.kill()
        zookeeper.kill()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--only", nargs="+", default=[], help="rows whose names contain one of these words")
    parser.add_argument("--where", action="store_true", help="name the code that was running (costs some accuracy)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
        return
    if arguments.where:
        os.environ["KLAMM_STEPS_WHERE"] = "1"
    results = {}
    for partitions in arguments.partitions:
        with tempfile.TemporaryDirectory() as directory:
            results[partitions] = measure(Path(directory), partitions, arguments.only)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    table = Table(title=f"The longest step of each, ms of CPU (target: {TARGET_MS})")
    table.add_column("work")
    for partitions in results:
        table.add_column(f"{partitions} partitions", justify="right")
    for name in next(iter(results.values())):
        table.add_row(
            name, *(f"{max((ms for ms, _ in rows.get(name, [])), default=0):.0f}" for rows in results.values())
        )
    Console().print(table)


if __name__ == "__main__":
    main()
