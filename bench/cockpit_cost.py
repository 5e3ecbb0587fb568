"""What the cockpit costs a cluster during a failover: one reader of its event stream, in turns with none.

Three klamm brokers hold all partitions, three replicas each. In each run one of them is killed that is not the
controller, and its session ends at once. Measured from then on, until nothing waits for a broker and for at least
`--window` seconds: the CPU time of the two brokers that are left; how long the controller works, which is the
processing time of its events, by its own records; and when it has the last answer of the brokers that it has told of
the new leaders. `klamm cockpit` runs all the time, as a process of its own on the same cores, and reads nothing without
a reader.

    .venv/bin/python bench/cockpit_cost.py
    .venv/bin/python bench/cockpit_cost.py --partitions 1000 --pairs 1 --json cost.json
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from rich.console import Console
from rich.table import Table
from sides import KlammBroker, KlammZooKeeper, listener, number, process_cpu_seconds, process_rss_bytes

from support.clusters import KLAMM
from support.processes import free_port

BROKERS = 3
PARTITIONS_PER_TOPIC = 100
TOPICS_PER_REQUEST = 20
TIMEOUT_S = 300.0
ROWS = {
    "controller_s": "the controller's events, s",
    "told_s": "until all brokers have answered, s",
    "brokers_cpu_s": "CPU of the two brokers, s",
    "cockpit_cpu_s": "CPU of the cockpit, s",
}


class Cluster:
    """The brokers, their HTTP ports, and a cockpit beside them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        zookeeper = KlammZooKeeper(directory / "zookeeper")
        stack.callback(zookeeper.kill)
        zookeeper.start()
        self.ports = [free_port() for _ in range(BROKERS)]
        self.brokers = [
            KlammBroker(
                directory / f"broker-{id_}",
                zookeeper.connect,
                broker_id=id_,
                properties={
                    "klamm.metrics.port": self.ports[id_],
                    "auto.leader.rebalance.enable": "false",
                    "offsets.topic.num.partitions": 1,
                },
            )
            for id_ in range(BROKERS)
        ]
        for broker in self.brokers:
            stack.callback(broker.kill)
            broker.start()
        self.zookeeper = KazooClient(zookeeper.connect)
        self.zookeeper.start()
        stack.callback(self.zookeeper.stop)
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)
        command = [KLAMM, "cockpit", "--bootstrap-server", self.bootstrap, "--zookeeper", zookeeper.connect, "--json"]
        self.cockpit = subprocess.Popen([str(each) for each in command], stdout=subprocess.PIPE, text=True)
        stack.callback(self.cockpit.wait)
        stack.callback(self.cockpit.kill)
        assert self.cockpit.stdout is not None
        self.url = json.loads(self.cockpit.stdout.readline())["url"]

    def create(self, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 300_000})
        names = [f"bench-{n:04}" for n in range(partitions // PARTITIONS_PER_TOPIC)]
        for first in range(0, len(names), TOPICS_PER_REQUEST):
            some = [NewTopic(name, PARTITIONS_PER_TOPIC, BROKERS) for name in names[first : first + TOPICS_PER_REQUEST]]
            for created in admin.create_topics(some, operation_timeout=0, request_timeout=TIMEOUT_S).values():
                created.result()
            self.wait_until_in_sync()

    def get(self, broker_id: int, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[broker_id]}{path}", timeout=30) as answer:
            body: bytes = answer.read()
            return body

    def controller_id(self) -> int:
        return int(json.loads(self.zookeeper.get("/controller")[0])["brokerid"])

    def status(self, query: str = "?brief") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get(self.controller_id(), f"/controller{query}"))
        return found

    def wait_until_in_sync(self) -> None:
        def is_in_sync() -> bool:
            status = self.status("")
            out_of_order = [status[key]["count"] for key in ("offline_partitions", "under_replicated_partitions")]
            return out_of_order == [0, 0] and len(status["brokers"]) == BROKERS and not status["event_queue_size"]

        until(is_in_sync)

    def pid(self, broker_id: int) -> int:
        return listener(int(self.brokers[broker_id].bootstrap.rsplit(":", 1)[1]))

    def events(self, after_ms: float) -> list[dict[str, Any]]:
        """The controller's records of events that ended later."""
        records = map(json.loads, self.get(self.controller_id(), "/controller/events").splitlines())
        return [each for each in records if each["kind"] == "event" and each["time_ms"] >= after_ms]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"nothing came of it in {TIMEOUT_S:.0f} s")
        time.sleep(0.5)


@contextmanager
def reading(url: str) -> Iterator[dict[str, int]]:
    """One reader of the stream of events, as a page is. Counts bytes and events."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    opening = HTTPConnection(parts.hostname, parts.port)
    opening.request("GET", f"{parts.path}?{parts.query}")
    cookie = opening.getresponse().headers["set-cookie"].partition(";")[0]
    opening.close()
    stream = HTTPConnection(parts.hostname, parts.port)
    stream.request("GET", "/events", headers={"Cookie": cookie})
    answer = stream.getresponse()
    counts = {"bytes": 0, "now": 0, "partitions": 0, "record": 0}

    def read() -> None:
        # The connection is closed below.
        with suppress(IncompleteRead):
            while piece := answer.read1(1 << 20):
                counts["bytes"] += len(piece)
                for kind in ("now", "partitions", "record"):
                    counts[kind] += piece.count(b"event: %s\n" % kind.encode())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield counts
    finally:
        stream.sock.shutdown(2)
        thread.join(10)
        stream.close()


def run(cluster: Cluster, victim: int, with_reader: bool, window_s: float) -> dict[str, float]:
    left = [id_ for id_ in range(BROKERS) if id_ != victim]
    with ExitStack() as stack:
        counts = stack.enter_context(reading(cluster.url)) if with_reader else {}
        # The reader has its first look behind it, and the brokers what they had to do before.
        time.sleep(4)
        pids = [cluster.pid(id_) for id_ in left]
        cluster.brokers[victim].kill()
        began_ms = time.time() * 1000
        before, cockpit_before = sum(map(process_cpu_seconds, pids)), process_cpu_seconds(cluster.cockpit.pid)
        cluster.zookeeper.delete(f"/brokers/ids/{victim}")
        time.sleep(window_s)
        until(lambda: not any(each["queue_size"] or each["sending"] for each in cluster.status()["brokers"]))
        cpu, cockpit_cpu = sum(map(process_cpu_seconds, pids)), process_cpu_seconds(cluster.cockpit.pid)
        events = cluster.events(began_ms)
        answers_ms = [each["time_ms"] for each in events if each["event"] == "LeaderAndIsrResponseReceived"]
        found = {
            "controller_s": sum(each["processing_time_ms"] for each in events) / 1000,
            "told_s": (max(answers_ms) - began_ms) / 1000,
            "brokers_cpu_s": cpu - before,
            "cockpit_cpu_s": cockpit_cpu - cockpit_before,
            "longest_event_s": max(each["processing_time_ms"] for each in events) / 1000,
            "under_replicated": cluster.status("")["under_replicated_partitions"]["count"],
            "cockpit_rss_mb": process_rss_bytes(cluster.cockpit.pid) / 1e6,
            **counts,
        }
    cluster.brokers[victim].start()
    cluster.wait_until_in_sync()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=7, help="runs with a reader, and as many without (default 7)")
    parser.add_argument("--window", type=float, default=12.0, help="the least seconds that are measured (default 12)")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    given = parser.parse_args()
    console = Console()
    samples: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    directory = Path(tempfile.mkdtemp(prefix="klamm-cockpit-cost-"))
    try:
        with ExitStack() as stack:
            cluster = Cluster(directory, stack)
            began = time.monotonic()
            cluster.create(given.partitions)
            console.print(f"{given.partitions:,} partitions after {time.monotonic() - began:.0f} s")
            for _ in range(given.pairs):
                for side, found_so_far in samples.items():
                    began = time.monotonic()
                    victim = next(id_ for id_ in range(BROKERS) if id_ != cluster.controller_id())
                    found = run(cluster, victim, side == "with", given.window)
                    found_so_far.append(found)
                    texts = " ".join(f"{key}={number(value)}" for key, value in found.items())
                    console.print(f"{side}: {texts} ({time.monotonic() - began:.0f} s)", highlight=False)
                    if given.json is not None:
                        given.json.write_text(json.dumps(samples, indent=1) + "\n")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    show(samples, given.partitions, console)


def show(samples: Mapping[str, list[dict[str, float]]], partitions: int, console: Console) -> None:
    table = Table(title=f"A broker of three dies with {partitions:,} partitions: medians (least to most)")
    for title in ("", "without a reader", "with one reader", "ratio of medians"):
        table.add_column(title, justify="left" if not title else "right")
    for key, title in ROWS.items():
        texts, medians = [], []
        for found in samples.values():
            values = [each[key] for each in found]
            medians.append(statistics.median(values))
            texts.append(f"{medians[-1]:.2f} ({min(values):.2f} to {max(values):.2f})")
        ratio = f"{medians[1] / medians[0]:.2f}" if medians[0] else "-"
        table.add_row(title, *texts, ratio)
    console.print(table)
    sizes = [each["cockpit_rss_mb"] for each in samples["with"]]
    console.print(f"The cockpit's process: at most {max(sizes):.0f} MB of memory")


if __name__ == "__main__":
    main()
