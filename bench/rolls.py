"""One client rolls segments as fast as it can: what that costs the broker, and others. klamm beside Apache Kafka 2.8.2.

| load       | what it sends, each of which begins a segment                                   |
|------------|---------------------------------------------------------------------------------|
| timestamps | 5,000 batches of one small record whose timestamps lie more than a week apart   |
| sizes      | 1,200 records of 230 KB into a topic with segment.bytes=256 KB                  |

Meanwhile one client reads another topic, whose files are not in the page cache, and one deletes records of a third.
Then comes the same load once more, into another topic, and the broker is stopped as soon as it ends. `perf stat` counts
syncs, as root; else there is no count.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from results import Row, results, table
from rich.console import Console
from sides import process_rss_bytes
from steps import Client
from storage import PROGRAMS, Program

from klamm.protocol.apis.delete_records import DeleteRecordsRequest
from klamm.protocol.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import Record, build_batch
from support.oracles import RealZooKeeper, kafka_jars

# Longer than segment.ms.
APART_MS = 8 * 24 * 3600 * 1000
FIRST_MS = 1_000_000_000_000
IN_FLIGHT = 5
COLD_BYTES, COLD_RECORD_BYTES = 60_000_000, 500_000
PAUSE_S = 0.2

FOR_EVER = {"retention.ms": "-1"}

Batches = Iterator[bytes | bytearray]
LOADS: dict[str, tuple[dict[str, str], int, Callable[[int], bytes | bytearray]]] = {
    "timestamps": (FOR_EVER, 5_000, lambda number: build_batch([Record(None, b"", FIRST_MS + number * APART_MS)])),
    "sizes": (
        FOR_EVER | {"segment.bytes": str(256 * 1024)},
        1_200,
        lambda _: build_batch([Record(None, bytes(230_000), FIRST_MS)]),
    ),
}

ROWS: list[Row] = [
    ("load", "the load", "s", None),
    ("segments", "    segments", "", None),
    ("syncs", "    fdatasync and fsync, until the broker has stopped", "", None),
    ("memory", "    memory at its end, more than before", "MB", None),
    ("peak", "    peak of that", "MB", None),
    ("files", "    open files at its end, more than before", "", None),
    ("read", "a read of a cold topic meanwhile, longest", "ms", None),
    ("delete", "DeleteRecords of another topic meanwhile, longest", "ms", None),
    ("stop", "a clean stop right after such a load", "s", None),
]


class Syncs:
    """Counts fdatasync and fsync of a process until it ends."""

    def __init__(self, pid: int, file: Path) -> None:
        self._file = file
        events = "syscalls:sys_enter_fdatasync,syscalls:sys_enter_fsync,syscalls:sys_enter_msync"
        command = ["perf", "stat", "-x,", "-e", events, "-o", str(file), "-p", str(pid)]
        self._perf: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(FileNotFoundError):
            self._perf = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            time.sleep(1)

    def count(self) -> float:
        if self._perf is None:
            return float("nan")
        with contextlib.suppress(ProcessLookupError):
            self._perf.send_signal(signal.SIGINT)
        self._perf.wait()
        found = [re.match(r"(\d+),", line) for line in self._file.read_text().splitlines()]
        return sum(int(match[1]) for match in found if match) if any(found) else float("nan")


def produce(port: int, topic: str, batches: Batches) -> None:
    """acks=1, some requests in flight."""
    client = Client(port)
    waiting = 0
    for batch in batches:
        client.write(ApiKey.PRODUCE, ProduceRequest.of(None, 1, 60_000, [(topic, [(0, batch)])]), 7)
        waiting += 1
        if waiting == IN_FLIGHT:
            _check_produced(client.read())
            waiting -= 1
    for _ in range(waiting):
        _check_produced(client.read())


def _check_produced(frame: bytes) -> None:
    (topic_size,) = struct.unpack_from(">h", frame, 8)
    (code,) = struct.unpack_from(">h", frame, 8 + 2 + topic_size + 4 + 4)
    if code:
        raise SystemExit(f"a produce was answered with error {code}")


class Beside:
    """A client in a thread that asks again and again until `stop`, and remembers the longest answer."""

    def __init__(self, ask: Callable[[], object], before: Callable[[], None] = lambda: None) -> None:
        self.longest_ms = 0.0
        self.count = 0
        self._ask, self._before = ask, before
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping.wait(PAUSE_S):
            self._before()
            began_s = time.perf_counter()
            self._ask()
            self.longest_ms = max(self.longest_ms, 1000 * (time.perf_counter() - began_s))
            self.count += 1

    def stop(self) -> float:
        self._is_stopping.set()
        self._thread.join(300)
        return self.longest_ms


def evict(directory: Path) -> None:
    """Takes a partition's files out of the page cache, as far as they are on the disk."""
    for path in directory.glob("*.log"):
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(program: Program, directory: Path, load: str, part: float) -> dict[str, float]:
    configs, count, batch = LOADS[load]

    def batches() -> Batches:
        return map(batch, range(int(count * part)))

    data = directory / "data"
    program.start(data, ())
    pid, port = program.pid, int(program.bootstrap.rsplit(":", 1)[1])
    admin = AdminClient({"bootstrap.servers": program.bootstrap, "log_level": 0})
    topics = [NewTopic(name, 1, 1, config=configs) for name in ("rolled", "rolled-again")]
    topics += [NewTopic(name, 1, 1, config=FOR_EVER) for name in ("cold", "deleted")]
    for future in admin.create_topics(topics).values():
        future.result()
    time.sleep(1)
    produce(port, "cold", (build_batch([Record(None, os.urandom(COLD_RECORD_BYTES), FIRST_MS)]) for _ in range(120)))
    produce(port, "deleted", (build_batch([Record(None, b"", FIRST_MS)]) for _ in range(2_000)))
    clients = [Client(port), Client(port)]
    offsets = iter(range(1, 2_000))

    def read() -> None:
        want = FetchPartition(partition=0, fetch_offset=60, partition_max_bytes=COLD_RECORD_BYTES)
        body = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=COLD_RECORD_BYTES,
            topics=[FetchTopic(topic="cold", partitions=[want])],
        )
        frame = clients[0].send(ApiKey.FETCH, body, 11)
        if not frame.responses[0].partitions[0].records:
            raise SystemExit("the cold topic could not be read")

    def delete() -> None:
        of = DeleteRecordsRequest.DeleteRecordsTopic
        partition = of.DeleteRecordsPartition(partition_index=0, offset=next(offsets))
        body = DeleteRecordsRequest(topics=[of(name="deleted", partitions=[partition])], timeout_ms=300_000)
        answer = clients[1].send(ApiKey.DELETE_RECORDS, body, 1)
        if answer.topics[0].partitions[0].error_code:
            raise SystemExit("the records could not be deleted")

    read()
    delete()
    syncs = Syncs(pid, directory / "perf.csv")
    memory, files = process_rss_bytes(pid), _files(pid)
    peak = _Peak(pid)
    beside = [Beside(read, lambda: evict(data / "cold-0")), Beside(delete)]
    began_s = time.perf_counter()
    produce(port, "rolled", batches())
    values = {"load": time.perf_counter() - began_s}
    values["segments"] = len(list((data / "rolled-0").glob("*.log")))
    values["memory"] = (process_rss_bytes(pid) - memory) / 1e6
    values["files"] = _files(pid) - files
    values["read"], values["delete"] = (one.stop() for one in beside)
    values["peak"] = (peak.stop() - memory) / 1e6
    produce(port, "rolled-again", batches())
    values["stop"] = program.stop()
    values["syncs"] = syncs.count()
    return values


class _Peak:
    def __init__(self, pid: int) -> None:
        self._pid, self._bytes = pid, 0
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping.wait(0.05):
            self._bytes = max(self._bytes, process_rss_bytes(self._pid))

    def stop(self) -> int:
        self._is_stopping.set()
        self._thread.join()
        return self._bytes


def _files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", choices=[*LOADS], nargs="+", default=[*LOADS])
    parser.add_argument("--part", type=float, default=1.0, help="how much of each load (default 1.0)")
    parser.add_argument("--rounds", type=int, default=1, help="of both programs, in turn (default 1)")
    parser.add_argument("--side", choices=[*PROGRAMS, "both"], default="both", help="measure only one program")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    arguments = parser.parse_args()
    console = Console(width=max(120, Console().width))
    sides = [*PROGRAMS] if arguments.side == "both" else [arguments.side]
    written: dict[str, Any] = {"cores": os.cpu_count()}
    for load in arguments.load:
        samples: dict[str, list[dict[str, float]]] = defaultdict(list)
        for _ in range(arguments.rounds):
            for side in sides:
                with contextlib.ExitStack() as stack:
                    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="klamm-bench-")))
                    zookeeper = RealZooKeeper(
                        kafka_jars(), directory / "zookeeper", properties={"tickTime": 2000}, options=()
                    )
                    stack.callback(zookeeper.kill)
                    zookeeper.start()
                    program = PROGRAMS[side](directory / side, zookeeper)
                    stack.callback(program.kill)
                    samples[program.name].append(measure(program, directory, load, arguments.part))
        written[load] = samples
        console.print(table(results(ROWS, samples), f"segments rolled by {load}", samples))
    if arguments.json:
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
