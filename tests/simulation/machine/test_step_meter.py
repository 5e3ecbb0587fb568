"""A step that does more than its share ends the run."""

import pytest

from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from klamm.storage.log.log import Log
from support.logs import append, open_log

PATH = "/file"


def run(program) -> None:
    """Runs `program(environment)` on a simulated machine."""
    world = World(seed=1)

    async def scenario() -> None:
        node = world.node("machine")
        await node.run(program(node.environment))

    world.run(scenario())


def written(environment, size_bytes):
    file = environment.file_system.open(PATH, create=True)
    file.write(0, bytes(size_bytes))
    return file


def test_reading_much_on_the_loop_ends_the_run():
    async def program(environment):
        written(environment, 100_000).read(0, 100_000)

    with pytest.raises(SimulationFailure, match="one step reads 100000 bytes from the disk, allowed are 65536"):
        run(program)


def test_syncing_many_files_on_the_loop_ends_the_run():
    async def program(environment):
        file = written(environment, 1)
        for _ in range(25):
            file.sync()

    with pytest.raises(SimulationFailure, match="one step syncs 25 files, allowed are 24"):
        run(program)


def test_touching_very_many_files_on_the_loop_ends_the_run():
    async def program(environment):
        for _ in range(1501):
            environment.file_system.exists(PATH)

    with pytest.raises(SimulationFailure, match="one step does 1501 operations on files, allowed are 1500"):
        run(program)


def test_off_the_loop_and_in_several_steps_all_of_it_is_allowed():
    async def program(environment):
        file = written(environment, 100_000)
        await environment.run_blocking(file.read, 0, 100_000)
        file.read(0, 50_000)
        await environment.run_blocking(file.size)
        file.read(0, 50_000)

    run(program)


# -- planted faults ---------------------------------------------------------------------------------------------------


async def truncate(environment):
    environment.disk = environment.file_system._disk
    log = open_log(environment)
    for number in range(2000):
        append(log, b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)
        if number % 100 == 0:
            await environment.run_blocking(int)
    log.truncate_to(1990, await log.prepare_truncation(1990))
    assert log.producer_state.entries[7].last_sequence == 1989


def test_a_truncation_walks_the_log_off_the_loop():
    run(truncate)


def test_a_truncation_that_walks_the_log_on_the_loop_is_found_out(monkeypatch):
    async def prepare_nothing(log, offset):
        return None

    monkeypatch.setattr(Log, "prepare_truncation", prepare_nothing)
    with pytest.raises(SimulationFailure, match=r"one step reads \d+ bytes from the disk"):
        run(truncate)
