"""What counting costs: the same produces to this broker, to one that does not count, and to brokers of other checkouts.

The broker that does not count runs from a copy of klamm's source in which the lines that count are replaced by what
would stand there without them (`bench/uncounted.py` has them all, and refuses to start when one is not found). So the
clock, the attributes, the arguments and the branches that counting needs are gone as well, and no production code knows
of it. The bench then looks at its metrics: they must have counted nothing.

Each broker is a process of its own with a ZooKeeper of its own; a client sends it produces of one 100-byte record with
acks=1 over a real socket, one after another. All are asked in turns of `--requests`, in changing order, so that a busy
machine hits all of them. A round gives each broker's time (the client's median) and processor time (of the main
thread, by the kernel's count, for a request), and so a ratio; shown are the medians of the rounds and of the ratios.

    .venv/bin/python bench/metrics.py
    .venv/bin/python bench/metrics.py --rounds 21 --beside before=../klamm-before
"""

import argparse
import asyncio
import gc
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uncounted
import uvloop
from rich.console import Console
from rich.table import Table

from klamm.base.system_environment import SystemEnvironment
from klamm.broker.start.broker import Broker
from klamm.config.broker import BrokerConfig
from klamm.protocol import messages
from klamm.protocol.apis.create_topics import CreateTopicsRequest
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import Record, build_batch
from klamm.zookeeper.server import ZooKeeperServer

ROOT = Path(__file__).resolve().parent.parent
TARGET = 1.02
RECORD_BYTES = 100
# What a round measures is the sum of so many turns.
TURNS = 8
COUNTED, UNCOUNTED = "counted", "not counted"


# -- the broker's process ---------------------------------------------------------------------------------------------


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
    dispatcher: Any = broker.parts.dispatcher
    # A checkout from before counting has none.
    print(dispatcher.statistics[ApiKey.PRODUCE].count if hasattr(dispatcher, "statistics") else 0, flush=True)
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
    """A broker of the klamm in `source`."""

    def __init__(self, name: str, source: Path, directory: Path) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(directory)],
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def connect(self) -> None:
        assert self.process.stdout is not None
        self._connection = Connection(int(self.process.stdout.readline()))
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        self._connection.ask(
            ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
        )
        batch = build_batch([Record(key=None, value=bytes(RECORD_BYTES))])
        body = ProduceRequest.of(None, 1, 10_000, [("t", [(0, batch)])])
        answer: ProduceResponse = self._connection.ask(ApiKey.PRODUCE, 9, body)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer
        self._frame = b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, 1, "bench", body)))
        self._times_s: list[float] = []
        self._spent_s = 0.0

    def take_turn(self, requests: int) -> None:
        exchange, frame, clock_s = self._connection.exchange, self._frame, time.perf_counter
        before_s = self._cpu_s()
        for _ in range(requests):
            began_s = clock_s()
            exchange(frame)
            self._times_s.append(clock_s() - began_s)
        self._spent_s += self._cpu_s() - before_s

    def end_round(self) -> Measured:
        times_s, spent_s = self._times_s, self._spent_s
        self._times_s, self._spent_s = [], 0.0
        return Measured(statistics.median(times_s) * 1e6, spent_s / len(times_s) * 1e6)

    def _cpu_s(self) -> float:
        """Of the main thread, in nanoseconds of the kernel."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9

    def stop(self) -> int:
        """Returns how many produces the broker has counted."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        counted = self.process.stdout.read()
        self.process.wait(30)
        return int(counted or 0)


@contextmanager
def sides(sources: dict[str, Path]) -> Iterator[list[Side]]:
    with tempfile.TemporaryDirectory() as directory:
        running: list[Side] = []
        uncounted.make(ROOT, Path(directory, "uncounted"))
        sources = {UNCOUNTED: Path(directory, "uncounted"), **sources, COUNTED: ROOT}
        try:
            for number, (name, source) in enumerate(sources.items()):
                running.append(Side(name, source, Path(directory, str(number))))
            for side in running:
                side.connect()
            yield running
        finally:
            counts = {side.name: side.stop() for side in running}
    if counts[UNCOUNTED] or not counts[COUNTED]:
        raise SystemExit(f"produces counted: {counts}; expected none for {UNCOUNTED!r}, and some for {COUNTED!r}")


def measure(running: list[Side], rounds: int, requests: int) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {side.name: [] for side in running}
    for number in range(rounds + 1):
        for turn in range(TURNS):
            first = (number + turn) % len(running)
            for side in running[first:] + running[:first]:
                side.take_turn(requests // TURNS)
        for side in running:
            measured = side.end_round()
            if number:  # The first round warms up.
                found[side.name].append(measured)
    return found


def show(found: dict[str, list[Measured]], rounds: int) -> None:
    base, *others = found
    table = Table(title=f"Produce of a {RECORD_BYTES}-byte record, us a request, {rounds} rounds, beside {base}")
    for column in ("what", "broker", "median", f"ratio (≤ {TARGET})", "middle half", "all"):
        table.add_column(column, justify="left" if column in ("what", "broker") else "right", no_wrap=True)
    for number, what in enumerate(("p50", "CPU")):
        bases = [measured[number] for measured in found[base]]
        table.add_row(what, base, f"{statistics.median(bases):.2f}", "", "", "")
        for name in others:
            ones = [measured[number] for measured in found[name]]
            ratios = sorted(one / other for one, other in zip(ones, bases, strict=True))
            low, middle, high = statistics.quantiles(ratios, n=4)
            table.add_row(
                what,
                name,
                f"{statistics.median(ones):.2f}",
                f"{middle:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{ratios[0]:.3f} to {ratios[-1]:.3f}",
            )
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=4_000, help="produces of a round for each broker")
    parser.add_argument(
        "--beside", metavar="NAME=DIRECTORY", action="append", default=[], help="another checkout of klamm"
    )
    parser.add_argument("--serve", metavar="DIRECTORY", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve))
        return
    sources = {name: Path(directory) for name, _, directory in (text.partition("=") for text in options.beside)}
    with sides(sources) as running:
        found = measure(running, options.rounds, options.requests)
    show(found, options.rounds)


if __name__ == "__main__":
    main()
