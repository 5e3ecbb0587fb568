"""`python -m support.planted_faults`: hunts the planted faults and prints the table of `docs/simulation.md`.

    python -m support.planted_faults                    all of them, each until a seed finds it
    python -m support.planted_faults --jobs 2           two hunts at a time
    python -m support.planted_faults lost-watch         one of them
    python -m support.planted_faults --first 1000       other seeds than those of the table
    python -m support.planted_faults --mixed 60 kafka-10548   in up to 60 mixed runs, not in its own scenario

The exit status is 1 when the seeds do not find a fault in time, or when a run fails otherwise than the table says.
"""

import argparse
import logging
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

from klamm.simulation.runs.random_faults import random_faults
from support.arguments import positive
from support.planted_faults.fault import Found, PlantedFault, hunt
from support.planted_faults.faults import BY_NAME

HEAD = """\
| planted fault | what this build does | found by | within | first found by |
|---|---|---|---|---|"""


def _chosen(name: str, mixed_runs: int | None) -> PlantedFault:
    fault = BY_NAME[name]
    return fault if mixed_runs is None else replace(fault, scenario=random_faults, within=mixed_runs)


def _hunt(first: int, mixed_runs: int | None, name: str) -> Found | None:
    logging.disable()
    fault = _chosen(name, mixed_runs)
    return hunt(fault, range(first, first + fault.within))


def _row(fault: PlantedFault, found: Found | None) -> str:
    if found is None:
        result = "no seed"
    elif not found.is_symptom:
        result = f"seed {found.seed}, which says: {found.failure}"
    else:
        result = f"seed {found.seed}"
    return f"| {fault.name} | {fault.what} | {fault.checker} | {fault.within} seeds | {result} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m support.planted_faults", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"by default all: {', '.join(BY_NAME)}")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--mixed",
        type=positive,
        metavar="RUNS",
        help="hunt in RUNS mixed runs, instead of the scenarios of the table",
    )
    parser.add_argument("--jobs", type=positive, default=1, help="number of parallel hunts (default: 1)")
    arguments = parser.parse_args()
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
        hunts = pool.map(partial(_hunt, arguments.first, arguments.mixed), names)
        for name, found in zip(names, hunts, strict=True):
            print(_row(_chosen(name, arguments.mixed), found), flush=True)
            if found is None or not found.is_symptom:
                missed.append(name)
    if missed:
        print(f"not found as expected: {', '.join(missed)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
