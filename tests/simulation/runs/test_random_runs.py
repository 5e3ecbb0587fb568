"""How a run of random faults is drawn, how it is varied, and how sweeps of seeds are told of."""

import argparse
import asyncio
import importlib
import random
import sys

import pytest

from klamm.simulation import __main__ as sweep
from klamm.simulation.machine.determinism import assert_same_trace
from klamm.simulation.machine.small_slices import SMALL, small_slices
from klamm.simulation.machine.world import World
from klamm.simulation.runs import random_faults
from klamm.simulation.workloads.run_shape import ACKS_ALL_CLIENTS, CLIENTS, RunShape, draw_shape

SHAPES = [draw_shape(random.Random(seed)) for seed in range(300)]


@pytest.mark.parametrize(
    "name, values",
    [
        ("brokers", {3, 4, 5}),
        ("replication_factor", {2, 3}),
        ("min_insync_replicas", {1, 2}),
        ("protocols", {("2.8",), ("2.4",), ("2.7",), ("2.4", "2.8")}),
        ("logs_flush", {False, True}),
        ("small_slices", {False, True}),
        ("has_racks", {False, True}),
        ("replica_fetchers", {1, 3}),
        ("preallocates", {False, True}),
        ("clocks_drift", {False, True}),
        ("producer_pause_s", {0.4, 1.2}),
    ],
)
def test_seeds_draw_runs_of_all_shapes(name: str, values: set[object]) -> None:
    assert {getattr(shape, name) for shape in SHAPES} == values


def test_runs_leave_clients_out_but_one_that_waits_for_all_replicas() -> None:
    assert all(set(shape.clients) & set(ACKS_ALL_CLIENTS) for shape in SHAPES)
    for client in CLIENTS:
        assert 0.4 < sum(client in shape.clients for shape in SHAPES) / len(SHAPES) < 0.8, client


def test_a_forced_choice_leaves_the_others_as_they_are() -> None:
    for seed in range(50):
        drawn = draw_shape(random.Random(seed))
        forced = draw_shape(random.Random(seed), brokers=5, protocols=["2.4"])
        assert (forced.brokers, forced.protocols) == (5, ("2.4",))
        assert (forced.logs_flush, forced.small_slices) == (drawn.logs_flush, drawn.small_slices)


def test_slices_are_small_for_a_while() -> None:
    def now() -> list[object]:
        return [getattr(importlib.import_module(module), name) for module, name, _ in SMALL]

    usual = now()
    with pytest.raises(KeyError), small_slices():
        assert now() == [small for _, _, small in SMALL]
        raise KeyError
    assert now() == usual
    assert all(value != small for value, (_, _, small) in zip(usual, SMALL, strict=True))


@pytest.mark.parametrize("takes_time", [False, True])
def test_a_yield_takes_time_if_turns_do(takes_time: bool) -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        # Neither the start of a task nor waiting for what is there is a yield.
        await asyncio.ensure_future(asyncio.sleep(0, result=None) if takes_time else nothing())
        for _ in range(10):
            await nothing()
        return loop.time() - began_at

    async def nothing() -> None: ...

    world = World(1)
    if takes_time:
        world.loop.turns = random.Random(1)
    assert (world.run(scenario()) > 0) == takes_time


def arguments(**options: object) -> argparse.Namespace:
    usual = {"brokers": None, "steps": 1, "protocols": None, "jobs": 1, "first": 0}
    usual |= {"log": False, "trace": None, "record": None}
    return argparse.Namespace(**usual | options)


def test_several_jobs_tell_the_same_in_the_same_order() -> None:
    alone, together = (
        list(sweep._outcomes(arguments(first=14, seeds=3, jobs=jobs, brokers=3, steps=3))) for jobs in (1, 2)
    )
    assert [outcome.seed for outcome in alone] == [14, 15, 16]
    assert alone == together


@pytest.mark.parametrize("keep_going, runs", [(False, [0, 1]), (True, [0, 1, 2, 3])])
def test_a_sweep_names_the_seeds_that_failed(
    keep_going: bool, runs: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(world: World, **_: object) -> str:
        assert world.seed not in (1, 3), "planted"
        return "nothing"

    monkeypatch.setattr(sweep, "random_faults", scenario)
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "4", *(["--keep-going"] if keep_going else [])])
    with pytest.raises(SystemExit) as end:
        sweep.main()
    assert end.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1][:-1]) for line in lines if line.startswith("seed ")] == runs
    assert lines[-1] == f"failed: seeds {', '.join(str(seed) for seed in runs if seed in (1, 3))}"


def test_a_run_is_the_same_in_two_processes() -> None:
    """Of small slices, so that everything yields, and with a topic that is compacted."""
    seed = next(seed for seed in range(100) if _is_wanted(_shape_of(seed)))
    trace = assert_same_trace(f"{random_faults.__file__}:random_faults", seed)
    assert sum(line.split()[1] == "faults" for line in trace) >= random_faults.STEPS[0]


def _is_wanted(shape: RunShape) -> bool:
    return shape.small_slices and shape.brokers == 3 and "compacting" in shape.clients


def _shape_of(seed: int) -> RunShape:
    return draw_shape(random.Random(f"{seed}/shape"))
