"""`python -m klamm.simulation`: runs of a cluster under random faults, one for each seed, until one fails.

    python -m klamm.simulation --seeds 100            seeds 0 to 99
    python -m klamm.simulation --protocols 2.4,2.8    brokers of two protocol versions, in turn
    python -m klamm.simulation --first 17 --log       seed 17 once more, with what the brokers log
    python -m klamm.simulation --first 17 --trace F   and with the trace of the run in the file F

The exit status is 1 when a run has failed; the last line then names the seed.
"""

import argparse
import logging
import sys
import traceback

from klamm.simulation.cluster import NEWEST_PROTOCOL
from klamm.simulation.process import CURRENT
from klamm.simulation.random_faults import random_faults
from klamm.simulation.world import World

# Virtual: the faults of a run, and two phases of three minutes after them.
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


def run_seed(seed: int, arguments: argparse.Namespace) -> bool:
    """One run; whether it went well."""
    world = World(seed)
    root = logging.getLogger()
    root.handlers = [_SimulatedLog(world) if arguments.log else logging.NullHandler()]
    root.setLevel(logging.INFO)
    try:
        scenario = random_faults(
            world, brokers=arguments.brokers, steps=arguments.steps, protocols=arguments.protocols.split(",")
        )
        counts = world.run(scenario, TIME_LIMIT_S)
    except BaseException as error:
        traceback.print_exception(error)
        print(f"seed {seed}: FAILED after {world.loop.time_us / 1e6:.1f} virtual seconds: {error!r}")
        if isinstance(error, KeyboardInterrupt):
            raise
        return False
    finally:
        if arguments.trace:
            with open(arguments.trace, "w") as file:
                file.writelines(f"{line}\n" for line in world.trace.lines)
    print(f"seed {seed}: {counts} in {world.loop.time_us / 1e6:.1f} virtual seconds, trace {world.trace.hash()[:16]}")
    return True


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m klamm.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="faults in a run")
    parser.add_argument(
        "--protocols",
        default=NEWEST_PROTOCOL,
        help="inter.broker.protocol.version; several are those of brokers in turn",
    )
    parser.add_argument("--log", action="store_true", help="print what the programs log")
    parser.add_argument("--trace", help="file for the trace of the last run")
    arguments = parser.parse_args()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if not run_seed(seed, arguments):
            sys.exit(1)


if __name__ == "__main__":
    main()
