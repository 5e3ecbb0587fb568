"""`python -m klamm.simulation`: runs a cluster under random faults, once for each seed.

    python -m klamm.simulation --seeds 100                      seeds 0 to 99, until one fails
    python -m klamm.simulation --seeds 2000 --jobs 2 --keep-going   all of them, on two cores
    python -m klamm.simulation --first 17 --log                 seed 17 once more, with the log lines of the brokers
    python -m klamm.simulation --first 17 --trace F             the same, with the trace of the run in the file F
    python -m klamm.simulation --brokers 3 --protocols 2.4,2.8  three brokers, of two protocol versions in turn

Each seed draws the number of brokers, their protocols and the guarantees of the topics; an option that forces a choice
leaves the rest of the run unchanged. The exit status is 1 when a run has failed; the last line then names the seeds.
"""

import argparse
import logging
import multiprocessing
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from klamm.simulation.process import CURRENT
from klamm.simulation.random_faults import STEPS, random_faults
from klamm.simulation.world import World

# Virtual time, for the faults of a run and the phases of three minutes after them.
TIME_LIMIT_S = 3600.0


class _SimulatedLog(logging.Handler):
    """Log lines with virtual time and the process that wrote them."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get(self._world.loop.outside)
        lines = [f"{self._world.loop.time_us:>12} {process} {record.levelname} {record.name}: {record.getMessage()}"]
        if record.exc_info:
            lines += traceback.format_exception(*record.exc_info)
        print("\n".join(lines))


class Outcome(NamedTuple):
    """The result of a run, with its text."""

    seed: int
    went_well: bool
    text: str


def run_seed(arguments: argparse.Namespace, seed: int) -> Outcome:
    """Runs one seed."""
    world = World(seed)
    root = logging.getLogger()
    root.handlers = [_SimulatedLog(world) if arguments.log else logging.NullHandler()]
    root.setLevel(logging.INFO)
    try:
        scenario = random_faults(
            world,
            brokers=arguments.brokers,
            steps=arguments.steps,
            protocols=arguments.protocols and arguments.protocols.split(","),
        )
        counts = world.run(scenario, TIME_LIMIT_S)
    except Exception as error:
        seconds = world.loop.time_us / 1e6
        failed = f"seed {seed}: FAILED after {seconds:.1f} virtual seconds: {error!r}"
        return Outcome(seed, False, "".join(traceback.format_exception(error)) + failed)
    finally:
        if arguments.trace:
            with open(arguments.trace, "w") as file:
                file.writelines(f"{line}\n" for line in world.trace.lines)
    seconds = world.loop.time_us / 1e6
    return Outcome(
        seed, True, f"seed {seed}: {counts} in {seconds:.1f} virtual seconds, trace {world.trace.hash()[:16]}"
    )


def _outcomes(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """The outcomes, in the order of the seeds."""
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    run = partial(run_seed, arguments)
    if arguments.jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        try:
            yield from pool.map(run, seeds)
        finally:
            pool.shutdown(cancel_futures=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m klamm.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, each in a process")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, also when some fail")
    parser.add_argument("--brokers", type=int, help="number of brokers; by default each seed draws it")
    parser.add_argument("--steps", type=int, default=STEPS, help="number of faults and operator actions in a run")
    parser.add_argument(
        "--protocols",
        help="inter.broker.protocol.version; brokers take several versions in turn; by default each seed draws them",
    )
    parser.add_argument("--log", action="store_true", help="print the log lines of the simulated programs")
    parser.add_argument("--trace", help="file for the trace of the last run; not with several jobs")
    arguments = parser.parse_args()
    if arguments.jobs > 1 and (arguments.trace or arguments.log):
        parser.error("--trace and --log are for one run at a time: leave out --jobs")
    return arguments


def main() -> None:
    """See the module."""
    arguments = _arguments()
    failed = []
    for outcome in _outcomes(arguments):
        print(outcome.text, flush=True)
        if not outcome.went_well:
            failed.append(outcome.seed)
            if not arguments.keep_going:
                break
    if failed:
        print(f"failed: seeds {', '.join(map(str, failed))}")
        sys.exit(1)


if __name__ == "__main__":
    main()
