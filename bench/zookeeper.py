"""klamm's embedded ZooKeeper server beside Apache ZooKeeper 3.5.9: the same client, the same work, as ratios.

Both servers sync every write to the disk before they acknowledge it. The client is klamm's own, pipelined. Each number
is the median of the rounds, which take turns.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sides import (
    KlammZooKeeper,
    RealZooKeeper,
    kafka_jars,
    listener,
    number,
    process_cpu_seconds,
    process_rss_bytes,
)

from klamm.base.system_environment import SystemEnvironment
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.messages import SetData

WINDOW = 1000
BATCH = 500
DATA = b"x" * 100

ROWS = [
    ("get", "get, pipelined", "per s", True),
    ("create", "create, pipelined", "per s", True),
    ("set", "set, pipelined", "per s", True),
    ("multi", f"set, in multi of {BATCH}", "per s", True),
    ("set_p50", "set, one at a time, p50", "ms", False),
    ("set_p99", "    p99", "ms", False),
    ("cpu", "server CPU for all of this", "s", False),
    ("rss", "server RSS at the end", "MB", False),
]


async def pipelined(count: int, submit: Callable[[int], Awaitable[Any]]) -> float:
    """Calls per second, with up to WINDOW of them unanswered."""
    start = time.perf_counter()
    for first in range(0, count, WINDOW):
        await asyncio.gather(*[submit(index) for index in range(first, min(count, first + WINDOW))])
    return count / (time.perf_counter() - start)


async def measure(connect: str, root: str, count: int) -> dict[str, float]:
    """Everything once, on znodes below `root`."""
    environment = SystemEnvironment()
    client = ZooKeeperClient(environment, connect)
    await client.start()
    try:
        await client.create(root, b"")
        paths = [f"{root}/{index}" for index in range(count)]
        values = {
            "create": await pipelined(count, lambda index: client.submit_create(paths[index], DATA)),
            "set": await pipelined(count, lambda index: client.submit_set(paths[index], DATA)),
            "get": await pipelined(count, lambda index: client.submit_get(paths[index])),
        }
        start = time.perf_counter()
        batches = [paths[first : first + BATCH] for first in range(0, count, BATCH)]
        await asyncio.gather(*[client.submit_multi([SetData(path, DATA) for path in batch]) for batch in batches])
        values["multi"] = count / (time.perf_counter() - start)
        latencies = []
        for path in paths[: max(200, count // 50)]:
            start = time.perf_counter()
            await client.set(path, DATA)
            latencies.append((time.perf_counter() - start) * 1000)
        percentiles = statistics.quantiles(latencies, n=100)
        return values | {"set_p50": percentiles[49], "set_p99": percentiles[98]}
    finally:
        await client.close()
        environment.close()


@contextlib.contextmanager
def servers(directory: Path) -> Iterator[dict[str, Any]]:
    started: dict[str, Any] = {
        "Apache ZooKeeper 3.5.9": RealZooKeeper(kafka_jars(), directory / "zookeeper", options=("-Xmx1g",)),
        "klamm": KlammZooKeeper(directory / "klamm"),
    }
    try:
        for server in started.values():
            server.start()
        yield started
    finally:
        for server in started.values():
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before that, not measured (default 2)")
    parser.add_argument("--count", type=int, default=20_000, help="znodes per round (default 20000)")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    arguments = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # it tells of every try before the server listens
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    console = Console(width=max(120, Console().width))
    with (
        tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory,
        servers(Path(directory)) as started,
        Progress(console=console, transient=True) as progress,
    ):
        rounds = arguments.warm_up + arguments.rounds
        task = progress.add_task("rounds", total=rounds * len(started))
        for round_number in range(rounds):
            for name, server in started.items():
                os.sync()
                pid = listener(server.port)
                cpu = process_cpu_seconds(pid)
                values = uvloop.run(measure(server.connect, f"/bench-{round_number}", arguments.count))
                values["cpu"] = process_cpu_seconds(pid) - cpu
                values["rss"] = process_rss_bytes(pid) / 1e6
                if round_number >= arguments.warm_up:
                    for key, value in values.items():
                        samples[name][key].append(value)
                progress.advance(task)
    table = Table(title=f"{arguments.count} znodes of {len(DATA)} B, median of {arguments.rounds} rounds")
    table.add_column("what", no_wrap=True)
    for name in samples:
        table.add_column(name, justify="right")
    table.add_column("unit")
    table.add_column("klamm / ZooKeeper", justify="right")
    for key, title, unit, more_is_better in ROWS:
        medians = [statistics.median(side[key]) for side in samples.values()]
        ratio = medians[1] / medians[0]
        colour = "green" if (ratio >= 1) == more_is_better else "red"
        table.add_row(title, *map(number, medians), unit, f"[{colour}]{number(ratio)}[/]")
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(samples, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
