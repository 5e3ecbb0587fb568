"""klamm beside Apache Kafka 2.8.2, on this machine, with the same librdkafka client, as ratios.

One broker of each program, or with --brokers 3 three, every topic then with a replica on each.

Both programs run at the same time in fresh directories on one disk; the measurements take turns, after unmeasured
rounds that warm the JVM up; what the very first round gave has rows of its own. Each other number is the median of the
rounds. Nothing else should run on the machine.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sides import Kafka, Klamm, Side, number

CLIENT = Path(__file__).with_name("client.py")
MB = 1e6
# More than any measurement writes; reduced on a machine that does not have it.
TOUCHED_BYTES = min(4 << 30, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)

# By the number of brokers: how many 1 KB and 100 B records a transfer has. Three brokers write each three times.
TRANSFERS = {1: (600_000, 3_000_000), 3: (300_000, 1_000_000)}

# What is printed: key, title, unit, whether more is better, and the target for klamm / Kafka (None: for information).
Row = tuple[str, str, str, bool, float | None]
ONE_BROKER: list[Row] = [
    ("produce_1k_first", "produce, acks=all, 1 KB, the first round after the start", "MB/s", True, 2.0),
    ("produce_1k", "produce, acks=all, 1 KB, 1 partition", "MB/s", True, 2.0),
    ("produce_1k_client", "    the client's CPU", "% of a core", True, None),
    ("produce_1k_thread", "    its busiest thread's", "% of a core", True, None),
    ("produce_1k_cpu", "    broker CPU", "s per GB", False, 1.0),
    ("produce_100", "produce, acks=all, 100 B, 1 partition", "MB/s", True, None),
    ("produce_100_client", "    the client's CPU", "% of a core", True, None),
    ("produce_100_thread", "    its busiest thread's", "% of a core", True, None),
    ("produce_100_cpu", "    broker CPU", "s per GB", False, 1.0),
    ("consume_1k_first", "consume, 1 KB, the first round after the start", "MB/s", True, 2.0),
    ("consume_1k", "consume, 1 KB (or client above 90 % of a core)", "MB/s", True, 2.0),
    ("consume_1k_client", "    the client's CPU", "% of a core", True, None),
    ("consume_1k_thread", "    its busiest thread's", "% of a core", True, None),
    ("consume_1k_cpu", "    broker CPU", "s per GB", False, 1.0),
    ("socket_p50", "one-at-a-time produce, bare socket, p50", "ms", False, 0.5),
    ("socket_p99", "    p99", "ms", False, 0.5),
    ("one_core_p50", "    the same, client and broker on one core, p50", "ms", False, 0.5),
    ("one_core_p99", "    p99", "ms", False, 0.5),
    ("librdkafka_p50", "one-at-a-time produce, librdkafka, p50", "ms", False, 0.5),
    ("librdkafka_p99", "    p99", "ms", False, 0.5),
    ("start", "start: command to first acknowledged record", "s", False, None),
    ("rss", "broker RSS, idle, all of the above done", "MB", False, 0.25),
]
THREE_BROKERS: list[Row] = [
    ("produce_1k_first", "produce, acks=all, RF 3, 1 KB, the first round after the start", "MB/s", True, 2.0),
    ("produce_1k", "produce, acks=all, RF 3, 1 KB, 1 partition", "MB/s", True, 2.0),
    ("produce_1k_client", "    the client's CPU", "% of a core", True, None),
    ("produce_1k_thread", "    its busiest thread's", "% of a core", True, None),
    ("produce_1k_cpu", "    CPU of the three brokers", "s per GB", False, 1.0),
    ("produce_100", "produce, acks=all, RF 3, 100 B, 1 partition", "MB/s", True, 1.2),
    ("produce_100_client", "    the client's CPU", "% of a core", True, None),
    ("produce_100_thread", "    its busiest thread's", "% of a core", True, None),
    ("produce_100_cpu", "    CPU of the three brokers", "s per GB", False, 1.0),
    ("socket_p50", "one-at-a-time produce, RF 3, bare socket, p50", "ms", False, 1.0),
    ("socket_p99", "    p99", "ms", False, 1.0),
    ("librdkafka_p50", "one-at-a-time produce, RF 3, librdkafka, p50", "ms", False, 1.0),
    ("librdkafka_p99", "    p99", "ms", False, 1.0),
    ("start", "start: command to first acknowledged RF-3 record (klamm: at most 1.5 s)", "s", False, None),
    ("rss", "RSS per broker, idle, all of the above done", "MB", False, 0.25),
]
ROWS = {1: ONE_BROKER, 3: THREE_BROKERS}


class Bench:
    """The measurements; `samples[side name][row key]` collects one number per round.

    Every topic has one partition with a replica on each broker.
    """

    def __init__(self, sides: list[Side], brokers: int, scale: float, step: Callable[[str], None]) -> None:
        self.sides, self.brokers, self.scale, self.step = sides, brokers, scale, step
        self.samples: dict[str, dict[str, list[float]]] = {side.name: defaultdict(list) for side in sides}

    def count(self, records: int) -> int:
        return max(1000, int(records * self.scale))

    def start_times(self, rounds: int) -> None:
        for _ in range(rounds):
            for side in self.sides:
                self.step(f"start {side.name}")
                os.sync()
                try:
                    self.samples[side.name]["start"].append(first_acknowledged(side))
                finally:
                    side.kill()

    def round(self, number: int, *, measured: bool) -> None:
        """One turn of every measurement on every side."""
        large, small = TRANSFERS[self.brokers]
        for side in self.sides:
            values = self._produce_and_consume(side, f"bench-1k-{number}", 1024, self.count(large), "1k")
            values |= self._produce_and_consume(side, f"bench-100-{number}", 100, self.count(small), "100")
            values |= self._roundtrips(side, number)
            if number == 0:
                # Its own rows: the JVM takes gigabytes to compile what is hot, and users see it cold as well as warm.
                for key in values.keys() & {"produce_1k", "consume_1k"}:
                    self.samples[side.name][f"{key}_first"].append(values[key])
            if measured:
                for key, value in values.items():
                    self.samples[side.name][key].append(value)

    def idle_memory(self) -> None:
        for side in self.sides:
            self.samples[side.name]["rss"].append(side.broker_rss_bytes() / MB)

    def _produce_and_consume(self, side: Side, topic: str, size: int, count: int, label: str) -> dict[str, float]:
        values: dict[str, float] = {}
        with fresh_topic(side, topic):
            values |= self._transfer(side, f"produce_{label}", topic, count, size)
            if size >= 1000 and self.brokers == 1:
                values |= self._transfer(side, f"consume_{label}", topic, count, size)
        return values

    def _transfer(self, side: Side, key: str, topic: str, count: int, size: int) -> dict[str, float]:
        self.step(f"{key.replace('_', ' ')} {side.name}")
        cpu = side.broker_cpu_seconds()
        result = client(side, key.partition("_")[0], topic, count, "--size-bytes", str(size))
        cpu = side.broker_cpu_seconds() - cpu
        return {
            key: count * size / MB / result["seconds"],
            f"{key}_client": 100 * result["client_cpu_seconds"] / result["seconds"],
            f"{key}_thread": 100 * result["busiest_thread_share"],
            f"{key}_cpu": cpu / (count * size / 1e9),
        }

    def _roundtrips(self, side: Side, number: int) -> dict[str, float]:
        values: dict[str, float] = {}
        for transport in ("socket", "librdkafka"):
            self.step(f"one at a time ({transport}) {side.name}")
            with fresh_topic(side, f"bench-{transport}-{number}") as topic:
                result = client(side, "roundtrips", topic, self.count(5000), "--transport", transport)
            values |= {f"{transport}_p50": result["p50_ms"], f"{transport}_p99": result["p99_ms"]}
        if self.brokers > 1:
            return values
        self.step(f"one at a time (one core) {side.name}")
        with fresh_topic(side, f"bench-one-core-{number}") as topic, one_core(side.broker_pids()[0]):
            result = client(side, "roundtrips", topic, self.count(5000), "--transport", "socket")
        return values | {"one_core_p50": result["p50_ms"], "one_core_p99": result["p99_ms"]}


@contextlib.contextmanager
def one_core(pid: int) -> Iterator[None]:
    """Keeps the broker and what is started here on one core.

    Between two cores a round trip is mostly the time that a sleeping core takes to wake, above all in a virtual one.
    """
    everywhere = os.sched_getaffinity(0)
    core = {min(everywhere)}
    threads = [0, *(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())]
    try:
        for thread in threads:
            os.sched_setaffinity(thread, core)
        yield
    finally:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, everywhere)


def client(side: Side, what: str, topic: str, count: int, *options: str) -> dict[str, Any]:
    """One measurement in a client process of its own, after everything written before has reached the disk."""
    os.sync()
    touch_memory()
    command = [sys.executable, str(CLIENT), what, "--bootstrap", side.bootstrap, "--topic", topic]
    command += ["--count", str(count), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{side.name}: the client failed: {' '.join(command)}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def touch_memory() -> None:
    """Uses and frees the memory that the page cache will take next.

    A virtual machine gets its memory from the host when it first touches it, which can cost more than all that a broker
    does; who is measured on touched memory and who is not would be chance.
    """
    subprocess.run([sys.executable, "-c", f"bytearray({TOUCHED_BYTES})"], check=True)


@contextlib.contextmanager
def fresh_topic(side: Side, topic: str) -> Any:
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, side.brokers)])[topic].result(30)
    wait_until_led(side, topic)
    yield topic
    admin.delete_topics([topic])[topic].result(30)


def wait_until_led(side: Side, topic: str) -> None:
    """Waits until every broker knows the leader: a bare socket would not ask again."""
    deadline = time.monotonic() + 30
    for address in side.bootstrap.split(","):
        while not led(AdminClient({"bootstrap.servers": address, "log_level": 0}), topic, side.brokers):
            if time.monotonic() > deadline:
                raise SystemExit(f"{side.name}: nobody leads {topic} after 30 s")


def led(client: confluent_kafka.Producer | AdminClient, topic: str, replicas: int) -> bool:
    """Whether the broker that is asked knows a leader of partition 0, with so many replicas in sync.

    With a producer this creates the topic where the broker does so by itself.
    """
    try:
        metadata = client.list_topics(topic, timeout=1)
    except confluent_kafka.KafkaException:
        return False
    partition = metadata.topics[topic].partitions.get(0)
    return partition is not None and partition.leader in metadata.brokers and len(partition.isrs) == replicas


def first_acknowledged(side: Side) -> float:
    """Seconds from the launch of the program until a waiting producer has its first acknowledgement."""
    side.launch()
    start = time.perf_counter()
    # An impatient client, so that its own back-off is not what is measured.
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": side.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 10,
            "retry.backoff.ms": 10,
            "topic.metadata.refresh.fast.interval.ms": 10,
            "allow.auto.create.topics": True,
            "log_level": 0,
        }
    )
    # Asked for again at once: by itself librdkafka looks for a topic's leader once a second.
    while not led(producer, "start", side.brokers):
        if time.perf_counter() - start > 120:
            raise SystemExit(f"{side.name} has not led a topic within 120 s")
    errors: list[Any] = []
    producer.produce("start", b"first", on_delivery=lambda error, _: errors.append(error))
    if producer.flush(120) or errors != [None]:
        raise SystemExit(f"{side.name} did not take a record within 120 s: {errors}")
    return time.perf_counter() - start


def results(bench: Bench) -> list[dict[str, Any]]:
    """One entry per row: the median of each side and, with both, the ratio klamm / Kafka."""
    entries = []
    for key, title, unit, more_is_better, target in ROWS[bench.brokers]:
        medians = {name: statistics.median(samples[key]) for name, samples in bench.samples.items() if samples.get(key)}
        entry: dict[str, Any] = {"key": key, "title": title, "unit": unit, "medians": medians, "target": target}
        entry["samples"] = {name: samples[key] for name, samples in bench.samples.items() if samples.get(key)}
        entry["more_is_better"] = more_is_better
        if Kafka.name in medians and Klamm.name in medians:
            entry["ratio"] = medians[Klamm.name] / medians[Kafka.name]
            entry["met"] = met(entry) if target is not None else None
        entries.append(entry)
    by_key = {entry["key"]: entry for entry in entries}
    if "consume_1k" in by_key:
        consume, client_share = by_key["consume_1k"], by_key["consume_1k_client"]["medians"].get(Klamm.name, 0)
        if consume.get("met") is False and client_share > 90:
            consume["met"] = True
    return entries


def met(entry: dict[str, Any]) -> bool:
    return bool(entry["ratio"] >= entry["target"] if entry["more_is_better"] else entry["ratio"] <= entry["target"])


def table(entries: list[dict[str, Any]], sides: list[Side], rounds: int) -> Table:
    count = {1: "one broker", 3: "three brokers"}[sides[0].brokers]
    made = Table(title=f"{count}, this machine ({os.cpu_count()} cores), median of {rounds} rounds")
    made.add_column("what", no_wrap=True)
    for side in sides:
        made.add_column(side.name, justify="right")
    made.add_column("unit")
    made.add_column("klamm / Kafka", justify="right")
    made.add_column("target", justify="right")
    for entry in entries:
        target = entry["target"]
        sign = "≥" if entry["more_is_better"] else "≤"
        colour = {True: "green", False: "red", None: "default"}[entry.get("met")]
        made.add_row(
            entry["title"],
            *(number(entry["medians"].get(side.name)) for side in sides),
            entry["unit"],
            f"[{colour}]{number(entry['ratio'])}[/]" if "ratio" in entry else "",
            f"{sign} {target:g}" if target is not None else "",
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before that, not measured (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of the full number of records (default 1.0)")
    parser.add_argument("--brokers", type=int, choices=sorted(ROWS), default=1, help="of each program (default 1)")
    parser.add_argument("--side", choices=["kafka", "klamm", "both"], default="both", help="measure only one program")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    parser.add_argument("--dir", type=Path, help="where data goes (default: a temporary directory, removed at the end)")
    arguments = parser.parse_args()
    console = Console(width=max(120, Console().width))
    with contextlib.ExitStack() as stack:
        directory = arguments.dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="klamm-bench-")))
        sides: list[Side] = []
        if arguments.side in ("kafka", "both"):
            sides.append(Kafka(directory / "kafka", arguments.brokers))
        if arguments.side in ("klamm", "both"):
            sides.append(Klamm(directory / "klamm", arguments.brokers))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        progress = stack.enter_context(Progress(*columns, console=console, transient=True))
        steps_of_a_round = 6 if arguments.brokers == 1 else 4
        steps = len(sides) * (arguments.rounds + steps_of_a_round * (arguments.warm_up + arguments.rounds))
        task = progress.add_task("starting", total=steps)

        def step(what: str) -> None:
            progress.update(task, description=what.ljust(50), advance=1)

        bench = Bench(sides, arguments.brokers, arguments.scale, step)
        bench.start_times(arguments.rounds)
        for side in sides:
            stack.callback(side.kill)
            side.launch()
            side.wait_ready()
        for number_ in range(arguments.warm_up + arguments.rounds):
            bench.round(number_, measured=number_ >= arguments.warm_up)
        bench.idle_memory()
    entries = results(bench)
    console.print(table(entries, sides, arguments.rounds))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"cores": os.cpu_count(), "brokers": arguments.brokers, "rows": entries}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
