"""A cluster that lives long: real clients, rolling restarts and kills, and what it uses at the end as at the beginning.

    soak.py --minutes 60              three broker processes, ZooKeeper, and an hour of wall time
    soak.py --minutes 3 --html F      a short run, its figures over time as a page
    soak.py --virtual-hours 24        a day in the simulator: objects, files, bytes and znodes

Three topics are under load: one keeps all records, one deletes them after a minute, and one is compacted. Each has an
idempotent producer and a group of two consumers that commit. In every cycle brokers 1 and 2 are restarted in turn, one
of them is killed, then the controller; topics, groups and clients come and go, and a configuration changes. Broker 0
and ZooKeeper live through all of it, so their figures show what grows with time; at the end they are restarted too, and
every log is read once more from its start.

Exit code 1 when a figure has grown beyond its bound (`BOUNDS`), or an acknowledged record is lost or doubled.
"""

import argparse
import contextlib
import dataclasses
import json
import logging
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import sides
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from rich.console import Console
from rich.table import Table

from klamm.testing import Cluster
from support.durability.brokers import Brokers, KlammBrokers
from support.soak.figures import Bound, Growth, Look, directory_figures, growths, process_figures
from support.soak.load import Problems, Readers, SoakTopic, Writer, check_log, read_all
from support.soak.page import page
from support.soak.probe import Probe

BROKERS = 3
SURVIVOR = 0
"""The broker that no fault hits."""
SESSION_TIMEOUT_MS = 4000
PROPERTIES: dict[str, object] = {
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": 5,
    "log.retention.check.interval.ms": 5_000,
    "log.cleaner.backoff.ms": 5_000,
    "log.segment.delete.delay.ms": 5_000,
    "offsets.topic.segment.bytes": 1 << 20,
    "offsets.topic.num.partitions": 5,
    "min.insync.replicas": 2,
    "delete.topic.enable": "true",
}
RETENTION_MS, ROLL_MS = 60_000, 20_000
TOPICS = (
    SoakTopic("soak-plain", 3, 300, {}),
    SoakTopic("soak-deleted", 3, 600, {"retention.ms": str(RETENTION_MS), "segment.ms": str(ROLL_MS)}),
    SoakTopic(
        "soak-compacted",
        3,
        600,
        {"cleanup.policy": "compact", "segment.ms": str(ROLL_MS), "min.cleanable.dirty.ratio": "0.1"},
        keys=1_000,
    ),
)
PROBED = "soak-probe"
PASSING_CLIENTS = 20
CHANGES_KEPT_S = 15 * 60
"""Kafka keeps a notification of a changed configuration for so long."""
CYCLE_S = 60
PROBE_S = 0.02


def bounds(cycles_kept: int) -> list[Bound]:
    """What may grow, and how far. docs/durability.md has the same table."""
    deleted_bytes = 600 * 280 * (RETENTION_MS + ROLL_MS + 15_000) / 1000 / (1 << 20) * BROKERS
    return [
        Bound("RSS MB", factor=1.15, slack=16, why="allocators keep some of what a peak took"),
        Bound("worker MB", most=250, why="the cleaner's buffer of 128 MB, and what a compiled cleaner imports"),
        Bound("descriptors", slack=30, why="connections and segments come and go"),
        Bound("deleted files open", slack=10, why="a file that is read while it is deleted"),
        Bound("tasks", slack=20),
        Bound("ZooKeeper's directory MB", most=400, why="two snapshots, and the logs between them of 64 MB"),
        Bound("ZooKeeper's directory files", slack=2, most=8),
        Bound("znodes", slack=10 + cycles_kept * 2, why="notifications stay for 15 minutes"),
        Bound("logs soak-deleted MB", factor=1.2, most=1.5 * deleted_bytes),
        Bound("logs soak-deleted files", factor=1.3, slack=40),
        Bound("logs soak-probe MB", factor=1.3, slack=8),
        Bound("logs soak-compacted MB", factor=1.3, slack=30),
        Bound("logs soak-compacted files", factor=1.3, slack=60),
        Bound("logs __consumer_offsets MB", factor=1.3, slack=30),
        Bound("logs __consumer_offsets files", factor=1.3, slack=60),
        Bound("logs passing files", slack=60, why="deleted topics are on disk for file.delete.delay.ms"),
        Bound("logs other files", slack=5),
        Bound("produce p99 ms", factor=2, slack=10),
        Bound("fetch p99 ms", factor=2, slack=10),
        Bound("group load ms", most=1_000),
    ]


# -- looking ----------------------------------------------------------------------------------------------------------


class Looks:
    """Takes the figures every `interval_s`, in a thread, until `finish`."""

    def __init__(self, cluster: Cluster, brokers: Brokers, probe: Probe, interval_s: float) -> None:
        self.looks: list[Look] = []
        self.faults_under_way = 0
        self.seen_fault = False
        self._cluster, self._brokers, self._probe, self._interval_s = cluster, brokers, probe, interval_s
        self._zookeeper_pid = listener_pid(cluster)
        self._read_up_to = {broker: 0 for broker in brokers.broker_ids}
        self._stop = threading.Event()
        self.started_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def fault(self) -> Iterator[None]:
        self.seen_fault = True
        self.faults_under_way += 1
        try:
            yield
        finally:
            self.seen_fault = True
            self.faults_under_way -= 1

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            is_calm = not self.seen_fault and not self.faults_under_way
            self.seen_fault = False
            look = Look(time.monotonic() - self.started_at, is_calm, latencies_ms=self._probe.take())
            self._look(look.figures)
            self.looks.append(look)

    def _look(self, figures: dict[str, float]) -> None:
        figures.update(process_figures("zookeeper", self._zookeeper_pid))
        figures.update(zookeeper_figures(self._cluster))
        figures.update(directory_figures("ZooKeeper's directory", self._cluster.data_directory("zookeeper")))
        logs: dict[str, float] = {}
        load_ms = []
        for broker in self._cluster.brokers:
            for name, value in directory_figures("logs", broker.data_directory, topic_of).items():
                logs[name] = logs.get(name, 0) + value
            load_ms += self._group_loads(broker.id)
            if broker.pid is not None:
                figures.update(process_figures(f"broker {broker.id}", broker.pid))
                with contextlib.suppress(OSError):
                    figures.update(self._scraped(broker.id))
        figures.update(logs)
        if load_ms:
            figures["group load ms"] = max(load_ms)
        figures["lines of the log MB"] = sum(
            path.stat().st_size for path in self._cluster.directory.glob("*.log") if path.exists()
        ) / (1 << 20)

    def _scraped(self, broker: int) -> dict[str, float]:
        port = int(self._brokers.registration(broker).get("jmx_port", -1))
        if port < 0:
            return {}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        found = re.search(r"^klamm_eventloop_tasks(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE | re.IGNORECASE)
        return {} if found is None else {f"broker {broker} tasks": float(found[1])}

    def _group_loads(self, broker: int) -> list[int]:
        """How long the partitions of __consumer_offsets took that were loaded since the last look."""
        path = self._brokers.server_log(broker)
        with contextlib.suppress(FileNotFoundError), path.open("rb") as log:
            log.seek(self._read_up_to[broker])
            text = log.read().decode(errors="replace")
            self._read_up_to[broker] = log.tell()
            return [int(each) for each in re.findall(r"loaded [1-9]\d* groups of \S+ in (\d+) ms", text)]
        return []


def topic_of(directory: str) -> str:
    """The topic of a partition's directory, the topics that come and go as one; also while it is being deleted."""
    topic = directory.partition(".")[0].rpartition("-")[0]
    if topic.startswith("passing"):
        return "passing"
    return topic if topic.startswith(("soak-", "__")) else "other"


def listener_pid(cluster: Cluster) -> int:
    return sides.listener(int(cluster.zookeeper.rsplit(":", 1)[1]))


def zookeeper_figures(cluster: Cluster) -> dict[str, float]:
    with contextlib.suppress(OSError):
        values = dict(line.split("\t", 1) for line in sides.four_letters(cluster.zookeeper, "mntr").splitlines())
        return {"znodes": float(values["zk_znode_count"]), "watches": float(values["zk_watch_count"])}
    return {}


# -- faults -----------------------------------------------------------------------------------------------------------


class Schedule:
    """Cycles of faults and of things that come and go, until the time is over."""

    def __init__(self, cluster: Cluster, brokers: Brokers, looks: Looks, console: Console, cycle_s: float) -> None:
        self._cluster, self._brokers, self._looks, self._console = cluster, brokers, looks, console
        self._cycle_s = cycle_s
        self.cycles = self.restarts = self.kills = self.controllers_killed = 0

    def run(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            began_at = time.monotonic()
            self._cycle()
            self.cycles += 1
            time.sleep(max(0.0, min(ends_at, began_at + self._cycle_s) - time.monotonic()))

    def _cycle(self) -> None:
        self._come_and_go()
        others = [broker for broker in self._brokers.broker_ids if broker != SURVIVOR]
        with self._looks.fault():
            for broker in others:
                self._cluster.restart(broker)
                self.restarts += 1
                self._in_sync()
            self._kill(others[self.cycles % len(others)])
            controller = self._brokers.move_controller(lambda broker: broker != SURVIVOR)
            self.controllers_killed += 1
            self._kill(controller)
        self._console.print(
            f"{time.monotonic() - self._looks.started_at:.0f} s: cycle {self.cycles + 1}", highlight=False
        )

    def _kill(self, broker: int) -> None:
        self._cluster.kill(broker)
        self.kills += 1
        self._brokers.wait_until_unregistered(broker)
        self._cluster.start(broker)
        self._in_sync()

    def _in_sync(self) -> None:
        for topic in TOPICS:
            self._brokers.wait_for_full_isr(topic.name, topic.partitions)

    def _come_and_go(self) -> None:
        """A topic with records, a group with offsets of it, and clients with ids of their own; then none of them."""
        name, bootstrap = f"passing-{self.cycles}", self._brokers.bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(name, 3, BROKERS)])[name].result(60)
        for number in range(PASSING_CLIENTS):
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "client.id": f"{name}-{number}",
                    "enable.idempotence": True,
                    "log_level": 0,
                }
            )
            producer.produce(name, b"x" * 100, partition=number % 3)
            producer.flush(60)
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([name])
        if consumer.consume(PASSING_CLIENTS, 10):
            consumer.commit(asynchronous=False)
        consumer.close()
        change = ConfigEntry("retention.ms", str(10**9 + self.cycles), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPICS[0].name, incremental_configs=[change])
        admin.incremental_alter_configs([resource])[resource].result(60)
        admin.delete_consumer_groups([name])[name].result(60)
        admin.delete_topics([name])[name].result(60)


# -- a run ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Result:
    looks: list[Look]
    growths: list[Growth]
    problems: list[str]
    lines: list[str]


def soak(arguments: argparse.Namespace, directory: Path, console: Console) -> Result:
    problems = Problems()
    wanted = set(arguments.topics.split(","))
    topics = [topic for topic in TOPICS if topic.name.removeprefix("soak-") in wanted]
    cluster = Cluster(
        BROKERS, directory=directory, properties=PROPERTIES, zookeeper_session_timeout_ms=SESSION_TIMEOUT_MS
    )
    with cluster, contextlib.ExitStack() as stack:
        brokers = KlammBrokers(cluster)
        stack.callback(brokers.close)
        for topic in TOPICS:
            cluster.create_topic(topic.name, topic.partitions, BROKERS, topic.configs)
        cluster.create_topic(PROBED, 1, BROKERS, {"retention.ms": str(RETENTION_MS), "segment.ms": str(ROLL_MS)})
        probe = Probe([(broker.host, broker.port) for broker in cluster.brokers], PROBED, PROBE_S)
        writers = [Writer(brokers.bootstrap, topic, problems) for topic in topics]
        readers = [Readers(brokers.bootstrap, topic, problems) for topic in topics]
        looks = Looks(cluster, brokers, probe, arguments.look)
        schedule = Schedule(cluster, brokers, looks, console, arguments.cycle)
        schedule.run(arguments.minutes * 60)
        looks.finish()
        console.print("the last records, and a restart of every broker", highlight=False)
        for writer in writers:
            writer.finish()
        for reader, writer in zip(readers, writers, strict=True):
            reader.finish(writer.acknowledged)
        probe.finish()
        for broker in brokers.broker_ids:
            cluster.restart(broker)
            for topic in TOPICS:
                brokers.wait_for_full_isr(topic.name, topic.partitions)
        for topic, writer in zip(topics, writers, strict=True):
            check_log(topic, writer.acknowledged, read_all(brokers.bootstrap, topic, problems), problems)
    kept = int(CHANGES_KEPT_S // arguments.cycle) + 1
    # Until then nothing is old enough to be deleted.
    warm_up_s = max(arguments.cycle, (RETENTION_MS + ROLL_MS) / 1000)
    found = growths(looks.looks, bounds(kept), warm_up_s)
    lines = [
        f"{looks.looks[-1].at_s / 60:.1f} minutes, {schedule.cycles} cycles: {schedule.restarts} clean restarts, "
        f"{schedule.kills} kills, {schedule.controllers_killed} of them the controller",
        *(f"{writer.topic.name}: {writer.acknowledged_count} records acknowledged" for writer in writers),
    ]
    lost = [f"{kind}: {count}" for kind, count in problems.counts.items()] + problems.examples
    return Result(looks.looks, found, lost, lines)


def table(result: Result, title: str) -> Table:
    made = Table(title=title)
    for heading in ("figure", "first", "last", "bound"):
        made.add_column(heading, justify="left" if heading == "figure" else "right", no_wrap=True)
    for each in result.growths:
        colour = "red" if each.is_too_much else "default"
        bound = "" if each.limit is None else f"≤ {sides.number(each.limit)}"
        made.add_row(each.figure, sides.number(each.first), f"[{colour}]{sides.number(each.last)}[/]", bound)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="of wall time (default 60)")
    parser.add_argument("--virtual-hours", type=float, help="instead: so long in the simulator")
    parser.add_argument("--seed", type=int, default=1, help="of the simulated run (default 1)")
    parser.add_argument("--topics", default="plain,deleted,compacted", help="which of them are written to and checked")
    parser.add_argument("--cycle", type=float, default=CYCLE_S, help=f"seconds of a cycle (default {CYCLE_S})")
    parser.add_argument("--look", type=float, default=5, help="seconds between two looks (default 5)")
    parser.add_argument("--html", type=Path, help="also write the figures over time as a page to this file")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    parser.add_argument("--dir", type=Path, help="where data goes and stays (default: a temporary directory, removed)")
    arguments = parser.parse_args()
    console = Console(width=max(110, Console().width))
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # that a server is not up yet is no news
    with contextlib.ExitStack() as stack:
        if arguments.virtual_hours:
            from support.soak.virtual import virtual_soak

            looks, found, lines = virtual_soak(arguments.virtual_hours, arguments.seed)
            result = Result(looks, found, [], lines)
            title = f"soak: {arguments.virtual_hours:g} virtual hours, seed {arguments.seed}"
        else:
            directory = arguments.dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="klamm-soak-")))
            result = soak(arguments, directory, console)
            title = f"soak: {arguments.minutes:g} minutes, three brokers"
    console.print(table(result, title))
    problems = [f"{each.figure} has grown from {each.first:.4g} to {each.last:.4g}, allowed are {each.limit:.4g}"
                for each in result.growths if each.is_too_much and each.limit is not None]  # fmt: skip
    for line in [*result.lines, *(f"PROBLEM: {problem}" for problem in [*result.problems, *problems])]:
        console.print(line, highlight=False, soft_wrap=True)
    if arguments.html:
        arguments.html.write_text(page(title, result.looks, result.growths, [*result.problems, *problems]))
    if arguments.json:
        values: dict[str, Sequence[Look | Growth]] = {"looks": result.looks, "growths": result.growths}
        written = {name: [dataclasses.asdict(each) for each in found] for name, found in values.items()}
        arguments.json.write_text(json.dumps(written | {"problems": [*result.problems, *problems]}, indent=1) + "\n")
    sys.exit(1 if result.problems or problems else 0)


if __name__ == "__main__":
    main()
