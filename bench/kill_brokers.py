"""Kills every broker of a cluster in turn under load, again and again, and counts what became of every record.

    kill_brokers.py                       three klamm brokers, two rounds with and two without waiting for the ISR
    kill_brokers.py --cluster kafka       the same for three brokers of Apache Kafka 2.8.2, to know the harness
    kill_brokers.py --cluster mixed       one Kafka, two klamm, on one Apache ZooKeeper 3.5.9

Exit code 1 when anything acknowledged was lost, doubled or reordered where it may not be, or replicas differ.
"""

import argparse
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import sides  # noqa: F401  it makes tests/ importable
from rich.console import Console

from support.durability.brokers import Brokers, KlammBrokers, ProcessBrokers, Program
from support.durability.kills import Pass, run

PROGRAMS: dict[str, list[Program]] = {
    "kafka": ["kafka", "kafka", "kafka"],
    "mixed": ["kafka", "klamm", "klamm"],
}
PASSES = {"isr": [True], "no-wait": [False], "both": [True, False]}


@contextlib.contextmanager
def cluster(kind: str, directory: Path, min_insync_replicas: int) -> Iterator[Brokers]:
    properties = {"min.insync.replicas": min_insync_replicas}
    running: contextlib.AbstractContextManager[Brokers]
    if kind == "klamm":
        running = KlammBrokers.running(directory, properties)
    else:
        running = ProcessBrokers.running(directory, PROGRAMS[kind], properties)
    with running as brokers:
        yield brokers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", choices=["klamm", *PROGRAMS], default="klamm")
    parser.add_argument("--rounds", type=int, default=2, help="times that every broker is killed in a pass (default 2)")
    parser.add_argument("--passes", choices=sorted(PASSES), default="both", help="wait for the ISR, not, or one each")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--rate", type=int, default=2500, help="records a second of each of the two producers")
    parser.add_argument("--down", type=float, default=2.0, help="seconds until a killed broker is started again")
    parser.add_argument("--min-insync-replicas", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--dir", type=Path, help="where data goes and stays (default: a temporary directory, removed)")
    arguments = parser.parse_args()
    console, started_at = Console(), time.monotonic()
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # that a server is not up yet is no news
    with contextlib.ExitStack() as stack:
        directory = arguments.dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="klamm-kills-")))
        status = stack.enter_context(console.status("the cluster starts"))
        brokers = stack.enter_context(cluster(arguments.cluster, directory, arguments.min_insync_replicas))

        def tell(what: str) -> None:
            if what.startswith("killed"):
                console.print(what, highlight=False, soft_wrap=True)
            status.update(f"{time.monotonic() - started_at:.0f} s: {what}")

        report = run(
            brokers,
            [Pass(arguments.rounds, wait_for_isr) for wait_for_isr in PASSES[arguments.passes]],
            partitions=arguments.partitions,
            records_per_s=arguments.rate,
            down_s=arguments.down,
            tell=tell,
        )
    for line in report.lines():
        console.print(line, highlight=False, soft_wrap=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    sys.exit(1 if report.problems() else 0)


if __name__ == "__main__":
    main()
