"""`python -m klamm.simulation`: runs a cluster under random faults, once for each seed.

    python -m klamm.simulation --seeds 100                      seeds 0 to 99, until one fails
    python -m klamm.simulation --seeds 2000 --jobs 2 --keep-going   all of them, on two cores
    python -m klamm.simulation --first 17 --log                 seed 17 once more, with the log lines of the brokers
    python -m klamm.simulation --first 17 --trace F             the same, with the trace of the run in the file F
    python -m klamm.simulation --first 17 --record F            the same, recorded for `klamm cockpit F`
    python -m klamm.simulation --brokers 3 --protocols 2.4,2.8  three brokers, of two protocol versions in turn
    python -m klamm.simulation --first 17 --shrink F            if the seed fails, the shortest schedule that does, in F
    python -m klamm.simulation --replay F                       the schedule in the file F once more

Each seed draws the number of brokers, their protocols and the guarantees of the topics; an option that forces a choice
leaves the rest of the run unchanged. The exit status is 1 when a run has failed; the last line then names the seeds.
On a terminal a progress bar counts the runs.
"""

import argparse
import gc
import logging
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from klamm.base.progress import progress
from klamm.simulation.machine.process import CURRENT
from klamm.simulation.machine.world import World
from klamm.simulation.runs.random_faults import random_faults
from klamm.simulation.runs.shrinking import shrink, signature
from klamm.simulation.workloads.schedule import Schedule

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
    """The result of a run, with its text. A failed run has a signature, and a schedule if it got as far as its
    faults."""

    seed: int
    text: str
    virtual_s: float
    events: int
    schedule: Schedule | None = None
    signature: str | None = None

    @property
    def went_well(self) -> bool:
        return self.signature is None


def run_seed(arguments: argparse.Namespace, seed: int, schedule: Schedule | None = None) -> Outcome:
    """Runs the schedule that the seed draws, or the given one."""
    # The objects of the previous run are finalized before this run begins.
    gc.collect()
    world = World(seed)
    root = logging.getLogger()
    root.handlers = [_SimulatedLog(world) if arguments.log else logging.NullHandler()]
    root.setLevel(logging.INFO)
    known: list[Schedule] = []
    failure: Exception | None = None
    try:
        scenario = random_faults(
            world,
            brokers=arguments.brokers,
            steps=arguments.steps,
            protocols=arguments.protocols and arguments.protocols.split(","),
            schedule=schedule,
            on_schedule=known.append,
        )
        with world.recorded(arguments.record):
            counts = world.run(scenario, TIME_LIMIT_S)
    except Exception as error:
        failure = error
    finally:
        if arguments.trace:
            with open(arguments.trace, "w") as file:
                file.writelines(f"{line}\n" for line in world.trace.lines)
    seconds = world.loop.time_us / 1e6
    if failure is None:
        text = f"seed {seed}: {counts} in {seconds:.1f} virtual seconds, trace {world.trace.hash()[:16]}"
        return Outcome(seed, text, seconds, world.loop.steps)
    text = f"seed {seed}: FAILED after {seconds:.1f} virtual seconds: {failure!r}"
    return Outcome(
        seed,
        "".join(traceback.format_exception(failure)) + text,
        seconds,
        world.loop.steps,
        known[0] if known else None,
        signature(failure),
    )


def _outcomes(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """The outcomes, in the order of the seeds."""
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    run = partial(run_seed, arguments)
    # The modules outlive all runs: the collections in a run need not walk through them.
    gc.freeze()
    if arguments.jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        try:
            yield from pool.map(run, seeds)
        finally:
            pool.shutdown(cancel_futures=True)


def _shrink(arguments: argparse.Namespace, failed: Outcome) -> None:
    """Writes the shortest schedule that fails as the run did into the file that `--shrink` names."""
    if failed.schedule is None:
        print(f"seed {failed.seed} failed before its first fault: there is nothing to shrink")
        return
    with progress("shrinking", arguments.shrink_runs) as advance:

        def fails(candidate: Schedule) -> bool:
            advance(1)
            return run_seed(arguments, candidate.seed, candidate).signature == failed.signature

        if not fails(failed.schedule):
            print(f"seed {failed.seed} does not fail again: the run is not deterministic")
            return
        least = shrink(failed.schedule, fails, arguments.shrink_runs)
    Path(arguments.shrink).write_text(least.to_json())
    print(f"seed {failed.seed}: {len(least.steps)} of {len(failed.schedule.steps)} steps are left, with {least.shape}:")
    for step in least.steps:
        print(f"    {step}")
    print(f"python -m klamm.simulation --replay {arguments.shrink}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m klamm.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, each in a process")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, also when some fail")
    parser.add_argument("--brokers", type=int, help="number of brokers; by default each seed draws it")
    parser.add_argument(
        "--steps", type=int, help="number of faults and operator actions in a run; by default each seed draws it"
    )
    parser.add_argument(
        "--protocols",
        help="inter.broker.protocol.version; brokers take several versions in turn; by default each seed draws them",
    )
    parser.add_argument(
        "--shrink", metavar="FILE", help="write the shortest schedule of the first failed run into FILE"
    )
    parser.add_argument("--shrink-runs", type=int, default=100, help="number of runs to shrink a schedule with")
    parser.add_argument("--replay", metavar="FILE", help="run the schedule that --shrink has written, and no seeds")
    parser.add_argument("--log", action="store_true", help="print the log lines of the simulated programs")
    parser.add_argument(
        "--record", metavar="FILE", help="record the last run in FILE, for klamm cockpit FILE; not with several jobs"
    )
    parser.add_argument("--trace", help="file for the trace of the last run; not with several jobs")
    arguments = parser.parse_args()
    if arguments.jobs > 1 and (arguments.trace or arguments.log or arguments.record):
        parser.error("--trace, --log and --record are for one run at a time: leave out --jobs")
    return arguments


def _read_schedule(path: str) -> Schedule:
    try:
        return Schedule.from_json(Path(path).read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")


def main() -> None:
    """See the module."""
    arguments = _arguments()
    if arguments.replay:
        schedule = _read_schedule(arguments.replay)
        outcome = run_seed(arguments, schedule.seed, schedule)
        print(outcome.text)
        sys.exit(not outcome.went_well)
    began_s = time.monotonic()
    runs, virtual_s, events, failed = 0, 0.0, 0, list[Outcome]()
    with progress("seeds", arguments.seeds) as advance:
        for outcome in _outcomes(arguments):
            print(outcome.text, flush=True)
            advance(1)
            runs, virtual_s, events = runs + 1, virtual_s + outcome.virtual_s, events + outcome.events
            if not outcome.went_well:
                failed.append(outcome)
                if not arguments.keep_going:
                    break
    real_s = time.monotonic() - began_s
    print(
        f"{runs} runs, {events:,} events, {virtual_s / 3600:.2f} virtual hours in {real_s / 3600:.2f} hours:"
        f" {virtual_s / real_s:.1f} virtual seconds a second"
    )
    if failed and arguments.shrink:
        _shrink(arguments, failed[0])
    if failed:
        print(f"failed: seeds {', '.join(str(outcome.seed) for outcome in failed)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
