"""What a broker under faults costs while there is no fault: the same produces to it and to a production broker.

| what        | how                                                                                             |
|-------------|-------------------------------------------------------------------------------------------------|
| one by one  | a record with acks=all is sent when the one before is acknowledged: p50                         |
| many        | records of 100 bytes as fast as klamm's client sends them, in batches of at most 1,000 bytes    |

Each round measures both brokers, in changing order: the time, and the CPU that the broker's process used for a record.
The table has the medians of the rounds and their ratio. On a busy machine the CPU is the one to look at.

    .venv/bin/python bench/faults.py --rounds 20
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from klamm.base.system_environment import SystemEnvironment
from klamm.client.admin.topics import NewTopic, create_topics
from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.producer import Producer, ProducerRecord
from klamm.faults.local_cluster import ClusterUnderFaults
from klamm.faults.servers import PRELOAD
from klamm.processes.helper import Helper
from klamm.processes.local_cluster import LocalCluster, Plan
from klamm.protocol.record.compression import CompressionType

TOPIC = "t"
VALUE = bytes(100)
SIDES = ("production", "under faults")


@contextmanager
def broker(directory: Path, *, is_under_faults: bool) -> Iterator[LocalCluster]:
    """A cluster with one broker."""
    # The modules of a helper are shared and never looked at by the garbage collector.
    with Helper(PRELOAD) as helper:
        cluster = (ClusterUnderFaults if is_under_faults else LocalCluster)(Plan(directory, 1), helper)
        with closing(cluster):
            cluster.start()
            yield cluster


class Side:
    """A client of one of the brokers."""

    def __init__(self, cluster: LocalCluster, environment: SystemEnvironment) -> None:
        address = cluster.addresses[0]
        self._pid = cluster.process(0).pid
        self.client = ClusterClient([address])
        at = ClientOptions((address,))
        options = ProducerOptions(at, CompressionType.NONE)
        self._one = Producer(self.client, options, environment)
        small = ProducerOptions(at, CompressionType.NONE, batch_size_bytes=1000)
        self._many = Producer(self.client, small, environment)

    async def one_by_one(self, count: int) -> tuple[float, float]:
        """p50, and the broker's CPU for a record; in microseconds."""
        taken, cpu_ns = [], self._cpu_ns()
        for _ in range(count):
            began = time.perf_counter()
            await self._one.send(ProducerRecord(TOPIC, VALUE, partition=0))
            await self._one.flush()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken) * 1e6, (self._cpu_ns() - cpu_ns) / count / 1e3

    async def as_fast_as_possible(self, count: int) -> tuple[float, float]:
        """The time and the broker's CPU for a record, in microseconds."""
        began, cpu_ns = time.perf_counter(), self._cpu_ns()
        for _ in range(count):
            await self._many.send(ProducerRecord(TOPIC, VALUE, partition=0))
        await self._many.flush()
        return (time.perf_counter() - began) / count * 1e6, (self._cpu_ns() - cpu_ns) / count / 1e3

    def _cpu_ns(self) -> int:
        return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[0])

    async def close(self) -> None:
        await self._one.close()
        await self._many.close()
        await self.client.close()


Found = dict[str, list[list[float]]]
"""For each row, the values of the rounds of each side."""


async def measure(clusters: Sequence[LocalCluster], rounds: int, singles: int, many: int) -> Found:
    environment = SystemEnvironment(blocking_workers=1)
    sides = [Side(cluster, environment) for cluster in clusters]
    found: Found = {}
    for side in sides:
        await create_topics(side.client, [NewTopic(TOPIC, 1, 1)])
        await side.one_by_one(singles)
        await side.as_fast_as_possible(many)
    for turn in range(rounds):
        order = (0, 1) if turn % 2 else (1, 0)
        for index in order:
            time_us, cpu_us = await sides[index].one_by_one(singles)
            found.setdefault("one by one, p50", [[], []])[index].append(time_us)
            found.setdefault("    CPU of the broker", [[], []])[index].append(cpu_us)
        for index in order:
            time_us, cpu_us = await sides[index].as_fast_as_possible(many)
            found.setdefault("many, for each", [[], []])[index].append(time_us)
            found.setdefault("    CPU of the broker ", [[], []])[index].append(cpu_us)
    for side in sides:
        await side.close()
    environment.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--singles", type=int, default=300, help="records sent one by one in a round")
    parser.add_argument("--many", type=int, default=20_000, help="records sent as fast as possible in a round")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        servers = [
            stack.enter_context(broker(Path(directory) / name.replace(" ", "-"), is_under_faults=name != SIDES[0]))
            for name in SIDES
        ]
        found = asyncio.run(measure(servers, arguments.rounds, arguments.singles, arguments.many))
    table = Table(title=f"median of {arguments.rounds} rounds, microseconds")
    for heading in ("what", *SIDES, "ratio of the medians", "lowest, highest ratio of a round"):
        table.add_column(heading)
    for what, (production, faulty) in found.items():
        first, second = statistics.median(production), statistics.median(faulty)
        ratios = sorted(b / a for a, b in zip(production, faulty, strict=True))
        table.add_row(
            what, f"{first:.1f}", f"{second:.1f}", f"{second / first:.3f}", f"{ratios[0]:.2f}, {ratios[-1]:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
