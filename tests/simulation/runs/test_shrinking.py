"""How a failing schedule is cut to its least, and that a schedule is the whole run."""

import dataclasses
import random
import sys
from typing import Any

import pytest

from klamm.simulation import __main__ as sweep
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from klamm.simulation.runs.random_faults import random_faults
from klamm.simulation.runs.shrinking import shrink, signature
from klamm.simulation.workloads.run_shape import RunShape, draw_shape
from klamm.simulation.workloads.schedule import Schedule, Step
from support.planted_faults.faults import BY_NAME

SHAPE = RunShape(
    5,
    replication_factor=3,
    min_insync_replicas=2,
    protocols=("2.4", "2.8"),
    logs_flush=True,
    lagging=(1, 4),
    small_slices=True,
    has_racks=True,
    replica_fetchers=3,
    preallocates=True,
    clocks_drift=True,
)
SIMPLE: dict[str, Any] = {
    "brokers": 3,
    "protocols": ("2.8",),
    "lagging": (),
    "small_slices": False,
    "has_racks": False,
    "clients": (),
}
SCHEDULE = Schedule(7, SHAPE, tuple(Step(2.0, f"action-{number}", number) for number in range(18)))


def numbers(schedule: Schedule) -> list[int]:
    return [step.number for step in schedule.steps]


@pytest.mark.parametrize("needed", [[], [0], [17], [3, 11], [2, 3, 4], list(range(18))])
def test_only_the_needed_steps_are_left(needed: list[int]) -> None:
    least = shrink(SCHEDULE, lambda candidate: set(needed) <= set(numbers(candidate)), 500)
    assert numbers(least) == needed


def test_a_step_begins_when_it_did_while_others_are_left_out() -> None:
    def fails(candidate: Schedule) -> bool:
        began_s, at_s = {}, 0.0
        for step in candidate.steps:
            at_s += step.pause_s
            began_s[step.number] = at_s
        return (began_s.get(3), began_s.get(11)) == (8.0, 24.0)

    least = shrink(SCHEDULE, fails, 500)
    assert [(step.number, step.pause_s) for step in least.steps] == [(3, 8.0), (11, 16.0)]


def test_the_shape_becomes_as_simple_as_the_failure_allows() -> None:
    least = shrink(SCHEDULE, lambda candidate: candidate.shape.has_racks, 500)
    assert least.shape == dataclasses.replace(
        SHAPE, **SIMPLE | {"has_racks": True}, replica_fetchers=1, preallocates=False, clocks_drift=False
    )


@pytest.mark.parametrize("max_runs", [0, 1, 5])
def test_the_number_of_runs_is_limited_and_the_result_has_failed(max_runs: int) -> None:
    tried: list[Schedule] = []

    def fails(candidate: Schedule) -> bool:
        tried.append(candidate)
        return {3, 11} <= set(numbers(candidate))

    least = shrink(SCHEDULE, fails, max_runs)
    assert len(tried) == max_runs
    assert {3, 11} <= set(numbers(least))


def test_failures_of_one_cause_have_one_signature() -> None:
    one = SimulationFailure("events-0: Acknowledged(base_offset=17) was acknowledged, the log has []\n  and more")
    other = SimulationFailure("events-2: Acknowledged(base_offset=4) was acknowledged, the log has []")
    assert signature(one) == signature(other) == "SimulationFailure: events-#: Acknowledged"
    assert signature(AssertionError()) != signature(one) != signature(SimulationFailure("deadlock: nothing is left"))


def test_what_a_failure_lists_and_what_has_caused_it_belong_to_its_signature() -> None:
    def not_whole(missing: str) -> SimulationFailure:
        return SimulationFailure(f"not whole 180.0 s after everything was healed:\n  {missing}\n  and more")

    whole = signature(not_whole("broker 1 is not up"))
    assert whole == "SimulationFailure: not whole #.# s after everything was healed:  broker # is not up"
    assert whole == signature(not_whole("broker 4 is not up")) != signature(not_whole("there is no controller"))
    caused = SimulationFailure("broker 1 ended: AssertionError('broker 1 gave up')")
    caused.__cause__ = OSError(5, "EIO")
    assert signature(caused) == "SimulationFailure: broker # ended: AssertionError from OSError: "


def test_no_schedule_is_run_twice() -> None:
    tried: list[Schedule] = []

    def fails(candidate: Schedule) -> bool:
        tried.append(candidate)
        return {3, 11} <= set(numbers(candidate))

    shrink(SCHEDULE, fails, 500)
    assert len(tried) == len(set(tried))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_real_failure_of_a_mixed_run_is_shrunk(monkeypatch) -> None:
    """A planted fault fails a seed of 18 steps; the replayed schedule of fewer steps fails in the same way."""
    monkeypatch.setattr(sys, "argv", ["klamm.simulation", "--steps", "18"])
    arguments = sweep._arguments()
    with BY_NAME["acknowledged-before-the-isr"].planted():
        failed = next(found for found in (sweep.run_seed(arguments, seed) for seed in range(20)) if found.schedule)
        schedule = failed.schedule
        assert schedule is not None
        seed = schedule.seed
        least = shrink(
            schedule,
            lambda candidate: sweep.run_seed(arguments, seed, candidate).signature == failed.signature,
            50,
        )
        replayed = sweep.run_seed(arguments, seed, Schedule.from_json(least.to_json()))
    assert replayed.signature == failed.signature
    assert str(failed.signature).startswith("AssertionError")
    assert len(least.steps) < len(schedule.steps)


def test_a_schedule_survives_its_json() -> None:
    assert Schedule.from_json(SCHEDULE.to_json()) == SCHEDULE
    drawn = Schedule(3, draw_shape(random.Random(3)), ())
    assert Schedule.from_json(drawn.to_json()) == drawn


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seed": 1, "shape": {}, "steps": []}', '{"seed": 1, "shape": 2}'])
def test_another_text_is_no_schedule(text: str) -> None:
    with pytest.raises(ValueError):
        Schedule.from_json(text)


# Both have small slices and two protocol versions; the first is one of the shortest runs.
@pytest.mark.parametrize("seed", [1, pytest.param(5, marks=pytest.mark.long)])
def test_a_schedule_is_the_whole_run(seed: int) -> None:
    known: list[Schedule] = []
    one, other = World(seed), World(seed)
    one.run(random_faults(one, brokers=3, steps=3, on_schedule=known.append), 3600)
    schedule = Schedule.from_json(known[0].to_json())
    other.run(random_faults(other, schedule=schedule), 3600)
    assert one.trace.hash() == other.trace.hash()


def test_an_unknown_step_is_named() -> None:
    world = World(5)
    schedule = Schedule(5, SHAPE, (Step(0.0, "sing", 0),))
    with pytest.raises(ValueError, match="this run knows no 'sing'; it knows add-partitions, bounce-broker"):
        world.run(random_faults(world, schedule=schedule), 3600)


def test_a_failed_seed_is_shrunk_and_replayed(tmp_path, monkeypatch, capsys) -> None:
    async def scenario(world, *, schedule, on_schedule, **_):
        schedule = schedule or dataclasses.replace(SCHEDULE, seed=world.seed)
        on_schedule(schedule)
        assert 11 not in numbers(schedule), "planted"
        return "nothing"

    monkeypatch.setattr(sweep, "random_faults", scenario)
    path = str(tmp_path / "schedule.json")
    for options in (["--first", "7", "--shrink", path], ["--replay", path]):
        monkeypatch.setattr(sys, "argv", ["simulation", *options])
        with pytest.raises(SystemExit) as end:
            sweep.main()
        assert end.value.code == 1
    printed = capsys.readouterr().out
    assert "seed 7: 1 of 18 steps are left" in printed
    assert printed.count("seed 7: FAILED") == 2
    assert numbers(Schedule.from_json((tmp_path / "schedule.json").read_text())) == [11]


def test_a_file_without_a_schedule_is_refused_with_a_sentence(tmp_path, monkeypatch) -> None:
    (tmp_path / "other.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["simulation", "--replay", str(tmp_path / "other.json")])
    with pytest.raises(SystemExit, match="not a schedule of the simulation"):
        sweep.main()
