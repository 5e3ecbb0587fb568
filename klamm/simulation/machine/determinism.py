"""Proves that a scenario is deterministic: runs it in two Python processes that hash strings differently.

`python -m klamm.simulation.machine.determinism FILE.py:FUNCTION SEED` prints the trace of one run. FUNCTION takes a
`World` and returns the scenario's coroutine.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any, cast

from klamm.simulation.machine.trace import first_difference, trace_hash
from klamm.simulation.machine.world import World

HASH_SEEDS = (1, 2)


class NotDeterministic(AssertionError):
    """Two runs with the same seed were not the same."""


def assert_same_trace(scenario: str, seed: int) -> list[str]:
    """Runs `FILE.py:FUNCTION` twice and compares the traces byte for byte; prints their length and hash.

    Returns the trace. NotDeterministic shows where the two differ, or how one of them failed.
    """
    traces = [_lines(scenario, seed, process) for process in [_start(scenario, seed, each) for each in HASH_SEEDS]]
    difference = first_difference(*traces)
    if difference is not None:
        raise NotDeterministic(f"{scenario} with seed {seed}: {difference}")
    trace = traces[0]
    print(f"{os.path.basename(scenario)} with seed {seed}: {len(trace)} lines, sha256 {trace_hash(trace)}")
    return trace


def _start(scenario: str, seed: int, hash_seed: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "klamm.simulation.machine.determinism", scenario, str(seed)],
        # A scenario may import the same modules as this process, such as modules that tests share.
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _lines(scenario: str, seed: int, process: "subprocess.Popen[str]") -> list[str]:
    output, errors = process.communicate()
    if process.returncode != 0:
        raise NotDeterministic(f"{scenario} with seed {seed} failed:\n{errors}")
    return output.splitlines()


def _load(scenario: str) -> Callable[[World], Coroutine[Any, Any, object]]:
    path, _, function = scenario.rpartition(":")
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("scenario", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Callable[[World], Coroutine[Any, Any, object]]", getattr(module, function))


def main() -> None:
    """See the module."""
    scenario, seed = sys.argv[1:]
    world = World(int(seed))
    world.run(_load(scenario)(world))
    print("\n".join(world.trace.lines))


if __name__ == "__main__":
    main()
