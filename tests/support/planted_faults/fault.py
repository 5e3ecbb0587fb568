"""What a planted fault is, and how seeds hunt for it.

What must stay true: a fault is gone when its block ends, and every run of one seed with one fault is the same.
"""

import re
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from klamm.simulation.machine.world import World
from klamm.simulation.runs.random_faults import random_faults

# Virtual time, as in `python -m klamm.simulation`.
TIME_LIMIT_S = 3600.0


Scenario = Callable[[World], Coroutine[Any, Any, object]]


class Replacement(NamedTuple):
    """The attribute `name` of `owner`, a class or a module, is `by` instead."""

    owner: object
    name: str
    by: object


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A fault in a build of the simulator. `symptom` is a regular expression: what the `checker`, a module of
    `klamm.simulation`, says of it. The seeds from 0 on find it `within` this number of runs of the `scenario`."""

    name: str
    what: str
    replacements: tuple[Replacement, ...]
    checker: str
    symptom: str
    within: int
    scenario: Scenario = random_faults

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Inside, klamm has the fault."""
        usual = [vars(owner)[name] for owner, name, _ in self.replacements]
        try:
            for owner, name, by in self.replacements:
                setattr(owner, name, by)
            yield
        finally:
            for (owner, name, _), value in zip(self.replacements, usual, strict=True):
                setattr(owner, name, value)


class Found(NamedTuple):
    """The run that failed first, how many runs it took, and what the failure says, in one line."""

    seed: int
    runs: int
    failure: str
    is_symptom: bool


def hunt(fault: PlantedFault, seeds: Iterable[int]) -> Found | None:
    """Runs the seeds with the fault until one fails; None if none does."""
    for runs, seed in enumerate(seeds, 1):
        world = World(seed)
        try:
            with fault.planted():
                world.run(fault.scenario(world), TIME_LIMIT_S)
        except Exception as error:
            failure = " ".join(str(error).split())
            return Found(seed, runs, failure, re.search(fault.symptom, failure) is not None)
    return None
