"""Plays seeds, several at a time, and shrinks what differs.

What must stay true: a difference counts when it comes each time the sequence is played. What comes once and not again
is of chance (a broker that took its time), and is counted by itself.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from klamm.simulation.runs.shrinking import fewest
from support.requests_beside.answers import Difference
from support.requests_beside.play import Outcome, Pair
from support.requests_beside.step import Step, without_spoil
from support.requests_beside.stories import Grammar

AGAIN = 2
MAX_SHRINK_RUNS = 60


@dataclass
class Found:
    """One difference: the seeds that have it, and the shortest sequence found."""

    difference: Difference
    seeds: list[int]
    steps: Sequence[Step]

    def __str__(self) -> str:
        steps = "\n".join(f"{number:>4} {step}" for number, step in enumerate(self.steps))
        seeds = ", ".join(map(str, self.seeds[:10]))
        at = ".".join(map(str, self.difference.path))
        return (
            f"seeds {seeds} ({len(self.seeds)} of them): step {self.difference.step}, {self.difference.api}, {at}:\n"
            f"    Kafka: {self.difference.kafka}\n    klamm: {self.difference.klamm}\n{steps}\n"
        )


@dataclass
class Report:
    """What all seeds have shown."""

    sequences: int = 0
    requests: int = 0
    apis: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    passing: list[str] = field(default_factory=list)

    def has(self, place: str, seed: int) -> bool:
        """Whether another seed has found this place; then this seed is noted there."""
        for found in self.found:
            if found.difference.place == place:
                found.seeds.append(seed)
                return True
        return False


async def run_seeds(
    pair: Pair,
    seeds: Iterable[int],
    *,
    jobs: int = 4,
    shrinks: bool = True,
    stops: bool = False,
    advance: Callable[[int], object] = lambda number: None,
    tell: Callable[[str], object] = lambda line: None,
) -> Report:
    """Plays the sequences of these seeds; `stops` at the first difference."""
    await pair.begin()
    report = Report()
    turns = iter(seeds)

    async def work() -> None:
        for seed in turns:
            if stops and report.found:
                return
            await _run_seed(pair, seed, report, tell)
            advance(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(jobs):
            group.create_task(work())
    if stops:
        del report.found[1:]
    if shrinks:
        for found in report.found:
            found.steps = await shrink(pair, found.steps, found.difference.place)
            found.difference = (await pair.play(found.steps)).difference or found.difference
    return report


async def _run_seed(pair: Pair, seed: int, report: Report, tell: Callable[[str], object]) -> None:
    steps = Grammar(seed).steps()
    outcome = await pair.play(steps)
    report.sequences += 1
    report.requests += outcome.requests
    report.apis.update(step.api.message_name for step in steps)
    report.known.update(known.name for known in outcome.known)
    if outcome.difference is None:
        return
    place = outcome.difference.place
    if report.has(place, seed):
        return
    for _ in range(AGAIN):
        if not _differs_at(await pair.play(steps), place):
            report.passing.append(f"seed {seed}: {place}")
            return
    # Another seed may have found the same meanwhile.
    if not report.has(place, seed):
        tell(f"seed {seed} differs: {place}")
        report.found.append(Found(outcome.difference, [seed], steps))


def _differs_at(outcome: Outcome, place: str) -> bool:
    return outcome.difference is not None and outcome.difference.place == place


async def shrink(pair: Pair, steps: Sequence[Step], place: str) -> Sequence[Step]:
    """The least sequence found that differs in this place."""
    runs = 0

    async def differs(candidate: Sequence[Step]) -> bool:
        nonlocal runs
        runs += 1
        return runs <= MAX_SHRINK_RUNS and _differs_at(await pair.play(candidate), place)

    loop = asyncio.get_running_loop()

    def fails(candidate: Sequence[Step]) -> bool:
        return asyncio.run_coroutine_threadsafe(differs(candidate), loop).result()

    steps = await asyncio.to_thread(fewest, steps, fails)
    for number in range(len(steps)):
        step = steps[number]
        for spoil in reversed(range(len(step.spoils))):
            less = without_spoil(step, spoil)
            candidate = [*steps[:number], less, *steps[number + 1 :]]
            if await differs(candidate):
                steps, step = candidate, less
    return steps
