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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from klamm.base.progress import progress
from support.arguments import positive
from support.planted_faults.fault import PlantedFault
from support.requests_beside import brokers
from support.requests_beside.planted import FAULTS
from support.requests_beside.play import Pair
from support.requests_beside.runs import Found, Report, run_seeds
from support.requests_beside.stories import Grammar


@contextmanager
def both(kafka: str | None, fault: PlantedFault | None) -> Iterator[Pair]:
    """A broker of each program, set up alike; `kafka` is the address of one that runs already."""
    with tempfile.TemporaryDirectory(prefix="requests-beside-") as directory, ExitStack() as stack:
        # Its process is forked before this one has threads.
        klamm = stack.enter_context(brokers.klamm(Path(directory, "klamm"), fault))
        yield Pair(kafka or stack.enter_context(brokers.kafka(Path(directory))), klamm)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m support.requests_beside", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=positive, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=positive, default=4, help="number of sequences at a time (default: 4)")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="ask this broker of Kafka instead of a new one")
    parser.add_argument("--plant", choices=FAULTS, help="plant a wrong answer in klamm, to see when it is found")
    parser.add_argument("--steps", action="store_true", help="print the requests of the seeds and send none")
    parser.add_argument("--no-shrink", action="store_true", help="print sequences that differ as they were drawn")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args()


def show(report: Report, seconds: float) -> None:
    for found in report.found:
        print(found)
    for line in report.passing:
        print(f"once and not again: {line}")
    for name, times in sorted(report.known.items()):
        print(f"known: {name}: {times} times")
    print(
        f"{report.sequences} sequences, {report.requests} requests in {seconds:.0f} s,"
        f" {len(report.found)} differences, {len(report.passing)} that came once and not again"
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
    with (
        both(arguments.kafka, FAULTS.get(arguments.plant)) as pair,
        progress("sequences", arguments.seeds) as advance,
    ):
        report = asyncio.run(
            run_seeds(
                pair,
                seeds,
                jobs=arguments.jobs,
                shrinks=not arguments.no_shrink,
                stops=bool(arguments.plant),
                advance=advance,
                tell=partial(print, file=sys.stderr, flush=True),
            )
        )
    if arguments.json:
        print(as_json(report))
    else:
        show(report, time.monotonic() - began_s)
    if report.found:
        sys.exit(1)


if __name__ == "__main__":
    main()
