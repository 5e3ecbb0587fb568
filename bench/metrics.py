"""What the counting of requests costs: a broker that counts, and the same broker with the hooks of requests taken out.

Both run at once, each in a process of its own, and are asked in turns, so that a busy machine hits both. A round sends
produces of 100-byte records with acks=1 over one connection, one by one, and then in batches of 100. The time is a
client's median; the processor time is that of the broker's main thread, by the kernel's count. The last rows time the
hooks alone, which depends least on what else the machine does.

    .venv/bin/python bench/metrics.py
    .venv/bin/python bench/metrics.py --rounds 15 --requests 4000
"""

import argparse
import asyncio
import gc
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from klamm.broker.broker import Broker
from klamm.broker.request_metrics import ApiStatistics
from klamm.config.broker import BrokerConfig
from klamm.environment import SystemEnvironment
from klamm.net.request_memory import RequestMemory
from klamm.net.server import Exchange, Response, SocketServer
from klamm.protocol import messages
from klamm.protocol.apis.create_topics import CreateTopicsRequest
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.records import Record, build_batch
from klamm.replication.topic_metrics import TopicCounts
from klamm.zookeeper.server import ZooKeeperServer

TARGET = 1.02
RECORD_BYTES = 100
BATCH = 100
COUNTED, PLAIN = "counted", "plain"


# -- the broker's process ---------------------------------------------------------------------------------------------


def take_hooks_out() -> None:
    patched: Any = ApiStatistics
    patched.add = lambda *_arguments: None
    patched_messages: Any = messages
    patched_messages.error_counter = lambda _api_key: lambda *_arguments: None
    make = SocketServer.__init__

    def without_clock(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self.work_clock_s = float

    patched_server: Any = SocketServer
    patched_server.__init__ = without_clock


async def serve(directory: str) -> None:
    environment = SystemEnvironment()
    zookeeper = ZooKeeperServer(environment, f"{directory}/zookeeper", port=0)
    await zookeeper.start()
    properties = {
        "broker.id": "0",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": f"{directory}/data",
        "zookeeper.connect": f"127.0.0.1:{zookeeper.port}",
    }
    broker = Broker(BrokerConfig.from_properties(properties), environment)
    await broker.start()
    await broker.wait_until_known()
    [(_, port)] = broker.parts.listeners.addresses.values()
    gc.freeze()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await broker.stop()
    await zookeeper.stop()


# -- the client -------------------------------------------------------------------------------------------------------


class Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, key: ApiKey, version: int, body: Any) -> Any:
        frame = b"".join(map(bytes, messages.encode_request(key, version, 1, "bench", body)))
        return messages.decode_response(key, version, self.exchange(frame))

    def exchange(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        answer = self._socket.recv(65536)
        (size,) = struct.unpack_from(">i", answer)
        while len(answer) < 4 + size:
            answer += self._socket.recv(65536)
        return answer[4:]


class Measured(NamedTuple):
    """Microseconds of a request: the client's median, and the broker's processor."""

    p50_us: float
    cpu_us: float


class Side:
    def __init__(self, name: str, directory: Path) -> None:
        command = [sys.executable, __file__, "--serve", str(directory / name)]
        self.process = subprocess.Popen(
            command + ["--plain"] * (name == PLAIN), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self._connection = Connection(int(self.process.stdout.readline()))
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        self._connection.ask(
            ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
        )

    def measure(self, requests: int, records: int) -> Measured:
        value = bytes(RECORD_BYTES)
        batch = build_batch([Record(key=None, value=value) for _ in range(records)])
        body = ProduceRequest.of(None, 1, 10_000, [("t", [(0, batch)])])
        answer: ProduceResponse = self._connection.ask(ApiKey.PRODUCE, 9, body)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer
        frame = b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, 1, "bench", body)))
        times = []
        before_s = self._cpu_s()
        for _ in range(requests):
            began = time.perf_counter()
            self._connection.exchange(frame)
            times.append(time.perf_counter() - began)
        return Measured(statistics.median(times) * 1e6, (self._cpu_s() - before_s) / requests * 1e6)

    def _cpu_s(self) -> float:
        """Of the main thread, in nanoseconds of the kernel."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@contextmanager
def sides() -> Iterator[list[Side]]:
    with tempfile.TemporaryDirectory() as directory:
        running: list[Side] = []
        try:
            for name in (COUNTED, PLAIN):
                running.append(Side(name, Path(directory)))
            yield running
        finally:
            for side in running:
                side.stop()


# -- the hooks alone --------------------------------------------------------------------------------------------------


def hooks_us(count: int = 100_000) -> dict[str, float]:
    """Microseconds of each hook of a produce of one batch."""
    api = ApiStatistics(ApiKey.PRODUCE)
    topic = ProduceResponse.TopicProduceResponse
    partition = topic.PartitionProduceResponse(index=0, error_code=ErrorCode.NONE)
    response = ProduceResponse(responses=[topic(name="t", partition_responses=[partition])])
    counts, clock_s = TopicCounts(), time.perf_counter
    arrived_s = clock_s()
    exchange = Exchange(200, clock_s, arrived_s, arrived_s, RequestMemory(1 << 20).small, pipelined=True)
    exchange.response = Response([b""])

    def measured() -> None:
        clock_s()
        exchange.ready_s = now_s = clock_s()
        api.add(exchange, now_s, now_s)

    def topic_counts() -> None:
        counts.produce_requests += 1
        counts.messages_in += 1
        counts.bytes_in += 200

    hooks: dict[str, Callable[[], None]] = {
        "times of a request": measured,
        "error codes of its response": lambda: api.count_errors(response, api.errors),
        "counts of its topic": topic_counts,
    }
    return {name: min(_timed(hook, count) for _ in range(5)) for name, hook in hooks.items()}


def _timed(hook: Callable[[], None], count: int) -> float:
    began = time.thread_time()
    for _ in range(count):
        hook()
    return (time.thread_time() - began) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=2_000, help="produces of a round; a tenth in batches")
    parser.add_argument("--serve", metavar="DIRECTORY", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        if options.plain:
            take_hooks_out()
        uvloop.run(serve(options.serve))
        return
    found: dict[tuple[str, int], list[Measured]] = {}
    with sides() as (counted, plain):
        for number in range(options.rounds + 1):
            order = [(COUNTED, counted), (PLAIN, plain)]
            for name, side in order if number % 2 else reversed(order):
                for records in (1, BATCH):
                    measured = side.measure(options.requests // (1 if records == 1 else 10), records)
                    if number:  # The first round warms up.
                        found.setdefault((name, records), []).append(measured)
    show(found, options.rounds)


def show(found: dict[tuple[str, int], list[Measured]], rounds: int) -> None:
    table = Table(title=f"Produce of {RECORD_BYTES}-byte records, us a request, {rounds} rounds")
    for column in ("what", COUNTED, PLAIN, f"ratio (≤ {TARGET})", "spread"):
        table.add_column(column, justify="left" if column == "what" else "right", no_wrap=True)
    for records in (1, BATCH):
        for number, what in enumerate(("p50", "broker's CPU")):
            one, other = ([measured[number] for measured in found[name, records]] for name in (COUNTED, PLAIN))
            ratios = sorted(a / b for a, b in zip(one, other, strict=True))
            table.add_row(
                f"{what}, {records} record{'s' * (records > 1)} a request",
                f"{statistics.median(one):.1f}",
                f"{statistics.median(other):.1f}",
                f"{statistics.median(ratios):.3f}",
                f"{ratios[0]:.3f} to {ratios[-1]:.3f}",
            )
    hooks = hooks_us()
    plain_p50_us = statistics.median(measured.p50_us for measured in found[PLAIN, 1])
    plain_cpu_us = statistics.median(measured.cpu_us for measured in found[PLAIN, 1])
    total_us = sum(hooks.values())
    for name, each_us in (*hooks.items(), ("all hooks", total_us)):
        table.add_row(name, f"{each_us:.2f}", "", f"{1 + each_us / plain_p50_us:.4f} of p50", "")
    table.add_row("all hooks", f"{total_us:.2f}", "", f"{1 + total_us / plain_cpu_us:.4f} of CPU", "")
    Console().print(table)


if __name__ == "__main__":
    main()
