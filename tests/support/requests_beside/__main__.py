"""`python -m support.requests_beside`: sequences of requests to Apache Kafka 2.8.2 and to klamm, answers compared.

    python -m support.requests_beside --seeds 1000              seeds 0 to 999
    python -m support.requests_beside --first 17                seed 17 once more
    python -m support.requests_beside --first 17 --steps        its requests, without sending them

Each seed draws a sequence. What differs is played again, so that only what differs each time counts, and is shrunk:
steps are taken away, then spoiled fields set back, as long as the programs differ in the same place. The exit status is
1 when they differ where `known.py` has no reason. On a terminal a progress bar counts the sequences.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from klamm.base.progress import progress
from support.clusters import KlammBroker
from support.oracles import RealKafka, RealZooKeeper, kafka_jars
from support.requests_beside.play import PROPERTIES, Pair
from support.requests_beside.runs import Found, Report, run_seeds
from support.requests_beside.stories import Grammar


@contextmanager
def both(running: Sequence[str] | None) -> Iterator[Pair]:
    """A broker of each program, set up alike; `running` are the addresses of two that are there."""
    if running is not None:
        yield Pair(*running)
        return
    jars = kafka_jars()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="requests-beside-")))
        zookeeper = RealZooKeeper(jars, directory / "zookeeper")
        kafka = RealKafka(jars, directory / "kafka", f"{zookeeper.connect}/kafka", properties=PROPERTIES)
        klamm = KlammBroker(directory / "klamm", f"{zookeeper.connect}/klamm", properties=PROPERTIES)
        for server in (zookeeper, kafka, klamm):
            stack.callback(server.kill)
            server.start()
        yield Pair(kafka.bootstrap, klamm.bootstrap)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m support.requests_beside", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=4, help="number of sequences at a time (default: 4)")
    parser.add_argument(
        "--brokers", nargs=2, metavar=("KAFKA", "KLAMM"), help="ask these brokers (HOST:PORT) instead of two new ones"
    )
    parser.add_argument("--steps", action="store_true", help="print the requests of the seeds and send none")
    parser.add_argument("--no-shrink", action="store_true", help="print sequences that differ as they were drawn")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args()
    for name in ("seeds", "jobs"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}: at least 1")
    return arguments


def show(report: Report, seconds: float) -> None:
    for found in report.found:
        print(found)
    for name, times in sorted(report.known.items()):
        print(f"known: {name}: {times} times")
    print(
        f"{report.sequences} sequences, {report.requests} requests in {seconds:.0f} s,"
        f" {len(report.found)} differences, {len(report.passing)} sequences that differed once and not again"
    )


def as_json(report: Report) -> str:
    def of(found: Found) -> dict[str, object]:
        return {
            "place": found.difference.place,
            "seeds": found.seeds,
            "kafka": found.difference.kafka,
            "klamm": found.difference.klamm,
            "steps": [step.to_json() for step in found.steps],
        }

    return json.dumps(
        {
            "sequences": report.sequences,
            "requests": report.requests,
            "apis": report.apis,
            "differences": [of(found) for found in report.found],
            "known": report.known,
            "passing": report.passing,
        },
        indent=2,
    )


def main() -> None:
    """See the module."""
    arguments = _arguments()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.steps:
        for seed in seeds:
            print(f"seed {seed}")
            for number, step in enumerate(Grammar(seed).steps()):
                print(f"{number:>4} {step}")
        return
    began_s = time.monotonic()
    with both(arguments.brokers) as pair, progress("sequences", arguments.seeds) as advance:
        report = asyncio.run(
            run_seeds(pair, seeds, jobs=arguments.jobs, shrinks=not arguments.no_shrink, advance=advance)
        )
    if arguments.json:
        print(as_json(report))
    else:
        show(report, time.monotonic() - began_s)
    if report.found:
        sys.exit(1)


if __name__ == "__main__":
    main()
