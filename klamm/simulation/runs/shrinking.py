"""Cuts a schedule that fails to a short one that fails in the same way.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): leave out half of
the steps, then quarters, and so on down to single steps, as long as the run still fails. Afterwards pauses become short
and the shape simpler where the failure allows it: fewer brokers and clients, no racks, no lag. No single step can be
left out of the result, but a schedule with other steps may be shorter.

What must stay true: the result has been run, and has failed with the same `signature` as the given schedule.
"""

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

from klamm.simulation.workloads.run_shape import CLIENTS, RunShape
from klamm.simulation.workloads.schedule import Schedule, Step

T = TypeVar("T")

SHORT_PAUSE_S = 0.5


def _without_client(shape: RunShape, client: str) -> RunShape:
    return replace(shape, clients=tuple(each for each in shape.clients if each != client))


# Simplifications of a shape, to be tried one after the other.
SIMPLER_SHAPES: Sequence[Callable[[RunShape], RunShape]] = (
    lambda shape: replace(shape, small_slices=False),
    lambda shape: replace(shape, lagging=()),
    lambda shape: replace(shape, has_racks=False),
    lambda shape: replace(shape, replica_fetchers=1),
    lambda shape: replace(shape, preallocates=False),
    lambda shape: replace(shape, clocks_drift=False),
    lambda shape: replace(shape, protocols=("2.8",)),
    *(partial(_without_client, client=client) for client in CLIENTS),
    lambda shape: replace(shape, brokers=3, lagging=tuple(each for each in shape.lagging if each < 3)),
)


def signature(error: BaseException) -> str:
    """Equal for failures that probably have the same cause. Consists of the kind of the error, the beginning of its
    first line without numbers, the beginning of the second line if the first announces a list, and the signature of its
    cause.
    """
    lines = (*str(error).splitlines(), "")
    told = _beginning(lines[0])
    if told.endswith(":"):
        told += _beginning(lines[1])
    own = f"{type(error).__name__}: {told}"
    return own if error.__cause__ is None else f"{own} from {signature(error.__cause__)}"


def _beginning(line: str) -> str:
    return re.sub("[0-9]+", "#", re.split(r"[(\[{]", line)[0])


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool], max_runs: int) -> Schedule:
    """The shortest failing schedule found with at most `max_runs` calls of `fails`. `schedule` is known to fail."""
    tried: dict[Schedule, bool] = {}

    def still_fails(candidate: Schedule) -> bool:
        if candidate not in tried and len(tried) < max_runs:
            tried[candidate] = fails(candidate)
        return tried.get(candidate, False)

    schedule = schedule.with_steps(
        _tried(fewest(schedule.steps, _without), lambda steps: still_fails(schedule.with_steps(steps)))
    )
    for number, step in enumerate(schedule.steps):
        hasty = replace(step, pause_s=min(step.pause_s, SHORT_PAUSE_S))
        candidate = schedule.with_steps((*schedule.steps[:number], hasty, *schedule.steps[number + 1 :]))
        if candidate != schedule and still_fails(candidate):
            schedule = candidate
    for simpler in SIMPLER_SHAPES:
        candidate = replace(schedule, shape=simpler(schedule.shape))
        if candidate != schedule and still_fails(candidate):
            schedule = candidate
    return schedule


def fewest(
    items: Sequence[T], without: Callable[[Sequence[T], int, int], Sequence[T]]
) -> Generator[Sequence[T], bool, Sequence[T]]:
    """Yields what to try next, is sent whether that fails, and returns the fewest items that do. `without` leaves out
    the items from one place up to another."""
    pieces = 1
    while items:
        size = -(-len(items) // pieces)
        for start in range(0, len(items), size):
            rest = without(items, start, start + size)
            if (yield rest):
                items, pieces = rest, max(pieces - 1, 1)
                break
        else:
            if size == 1:
                return items
            pieces = min(2 * pieces, len(items))
    return items


def _tried(attempts: Generator[Sequence[T], bool, Sequence[T]], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    try:
        attempt = next(attempts)
        while True:
            attempt = attempts.send(fails(attempt))
    except StopIteration as ended:
        return cast(Sequence[T], ended.value)


def _without(steps: Sequence[Step], start: int, end: int) -> Sequence[Step]:
    """The steps before `start` and from `end` on. They begin at the same times as before."""
    rest = list(steps[end:])
    if rest:
        left_out_s = sum(step.pause_s for step in steps[start:end])
        rest[0] = replace(rest[0], pause_s=round(rest[0].pause_s + left_out_s, 3))
    return (*steps[:start], *rest)
