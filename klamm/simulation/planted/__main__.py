"""`python -m klamm.simulation.planted`: hunts the planted faults and prints the table of `docs/simulation.md`.

    python -m klamm.simulation.planted                    all of them, each until a seed finds it
    python -m klamm.simulation.planted --jobs 2           two hunts at a time
    python -m klamm.simulation.planted lost-watch         one of them
    python -m klamm.simulation.planted --first 1000       other seeds than those of the table

The exit status is 1 when the seeds do not find a fault in time, or when a run fails otherwise than the table says.
"""

import argparse
import logging
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from klamm.simulation.planted.fault import Found, hunt
from klamm.simulation.planted.faults import BY_NAME

HEAD = """\
| planted fault | what this build does | found by | within | first found by |
|---|---|---|---|---|"""


def _hunt(first: int, name: str) -> Found | None:
    logging.disable()
    fault = BY_NAME[name]
    return hunt(fault, range(first, first + fault.within))


def _row(name: str, found: Found | None) -> str:
    fault = BY_NAME[name]
    if found is None:
        result = "no seed"
    elif not found.is_symptom:
        result = f"seed {found.seed}, which says: {found.failure}"
    else:
        result = f"seed {found.seed}"
    return f"| {fault.name} | {fault.what} | {fault.checker} | {fault.within} seeds | {result} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m klamm.simulation.planted", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"by default all: {', '.join(BY_NAME)}")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel hunts, each in a process (default: 1)")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: at least 1")
    for name in arguments.faults:
        if name not in BY_NAME:
            parser.error(f"there is no planted fault {name!r}; there are {', '.join(BY_NAME)}")
    return arguments


def main() -> None:
    """See the module."""
    arguments = _arguments()
    names = arguments.faults or list(BY_NAME)
    missed = []
    print(HEAD, flush=True)
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("fork")) as pool:
        for name, found in zip(names, pool.map(partial(_hunt, arguments.first), names), strict=True):
            print(_row(name, found), flush=True)
            if found is None or not found.is_symptom:
                missed.append(name)
    if missed:
        print(f"not found as expected: {', '.join(missed)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
