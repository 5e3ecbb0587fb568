"""`python -m support.both_controllers`: plays scenarios under both controllers, one for each seed.

    python -m support.both_controllers --seeds 300              seeds 0 to 299
    python -m support.both_controllers --first 17               seed 17 once more
    python -m support.both_controllers --seeds 3000 --jobs 2    two pairs of clusters at a time
    python -m support.both_controllers --seeds 3000 --done F    seeds whose result is in the file F are not played again
    python -m support.both_controllers --replay F               the scenario in the file F, as a difference prints it

What differs is shrunk and printed. The exit status is 1 when anything differs that `known.py` does not name.
"""

import argparse
import json
import logging
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from klamm.base.progress import progress
from support import oracles
from support.arguments import positive
from support.both_controllers.drawing import draw
from support.both_controllers.playing import Outcome, pair
from support.both_controllers.steps import Scenario

# A new pair of clusters now and then: what a scenario leaves behind in a process shall not add up.
SEEDS_OF_A_PAIR = 25

Result = dict[str, Any]


def _result(seed: int | None, outcome: Outcome, shrunk: Outcome | None) -> Result:
    result: Result = {
        "seed": seed,
        "steps": outcome.played,
        "differs": outcome.signature,
        "ended_by": outcome.ended_by,
        "known": outcome.reasons,
    }
    if shrunk is not None:
        result["scenario"] = shrunk.scenario.encode()
        result["differences"] = [str(difference) for difference in shrunk.differences]
    return result


async def _play(scenarios: list[tuple[int | None, Scenario]], shrinks: bool, directory: Path) -> list[Result]:
    results = []
    async with pair(oracles.kafka_jars(), directory) as clusters:
        for seed, scenario in scenarios:
            outcome = await clusters.play(scenario)
            shrunk = None
            if outcome.differences:
                shrunk = await clusters.shrink(outcome) if shrinks else outcome
            results.append(_result(seed, outcome, shrunk))
    return results


def _play_seeds(seeds: list[int], shrinks: bool) -> list[Result]:
    logging.disable()
    with tempfile.TemporaryDirectory() as directory:
        return uvloop.run(_play([(seed, draw(seed)) for seed in seeds], shrinks, Path(directory)))


def _played(arguments: argparse.Namespace) -> Iterator[Result]:
    seeds = [*range(arguments.first, arguments.first + arguments.seeds)]
    if arguments.replay is not None:
        logging.disable()
        scenario = Scenario.decode(arguments.replay.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as directory:
            yield from uvloop.run(_play([(None, scenario)], arguments.shrink, Path(directory)))
        return
    earlier: list[Result] = []
    if arguments.done is not None and arguments.done.exists():
        earlier = [json.loads(line) for line in arguments.done.read_text(encoding="utf-8").splitlines()]
    done = {result["seed"]: result for result in earlier}
    yield from (done[seed] for seed in seeds if seed in done)
    left = [seed for seed in seeds if seed not in done]
    portions = [left[start : start + SEEDS_OF_A_PAIR] for start in range(0, len(left), SEEDS_OF_A_PAIR)]
    with ExitStack() as stack:
        file = None if arguments.done is None else stack.enter_context(arguments.done.open("a", encoding="utf-8"))
        context = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(arguments.jobs, context))
        for results in pool.map(_play_seeds, portions, [arguments.shrink] * len(portions)):
            for result in results:
                if file is not None:
                    print(json.dumps(result), file=file, flush=True)
                yield result


def _text(result: Result) -> str:
    lines = [f"seed {result['seed']} differs after {result['steps']} steps: {result['differs']}"]
    lines += [f"  {result['scenario']}", *(f"    {each}" for each in result["differences"])]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m support.both_controllers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=positive, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=positive, default=1, help="number of pairs of clusters at a time (default: 1)")
    parser.add_argument("--done", type=Path, metavar="F", help="file of results: its seeds are not played again")
    parser.add_argument("--replay", type=Path, metavar="F", help="play the scenario in this file instead of seeds")
    parser.add_argument(
        "--no-shrink", dest="shrink", action="store_false", help="leave differing scenarios as they are"
    )
    parser.add_argument("--json", action="store_true", help="print each result as JSON")
    return parser.parse_args()


def main() -> None:
    """See the module."""
    arguments = _arguments()
    count, steps, differing = 0, 0, []
    known: Counter[str] = Counter()
    with progress("scenarios", arguments.seeds) as advance:
        for result in _played(arguments):
            count += 1
            steps += result["steps"]
            known.update(result["known"])
            if result["differs"]:
                differing.append(result["seed"])
            if arguments.json:
                print(json.dumps(result), flush=True)
            elif result["differs"]:
                print(_text(result), flush=True)
            advance(1)
    if not arguments.json:
        for reason, times in known.most_common():
            print(f"known, {times} times: {reason}")
        print(
            f"{count} scenarios, {steps} steps, {len(differing)} differ" + (f": seeds {differing}" if differing else "")
        )
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
