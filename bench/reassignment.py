"""A loaded klamm cluster is reassigned: what a client notices, with and without a throttle, and when something dies.

    reassignment.py                         five brokers, 400 MB to move, 40 MB/s for each broker

| row        | what happens while the client writes                                                        |
|------------|---------------------------------------------------------------------------------------------|
| quiet      | nothing                                                                                     |
| unlimited  | every partition moves, without a throttle                                                   |
| throttled  | every partition moves back under the throttle                                               |
| killed     | every partition moves again under the throttle; a broker and the tool are killed with -9,   |
|            | the broker starts again, and the execution is resumed                                       |

The client writes single records with acks=all at a steady rate; a row has its delays from the call to the
acknowledgement. Beside it two producers write numbered records, of which every acknowledged one must be there at the
end. Exit code 1 when a record was lost, a throttle was left, or a partition is not where the plan has it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import sides  # noqa: F401  it makes tests/ importable
from rich.console import Console
from rich.table import Table

from klamm.cli.reassign.access import BrokerAccess
from klamm.cli.reassign.throttles import ConfigKey
from klamm.cli.shared.options import ClusterOptions
from klamm.config.throttles import BROKER_THROTTLES, TOPIC_THROTTLES
from klamm.testing import Cluster
from support.durability.check import check_load
from support.durability.load import Load

TOOL = [sys.executable, "-m", "klamm.cli.main", "reassign"]
BROKERS, PARTITIONS, REPLICAS = 5, 10, 2
MOVED, WRITTEN = "moved", "written"
RECORD = b"x" * 10_000
MEGABYTE = 1_000_000


@dataclass
class Delays:
    """The milliseconds from the call to the acknowledgement of each record."""

    milliseconds: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Client:
    """Writes single records at a steady rate, in a thread of its own, until it is told to stop."""

    def __init__(self, bootstrap: str, records_per_s: int) -> None:
        self.delays = Delays()
        self._rate, self._stop = records_per_s, threading.Event()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._stop.is_set():
            while sent < (time.monotonic() - began) * self._rate:
                self._send(sent % PARTITIONS)
                sent += 1
            self._producer.poll(0.001)
        self._producer.flush(60)

    def _send(self, partition: int) -> None:
        called, delays = time.monotonic(), self.delays

        def acknowledged(error: Any, _message: Any) -> None:
            if error is None:
                delays.milliseconds.append((time.monotonic() - called) * 1000)

        self._producer.produce(MOVED, b"x" * 100, partition=partition, on_delivery=acknowledged)

    def take(self) -> Delays:
        """What was noticed since the last call."""
        taken, self.delays = self.delays, Delays()
        return taken

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Reassigned:
    """The cluster and its plans: `move(0)` places each partition on two neighbours, `move(n)` n brokers further."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        self.at = ["--bootstrap-server", cluster.bootstrap]

    def targets(self, shift: int) -> dict[int, list[int]]:
        return {
            number: [(number + shift + offset) % BROKERS for offset in range(REPLICAS)] for number in range(PARTITIONS)
        }

    def plan(self, shift: int) -> Path:
        file = self.directory / f"plan-{shift}-{time.monotonic_ns()}.json"
        partitions = [
            {"topic": topic, "partition": number, "replicas": target}
            for topic in (MOVED, WRITTEN)
            for number, target in self.targets(shift).items()
        ]
        file.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return file

    @contextmanager
    def execution(self, plan: Path, *options: str) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of an execution; the process."""
        command = [*TOOL, "execute", "--reassignment-json-file", str(plan), *options, "--yes", "--json", *self.at]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            self.pid = process.pid
            yield (json.loads(line) for line in process.stdout)

    def move(self, shift: int, *options: str) -> float:
        """Executes a plan to its end; returns the seconds."""
        began = time.monotonic()
        with self.execution(self.plan(shift), *options) as events:
            last = list(events)[-1]
        assert last["event"] == "finished" and last["complete"], last
        return time.monotonic() - began

    def move_with_deaths(self, shift: int, broker: int, *options: str) -> float:
        """The same, while the broker and the tool are killed."""
        began, plan = time.monotonic(), self.plan(shift)
        with self.execution(plan, *options) as events:
            for event in events:
                if event["event"] == "progress" and event["moved_bytes"] > event["total_bytes"] // 4:
                    break
            os.kill(self.pid, signal.SIGKILL)
            self.cluster.kill(broker)
        self.cluster.start(broker)
        with self.execution(plan, "--resume") as events:
            last = list(events)[-1]
        assert last["event"] == "finished" and last["complete"], last
        return time.monotonic() - began

    def is_at(self, shift: int) -> bool:
        return all(
            self.cluster.replicas(topic, number) == target
            for topic in (MOVED, WRITTEN)
            for number, target in self.targets(shift).items()
        )

    def throttles(self) -> dict[ConfigKey, str]:
        entities: dict[str, Sequence[str]] = {f"brokers/{broker}": BROKER_THROTTLES for broker in range(BROKERS)}
        entities |= {f"topics/{topic}": TOPIC_THROTTLES for topic in (MOVED, WRITTEN)}
        keys = [ConfigKey(entity, name) for entity, names in entities.items() for name in names]
        found = ClusterOptions(self.cluster.bootstrap).call(lambda client: BrokerAccess(client).read_configs(keys))
        return {key: value for key, value in found.items() if value is not None}


def fill(bootstrap: str, size_bytes: int) -> None:
    """Writes as much to the partitions, all in all."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.kbytes": 50_000})
    for number in range(size_bytes // len(RECORD)):
        while True:
            try:
                producer.produce(MOVED, RECORD, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=400, help="size of the topic that moves (default 400)")
    parser.add_argument("--throttle", type=int, default=40, help="megabytes a second for each broker (default 40)")
    parser.add_argument("--rate", type=int, default=100, help="records a second of the client (default 100)")
    parser.add_argument("--seconds", type=float, default=10, help="length of the quiet row (default 10)")
    arguments = parser.parse_args()
    console = Console()
    throttle = ("--throttle", str(arguments.throttle * MEGABYTE))
    with (
        tempfile.TemporaryDirectory(prefix="klamm-reassignment-") as directory,
        Cluster(BROKERS) as cluster,
    ):
        for topic in (MOVED, WRITTEN):
            cluster.create_topic(topic, PARTITIONS, REPLICAS)
        reassigned = Reassigned(cluster, Path(directory))
        reassigned.move(0)
        fill(cluster.bootstrap, arguments.megabytes * MEGABYTE)
        load = Load(cluster.bootstrap, WRITTEN, PARTITIONS, records_per_s=200)
        client = Client(cluster.bootstrap, arguments.rate)
        table = Table("while the client writes", "seconds", "MB/s copied", "p50 ms", "p99 ms", "longest ms")
        problems: list[str] = []

        def row(name: str, run: Callable[[], float], shift: int, *, moves: bool = True) -> None:
            client.take()
            seconds = run()
            delays = client.take()
            copied = arguments.megabytes * REPLICAS / seconds if moves else 0
            texts = [f"{delays.percentile(share):.1f}" for share in (0.5, 0.99, 1)]
            table.add_row(name, f"{seconds:.1f}", f"{copied:.0f}" if moves else "-", *texts)
            if not reassigned.is_at(shift):
                problems.append(f"{name}: a partition is not where the plan has it")
            if left := reassigned.throttles():
                problems.append(f"{name}: throttles are left: {left}")

        def quiet() -> float:
            time.sleep(arguments.seconds)
            return float(arguments.seconds)

        row("quiet", quiet, 0, moves=False)
        row("unlimited", lambda: reassigned.move(2), 2)
        row("throttled", lambda: reassigned.move(0, *throttle), 0)
        controller = cluster.controller_id()
        victim = next(broker for broker in cluster.broker_ids if broker != controller)
        row("killed", lambda: reassigned.move_with_deaths(2, victim, *throttle), 2)
        client.stop()
        load.finish()
        reports = check_load(cluster.bootstrap, load)
    console.print(table)
    acknowledged = sum(report.acknowledged for report in reports)
    missing = sum(report.missing for report in reports)
    console.print(f"{acknowledged} numbered records acknowledged, {missing} of them lost", highlight=False)
    problems += [problem for report in reports for problem in report.problems()]
    for problem in problems:
        console.print(problem, highlight=False, soft_wrap=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
