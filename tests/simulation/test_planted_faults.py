"""Builds of the simulator with one planted fault each: the seeds of the mixed random run find them.

`python -m support.planted_faults` does the same for all, and prints the table of docs/simulation.md.
"""

import re
from pathlib import Path

import pytest

from klamm.simulation.machine.world import World
from support.planted_faults import __main__ as command
from support.planted_faults.fault import TIME_LIMIT_S, Found, PlantedFault, Replacement, Scenario, hunt
from support.planted_faults.faults import BY_NAME, FAULTS
from support.planted_faults.scenarios import (
    copiers_at_work,
    copy_of_a_rotten_log,
    late_stop_replica,
    load_of_a_rotten_log,
    log_of_a_former_topic,
)

DOCUMENT = Path(__file__).parents[2] / "docs/simulation.md"
# These run a scenario, which takes two seconds, once or twice.
CHEAP = (
    "stop-replica-without-epoch",
    "unchecked-copies",
    "unchecked-loads",
    "stranger-commits",
    "silent-in-a-rebalance",
    "commit-without-offsets",
)


@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.long) for name in BY_NAME]
)
def test_the_seeds_find_a_planted_fault(name: str) -> None:
    fault = BY_NAME[name]
    found = hunt(fault, range(fault.within))
    assert found is not None, f"{name} is not found within {fault.within} seeds"
    assert found.is_symptom, found


def test_there_are_at_least_twelve_planted_faults() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 12


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "scenario",
    [
        copy_of_a_rotten_log,
        load_of_a_rotten_log,
        late_stop_replica,
        log_of_a_former_topic,
        pytest.param(copiers_at_work, marks=pytest.mark.long),
    ],
)
def test_klamm_without_the_fault_passes_the_scenario(scenario: Scenario, seed: int) -> None:
    world = World(seed)
    world.run(scenario(world), TIME_LIMIT_S)


class Owner:
    value = 1


def test_a_planted_fault_is_gone_when_its_run_ends() -> None:
    fault = PlantedFault("one", "", (Replacement(Owner, "value", 2),), "", "", 1)
    with pytest.raises(KeyError), fault.planted():
        assert Owner.value == 2
        raise KeyError
    assert Owner.value == 1


def test_the_document_has_the_table_of_the_command() -> None:
    text = DOCUMENT.read_text()
    assert command.HEAD in text
    rows = re.findall(r"^\| ([\w-]+) \| (.*) \| (.*) \| (\d+) seeds \| seed (\d+) \|$", text, re.MULTILINE)
    assert [row[:4] for row in rows] == [(f.name, f.what, f.checker, str(f.within)) for f in FAULTS]
    assert all(int(seed) < int(within) for *_, within, seed in rows)


@pytest.mark.parametrize(
    "found, last",
    [
        (Found(4, 5, "what it says", True), "seed 4"),
        (Found(4, 5, "something else", False), "seed 4, which says: something else"),
        (None, "no seed"),
    ],
)
def test_the_command_says_which_seed_has_found_a_fault(found: Found | None, last: str) -> None:
    assert command._row(BY_NAME["lost-watch"], found).split(" | ")[-1] == f"{last} |"


@pytest.mark.parametrize(
    "options, error",
    [
        (["no-such-fault"], "there is no planted fault 'no-such-fault'; there are truncation-by-high-watermark, "),
        (["--jobs", "0"], "argument --jobs: 0: a whole number of at least 1 is allowed"),
    ],
)
def test_the_command_says_what_is_allowed(
    options: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["planted", *options])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 2
    assert error in capsys.readouterr().err
